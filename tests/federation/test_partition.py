import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from support.examples import num_examples
from tdcd.federation.partition import (
    contiguous_columns,
    contiguous_rows,
    dirichlet_rows,
    equal_sizes,
    image_strips,
    named_columns,
    proportional_sizes,
    shuffled_rows,
)

pytestmark = pytest.mark.quick


def rng(seed=0):
    return np.random.default_rng(seed)


def assert_partition(rows, num_rows):
    """Every row is held once, by clients that list theirs in order and hold at least one."""
    assert np.sort(np.concatenate(rows)).tolist() == list(range(num_rows))
    for part in rows:
        assert len(part) > 0
        assert part.tolist() == sorted(part.tolist())


@pytest.mark.parametrize(("columns", "silos"), [(5, 1), (5, 2), (5, 5), (82, 4), (7, 3)])
def test_contiguous_columns_are_runs_of_nearly_equal_width(columns, silos):
    parts = contiguous_columns(columns, silos)
    assert np.concatenate(parts).tolist() == list(range(columns))
    assert len(parts) == silos
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("silos", [0, 4])
def test_more_silos_than_columns_are_refused(silos):
    with pytest.raises(ValueError, match=f"3 columns cannot be cut into {silos} silos: every silo needs a column"):
        contiguous_columns(3, silos)


def test_named_columns_come_in_the_order_in_which_they_are_named():
    parts = named_columns(["age", "bmi", "income", "debt"], {"bank": ["debt", "income"], "clinic": ["age"]})
    assert [part.tolist() for part in parts] == [[3, 2], [0]]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"bank": ["income"], "clinic": []}, "silo 'clinic' has no columns"),
        ({"bank": ["incme"]}, "silo 'bank' names column 'incme', which the table does not have"),
        ({"bank": ["age"], "clinic": ["age"]}, "column 'age' is in silo 'bank' and again in silo 'clinic'"),
        ({"bank": ["age", "age"]}, "column 'age' is in silo 'bank' and again in silo 'bank'"),
    ],
)
def test_named_columns_that_are_no_partition_are_refused(groups, message):
    with pytest.raises(ValueError, match=message):
        named_columns(["age", "income"], groups)


@pytest.mark.parametrize("width", [1, 8, 28, 49])
def test_image_strips_cover_the_image_from_left_to_right(width):
    for silos in range(1, width + 1):
        strips = image_strips(width, silos)
        assert [column for strip in strips for column in range(width)[strip]] == list(range(width))
        widths = [strip.stop - strip.start for strip in strips]
        assert min(widths) > 0
        assert max(widths) - min(widths) <= 1


@pytest.mark.parametrize("silos", [0, 29])
def test_more_strips_than_pixels_are_refused(silos):
    with pytest.raises(ValueError, match=f"an image 28 pixels wide cannot be cut into {silos} strips"):
        image_strips(28, silos)


def test_contiguous_rows_are_runs():
    assert [part.tolist() for part in contiguous_rows(6, [1, 3, 2])] == [[0], [1, 2, 3], [4, 5]]


def test_shuffled_rows_are_dealt_by_the_generator():
    rows = shuffled_rows(50, [5, 30, 15], rng(1))
    assert_partition(rows, 50)
    assert [len(part) for part in rows] == [5, 30, 15]
    assert rows[0].tolist() == shuffled_rows(50, [5, 30, 15], rng(1))[0].tolist()
    assert rows[0].tolist() != shuffled_rows(50, [5, 30, 15], rng(2))[0].tolist()


def test_sizes_that_do_not_add_up_are_refused():
    with pytest.raises(ValueError, match="the clients' sizes add up to 5, but there are 6 rows"):
        contiguous_rows(6, [2, 3])
    with pytest.raises(ValueError, match="the clients' sizes add up to 7, but there are 6 rows"):
        shuffled_rows(6, [4, 3], rng())


@given(num_clients=st.integers(1, 60), extra=st.integers(0, 500))
def test_equal_sizes_differ_by_one_at_most(num_clients, extra):
    sizes = equal_sizes(num_clients + extra, num_clients)
    assert sum(sizes) == num_clients + extra
    assert len(sizes) == num_clients
    assert max(sizes) - min(sizes) <= 1


@given(sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=30))
def test_sizes_that_add_up_are_kept(sizes):
    assert proportional_sizes(sum(sizes), sizes) == sizes


@given(num_rows=st.integers(1, 3000), sizes=st.lists(st.floats(0.01, 100), min_size=1, max_size=20))
def test_proportional_sizes_are_within_a_row_of_their_share(num_rows, sizes):
    shares = np.array(sizes) / sum(sizes) * num_rows
    assume(shares.min() > 1)
    counts = proportional_sizes(num_rows, sizes)
    assert sum(counts) == num_rows
    assert np.all(np.abs(counts - shares) <= 1)


@pytest.mark.parametrize(
    ("num_rows", "sizes", "message"),
    [
        (3, [], "a silo needs at least one client"),
        (3, [1, 1, 1, 1], "3 rows cannot be spread over 4 clients: every client needs a row"),
        (9, [2, 0, 1], "client 1 would be empty: its size is 0"),
        (9, [2, -1], "client 1 would be empty: its size is -1"),
        (9, [float("nan")], "client 0 would be empty: its size is nan"),
        (9, [1, 100], "client 0 would be empty: size 1 of 101 is less than one row"),
    ],
)
def test_sizes_that_leave_a_client_empty_are_refused(num_rows, sizes, message):
    with pytest.raises(ValueError, match=message):
        proportional_sizes(num_rows, sizes)


def test_more_clients_than_rows_are_refused():
    with pytest.raises(ValueError, match="2 rows cannot be spread over 3 clients: every client needs a row"):
        equal_sizes(2, 3)
    with pytest.raises(ValueError, match="2 rows cannot be spread over 3 clients: every client needs a row"):
        dirichlet_rows(np.array([0, 1]), 3, 1.0, rng())


@num_examples(30)
@given(
    seed=st.integers(0, 2**31),
    num_clients=st.integers(1, 6),
    alpha=st.sampled_from([0.2, 1.0, 100.0]),
    real=st.booleans(),
)
def test_dirichlet_rows_are_a_partition(seed, num_clients, alpha, real):
    labels = rng(seed).normal(size=200) if real else rng(seed).integers(0, 10, 200)
    assert_partition(dirichlet_rows(labels, num_clients, alpha, rng(seed)), 200)


def skew(labels, rows):
    """The mean distance, in total variation, of the clients' label shares from everybody's."""
    everybody = np.bincount(labels, minlength=10) / len(labels)
    shares = [np.bincount(labels[part], minlength=10) / len(part) for part in rows]
    return np.mean([np.abs(share - everybody).sum() / 2 for share in shares])


def test_dirichlet_skew_grows_as_alpha_falls():
    labels = rng().integers(0, 10, 5000)
    skews = [
        np.mean([skew(labels, dirichlet_rows(labels, 5, alpha, rng(seed))) for seed in range(10)])
        for alpha in (1000.0, 10.0, 1.0, 0.1)
    ]
    assert skews == sorted(skews)
    assert skews[0] < 0.05
    assert skews[-1] > 0.5


def test_dirichlet_groups_real_labels_by_deciles():
    labels = rng().normal(size=4000)
    deciles = np.searchsorted(np.quantile(labels, np.linspace(0.1, 0.9, 9)), labels)
    even, skewed = (dirichlet_rows(labels, 4, alpha, rng(3)) for alpha in (1000.0, 0.1))
    assert skew(deciles, even) < 0.05
    assert skew(deciles, skewed) > 0.5


@pytest.mark.parametrize("alpha", [0, -0.5])
def test_a_concentration_that_is_not_positive_is_refused(alpha):
    with pytest.raises(ValueError, match=f"the Dirichlet concentration alpha must be positive, not {alpha}"):
        dirichlet_rows(np.zeros(10, int), 2, alpha, rng())


def test_a_dirichlet_split_that_keeps_leaving_clients_empty_is_refused():
    message = "alpha = 0.001 left one of 8 clients without rows 100 times: use a larger alpha or fewer clients"
    with pytest.raises(ValueError, match=message):
        dirichlet_rows(np.zeros(20, int), 8, 0.001, rng())
