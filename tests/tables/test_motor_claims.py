"""Motor claims over two silos, against scikit-learn's PoissonRegressor on the joined table.

The claims are those of Baxter, Coutts and Ross (1980), "Applications of linear models in motor insurance": 3,151 claims
of 23,359 policyholders, by district, engine and age.
"""

import csv
import json
from itertools import product

import numpy as np
import pytest
from sklearn.linear_model import PoissonRegressor
from sklearn.metrics import mean_poisson_deviance
from two_tables import write_csv

from tdcd.config import check_config
from tdcd.config.resolve import plan
from tdcd.training.train import train_plan

HOLDERS = """197 264 246 1680 284 536 696 3582 133 286 355 1640 24 71 99 452 85 139 151 931 149 313 419 2443 66 175 221
1110 9 48 72 322 35 73 89 648 53 155 240 1635 24 78 121 692 7 29 43 245 20 33 40 316 31 81 122 724 18 39 68 344 3 16 25
114"""
CLAIMS = """38 35 20 156 63 84 89 400 19 52 74 233 4 18 19 77 22 19 22 87 25 51 49 290 14 46 39 143 4 15 12 53 5 11 10
67 10 24 37 187 8 19 24 101 3 2 8 37 2 5 4 36 7 10 22 102 5 7 16 63 0 6 8 33"""
L2 = 1e-4
DISTRICTS, ENGINES = ("1", "2", "3", "4"), ("below 1 l", "1 to 1.5 l", "1.5 to 2 l", "above 2 l")
AGES = ("below 25", "25 to 29", "30 to 35", "above 35")


CELLS = np.array([*product(DISTRICTS, ENGINES, AGES)])
EACH = {"district": CELLS[:, 0], "engine": CELLS[:, 1], "age": CELLS[:, 2]}
holders, claims = (np.array(text.split(), int) for text in (HOLDERS, CLAIMS))
assert (holders.sum(), claims.sum()) == (23_359, 3_151)


def planned_for(folder, of_insurer, age, train, weight=None):
    """The insurer has the claims, the district and the engine; the registry has the age."""
    ids = np.arange(len(age))
    write_csv(folder / "insurer.csv", {"id": ids, **of_insurer})
    write_csv(folder / "registry.csv", {"id": ids, "age": age})
    insurer = {"name": "insurer", "table": "insurer.csv", "clients": 4, "label": "claims", "weight": weight}
    keys = {
        "data": {"source": "files", "folder": str(folder)},
        "model": {"block": "linear", "loss": "poisson", "l2": L2},
        "train": train,
        "evaluate": {"every": train["rounds"]},
        "silos": [
            {**insurer, "categorical": ["district", "engine"]},
            {"name": "registry", "table": "registry.csv", "clients": 2, "categorical": ["age"]},
        ],
    }
    return plan(check_config(keys))


def of_scikit_learn(federation, weights=None):
    """What its regression on the joined table predicts for the held-out rows, given the same features."""
    features, held_out = (
        np.hstack([np.asarray(getattr(silo, name), float) for silo in federation.silos])
        for name in ("features", "test_features")
    )
    found = PoissonRegressor(alpha=L2, fit_intercept=False, tol=1e-6, max_iter=1000)
    return found.fit(features, federation.labels, weights).predict(held_out) * federation.label_scale


def test_one_row_per_policyholder(tmp_path):
    """Only totals are known: a cell's first policyholders have one claim each."""
    cell = np.repeat(np.arange(len(CELLS)), holders)
    place = np.arange(len(cell)) - np.repeat(np.cumsum(holders) - holders, holders)
    columns = {"claims": (place < claims[cell]).astype(int)} | {name: EACH[name][cell] for name in EACH}
    age = columns.pop("age")
    train = {"rounds": 60, "local_steps": 5, "batch_size": 1024, "step_size": 0.1}
    planned = planned_for(tmp_path, columns, age, train)
    train_plan(planned, tmp_path / "run")
    ours = json.loads((tmp_path / "run/history.jsonl").read_text().splitlines()[-1])["metrics"]["test"]["deviance"]
    federation = planned.federation
    labels = federation.test_labels * federation.label_scale
    expected = mean_poisson_deviance(labels, of_scikit_learn(federation))
    mean = mean_poisson_deviance(labels, np.full(len(labels), federation.label_scale))
    assert ours == pytest.approx(expected, rel=0.01)
    # Claims are rare, and the mean alone is not far off either: nearly all that can be explained is.
    assert mean - ours > 0.95 * (mean - expected) > 0


def test_one_row_per_cell_with_its_policyholders_as_weight(tmp_path):
    """Claims per policyholder, and as many policyholders behind a row as it has: the usual model of frequencies."""
    columns = {"claims": claims / holders, "holders": holders} | {name: EACH[name] for name in ("district", "engine")}
    train = {"rounds": 800, "local_steps": 1, "minibatches": "full", "step_size": 0.3}
    planned = planned_for(tmp_path, columns, EACH["age"], train, weight="holders")
    train_plan(planned, tmp_path / "run")
    with (tmp_path / "run/held-out.csv").open(newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: int(row["id"]))
    held_out = np.array([int(row["id"]) for row in rows])
    predictions, labels = (np.array([float(row[name]) for row in rows]) for name in ("prediction", "label"))
    theirs = of_scikit_learn(planned.federation, np.delete(holders, held_out))
    np.testing.assert_allclose(labels, (claims / holders)[held_out])
    ours, expected = (
        mean_poisson_deviance(labels, each, sample_weight=holders[held_out]) for each in (predictions, theirs)
    )
    assert ours == pytest.approx(expected, rel=0.01)
    np.testing.assert_allclose(predictions, theirs, rtol=1e-3)
