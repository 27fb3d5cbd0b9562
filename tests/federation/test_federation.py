from dataclasses import replace

import numpy as np
import pytest

from tdcd.data.table import Table
from tdcd.federation.silos import Federation, Silo

pytestmark = pytest.mark.quick

ROWS, COLUMNS = 60, ("age", "bmi", "income", "debt", "rent")


def table(num_rows=ROWS, name="people"):
    rng = np.random.default_rng(num_rows)
    features = rng.normal(size=(num_rows, len(COLUMNS))).astype(np.float32)
    return Table(name, features, rng.integers(0, 2, num_rows), "binary", COLUMNS)


def pictures(num_rows=12):
    features = np.arange(num_rows * 4 * 6, dtype=np.float32).reshape(num_rows, 4, 6)
    return Table("pictures", features, np.arange(num_rows) % 3, "multiclass")


def silo(name="bank", rows=((0, 1), (2, 3)), columns=(), num_rows=4):
    return Silo(name, np.zeros((num_rows, 2)), tuple(np.array(part, np.int64) for part in rows), columns)


def sizes(federation):
    return [[len(rows) for rows in member.rows] for member in federation.silos]


def test_a_cut_gives_every_silo_its_columns_of_all_samples():
    data = table()
    federation = Federation.cut(data, silos=2, clients=3)
    assert [member.name for member in federation.silos] == ["silo1", "silo2"]
    assert [member.columns for member in federation.silos] == [COLUMNS[:3], COLUMNS[3:]]
    np.testing.assert_array_equal(np.concatenate([m.features for m in federation.silos], axis=1), data.features)
    np.testing.assert_array_equal(federation.labels, data.labels)
    assert (federation.num_samples, federation.num_silos, federation.name) == (ROWS, 2, "people")


def test_named_silos_take_the_columns_they_name():
    data = table()
    federation = Federation.cut(data, silos={"clinic": ["bmi", "age"], "bank": ["debt"]})
    clinic, bank = federation.silos
    assert (clinic.name, clinic.columns, bank.name, bank.columns) == ("clinic", ("bmi", "age"), "bank", ("debt",))
    np.testing.assert_array_equal(clinic.features, data.features[:, [1, 0]])
    np.testing.assert_array_equal(bank.features, data.features[:, [3]])


@pytest.mark.parametrize("rule", ["contiguous", "shuffled", "dirichlet"])
def test_every_rule_partitions_the_rows(rule):
    federation = Federation.cut(table(), silos=3, clients=[4, 1, 2], rows=rule)
    assert [member.num_clients for member in federation.silos] == [4, 1, 2]
    for member in federation.silos:
        owner = member.owner()
        for client, rows in enumerate(member.rows):
            assert np.flatnonzero(owner == client).tolist() == rows.tolist()
        assert sum(map(len, member.rows)) == ROWS


@pytest.mark.parametrize("rule", ["shuffled", "dirichlet"])
def test_aligned_silos_split_alike_and_others_do_not(rule):
    def owners(aligned, seed=0):
        federation = Federation.cut(table(), silos=2, clients=3, rows=rule, aligned=aligned, seed=seed)
        return [member.owner().tolist() for member in federation.silos]

    assert owners(True)[0] == owners(True)[1]
    assert owners(False)[0] != owners(False)[1]
    assert owners(False) == owners(False)
    assert owners(False) != owners(False, seed=1)


def test_contiguous_rows_keep_the_order_of_the_table():
    federation = Federation.cut(table(), silos=2, clients=[2, 3], rows="contiguous")
    for member in federation.silos:
        assert np.concatenate(member.rows).tolist() == list(range(ROWS))


def test_sizes_are_proportions_for_all_silos_or_for_each():
    assert sizes(Federation.cut(table(), silos=2, clients=3, sizes=[3, 2, 1])) == [[30, 20, 10]] * 2
    cut = Federation.cut(table(), silos=2, clients=[2, 3], sizes=[[50, 10], [1, 1, 2]])
    assert sizes(cut) == [[50, 10], [15, 15, 30]]


def test_images_are_cut_into_upright_strips():
    data = pictures()
    federation = Federation.cut(data, silos=3)
    assert [member.feature_shape for member in federation.silos] == [(4, 2)] * 3
    np.testing.assert_array_equal(np.concatenate([m.features for m in federation.silos], axis=2), data.features)
    assert all(member.columns == () for member in federation.silos)


def test_images_are_cut_into_runs_of_pixels_on_demand():
    data = pictures()
    federation = Federation.cut(data, silos=5, strips=False)
    assert [member.feature_shape for member in federation.silos] == [(5,), (5,), (5,), (5,), (4,)]
    flat = np.concatenate([member.features for member in federation.silos], axis=1)
    np.testing.assert_array_equal(flat, data.features.reshape(12, 24))


def test_the_bias_is_a_last_column_of_ones_in_the_first_silo():
    first, second = Federation.cut(table(), table(7), silos=2, bias=True).silos
    assert first.columns == (*COLUMNS[:3], "bias")
    assert second.columns == COLUMNS[3:]
    assert (first.features[:, -1] == 1).all()
    assert (first.test_features[:, -1] == 1).all()
    np.testing.assert_array_equal(first.features[:, :-1], table().features[:, :3])
    assert first.features.dtype == np.float32


def test_a_bias_flattens_images():
    first, second = Federation.cut(pictures(), silos=2, bias=True).silos
    np.testing.assert_array_equal(first.features[:, :-1], pictures().features[:, :, :3].reshape(12, 12))
    assert (first.features[:, -1] == 1).all()
    assert second.feature_shape == (4, 3)


def test_held_out_samples_are_cut_by_the_same_columns():
    test = replace(table(9), label_scale=2.0)
    federation = Federation.cut(replace(table(), label_scale=2.0), test, silos=2)
    held_out = np.concatenate([member.test_features for member in federation.silos], axis=1)
    np.testing.assert_array_equal(held_out, test.features)
    np.testing.assert_array_equal(federation.test_labels, test.labels)
    assert federation.label_scale == 2.0


def test_a_federation_prints_as_one_line():
    assert repr(Federation.cut(table(), silos=2, clients=[4, 2])) == (
        "Federation of 'people': 60 samples, 2 silos (silo1: 3 columns, 4 clients; ...)"
    )
    assert repr(Federation.cut(pictures(), silos=1)) == (
        "Federation of 'pictures': 12 samples, 1 silo (silo1: 4x6 pixels, 1 client)"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"silos": 6}, "5 columns cannot be cut into 6 silos: every silo needs a column"),
        ({"silos": 0}, "5 columns cannot be cut into 0 silos"),
        ({"silos": {}}, "a federation needs at least one silo"),
        ({"silos": {"bank": ["wage"]}}, "silo 'bank' names column 'wage', which the table does not have"),
        ({"silos": {"a": ["age"], "b": ["age"]}}, "column 'age' is in silo 'a' and again in silo 'b'"),
        ({"silos": 2, "clients": [1, 2, 3]}, r"there are 2 silos, but client counts for 3: \[1, 2, 3\]"),
        ({"silos": 2, "clients": [2]}, r"there are 2 silos, but client counts for 1: \[2\]"),
        ({"clients": [1, 61]}, "silo 'silo2': 60 rows cannot be spread over 61 clients: every client needs a row"),
        ({"clients": 0}, "silo 'silo1': a silo needs at least one client"),
        ({"clients": 2, "sizes": [1, 2, 3]}, "silo 'silo1': 2 clients, but 3 sizes"),
        ({"clients": 2, "sizes": [[1, 1], [1]]}, "silo 'silo2': 2 clients, but 1 size"),
        ({"clients": 2, "sizes": [1, 0]}, "silo 'silo1': client 1 would be empty: its size is 0"),
        ({"clients": 2, "sizes": [[1, 1]]}, "sizes has 1 entry: give one per client, or one list per silo"),
        ({"clients": 2, "sizes": [[1, 1]] * 3}, "sizes"),
        ({"clients": 2, "sizes": []}, "sizes"),
        ({"rows": "dirichlet", "sizes": [1]}, "silo 'silo1': rows = 'dirichlet' draws the shard sizes itself"),
        ({"rows": "dirichlet", "alpha": 0}, "silo 'silo1': the Dirichlet concentration alpha must be positive, not 0"),
        ({"rows": "sorted"}, "sorted"),
    ],
)
def test_a_cut_that_cannot_be_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Federation.cut(table(), **arguments)


def test_images_have_no_columns_to_name():
    with pytest.raises(ValueError, match="silo 'left' names column '0', which the table does not have"):
        Federation.cut(pictures(), silos={"left": ["0"]})
    with pytest.raises(ValueError, match="an image 6 pixels wide cannot be cut into 7 strips"):
        Federation.cut(pictures(), silos=7)


@pytest.mark.parametrize(
    ("silos", "message"),
    [
        ([], "a federation needs at least one silo"),
        ([silo(), silo()], "two silos are called 'bank'"),
        ([silo(num_rows=5)], "silo 'bank' has 5 rows of features for 4 labels"),
        ([silo(rows=())], "silo 'bank' has no clients"),
        ([silo(rows=((0, 1, 2, 3), ()))], "silo 'bank': client 1 holds no rows"),
        ([silo(rows=((0, 1), (2, 4)))], "silo 'bank': client 1 holds row 4; there are 4 samples"),
        ([silo(rows=((0, -1), (2, 3)))], "silo 'bank': client 0 holds row -1; there are 4 samples"),
        ([silo(rows=((0, 1), (2, 3, 2)))], "silo 'bank': client 1 holds row 2 twice"),
        ([silo(rows=((0, 1), (2, 3, 1)))], "silo 'bank': row 1 is held by client 0 and by client 1"),
        ([silo("clinic"), silo(rows=((0,), (3, 1)))], "silo 'bank': row 2 is held by no client"),
    ],
)
def test_silos_that_are_no_partition_are_refused(silos, message):
    with pytest.raises(ValueError, match=message):
        Federation(tuple(silos), np.zeros(4))


def test_silos_may_use_the_same_names_for_columns_of_their_own():
    bank, clinic = silo("bank", columns=("age", "x0")), silo("clinic", columns=("x0", "x1"))
    assert Federation((bank, clinic), np.zeros(4)).num_silos == 2


def test_held_out_samples_must_be_held_by_every_silo():
    message = "silo 'clinic' must hold its columns of the 3 held-out samples"
    bank = replace(silo(), test_features=np.zeros((3, 2)))
    for clinic in (silo("clinic"), replace(silo("clinic"), test_features=np.zeros((2, 2)))):
        with pytest.raises(ValueError, match=message):
            Federation((bank, clinic), np.zeros(4), np.zeros(3))


def test_held_out_samples_must_have_the_columns_of_the_training_samples():
    bank = replace(silo(), test_features=np.zeros((3, 5)))
    with pytest.raises(ValueError, match="silo 'bank'"):
        Federation((bank,), np.zeros(4), np.zeros(3))


def test_owner_is_the_client_that_holds_each_row():
    assert silo(rows=((3, 0), (1,), (2,))).owner().tolist() == [0, 1, 2, 0]
