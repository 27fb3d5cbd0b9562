"""Blocks of default settings beside boosted trees: test AUC or R2 and seconds, on tables cut into silos by subject.

Rows by ``numpy.random.default_rng(0).permutation``: 64 % to train on, 16 % more for boosting, which stops early, and
20 % to test. TDCD trains on the 64 % only, with four clients per silo. Tables are read from the folder that TDCD_DATA
names; BLOCKS_TABLES names those to take, with commas between.
"""

import os
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import r2_score, roc_auc_score

from tdcd import TwoTierClassifier, TwoTierRegressor

CLIENTS = 4
CENSUS = ("median_income", "households", "population")
PERSON = ("age", "sex", "race", "native-country", "marital-status", "relationship")
WORK = (
    "workclass",
    "education",
    "education-num",
    "occupation",
    "hours-per-week",
    "capital-gain",
    "capital-loss",
    "fnlwgt",
)
MODELS: Mapping[str, Mapping[str, Any]] = {
    "linear": {"block": "linear"},
    "linear, piecewise": {"block": "linear", "encoding": "piecewise"},
    "mlp": {"block": "mlp"},
    "mlp, piecewise": {"block": "mlp", "encoding": "piecewise"},
    "ensemble": {"block": "ensemble"},
}


class Job(NamedTuple):
    """A table with its labels, and the columns of each silo."""

    name: str
    rows: pd.DataFrame
    labels: Any
    silos: dict[str, list[str]]


def tables() -> Iterator[Job]:
    """The tables that are there."""
    folder, wanted = Path(os.environ.get("TDCD_DATA", "")), os.environ.get("BLOCKS_TABLES", "")
    makers = {"superconductivity": _superconductivity, "california": _california, "credit": _credit, "adult": _adult}
    for name, make in makers.items():
        if name in (wanted.split(",") if wanted else makers):
            try:
                yield make(folder)
            except FileNotFoundError:
                print(f"{name}: not in TDCD_DATA")


def _superconductivity(folder: Path) -> Job:
    rows = pd.read_csv(folder / "superconduct" / "superconduct.csv.gz")
    labels, columns = rows.pop("critical_temp").to_numpy(), [*rows.columns]
    silos = {"a": columns[:31], "b": columns[31:61], "c": columns[61:]}
    return Job("superconductivity", rows, labels, silos)


def _california(folder: Path) -> Job:
    rows = pd.read_csv(folder / "tables" / "california_housing.csv.gz").drop(columns=["id"], errors="ignore")
    labels = np.log(rows.pop("median_house_value").to_numpy())
    return Job("california", rows, labels, {"census": [*CENSUS], "map": [c for c in rows if c not in CENSUS]})


def _credit(folder: Path) -> Job:
    guest, host = (pd.read_csv(folder / "credit" / f"{side}.csv").set_index("id") for side in ("guest", "host"))
    joined = guest.join(host, rsuffix="_host", how="inner")
    labels = joined.pop("y").to_numpy()
    own = [column for column in guest if column != "y"]
    return Job("credit", joined, labels, {"guest": own, "host": [c for c in joined if c not in own]})


def _adult(folder: Path) -> Job:
    rows = pd.read_csv(folder / "tables" / "adult.csv.gz")
    labels = (rows["income"].str.strip() == ">50K").to_numpy().astype(int)
    return Job("adult", rows[[*PERSON, *WORK]], labels, {"person": [*PERSON], "work": [*WORK]})


def boosted(job: Job, is_regression: bool, *, is_joined: bool) -> Any:
    """Boosting on the joined table, whose trees may cross silos or not."""
    kind = HistGradientBoostingRegressor if is_regression else HistGradientBoostingClassifier
    places = [[job.rows.columns.get_loc(column) for column in columns] for columns in job.silos.values()]
    return kind(
        learning_rate=0.05,
        max_iter=1000,
        early_stopping=True,
        validation_fraction=0.2,
        n_iter_no_change=30,
        categorical_features="from_dtype",
        interaction_cst=None if is_joined else places,
        random_state=0,
    )


def main() -> dict[str, float]:
    """Every table with every model."""
    figures = {}
    for job in tables():
        is_regression = len(np.unique(job.labels)) > 2
        metric = "R2" if is_regression else "AUC"
        order, count = np.random.default_rng(0).permutation(len(job.labels)), len(job.labels)
        train, known = order[: int(0.64 * count)], order[: int(0.8 * count)]
        test = order[int(0.8 * count) :]
        texts = job.rows.select_dtypes(exclude="number").columns
        rows = job.rows.astype(dict.fromkeys(texts, "category"))
        estimator = TwoTierRegressor if is_regression else TwoTierClassifier
        models = {name: estimator(job.silos, CLIENTS, verbose=0, rare=10, **keys) for name, keys in MODELS.items()}
        models |= {
            "boosting within silos": boosted(job, is_regression, is_joined=False),
            "boosting": boosted(job, is_regression, is_joined=True),
        }
        for name, model in models.items():
            taken, began = known if "boosting" in name else train, time.perf_counter()
            with warnings.catch_warnings():
                # Whether it converged is not the question here.
                warnings.simplefilter("ignore")
                model.fit(rows.iloc[taken], job.labels[taken])
            seconds = time.perf_counter() - began
            score = (
                r2_score(job.labels[test], model.predict(rows.iloc[test]))
                if is_regression
                else roc_auc_score(job.labels[test], model.predict_proba(rows.iloc[test])[:, 1])
            )
            rounds = f", {model.n_iter_} rounds" if name in MODELS else ""
            print(f"{job.name}, {name}: test {metric} {score:.4f} after {seconds:.1f} s{rounds}", flush=True)
            figures |= {f"{job.name}, {name}": float(score), f"{job.name}, {name}, seconds": seconds}
    return figures
