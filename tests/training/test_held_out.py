"""``held-out.csv`` of runs without ids: what the model says of every sample that nobody trained on."""

import csv

import numpy as np
import pytest
from scipy.special import expit, softmax

from tdcd import Federation, Linear, Objective, Settings, train
from tdcd.config import check_config
from tdcd.config.resolve import plan
from tdcd.data import Table
from tdcd.prediction import predictions
from tdcd.training.train import train_plan


def table_of(folder):
    with (folder / "held-out.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def numbers(rows, name):
    return np.array([float(row[name]) for row in rows])


def scores_in(result):
    return result.scores([silo.test_features for silo in result.federation.silos])


def embedded(source, tmp_path, **keys):
    keys = {
        "data": {"source": source, "rows": 120},
        "model": {"block": "linear"},
        "train": {"step_size": 0.05, "rounds": 2, "batch_size": 32},
    } | keys
    return train_plan(plan(check_config(keys)), tmp_path / "run")


def test_amounts_are_in_the_label_s_own_unit(tmp_path):
    result = embedded("diabetes", tmp_path)
    rows, federation = table_of(tmp_path / "run"), result.federation
    assert [*rows[0]] == ["sample", "label", "prediction"]
    assert [row["sample"] for row in rows] == [str(96 + place) for place in range(24)]
    scale, mean = federation.label_scale, federation.label_mean
    np.testing.assert_allclose(numbers(rows, "label"), federation.test_labels * scale + mean, rtol=1e-6)
    # Whole numbers in the data: rounding to the precision of the run is undone.
    assert (numbers(rows, "label") % 1 == 0).all()
    np.testing.assert_allclose(numbers(rows, "prediction"), scores_in(result)[:, 0] * scale + mean, rtol=1e-6)
    rmse = np.sqrt(np.mean((numbers(rows, "prediction") - numbers(rows, "label")) ** 2))
    assert rmse == pytest.approx(result.history[-1].metrics["test"]["rmse"], rel=1e-5)


def test_classes_are_called_by_their_numbers(tmp_path):
    result = embedded("digits", tmp_path)
    rows = table_of(tmp_path / "run")
    assert [*rows[0]] == ["sample", "label", "prediction", *(f"probability_{digit}" for digit in range(10))]
    assert [int(row["label"]) for row in rows] == result.federation.test_labels.tolist()
    wanted = softmax(scores_in(result).astype(np.float64), axis=1)
    found = np.stack([numbers(rows, f"probability_{digit}") for digit in range(10)], axis=1)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    # Seven figures of each, not seventeen.
    assert (tmp_path / "run" / "held-out.csv").stat().st_size < 24 * 10 * 16


def test_randomised_labels_are_called_so(tmp_path):
    embedded("breast_cancer", tmp_path, federation={"label_epsilon": 1.0})
    assert [*table_of(tmp_path / "run")[0]] == ["sample", "randomised_label", "prediction", "probability_benign"]


def test_nothing_is_written_where_nothing_is_held_out(tmp_path):
    embedded("breast_cancer", tmp_path, evaluate={"holdout": 0.0})
    assert not (tmp_path / "run" / "held-out.csv").exists()


def python_run(tmp_path, rows=30, **options):
    rng = np.random.default_rng(0)
    whole = Table("mine", rng.normal(size=(rows, 4)), (np.arange(rows) % 2).astype(np.int32), "binary")
    train_rows, test_rows = whole.split(0.4, 0)
    federation = Federation.cut(train_rows, test_rows, clients=2)
    settings = Settings(batch_size=6, local_steps=2, step_size=0.1, dtype="float64")
    return train(federation, Linear(), Objective("logistic"), settings, rounds=2, out=tmp_path / "run", **options)


def test_a_run_from_python_has_them_and_a_resumed_one_replaces_them(tmp_path):
    result = python_run(tmp_path)
    rows = table_of(tmp_path / "run")
    np.testing.assert_allclose(numbers(rows, "probability_1"), expit(scores_in(result)[:, 0]), rtol=1e-12)
    assert [row["prediction"] for row in rows] == [str(int(score > 0)) for score in scores_in(result)[:, 0]]
    before = (tmp_path / "run" / "held-out.csv").read_bytes()
    (tmp_path / "run" / "held-out.csv").unlink()
    python_run(tmp_path, resume=True)
    assert (tmp_path / "run" / "held-out.csv").read_bytes() == before


def test_of_very_many_samples_some_are_written_evenly_spread(tmp_path, monkeypatch):
    monkeypatch.setattr(predictions, "MOST_NUMBERED", 4)
    result = python_run(tmp_path)
    total = len(result.federation.test_labels)
    rows = table_of(tmp_path / "run")
    assert [int(row["sample"]) - (30 - total) for row in rows] == [0, 3, 7, total - 1]
    assert [int(row["label"]) for row in rows] == result.federation.test_labels[[0, 3, 7, total - 1]].tolist()
