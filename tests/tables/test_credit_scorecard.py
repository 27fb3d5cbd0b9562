"""The shipped example on the whole credit data: ids up to 24,000 train, and the others test."""

import csv
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from tdcd.config import check_config, read_config
from tdcd.config.resolve import plan
from tdcd.core.losses.figures import auc
from tdcd.data import data_folder
from tdcd.prediction.model import Model
from tdcd.prediction.scores import combine
from tdcd.tables.preparation import load_preparation
from tdcd.tables.reader import read_rows
from tdcd.tables.rows import Columns
from tdcd.training.train import train_plan

EXAMPLE = Path(__file__).parents[2] / "examples" / "scorecard.toml"
TRAIN = 24000


def write_parts(folder):
    """The tables of the page: ``bank.csv`` and ``bureau.csv`` to train on, ``new_bank.csv`` and ``new_bureau.csv``."""
    for source, name in (("guest", "bank"), ("host", "bureau")):
        with (data_folder() / "credit" / f"{source}.csv").open(newline="", encoding="utf-8") as file:
            header, *rows = csv.reader(file)
        for prefix, is_new in (("", False), ("new_", True)):
            with (folder / f"{prefix}{name}.csv").open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([header, *(row for row in rows if (int(row[0]) > TRAIN) == is_new)])


@pytest.mark.slow
def test_the_example_is_as_good_as_scikit_learn_on_the_same_bins(tmp_path):
    if not (data_folder() / "credit" / "guest.csv").exists():
        pytest.skip(f"{data_folder()} has no credit/guest.csv: set TDCD_DATA to a folder with the two-party tables")
    write_parts(tmp_path)
    keys = read_config(EXAMPLE)
    keys["data"]["folder"] = str(tmp_path)
    keys["evaluate"] = {"holdout": 0, "every": keys["train"]["rounds"]}
    planned = plan(check_config(keys))
    folder = tmp_path / "run"
    train_plan(planned, folder)
    names = ("bank", "bureau")
    found = combine({name: Model.load(folder).silo_scores(name, tmp_path / f"new_{name}.csv") for name in names})
    rows = read_rows(tmp_path / "new_bank.csv", Columns(label="y"))
    label = dict(zip(rows.ids, rows.labels, strict=True))
    is_default = np.array([label[one] == 1 for one in found.ids])
    ours = auc(found.scores[:, 0], is_default)

    joined = np.concatenate([silo.features for silo in planned.federation.silos], axis=1)
    tables = {
        name: read_rows(tmp_path / f"new_{name}.csv", Columns(ignore=("y",) * (name == "bank"))) for name in names
    }
    places = {name: {one: place for place, one in enumerate(table.ids)} for name, table in tables.items()}
    new = np.concatenate(
        [
            load_preparation(folder, name).apply(
                table.take(np.array([places[name][one] for one in found.ids])), np.float32, int(name == "bank")
            )
            for name, table in tables.items()
        ],
        axis=1,
    )
    theirs = LogisticRegression(C=1 / (keys["model"]["l2"] * len(joined)), fit_intercept=False, max_iter=1000)
    theirs.fit(joined, planned.federation.labels)
    assert abs(ours - auc(theirs.decision_function(new), is_default)) < 0.003
    assert ours > 0.783
