"""Temperature of an ensemble's probabilities: the minimum of the log loss, and the same figure in every place."""

import csv
from dataclasses import replace

import numpy as np
import pytest

from support.in_process import InProcess
from support.simulated import with_keys
from tdcd import Ensemble, Linear, Model, Objective, load
from tdcd.config.resolve import plan
from tdcd.prediction.calibration import (
    FEWEST,
    LIMITS,
    Judged,
    calibration_error,
    describe_calibration,
    log_losses,
    temperature,
)
from tdcd.prediction.subsets import is_calibrated
from tdcd.records.run_folder import RunFolder
from tdcd.runtime.compute.client_data import shards
from tdcd.training.train import train_plan

ENSEMBLE = {
    "dtype": "float64",
    "data": {"source": "breast_cancer"},
    "silos": [{"name": "clinic", "clients": 2}, {"name": "lab", "clients": 2}],
    "model": {"block": ["linear", "ensemble"], "hidden": [4], "members": 2},
    "train": {"rounds": 4, "local_steps": 4, "batch_size": 64, "step_size": 0.05},
    "evaluate": {"every": 2, "holdout": 0.5},
}


def drawn(true_temperature, outputs, count=4_000):
    """Scores and labels whose probabilities are right at a temperature."""
    rng = np.random.default_rng(3)
    scores = rng.normal(scale=4, size=(count, outputs))
    full = np.hstack([np.zeros_like(scores), scores]) if outputs == 1 else scores
    chances = np.exp(full / true_temperature)
    chances /= chances.sum(axis=1, keepdims=True)
    labels = (rng.random((count, 1)) > chances.cumsum(axis=1)).sum(axis=1)
    return Judged(scores, labels, rng.uniform(0.5, 2, count))


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("true_temperature", [0.6, 1.0, 2.5])
def test_a_temperature_is_where_the_log_loss_is_lowest(true_temperature, outputs):
    rows = drawn(true_temperature, outputs)
    grid = np.exp(np.linspace(*np.log(LIMITS), 400))
    losses = [np.average(log_losses(rows.scores / value, rows.labels), weights=rows.weights) for value in grid]
    fitted = temperature(rows)
    assert fitted == pytest.approx(grid[int(np.argmin(losses))], rel=0.005)
    assert fitted == pytest.approx(true_temperature, rel=0.08)
    facts = describe_calibration(rows.scores, rows.labels, rows.weights, Objective("softmax"))
    if true_temperature != 1:
        assert facts["after"]["log_loss"] < facts["before"]["log_loss"] - 0.01
        assert facts["after"]["calibration_error"] < facts["before"]["calibration_error"] / 2


def test_scores_that_are_always_right_have_the_lowest_temperature_and_no_signal_the_highest():
    labels = np.tile([0, 1], 100)
    scores = (2.0 * labels - 1)[:, None]
    assert temperature(Judged(scores, labels, np.ones(200))) == pytest.approx(LIMITS[0])
    assert temperature(Judged(-scores, labels, np.ones(200))) == pytest.approx(LIMITS[1])


def test_a_calibration_error_is_the_mean_distance_of_probability_and_frequency():
    labels = np.tile([1, 1, 1, 0], 250)
    probabilities = np.tile([0.1, 0.9], (1000, 1))
    assert calibration_error(probabilities, labels, np.ones(1000)) == pytest.approx(0.15)


def test_what_cannot_be_calibrated_says_why():
    rows = drawn(1.0, 1, FEWEST - 1)
    few = describe_calibration(rows.scores, rows.labels, None, Objective("logistic"))
    assert few["words"] == f"Probabilities were not calibrated: {FEWEST - 1} samples held out, and it takes {FEWEST}."
    none = describe_calibration(None, None, None, Objective("logistic"))
    assert none["words"] == "Probabilities were not calibrated: no samples are held out."
    assert is_calibrated([Linear(), Ensemble()], Objective("softmax"))
    assert not is_calibrated([Linear()], Objective("logistic"))
    assert not is_calibrated([Ensemble()], Objective("squared"))


@pytest.mark.parametrize("labels", [None, "lab"])
def test_simulation_files_and_real_parties_have_the_same_temperature(labels, tmp_path):
    config = with_keys(ENSEMBLE, federation={"labels": labels})
    planned = plan(config)
    result = train_plan(planned, tmp_path / "run")
    facts = RunFolder(tmp_path / "run").subsets()["calibration"]
    found = facts["temperature"]
    # No run gives exactly 1, and early in training scores are too small by far.
    assert found < 0.95
    assert facts["after"]["log_loss"] < facts["before"]["log_loss"]
    held_out = planned.federation
    total = result.scores([silo.test_features for silo in held_out.silos])
    rows = Judged(total, held_out.test_labels.astype(int), np.ones(len(total)))
    assert found == pytest.approx(temperature(rows), rel=1e-6)
    office = InProcess(config, shards(planned)).run()
    for hub, subsets in office.subsets.items():
        if labels is None or hub == f"hub.{labels}":
            assert subsets["calibration"]["temperature"] == pytest.approx(found, rel=1e-6)
            assert subsets["calibration"]["words"] == facts["words"]
    if labels is None:
        assert train_plan(plan(config)).model.temperature == pytest.approx(found, rel=1e-9)


def test_probabilities_are_those_of_the_scores_over_the_temperature(tmp_path):
    result = train_plan(plan(with_keys(ENSEMBLE)), tmp_path / "run")
    result.model.save(tmp_path / "file.tdcd")
    table = load("breast_cancer")
    columns, half = dict(zip(table.columns, table.features.T, strict=True)), len(table.columns) // 2
    names = {"clinic": table.columns[:half], "lab": table.columns[half:]}
    rows = {silo: {name: columns[name] for name in own} for silo, own in names.items()}
    for model in (result.model, Model.load(tmp_path / "run"), Model.load(tmp_path / "file.tdcd")):
        assert model.temperature == result.model.temperature != 1
        expected = 1 / (1 + np.exp(-model.scores(rows)[:, 0] / model.temperature))
        np.testing.assert_allclose(model.predict_proba(rows)[:, 1], expected, rtol=0, atol=1e-12)
        np.testing.assert_array_equal(model.predict(rows), replace(model, temperature=1.0).predict(rows))
    with (tmp_path / "run" / "held-out.csv").open() as file:
        written = {round(float(line["probability_benign"]), 9) for line in csv.DictReader(file)}
    assert written <= {round(float(chance), 9) for chance in model.predict_proba(rows)[:, 1]}
    assert "calibrated by a temperature" in RunFolder(tmp_path / "run").subsets()["calibration"]["words"]


def test_a_served_file_has_the_same_probabilities(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    model = train_plan(plan(with_keys(ENSEMBLE))).model
    model.to_onnx(tmp_path / "sum.onnx", from_phi=True)
    phi = np.random.default_rng(0).normal(size=(20, 1))
    given = {f"{silo}/phi": phi for silo in model.silos}
    session = runtime.InferenceSession(tmp_path / "sum.onnx")
    names = [output.name for output in session.get_outputs()]
    served = dict(zip(names, session.run(None, given), strict=True))
    expected = 1 / (1 + np.exp(-2 * phi[:, 0] / model.temperature))
    np.testing.assert_allclose(served["probabilities"][:, 1], expected, rtol=0, atol=1e-6)
