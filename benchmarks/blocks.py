"""``model="auto"`` beside boosted trees: test AUC or R2 and seconds, on tables cut into silos by subject.

Rows by ``numpy.random.default_rng(0).permutation``: 80 % to fit, and 20 % to test. Of the 80 %, every model holds out a
part of its own for early stopping: boosting 20 %, TDCD its default. TDCD has four clients per silo. Figures are means
over five seeds, of which held-out samples, first values and minibatches depend. Tables are read from the folder that
TDCD_DATA names; BLOCKS_TABLES names those to take, BLOCKS_MODELS the models and BLOCKS_SEEDS the seeds, with commas
between.
"""

import os
import time
import warnings
from collections.abc import Iterable, Iterator
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
CONTACT = ("contact", "day", "month", "campaign", "pdays", "previous", "poutcome")
CLIENT = ("age", "job", "marital", "education", "default", "balance", "housing", "loan")
CALENDAR = ("hr", "yr", "mnth", "weekday", "workingday", "holiday", "season")
WEATHER = ("weathersit", "temp", "atemp", "hum", "windspeed")
MODELS = ("auto", "ensemble", "boosting within silos", "boosting")


class Job(NamedTuple):
    """A table with its labels, and the columns of each silo."""

    name: str
    rows: pd.DataFrame
    labels: Any
    silos: dict[str, list[str]]


def tables() -> Iterator[Job]:
    """The tables that are there."""
    folder = Path(os.environ.get("TDCD_DATA", ""))
    makers = {
        "superconductivity": _superconductivity,
        "california": _california,
        "credit": _credit,
        "adult": _adult,
        "bank": _bank,
        "bike": _bike,
    }
    for name in _wanted("TABLES", makers):
        try:
            yield makers[name](folder)
        except FileNotFoundError:
            print(f"{name}: not in TDCD_DATA")


def _wanted(what: str, everything: Iterable[str]) -> list[str]:
    """What the variable BLOCKS_``what`` names, or everything."""
    named = os.environ.get(f"BLOCKS_{what}", "")
    return named.split(",") if named else [*everything]


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


def _bank(folder: Path) -> Job:
    rows = pd.read_csv(folder / "tables" / "bank_full.csv.gz")
    return Job(
        "bank",
        rows[[*CONTACT, *CLIENT]],
        (rows["y"] == "yes").to_numpy().astype(int),
        {"contact": [*CONTACT], "client": [*CLIENT]},
    )


def _bike(folder: Path) -> Job:
    rows = pd.read_csv(folder / "tables" / "bike_hour.csv.gz")
    labels = np.log1p(rows["cnt"].to_numpy(float))
    return Job("bike", rows[[*CALENDAR, *WEATHER]], labels, {"calendar": [*CALENDAR], "weather": [*WEATHER]})


def boosted(job: Job, is_regression: bool, seed: int, *, is_joined: bool) -> Any:
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
        random_state=seed,
    )


def model(name: str, job: Job, is_regression: bool, seed: int) -> Any:
    """A model by its name in :data:`MODELS`."""
    if "boosting" in name:
        return boosted(job, is_regression, seed, is_joined=name == "boosting")
    kind = TwoTierRegressor if is_regression else TwoTierClassifier
    chosen = {"model": "auto"} if name == "auto" else {"block": name}
    return kind(job.silos, CLIENTS, verbose=0, rare=10, random_state=seed, **chosen)


def main() -> dict[str, float]:
    """The mean of every model on every table."""
    figures = {}
    for job in tables():
        is_regression = len(np.unique(job.labels)) > 2
        metric = "R2" if is_regression else "AUC"
        order, count = np.random.default_rng(0).permutation(len(job.labels)), len(job.labels)
        known, test = order[: int(0.8 * count)], order[int(0.8 * count) :]
        texts = job.rows.select_dtypes(exclude="number").columns
        rows = job.rows.astype(dict.fromkeys(texts, "category"))
        for name in _wanted("MODELS", MODELS):
            scores, times = [], []
            for seed in map(int, _wanted("SEEDS", "01234")):
                fitted, began = model(name, job, is_regression, seed), time.perf_counter()
                with warnings.catch_warnings():
                    # Whether it converged is not the question here.
                    warnings.simplefilter("ignore")
                    fitted.fit(rows.iloc[known], job.labels[known])
                times.append(time.perf_counter() - began)
                scores.append(
                    r2_score(job.labels[test], fitted.predict(rows.iloc[test]))
                    if is_regression
                    else roc_auc_score(job.labels[test], fitted.predict_proba(rows.iloc[test])[:, 1])
                )
                said = "" if "boosting" in name else f", {fitted.n_iter_} rounds"
                choice = getattr(fitted, "choice_", None)
                said += "" if choice is None else f": {choice.in_words} " + "; ".join(t.in_words for t in choice.trials)
                print(
                    f"{job.name}, {name}, seed {seed}: {metric} {scores[-1]:.4f} in {times[-1]:.1f} s{said}", flush=True
                )
            mean, seconds = float(np.mean(scores)), float(np.mean(times))
            print(
                f"{job.name}, {name}: test {metric} {mean:.4f}, mean of {len(scores)}, {seconds:.1f} s each", flush=True
            )
            figures |= {f"{job.name}, {name}": mean, f"{job.name}, {name}, seconds": seconds}
    return figures
