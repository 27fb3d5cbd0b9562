"""Data that people hand over in Python: it works, or a sentence says what is wrong."""

import numpy as np
import pytest

from tdcd import Federation, Linear, Objective, Settings, Silo, Table, load, standardize, train

RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(60, 6)).astype(np.float32)
YES = RNG.integers(0, 2, 60)
NAMES = np.where(YES, "yes", "no")
ROWS = (np.arange(30), np.arange(30, 60))


def federation(features=FEATURES[:, :3], labels=YES, rows=ROWS, **options):
    return Federation((Silo("bank", features, rows), Silo("clinic", FEATURES[:, 3:], ROWS)), labels, **options)


def trained(of=None, loss="logistic"):
    return train(
        of or federation(), Linear(), Objective(loss), Settings(batch_size=16, local_steps=2, step_size=0.05), rounds=2
    )


@pytest.mark.parametrize("labels", [NAMES, NAMES.astype(object), NAMES.tolist()])
def test_names_as_labels_are_refused_with_the_remedy(labels):
    with pytest.raises(ValueError, match=r"^labels are of type .*, such as '.*', not numbers: .*numpy\.unique"):
        federation(labels=labels)
    with pytest.raises(ValueError, match=r"^test_labels are of type"):
        federation(test_labels=labels)
    for task in ("regression", "binary", "multiclass"):
        with pytest.raises(ValueError, match=r"^table 't': labels are of type .*, not numbers"):
            Table("t", FEATURES, labels, task)
    assert trained(federation(labels=np.unique(labels, return_inverse=True)[1])).status == "finished"


def test_classes_are_counted_from_0_on():
    labels = 1 + np.arange(60) % 4
    with pytest.raises(ValueError, match=r"no sample has class 0: the labels go from 1 to 4, .*numpy\.unique"):
        trained(federation(labels=labels), "softmax")
    numbered = trained(federation(labels=np.unique(labels, return_inverse=True)[1]), "softmax")
    assert numbered.blocks["bank"]["weight"].shape == (3, 4)


def test_lists_do_as_well_as_arrays():
    lists = federation(FEATURES[:, :3].tolist(), YES.tolist(), [rows.tolist() for rows in ROWS])
    expected = trained().blocks["bank"]["weight"]
    np.testing.assert_array_equal(trained(lists).blocks["bank"]["weight"], expected)
    assert Table("t", FEATURES.tolist(), YES.tolist(), "binary").features.shape == (60, 6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: federation(labels=YES[:, None]), r"^labels have shape \(60, 1\), not one number per sample: try"),
        (lambda: federation(FEATURES[:, :3].astype(str)), r"^silo 'bank': features are of type <U32, such as '"),
        (
            lambda: federation(rows=(ROWS[0], ROWS[1] + 0.5)),
            r"^silo 'bank': the rows of client 1 must be row numbers, not float64 \(30,\)",
        ),
        (
            lambda: Table("t", FEATURES[:, 0], YES, "binary"),
            r"^table 't': features have shape \(60,\), not \[rows, col",
        ),
        (lambda: Table("t", FEATURES, YES[:, None], "binary"), r"^table 't': labels have shape \(60, 1\)"),
        (
            lambda: Federation.cut(load("digits"), Table("mine", FEATURES, YES, "binary")),
            r"^the held-out samples of 'mine' have shape \(6,\), but those of 'digits' have \(8, 8\)",
        ),
    ],
)
def test_wrong_shapes_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_scores_take_the_columns_of_every_silo():
    result = trained()
    parts = [FEATURES[:5, :3], FEATURES[:5, 3:]]
    np.testing.assert_array_equal(result.scores([part.tolist() for part in parts]), result.scores(parts))
    with pytest.raises(ValueError, match="there are 2 silos, but features of 1"):
        result.scores(parts[:1])
    with pytest.raises(ValueError, match=r"silo 'bank': features have shape \(5, 2\), but must have \(5, 3\)"):
        result.scores([parts[0][:, 1:], parts[1]])
    with pytest.raises(ValueError, match=r"silo 'clinic': features have shape \(4, 3\), but must have \(5, 3\)"):
        result.scores([parts[0], parts[1][:4]])


def test_standardized_labels_lead_back_to_the_datas_own_units():
    before = load("diabetes")
    after, _ = standardize(before)
    np.testing.assert_allclose(after.labels * after.label_scale + after.label_mean, before.labels)
    again, _ = standardize(after.take(np.arange(100)))
    np.testing.assert_allclose(again.labels * again.label_scale + again.label_mean, before.labels[:100])
    cut = Federation.cut(after, silos=2, clients=2)
    result = train(cut, Linear(), Objective("squared"), Settings(batch_size=64, step_size=0.05), rounds=20)
    scores = result.scores([silo.features for silo in cut.silos])[:, 0]
    amounts = scores * result.federation.label_scale + result.federation.label_mean
    rmse = np.sqrt(np.mean((amounts - before.labels) ** 2))
    assert rmse == pytest.approx(result.history[-1].metrics["train"]["rmse"], rel=1e-5)
