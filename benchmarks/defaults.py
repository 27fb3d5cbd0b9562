"""Default settings beside scikit-learn's best linear model on the joined table: held-out figure and seconds.

Ten tables, cut into silos by subject, three clients each; a fifth of the rows is held out. What is not bundled with
scikit-learn is read from the folder that TDCD_DATA names; tables that are not there are left out.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.linear_model import LogisticRegressionCV, RidgeCV
from sklearn.metrics import accuracy_score, r2_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from tdcd import TwoTierClassifier, TwoTierRegressor

PERSON = ("age", "sex", "race", "native-country", "marital-status", "relationship")
CALLS = ("contact", "day", "month", "campaign", "pdays", "previous", "poutcome")
CENSUS = ("median_income", "households", "population")
CALENDAR = ("hr", "yr", "mnth", "weekday", "workingday", "holiday", "season")


class Job(NamedTuple):
    """A table with its label, and the columns of its first silo."""

    name: str
    rows: pd.DataFrame
    labels: Any
    first: list[str]


def tables() -> Iterator[Job]:
    """The tables that are there."""
    for name, made in (("breast", load_breast_cancer), ("diabetes", load_diabetes), ("digits", load_digits)):
        found = made(as_frame=True)
        columns = [*found.data.columns]
        yield Job(name, found.data, found.target.to_numpy(), columns[: len(columns) // 2])
    folder = Path(os.environ.get("TDCD_DATA", ""))
    for name, key, label in (("credit", "id", "y"), ("motor", "idx", "motor_speed")):
        if (folder / name / "guest.csv").exists():
            guest, host = (pd.read_csv(folder / name / f"{side}.csv").set_index(key) for side in ("guest", "host"))
            joined = guest.add_prefix("guest_").join(host.add_prefix("host_"), how="inner")
            labels = joined.pop(f"guest_{label}").to_numpy()
            yield Job(name, joined, labels, [name for name in joined if name.startswith("guest_")])
    for name, path, label, first, dropped in (
        ("superconductivity", "superconduct/superconduct.csv.gz", "critical_temp", (), ()),
        ("adult", "tables/adult.csv.gz", "income", PERSON, ("id",)),
        ("bank", "tables/bank_full.csv.gz", "y", CALLS, ("id", "duration")),
        ("california", "tables/california_housing.csv.gz", "median_house_value", CENSUS, ("id",)),
        ("bike", "tables/bike_hour.csv.gz", "cnt", CALENDAR, ("instant", "dteday", "casual", "registered")),
    ):
        if (folder / path).exists():
            rows = pd.read_csv(folder / path).drop(columns=[*dropped])
            labels = rows.pop(label).to_numpy()
            if name == "california":
                labels = np.log(labels)
            yield Job(name, rows, labels, [*first] or [*rows.columns[:40]])


def joined_model(job: Job, is_regression: bool) -> Any:
    """scikit-learn's linear model, with the penalty that cross-validation finds."""
    numbers = job.rows.select_dtypes("number").columns
    others = [name for name in job.rows if name not in numbers]
    prepared = make_column_transformer(
        (StandardScaler(), [*numbers]), (OneHotEncoder(handle_unknown="ignore", min_frequency=10), others)
    )
    penalties = np.logspace(-3, 3, 7)
    if is_regression:
        return make_pipeline(prepared, RidgeCV(penalties))
    return make_pipeline(prepared, LogisticRegressionCV(Cs=penalties, max_iter=2000))


def measured(job: Job) -> tuple[str, str, float, float, float, float, int, bool | None]:
    """The table's name and figure; ours and theirs with seconds; rounds, and whether it converged."""
    is_regression = job.labels.dtype.kind == "f" or len(np.unique(job.labels)) > 20
    order = np.random.default_rng(0).permutation(len(job.labels))
    train, test = order[: len(order) * 4 // 5], order[len(order) * 4 // 5 :]
    rows = job.rows.fillna(job.rows.mean(numeric_only=True))
    silos = {"first": job.first, "second": [name for name in rows if name not in job.first]}
    figures, seconds = [], []
    kind = TwoTierRegressor if is_regression else TwoTierClassifier
    for model in (kind(silos, clients=3, verbose=0), joined_model(job, is_regression)):
        began = time.perf_counter()
        model.fit(rows.iloc[train], job.labels[train])
        seconds.append(time.perf_counter() - began)
        if is_regression:
            figures.append(r2_score(job.labels[test], model.predict(rows.iloc[test])))
        elif len(np.unique(job.labels)) > 2:
            figures.append(accuracy_score(job.labels[test], model.predict(rows.iloc[test])))
        else:
            chances = model.predict_proba(rows.iloc[test])[:, 1]
            figures.append(roc_auc_score(job.labels[test] == np.unique(job.labels)[1], chances))
        if hasattr(model, "n_iter_"):
            rounds, converged = model.n_iter_, model.converged_
    what = "R2" if is_regression else "accuracy" if len(np.unique(job.labels)) > 2 else "AUC"
    return job.name, what, figures[0], figures[1], seconds[0], seconds[1], rounds, converged


def main() -> dict[str, Any]:
    """Fit and print."""
    figures = {}
    print(f"{'table':18} {'':9} {'tdcd':>8} {'joined':>8} {'':>8} {'seconds':>8} {'joined':>8} {'rounds':>7} converged")
    for job in tables():
        name, what, own, joined, seconds, theirs, rounds, converged = measured(job)
        times = f"{seconds:8.2f} {theirs:8.2f} {rounds:7d}"
        print(f"{name:18} {what:9} {own:8.4f} {joined:8.4f} {own - joined:+8.4f} {times} {converged}", flush=True)
        figures[name] = {what: own, "joined": joined, "seconds": seconds, "joined seconds": theirs, "rounds": rounds}
    return figures
