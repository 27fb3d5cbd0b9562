"""Amounts as bins: features, names, blanks, and what a linear model of them is."""

import json

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from two_tables import write_csv

from tdcd.config import ConfigError, check_config
from tdcd.config.resolve import plan
from tdcd.tables.errors import TableError
from tdcd.tables.preparation import Preparation
from tdcd.tables.rows import Category, RawRows
from tdcd.tables.summary import Summary, merge_summaries, summarize
from tdcd.training.train import train_plan

COUNT = 200


def rows(values, ids=None):
    names = [str(one) for one in (range(len(values)) if ids is None else ids)]
    city = Category(np.arange(len(values), dtype=np.int32) % 2, ("Oslo", "Rome"))
    return RawRows("rows.csv", names, {"age": np.array(values, np.float64), "city": city})


def binned(data, bins, clients=1):
    """From the summaries of so many clients, as they travel."""
    told = {
        f"c{one}": json.dumps(summarize(data, np.arange(len(data)) % clients == one, bins).to_json())
        for one in range(clients)
    }
    merged = merge_summaries({client: Summary.from_json(json.loads(text)) for client, text in told.items()})
    preparation = Preparation.fit(merged, bins=bins)
    assert Preparation.from_json(json.loads(json.dumps(preparation.to_json()))) == preparation
    return preparation


def test_every_row_is_in_one_bin_or_blank():
    values = np.random.default_rng(0).permutation([*range(COUNT), *[np.nan] * 20])
    data = rows(values)
    preparation = binned(data, 4, clients=2)
    part = preparation.parts["age"]
    assert len(part.cuts) == 3
    edges = [np.format_float_positional(cut, trim="-") for cut in part.cuts]
    words = [
        f"age <= {edges[0]}",
        f"age {edges[0]} to {edges[1]}",
        f"age {edges[1]} to {edges[2]}",
        f"age > {edges[2]}",
    ]
    assert preparation.columns == (*words, "age missing", "city=Oslo", "city=Rome")
    features = preparation.apply(data, np.float32)[:, :5]
    assert features.sum(axis=1).tolist() == [1] * len(data)
    expected = np.where(np.isnan(values), 4, np.searchsorted(part.cuts, values, side="left"))
    np.testing.assert_array_equal(features.argmax(axis=1), expected)
    # A cut belongs to the bin that it ends.
    assert preparation.apply(rows([part.cuts[1]]), np.float32)[0, 1] == 1
    np.testing.assert_allclose(part.shares, features.mean(axis=0), atol=0.05)
    np.testing.assert_allclose(sum(part.shares), 1)


def test_many_zeros_are_one_bin_and_a_constant_is_one():
    half = binned(rows([0.0] * COUNT + [*range(1, COUNT + 1)]), 8).parts["age"]
    assert half.cuts[0] == 0
    assert half.shares[0] == 0.5
    assert len(half.cuts) == 4
    constant = binned(rows([7.0] * COUNT), 8)
    assert constant.columns[0] == "age any"
    np.testing.assert_array_equal(constant.apply(rows([7.0, 8.0]), np.float32)[:, 0], [1, 1])


def test_a_blank_that_training_never_saw_is_an_average_row():
    preparation = binned(rows(np.arange(COUNT)), 4)
    features = preparation.apply(rows([np.nan]), np.float64)[0]
    np.testing.assert_array_equal(features[:4], preparation.parts["age"].shares)
    weights = np.arange(6.0)[:, None]
    own, shift = preparation.unscaled(weights)
    np.testing.assert_allclose(own["age missing"], features[:4] @ weights[:4])
    assert shift == 0


def test_clients_in_another_order_change_nothing():
    data, chosen = rows(np.random.default_rng(1).lognormal(size=COUNT)), np.arange(COUNT) % 3
    summaries = {f"c{one}": summarize(data, chosen == one, 5) for one in range(3)}
    reverse = dict(reversed(summaries.items()))
    assert Preparation.fit(merge_summaries(summaries), bins=5) == Preparation.fit(merge_summaries(reverse), bins=5)


def test_without_bins_no_shares_are_sent():
    preparation = Preparation.fit(summarize(rows(np.arange(COUNT)), np.ones(COUNT, bool)))
    assert preparation.parts["city"].shares == ()


def test_clients_with_a_handful_of_rows_each_are_refused():
    with pytest.raises(ValueError, match=r"column 'age': no client has enough values to say where bins begin"):
        binned(rows(np.arange(12)), 4, clients=3)


@pytest.fixture
def keys(tmp_path):
    """Two silos, a class that depends on both in bends, and a column with blanks."""
    rng = np.random.default_rng(2)
    age, debt, rent = rng.uniform(20, 60, 400), rng.lognormal(3, 1, 400), rng.normal(0, 1, 400)
    chance = 1 / (1 + np.exp(-(np.abs(age - 40) / 5 - 2 + np.sin(2 * rent))))
    blank = [f"{value:.2f}" if value < 60 else "" for value in debt]
    write_csv(tmp_path / "a.csv", {"id": range(400), "y": (rng.random(400) < chance).astype(int), "age": age})
    write_csv(tmp_path / "b.csv", {"id": range(400), "debt": blank, "rent": rent})
    return {
        "dtype": "float64",
        "data": {"source": "files", "folder": str(tmp_path)},
        "model": {"block": "linear", "bins": 6, "l2": 0.02},
        "train": {"rounds": 600, "minibatches": "full", "step_size": 1.5, "local_steps": 1},
        "evaluate": {"every": 600},
        "silos": [
            {"name": "a", "table": "a.csv", "label": "y", "clients": 2},
            {"name": "b", "table": "b.csv", "clients": 3},
        ],
    }


def test_a_federation_with_bins_finds_scikit_learns_model_of_the_same_bins(keys, tmp_path):
    planned = plan(check_config(keys))
    federation = planned.federation
    joined, held_out = (
        np.concatenate([getattr(silo, name) for silo in federation.silos], axis=1)
        for name in ("features", "test_features")
    )
    assert set(np.unique(joined)) == {0, 1}
    result = train_plan(planned, tmp_path / "run")
    ours = np.concatenate([np.asarray(result.blocks[silo]["weight"])[:, 0] for silo in ("a", "b")])
    theirs = LogisticRegression(C=1 / (0.02 * len(joined)), fit_intercept=False, tol=1e-10, max_iter=1000)
    theirs.fit(joined, federation.labels)
    np.testing.assert_allclose(ours, theirs.coef_[0], atol=1e-5)
    np.testing.assert_allclose(held_out @ ours, theirs.decision_function(held_out), atol=1e-4)


def test_what_cannot_be_binned_is_refused(keys, tmp_path):
    with pytest.raises(ConfigError, match=r"model.bins = 6: goes with data.source = 'files', not 'diabetes'"):
        check_config({"data": {"source": "diabetes"}, "model": {"bins": 6}})
    with pytest.raises(ConfigError, match=r"model.bins"):
        check_config(keys | {"model": {"bins": 1}})
    keys["silos"][0]["clients"] = 200
    with pytest.raises(TableError, match=r"silo 'a': column 'age': no client has enough values"):
        plan(check_config(keys))
