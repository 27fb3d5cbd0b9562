"""Amounts as positions within bins: closed form, edges, blanks, and what a linear model of them is."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import Ridge
from two_tables import called, write_csv

from support.examples import num_examples
from tdcd import Model
from tdcd.config import ConfigError, ModelSection, check_config
from tdcd.config.resolve import plan
from tdcd.tables.encodings import Binned, Piecewise, encoding_from_json
from tdcd.tables.errors import TableError
from tdcd.tables.preparation import Preparation, without_use
from tdcd.tables.rows import RawRows
from tdcd.tables.summary import SketchStats, summarize
from tdcd.training.train import train_plan

COUNT = 400
amounts = st.lists(st.floats(-1e6, 1e6, width=32), min_size=5, max_size=60)


def rows(values):
    return RawRows("rows.csv", [str(place) for place in range(len(values))], {"age": np.array(values, np.float64)})


def fitted(values, bins, clients=1):
    """The encoding by the sketches of so many clients, and that of bins by the same sketches."""
    parts = [SketchStats.of(part, bins) for part in np.array_split(np.asarray(values, np.float64), clients)]
    merged = parts[0]
    for part in parts[1:]:
        merged = merged.merge(part)
    return Piecewise.fit("age", merged, bins, is_centred=False), Binned.fit("age", merged, bins)


def features(encoding, values):
    out = np.empty((len(values), len(encoding.names("age"))))
    encoding.apply(np.asarray(values, np.float64), out)
    return out


@given(amounts, st.integers(2, 9))
@num_examples(200)
def test_the_closed_form_and_what_follows_from_it(values, bins):
    encoding, binned = fitted(values, bins)
    ordered = np.sort(np.asarray([*values, *encoding.edges], np.float64))
    out = features(encoding, ordered)
    # As np.interp has it, bin by bin.
    for place, edges in enumerate(zip(encoding.edges, encoding.edges[1:], strict=False)):
        np.testing.assert_allclose(out[:, place], np.interp(ordered, edges, [0, 1]), atol=1e-12)
    # No feature falls with the value, and none is above 0 before the one below it is 1.
    assert (np.diff(out, axis=0) >= 0).all()
    assert ((out[:, 1:] == 0) | (out[:, :-1] == 1)).all()
    assert out.min() >= 0
    assert out.max() <= 1
    # The edges inside are where bins are cut.
    assert all(low < high for low, high in zip(encoding.edges, encoding.edges[1:], strict=False))
    if len({*values}) == len(values):
        assert [cut for cut in binned.cuts if cut > encoding.edges[0]] == [*encoding.edges[1:-1]]
    assert len(out[0]) <= bins
    assert encoding_from_json(json.loads(json.dumps(encoding.to_json()))) == encoding


def test_a_value_that_most_rows_share_leaves_the_bins_to_the_others():
    values = np.r_[np.zeros(9 * COUNT), np.arange(1, COUNT + 1)]
    encoding, binned = fitted(values, 10, clients=2)
    assert len(binned.cuts) == 1
    assert len(encoding.edges) >= 9
    assert np.diff(encoding.edges).max() < COUNT / 5


def test_a_value_beyond_the_sketch_counts_as_its_last_number():
    values = np.random.default_rng(0).lognormal(size=COUNT)
    encoding, _ = fitted(values, 6, clients=4)
    assert values.min() < encoding.edges[0] < encoding.edges[-1] < values.max()
    np.testing.assert_array_equal(features(encoding, [-1e9, 1e9]), [[0] * 6, [1] * 6])


def test_a_blank_is_an_average_row_and_is_marked_where_training_had_some():
    values = np.random.default_rng(1).normal(size=COUNT)
    encoding, _ = fitted(values, 5)
    np.testing.assert_allclose(features(encoding, [np.nan])[0], features(encoding, values).mean(axis=0), atol=0.02)
    marked, _ = fitted([*values, *[np.nan] * 40], 5)
    out = features(marked, [np.nan, 0.0])
    assert marked.names("age")[-1] == "age missing"
    np.testing.assert_array_equal(out[:, -1], [1, 0])
    np.testing.assert_allclose(out[0, :-1], marked.mean)
    # Centred, all features have a mean of about 0, and a blank is 0.
    centred = replace(marked, centred=True)
    np.testing.assert_allclose(features(centred, values), features(marked, values) - [*marked.mean, 0], atol=1e-15)
    np.testing.assert_array_equal(features(centred, [np.nan]), [[0] * 5 + [1]])


def test_columns_with_few_values_have_few_features():
    assert fitted([0.0, 1.0] * COUNT, 48)[0].names("age") == ["age 0 to 1"]
    thrice, _ = fitted([1.0, 2.0, 3.0] * COUNT, 48)
    np.testing.assert_array_equal(features(thrice, [1, 2, 3]), [[0, 0], [1, 0], [1, 1]])
    for values, names, what in (
        ([7.0] * COUNT, ["age any"], "is the same in every training row"),
        ([np.nan] * COUNT, ["age any", "age missing"], ""),
    ):
        summary = summarize(rows(values), np.ones(COUNT, bool), 48)
        preparation = Preparation.fit(summary, bins=48, is_piecewise=True)
        assert [*preparation.columns] == names
        np.testing.assert_array_equal(preparation.apply(rows([7.0, 8.0]), np.float32), np.zeros((2, len(names))))
        assert what in without_use(summary, preparation, 1).get("age", "")
    summary = summarize(rows([0.0, 1.0] * COUNT), np.ones(2 * COUNT, bool), 48)
    assert without_use(summary, Preparation.fit(summary, bins=48, is_piecewise=True), 1) == {}


@pytest.fixture
def keys(tmp_path):
    """Two silos, an amount that bends with both, blanks, and dates."""
    rng = np.random.default_rng(2)
    age, debt = rng.uniform(20, 60, COUNT), rng.lognormal(3, 1, COUNT)
    days = np.datetime64("2020-01-01") + rng.integers(0, 900, COUNT)
    amount = np.abs(age - 40) + 3 * np.sin(np.log(debt)) + rng.normal(0, 0.1, COUNT)
    blank = [f"{value:.2f}" if value < 60 else "" for value in debt]
    write_csv(tmp_path / "a.csv", {"id": range(COUNT), "y": amount, "age": age})
    write_csv(tmp_path / "b.csv", {"id": range(COUNT), "debt": blank, "since": days.astype(str)})
    return {
        "dtype": "float64",
        "data": {"source": "files", "folder": str(tmp_path)},
        "model": {"block": "linear", "encoding": "piecewise", "bins": 6, "l2": 0.01},
        "train": {"rounds": 3000, "tol": 1e-9},
        "evaluate": {"every": 10},
        "silos": [
            {"name": "a", "table": "a.csv", "label": "y", "clients": 2},
            {"name": "b", "table": "b.csv", "clients": 3},
        ],
    }


def test_a_federation_finds_scikit_learns_model_of_the_same_features_and_exports_it(keys, tmp_path):
    planned = plan(check_config(keys))
    silos = planned.federation.silos
    joined, held_out = (
        np.concatenate([getattr(silo, name) for silo in silos], axis=1) for name in ("features", "test_features")
    )
    assert not {*np.unique(joined)} <= {0, 1}
    result = train_plan(planned, tmp_path / "run")
    ours = np.concatenate([np.asarray(result.blocks[silo]["weight"])[:, 0] for silo in ("a", "b")])
    theirs = Ridge(alpha=0.01 * len(joined), fit_intercept=False).fit(joined, planned.federation.labels)
    np.testing.assert_allclose(held_out @ ours, theirs.predict(held_out), atol=2e-3)
    # A saved model gives the same from raw rows.
    model = Model.load(tmp_path / "run")
    model.save(tmp_path / "model.tdcd")
    tables = {name: tmp_path / f"{name}.csv" for name in ("a", "b")}
    np.testing.assert_array_equal(Model.load(tmp_path / "model.tdcd").scores(tables), model.scores(tables))
    # Coefficients are what crossing each bin adds.
    table = {row.column: float(row.values[0]) for row in model.coefficients().rows}
    scale = planned.federation.label_scale
    np.testing.assert_allclose([table[name] for name in silos[0].columns[:6]], ours[:6] * scale, rtol=1e-5)
    assert any(name.startswith("since 2020-") for name in table)
    assert "debt missing" in table
    status, said = called("export", tmp_path / "run", "--scorecard")
    assert status == 2
    assert "silo 'a': 'age' has no bins: a scorecard needs a run with model.encoding = 'bins'" in said


def test_what_encoding_asks_for():
    cases = [
        ({}, ("standard", None)),
        ({"bins": 9}, ("bins", 9)),
        ({"encoding": "bins"}, ("bins", 48)),
        ({"encoding": "piecewise"}, ("piecewise", 48)),
        ({"encoding": "piecewise", "bins": 9}, ("piecewise", 9)),
        ({"block": "ensemble"}, ("piecewise", 48)),
        ({"block": ["linear", "ensemble"], "bins": 9}, ("piecewise", 9)),
        ({"block": "ensemble", "encoding": "standard"}, ("standard", None)),
    ]
    for keys, expected in cases:
        section = ModelSection(**keys)
        assert (section.chosen_encoding, section.num_bins) == expected


def test_what_cannot_be_encoded_is_refused(keys):
    with pytest.raises(ConfigError, match=r"model.encoding = 'piecewise': goes with data.source = 'files', not"):
        check_config({"model": {"encoding": "piecewise"}})
    with pytest.raises(ConfigError, match=r"model.bins = 6: goes with model.encoding = 'bins' or 'piecewise', not"):
        check_config(keys | {"model": {"encoding": "standard", "bins": 6}})
    with pytest.raises(ConfigError, match=r"model.encoding = 'spline'"):
        check_config(keys | {"model": {"encoding": "spline"}})
    keys["silos"][0]["clients"] = 200
    with pytest.raises(TableError, match=r"column 'age': no client has enough values .* model.encoding = 'standard'"):
        plan(check_config(keys))
