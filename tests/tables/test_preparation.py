import json
from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.examples import num_examples
from tdcd.tables.preparation import Preparation
from tdcd.tables.rows import Category, RawRows
from tdcd.tables.summary import CategoryStats, NumericStats, Summary, merge_summaries, summarize

pytestmark = pytest.mark.quick

amounts = st.lists(
    st.lists(st.one_of(st.just(np.nan), st.floats(-1e6, 1e6, allow_subnormal=False)), max_size=8),
    min_size=1,
    max_size=5,
)


def category(names):
    levels = tuple(dict.fromkeys(name for name in names if name))
    return Category(np.array([levels.index(name) if name else -1 for name in names], np.int32), levels)


def rows(**features):
    count = len(next(iter(features.values())))
    columns = {
        name: category(values) if isinstance(values[0], str) else np.array(values, np.float32)
        for name, values in features.items()
    }
    return RawRows("rows.csv", [str(number) for number in range(count)], columns)


def prepared(data, **keys):
    return Preparation.fit(summarize(data, np.ones(len(data), bool)), **keys)


@num_examples(200)
@given(amounts)
def test_merged_figures_are_those_of_the_joined_values(parts):
    merged = reduce(NumericStats.merge, [NumericStats.of(np.array(part)) for part in parts])
    joined = np.array([value for part in parts for value in part])
    known = joined[~np.isnan(joined)]
    assert (merged.known, merged.missing) == (len(known), len(joined) - len(known))
    if len(known):
        np.testing.assert_allclose(merged.mean, known.mean(), rtol=1e-12, atol=1e-9)
        np.testing.assert_allclose(merged.deviation, known.std(), rtol=1e-9, atol=1e-7)


def test_a_large_offset_costs_no_digits():
    values = 1e9 + np.arange(1000.0)
    merged = reduce(NumericStats.merge, [NumericStats.of(part) for part in np.split(values, 10)])
    np.testing.assert_allclose(merged.deviation, np.arange(1000.0).std(), rtol=1e-13)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_a_constant_has_no_deviation_at_all(value, counts):
    parts = [NumericStats.of(np.full(count, value, np.float32)) for count in counts]
    assert reduce(NumericStats.merge, parts) == NumericStats(sum(counts), value, 0.0, 0)


def test_levels_are_counted_together():
    merged = CategoryStats.of(category(["Rome", "Oslo", "", "Rome"])).merge(
        CategoryStats.of(category(["Oslo", "Bern", ""]))
    )
    assert merged == CategoryStats({"Rome": 2, "Oslo": 2, "Bern": 1}, 2)


def test_a_summary_does_not_depend_on_the_order_of_the_table():
    rng = np.random.default_rng(0)
    data = rows(x=rng.lognormal(sigma=4, size=300), city=rng.choice(["a", "b", ""], 300).tolist())
    shuffled = data.take(rng.permutation(300))
    chosen = rng.random(300) < 0.7
    also = np.array([chosen[int(one)] for one in shuffled.ids])
    assert summarize(data, chosen) == summarize(shuffled, also)


def test_a_summary_and_a_preparation_survive_json():
    data = rows(x=[0.1, np.nan, 0.7], city=["Zürich", "", "Rome"])
    summary = summarize(data, np.ones(3, bool))
    assert Summary.from_json(json.loads(json.dumps(summary.to_json()))) == summary
    preparation = Preparation.fit(summary)
    assert Preparation.from_json(json.loads(json.dumps(preparation.to_json()))) == preparation


def test_a_summary_has_no_row_in_it():
    data = rows(x=[1.25, 3.5, 7.75], city=["a", "b", "a"])
    assert summarize(data, np.array([True, True, True])).to_json() == {
        "x": {"known": 3, "mean": pytest.approx(12.5 / 3), "squares": pytest.approx(21.79166, abs=1e-4), "missing": 0},
        "city": {"levels": {"a": 2, "b": 1}, "missing": 0},
    }


def test_features_are_filled_scaled_and_one_hot():
    data = rows(
        age=[20, np.nan, 40, 60, 40],
        debt=[7, 7, 7, 7, 7],
        city=["Rome", "Oslo", "Rome", "", "Bern"],
    )
    preparation = prepared(data, rare=2)
    assert preparation.columns == ("age", "age missing", "debt", "city=Rome", "city=other", "city missing")
    age = np.array([20, 40, 40, 60, 40])
    expected = np.zeros((5, 6))
    expected[:, 0] = (age - 40) / np.array([20, 40, 60, 40]).std()
    expected[1, 1] = 1
    expected[[0, 2], 3] = expected[[1, 4], 4] = expected[3, 5] = 1
    for dtype in (np.float32, np.float64):
        features = preparation.apply(data, dtype, num_ones=1)
        assert features.dtype == dtype
        np.testing.assert_array_equal(features, np.append(expected, np.ones((5, 1)), axis=1).astype(dtype))


def test_blanks_and_levels_that_training_never_saw():
    preparation = prepared(rows(age=[20, 40], city=["Rome", "Oslo"]))
    assert preparation.columns == ("age", "city=Oslo", "city=Rome")
    np.testing.assert_array_equal(preparation.apply(rows(age=[np.nan], city=["Bern"]), np.float64), [[0, 0, 0]])
    with_rare = prepared(rows(age=[20, 40, 30], city=["Rome", "Oslo", "Rome"]), rare=2)
    assert with_rare.columns == ("age", "city=Rome", "city=other")
    np.testing.assert_array_equal(with_rare.apply(rows(age=[30, 30], city=["Bern", ""]), float), [[0, 0, 1], [0, 0, 1]])


def test_amounts_can_stay_in_their_unit():
    preparation = prepared(rows(age=[20, np.nan, 40]), standardize=False)
    np.testing.assert_array_equal(preparation.apply(rows(age=[5, np.nan]), np.float64), [[5, 0], [30, 1]])


def test_a_column_without_a_value_is_nothing():
    preparation = prepared(rows(age=[np.nan, np.nan]))
    np.testing.assert_array_equal(preparation.apply(rows(age=[np.nan, 0]), np.float64), [[0, 1], [0, 0]])


def test_a_level_called_other_is_among_the_others():
    data = rows(city=["other", "Rome", "Bern", "Rome", "other"])
    assert prepared(data, rare=2).columns == ("city=Rome", "city=other")
    np.testing.assert_array_equal(prepared(data, rare=2).apply(data, np.float64)[:, 1], [1, 0, 1, 0, 1])


def test_two_features_of_one_name_are_refused():
    with pytest.raises(ValueError, match="two features would be called 'age missing': rename a column"):
        prepared(RawRows("f", ["1", "2"], {"age": np.array([1, np.nan]), "age missing": np.array([0, 1.0])}))


def test_a_column_of_too_many_levels_is_refused():
    with pytest.raises(ValueError, match="column 'name' has 1001 levels with at least 1 row each, more than 1000"):
        prepared(rows(name=[f"n{number}" for number in range(1001)]))


def test_clients_whose_tables_differ_are_named():
    def summary(**columns):
        data = rows(**columns)
        return summarize(data, np.ones(len(data), bool))

    message = "clients 'north' and 'south': the clients' tables differ: column 'age' is only in one; column 'x' is only"
    with pytest.raises(ValueError, match=message):
        merge_summaries({"north": summary(age=[1.0]), "south": summary(x=[1.0])})
    with pytest.raises(ValueError, match="column 'age' holds names in one and amounts in the other"):
        merge_summaries({"north": summary(age=[1.0]), "south": summary(age=["old"])})


@settings(deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_coefficients_in_original_units_give_the_same_scores(seed, standardize):
    rng = np.random.default_rng(seed)

    def table(count):
        blank = rng.random((count, 2)) < rng.choice([0, 0.3])
        amount = np.where(blank, np.nan, rng.normal(50, 20, (count, 2)))
        return rows(age=amount[:, 0], rent=amount[:, 1], city=rng.choice(["a", "b", "c", ""], count).tolist())

    preparation = prepared(table(30), standardize=standardize, rare=8)
    weights = rng.normal(size=(len(preparation.columns), 2))
    data = table(20)
    coefficients, intercept = preparation.unscaled(weights)
    for row in range(20):
        score = intercept.copy()
        for name, column in data.features.items():
            if isinstance(column, Category):
                level = column.levels[column.codes[row]] if column.codes[row] >= 0 else None
                other = coefficients[f"{name}=other"]
                score += (
                    coefficients[f"{name} missing"] if level is None else coefficients.get(f"{name}={level}", other)
                )
            elif np.isnan(column[row]):
                score += coefficients[f"{name} missing"]
            else:
                score += coefficients[name] * column[row]
        np.testing.assert_allclose(score, (preparation.apply(data, np.float64) @ weights)[row], rtol=1e-9, atol=1e-9)
