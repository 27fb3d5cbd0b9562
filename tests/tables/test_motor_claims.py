"""Motor claims over two silos, against scikit-learn's PoissonRegressor on the joined table.

The claims are those of Baxter, Coutts and Ross (1980), "Applications of linear models in motor insurance": 3,151 claims
of 23,359 policyholders, by district, engine and age.
"""

import json
from itertools import product

import numpy as np
import pytest
from sklearn.linear_model import PoissonRegressor
from sklearn.metrics import mean_poisson_deviance
from two_tables import write_csv

from tdcd.config import check_config
from tdcd.config.resolve import plan
from tdcd.training.run import execute

HOLDERS = """197 264 246 1680 284 536 696 3582 133 286 355 1640 24 71 99 452 85 139 151 931 149 313 419 2443 66 175 221
1110 9 48 72 322 35 73 89 648 53 155 240 1635 24 78 121 692 7 29 43 245 20 33 40 316 31 81 122 724 18 39 68 344 3 16 25
114"""
CLAIMS = """38 35 20 156 63 84 89 400 19 52 74 233 4 18 19 77 22 19 22 87 25 51 49 290 14 46 39 143 4 15 12 53 5 11 10
67 10 24 37 187 8 19 24 101 3 2 8 37 2 5 4 36 7 10 22 102 5 7 16 63 0 6 8 33"""
DISTRICTS, ENGINES = ("1", "2", "3", "4"), ("below 1 l", "1 to 1.5 l", "1.5 to 2 l", "above 2 l")
AGES = ("below 25", "25 to 29", "30 to 35", "above 35")


@pytest.fixture(scope="module")
def rows():
    """One row per policyholder. Only totals are known: a cell's first policyholders have one claim each."""
    cells = [*product(DISTRICTS, ENGINES, AGES)]
    holders, claims = (np.array(text.split(), int) for text in (HOLDERS, CLAIMS))
    cell = np.repeat(np.arange(len(cells)), holders)
    place = np.arange(len(cell)) - np.repeat(np.cumsum(holders) - holders, holders)
    named = np.array(cells)[cell]
    assert (len(cell), claims.sum()) == (23_359, 3_151)
    return {
        "claims": (place < claims[cell]).astype(int),
        "district": named[:, 0],
        "engine": named[:, 1],
        "age": named[:, 2],
    }


def test_held_out_deviance_is_within_one_per_cent_of_scikit_learn(rows, tmp_path):
    ids = np.arange(len(rows["claims"]))
    write_csv(tmp_path / "insurer.csv", {"id": ids, **{name: rows[name] for name in ("claims", "district", "engine")}})
    write_csv(tmp_path / "registry.csv", {"id": ids, "age": rows["age"]})
    keys = {
        "data": {"source": "files", "folder": str(tmp_path)},
        "model": {"block": "linear", "loss": "poisson", "l2": 1e-4},
        "train": {"rounds": 60, "local_steps": 5, "batch_size": 1024, "step_size": 0.5},
        "evaluate": {"every": 60},
        "silos": [
            {
                "name": "insurer",
                "table": "insurer.csv",
                "label": "claims",
                "categorical": ["district", "engine"],
                "clients": 4,
            },
            {"name": "registry", "table": "registry.csv", "categorical": ["age"], "clients": 2},
        ],
    }
    planned = plan(check_config(keys))
    execute(planned, tmp_path / "run")
    last = json.loads((tmp_path / "run/history.jsonl").read_text().splitlines()[-1])
    federation = planned.federation
    features, held_out = (
        np.hstack([np.asarray(getattr(silo, name), float) for silo in federation.silos])
        for name in ("features", "test_features")
    )
    theirs = PoissonRegressor(alpha=1e-4, fit_intercept=False, tol=1e-6).fit(features, federation.labels)
    expected = mean_poisson_deviance(federation.test_labels, theirs.predict(held_out))
    mean = mean_poisson_deviance(federation.test_labels, np.full(len(held_out), federation.labels.mean()))
    ours = last["metrics"]["test"]["deviance"]
    assert ours == pytest.approx(expected, rel=0.01)
    # Claims are rare, and the mean alone is not far off either: nearly all that can be explained is.
    assert mean - ours > 0.95 * (mean - expected) > 0
