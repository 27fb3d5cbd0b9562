"""Default settings beside scikit-learn's best linear model on the joined table: held-out figure and seconds.

Ten tables, cut into silos by subject, three clients each; a fifth of the rows is held out. What is not bundled with
scikit-learn is read from the folder that TDCD_DATA names; tables that are not there are left out.

Then small and made-up tables that no default was chosen on, five seeds each: next to scikit-learn with the same
penalty, and with the one that cross-validation finds.
"""

import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_linnerud, load_wine
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, Ridge, RidgeCV
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


SEEDS = range(5)
SAMPLES = 600
NEAR = 0.001
"""The noise on copied columns."""


def unseen(seed: int) -> Iterator[Job]:
    """Tables that no default was chosen on."""
    for name, made in (("iris", load_iris), ("wine", load_wine), ("linnerud", load_linnerud)):
        found = made(as_frame=True)
        labels = found.target if name != "linnerud" else found.target["Weight"]
        columns = [*found.data.columns]
        yield Job(name, found.data, labels.to_numpy(), columns[: len(columns) // 2])
    rng = np.random.default_rng(seed)
    shared, noise = rng.normal(size=(SAMPLES, 3)), rng.normal(size=(SAMPLES, 10))
    errors = 0.5 * rng.normal(size=SAMPLES)
    collinear = shared @ rng.normal(size=(3, 10)) + 0.01 * noise
    yield _made("collinear", collinear, collinear @ rng.normal(size=10) + errors)
    heavy = rng.standard_t(1.5, size=(SAMPLES, 10))
    yield _made("heavy-tailed", heavy, np.clip(heavy, -3, 3) @ rng.normal(size=10) + rng.standard_t(2, size=SAMPLES))
    score = noise @ rng.normal(size=10) + rng.logistic(size=SAMPLES)
    yield _made("imbalanced", noise, (score > np.quantile(score, 0.96)).astype(int))
    copied = np.concatenate([noise[:, :5], noise[:, :5] + NEAR * rng.normal(size=(SAMPLES, 5))], axis=1)
    yield _made("near copies", copied, copied @ rng.normal(size=10) + errors)
    difference = (copied[:, 5:] - copied[:, :5]) / NEAR
    yield _made("difference of near copies", copied, difference @ rng.normal(size=5) + errors)


def _made(name: str, rows: Any, labels: Any) -> Job:
    columns = [f"x{number}" for number in range(rows.shape[1])]
    return Job(name, pd.DataFrame(rows, columns=columns), labels, columns[: len(columns) // 2])


def joined_model(job: Job, is_regression: bool, *, same_penalty: bool = False) -> Any:
    """scikit-learn's linear model, with the penalty that cross-validation finds, or with that of default settings."""
    numbers = job.rows.select_dtypes("number").columns
    others = [name for name in job.rows if name not in numbers]
    prepared = make_column_transformer(
        (StandardScaler(), [*numbers]), (OneHotEncoder(handle_unknown="ignore", min_frequency=10), others)
    )
    penalties = np.logspace(-3, 3, 7)
    if same_penalty:
        return make_pipeline(prepared, Ridge(0.1) if is_regression else LogisticRegression(C=1.0, max_iter=10_000))
    if is_regression:
        return make_pipeline(prepared, RidgeCV(penalties))
    return make_pipeline(prepared, LogisticRegressionCV(Cs=penalties, max_iter=2000))


class Measured(NamedTuple):
    """What a table gives."""

    figure: str
    reached: list[float]
    """By default settings, then by each of scikit-learn's models."""
    seconds: list[float]
    rounds: int
    converged: bool | None


def measured(job: Job, seed: int = 0, *, with_same_penalty: bool = False) -> Measured:
    """Fit and score on a fifth of the rows that the seed draws."""
    is_regression = job.labels.dtype.kind == "f" or len(np.unique(job.labels)) > 20
    order = np.random.default_rng(seed).permutation(len(job.labels))
    train, test = order[: len(order) * 4 // 5], order[len(order) * 4 // 5 :]
    rows = job.rows.fillna(job.rows.mean(numeric_only=True))
    silos = {"first": job.first, "second": [name for name in rows if name not in job.first]}
    figures, seconds = [], []
    kind = TwoTierRegressor if is_regression else TwoTierClassifier
    models = [kind(silos, clients=3, verbose=0), joined_model(job, is_regression)]
    models += [joined_model(job, is_regression, same_penalty=True)] if with_same_penalty else []
    for model in models:
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
    return Measured(what, figures, seconds, rounds, converged)


def main() -> dict[str, Any]:
    """Fit and print."""
    figures = {}
    print(f"{'table':18} {'':9} {'tdcd':>8} {'joined':>8} {'':>8} {'seconds':>8} {'joined':>8} {'rounds':>7} converged")
    for job in tables():
        what, (own, joined), (seconds, theirs), rounds, converged = measured(job)
        times = f"{seconds:8.2f} {theirs:8.2f} {rounds:7d}"
        print(f"{job.name:18} {what:9} {own:8.4f} {joined:8.4f} {own - joined:+8.4f} {times} {converged}", flush=True)
        figures[job.name] = {
            what: own,
            "joined": joined,
            "seconds": seconds,
            "joined seconds": theirs,
            "rounds": rounds,
        }
    return figures | _unseen()


def _unseen() -> dict[str, Any]:
    """The tables of :func:`unseen`: means over the seeds, and the seeds that converged."""
    each: dict[str, list[Measured]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in SEEDS:
            for job in unseen(seed):
                each.setdefault(job.name, []).append(measured(job, seed, with_same_penalty=True))
    print(f"\n{'table':26} {'':9} {'tdcd':>8} {'same':>8} {'':>8} {'validated':>9} {'':>8} {'rounds':>7} converged")
    figures = {}
    for name, runs in each.items():
        own, validated, same = np.mean([run.reached for run in runs], axis=0)
        worst = min(run.reached[0] - run.reached[2] for run in runs)
        rounds, converged = round(np.mean([run.rounds for run in runs])), sum(bool(run.converged) for run in runs)
        words = f"{own:8.4f} {same:8.4f} {own - same:+8.4f} {validated:9.4f} {own - validated:+8.4f} {rounds:7d}"
        print(f"{name:26} {runs[0].figure:9} {words} {converged} of {len(runs)}, worst {worst:+.4f}", flush=True)
        figures[name] = {runs[0].figure: own, "same penalty": same, "validated": validated, "worst": worst}
    return figures
