import numpy as np
import pytest

from tdcd.data import Table, standardize
from tdcd.data.table import holdout_mask

pytestmark = pytest.mark.quick

HELD_OUT_OF_12 = [7, 8, 11]
"""With seed 7, a quarter of them; a run that is resumed or compared must find the same again."""


def table(rows=40, task="regression", seed=0, **changes):
    rng = np.random.default_rng(seed)
    features = rng.normal([5, -3, 100], [2, 0.1, 30], size=(rows, 3)).astype(np.float32)
    labels = {"regression": rng.normal(70, 9, rows), "binary": np.arange(rows) % 2, "multiclass": np.arange(rows) % 4}
    return Table(
        **{"name": "t", "features": features, "labels": labels[task], "task": task, "columns": ("a", "b", "c")}
        | changes
    )


def test_standardize_gives_mean_0_and_variance_1():
    train, test = standardize(table())
    assert test is None
    np.testing.assert_allclose(train.features.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(train.features.std(axis=0), 1, atol=1e-5)
    np.testing.assert_allclose([train.labels.mean(), train.labels.std()], [0, 1], atol=1e-12)
    assert train.features.dtype == np.float32


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_features_are_standardized_in_float64_and_rounded_last(dtype):
    times = 1_700_000_000 + np.arange(40.0)
    exact = np.stack([times, np.full(40, 0.1), np.arange(40.0)], axis=1)
    expected = (exact - exact.mean(axis=0)) / [times.std(), 1, times.std()]
    expected[:, 1] = 0
    train, test = standardize(table(features=exact), table(features=exact), dtype)
    for rows in (train, test):
        assert rows.features.dtype == dtype
        np.testing.assert_allclose(rows.features, expected, rtol=1e-13 if dtype == np.float64 else 1e-7, atol=1e-15)
    assert standardize(table(features=exact))[0].features.dtype == np.float64


def test_whole_numbers_become_float32_unless_more_is_wanted():
    pixels = np.arange(120, dtype=np.uint8).reshape(40, 3)
    assert standardize(table(features=pixels))[0].features.dtype == np.float32
    assert standardize(table(features=pixels), dtype="float64")[0].features.dtype == np.float64


def test_the_label_scale_restores_the_labels_unit():
    before = table()
    after, _ = standardize(before)
    np.testing.assert_allclose(np.diff(after.labels) * after.label_scale, np.diff(before.labels))
    again, _ = standardize(after)
    assert again.label_scale == pytest.approx(after.label_scale)


def test_held_out_samples_are_standardized_by_the_training_figures():
    train, test = table(seed=0), table(rows=7, seed=1)
    _, after = standardize(train, test)
    expected = (test.features - train.features.mean(axis=0)) / train.features.std(axis=0)
    np.testing.assert_allclose(after.features, expected, atol=1e-4)
    np.testing.assert_allclose(after.labels, (test.labels - train.labels.mean()) / train.labels.std())


def test_constant_columns_become_0():
    features = np.full((1000, 3), np.float32(0.1))
    features[:, 1] = np.arange(1000)
    train, test = standardize(table(1000, features=features), table(3))
    assert (train.features[:, [0, 2]] == 0).all()
    assert np.isfinite(test.features).all()


def test_class_labels_are_not_standardized():
    before = table(task="multiclass")
    after, _ = standardize(before)
    assert (after.labels == before.labels).all()
    assert after.label_scale == 1
    assert after.num_classes == 4


def test_split_draws_the_fraction_and_loses_nothing():
    whole = table(41)
    train, test = whole.split(0.25, seed=3)
    assert (len(train.labels), len(test.labels)) == (31, 10)
    assert sorted([*train.labels, *test.labels]) == sorted(whole.labels)
    assert (whole.split(0.25, seed=3)[1].labels == test.labels).all()
    assert (whole.split(0.25, seed=4)[1].labels != test.labels).any()


def test_a_stratified_split_holds_out_the_same_fraction_of_every_class():
    labels = np.repeat([0, 1, 2], [70, 22, 5])
    whole = table(97, task="multiclass", labels=labels)
    train, test = whole.split(0.2, seed=3, stratify=True)
    assert len(test.labels) == round(0.2 * 97)
    assert np.bincount(test.labels).tolist() == [14, 4, 1]
    assert (np.bincount(test.labels) + np.bincount(train.labels)).tolist() == [70, 22, 5]
    again = whole.split(0.2, seed=4, stratify=True)[1]
    assert np.bincount(again.labels).tolist() == [14, 4, 1]
    assert (again.features != test.features).any()
    # Left to chance, the rare class has none in one draw and several in another.
    found = {int((whole.split(0.2, seed=seed)[1].labels == 2).sum()) for seed in range(10)}
    assert (min(found), max(found) > 1) == (0, True)


def test_a_split_without_strata_is_what_it_was():
    assert np.flatnonzero(holdout_mask(12, 0.25, seed=7)).tolist() == HELD_OUT_OF_12


def test_amounts_have_no_strata():
    with pytest.raises(ValueError, match=r"evaluate\.stratify = true: the labels are amounts, not classes"):
        table().split(0.2, stratify=True)


def test_split_of_nothing_has_no_second_table():
    train, test = table().split(0.0)
    assert test is None
    assert len(train.labels) == 40


def test_split_uses_the_sources_own_test_samples():
    held_out = np.arange(40) % 5 == 0
    train, test = table(held_out=held_out).split(0.5, seed=9)
    assert (test.labels == table().labels[held_out]).all()
    assert (train.labels == table().labels[~held_out]).all()
    assert train.held_out is test.held_out is None


def test_taken_rows_keep_their_side_of_the_sources_own_split():
    part = table(held_out=np.arange(40) >= 30).take(np.array([35, 2, 31]))
    train, test = part.split()
    assert (test.labels == table().labels[[35, 31]]).all()
    assert (train.labels == table().labels[[2]]).all()


@pytest.mark.parametrize("holdout", [-0.1, 1.0])
def test_split_refuses_an_impossible_fraction(holdout):
    with pytest.raises(ValueError, match=f"must be at least 0 and below 1, not {holdout}"):
        table().split(holdout)


def test_split_refuses_to_hold_everything_out():
    with pytest.raises(ValueError, match="table 't': all of its 2 rows are held out, none are left for training"):
        table(2).split(0.9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": np.zeros(39)}, "table 't' has 40 rows and 39 labels"),
        ({"columns": ("a", "b")}, "table 't' has 3 columns and 2 column names"),
        ({"features": np.zeros((0, 3), np.float32), "labels": np.zeros(0)}, "table 't' has no rows"),
        (
            {"labels": np.where(np.arange(40) == 7, np.nan, 1.0)},
            "table 't': the label of row 7 is nan, not a finite number",
        ),
        ({"task": "binary", "labels": np.arange(40)}, "table 't': the label of row 2 is 2, not 0 or 1"),
        (
            {"task": "multiclass", "labels": np.arange(40) / 2},
            r"table 't': the label of row 1 is 0.5, not a class number 0, 1, \.\.\.",
        ),
        ({"task": "multiclass", "labels": np.arange(40) - 1}, "the label of row 0 is -1, not a class number"),
    ],
)
def test_a_table_refuses_what_no_model_could_train_on(changes, message):
    with pytest.raises(ValueError, match=message):
        table(**changes)


def test_a_value_that_is_not_finite_is_named():
    features = table().features.copy()
    features[12, 1] = np.inf
    with pytest.raises(ValueError, match="table 't': column 'b' of row 12 is not a finite number"):
        table(features=features)
