"""The test for interactions between silos: its false-positive rate, its power, and what it says."""

import numpy as np
import pytest

from support.in_process import InProcess
from support.simulated import RIDGE, with_keys
from tdcd import Hidden, Objective
from tdcd.config.resolve import plan
from tdcd.prediction.interactions import FEWEST, HeldOut, describe_interactions, in_words, interactions_of
from tdcd.prediction.subsets import Phis
from tdcd.records.run_folder import RunFolder
from tdcd.runtime.compute.client_data import shards
from tdcd.training.train import train_plan

COEFFICIENTS = np.array([0.8, -0.5, 0.3])


def fitted(features, labels, loss):
    """A generalised linear model of all columns, by Newton's method: where additive linear blocks end."""
    theta = np.zeros(features.shape[1])
    for _ in range(1 if loss == "squared" else 12):
        scores = features @ theta
        mean = scores if loss == "squared" else 1 / (1 + np.exp(-scores))
        curvature = np.ones(len(labels)) if loss == "squared" else mean * (1 - mean)
        hessian = (features * curvature[:, None]).T @ features
        theta += np.linalg.solve(hessian, features.T @ (labels - mean))
    return theta


def drawn(seed, loss, interaction=None, *, num_silos=2, num_rows=1_500, correlation=0.0, noise_columns=0):
    """Phi and labels of the held-out half of a problem that is additive, but for the interaction."""
    rng = np.random.default_rng(seed)
    shared = correlation**0.5 * rng.normal(size=(num_rows, 1))
    silos = [(1 - correlation) ** 0.5 * rng.normal(size=(num_rows, 3)) + shared for _ in range(num_silos)]
    scores = sum(silo @ COEFFICIENTS for silo in silos)
    silos = [np.concatenate([silo, rng.normal(size=(num_rows, noise_columns))], axis=1) for silo in silos]
    if interaction is not None:
        scores = interaction(scores, silos[0][:, 0], silos[1][:, 0])
    noise = rng.normal(size=num_rows)
    labels = scores + noise if loss == "squared" else (rng.random(num_rows) < 1 / (1 + np.exp(-scores))).astype(float)
    half = num_rows // 2
    theta = fitted(np.concatenate(silos, axis=1)[:half], labels[:half], loss)
    each = np.split(theta, num_silos)
    phi = {(f"silo{j}",): silo[half:] @ each[j][:, None] for j, silo in enumerate(silos)}
    return phi, HeldOut(labels[half:])


def p_values(count, loss, interaction=None, **keys):
    return np.array(
        [describe_interactions(*drawn(seed, loss, interaction, **keys), Objective(loss))["p"] for seed in range(count)]
    )


@pytest.mark.parametrize("keys", [{}, {"correlation": 0.5}, {"num_silos": 4}], ids=str)
@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_additive_problems_are_taken_for_interactions_as_often_as_p_says(loss, keys):
    """300 problems: a rate of 0.05 has a standard error of 0.0126, and 0.01 one of 0.0057."""
    found = p_values(300, loss, **keys)
    assert np.mean(found < 0.05) < 0.05 + 3 * 0.0126
    assert np.mean(found < 0.01) < 0.01 + 3 * 0.0057
    if "num_silos" not in keys:
        assert abs(np.mean(found < 0.5) - 0.5) < 3 * 0.029


@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_products_are_found(loss):
    assert np.mean(p_values(40, loss, lambda s, a, b: s + 0.8 * a * b, num_rows=4_000) < 0.01) > 0.9


def test_the_exclusive_or_is_found_by_luck_only():
    """Phi of an additive model is noise then: a random mixture of a silo's columns, with little of one among many."""
    found = p_values(100, "logistic", lambda s, a, b: 3 * np.sign(a * b), noise_columns=30)
    assert np.mean(found < 0.01) < 0.15


def test_the_estimated_gain_is_about_what_the_products_add():
    """Of squared errors: the products explain 0.8^2 / (2 * 0.98 + 0.64 + 1) of the variance of the labels."""
    gains = []
    for seed in range(20):
        data = drawn(seed, "squared", lambda s, a, b: s + 0.8 * a * b, num_rows=8_000)
        gains.append(describe_interactions(*data, Objective("squared"))["pairs"][0]["gain"]["r2"])
    # Phi of a silo has its first column in it with a correlation of 0.8 / 0.99, so that of the product 0.65 is seen.
    share = 0.8**2 / (2 * 0.98 + 0.64 + 1)
    assert 0.25 * share < np.mean(gains) < share


def test_classes_and_weights():
    rng = np.random.default_rng(3)
    first, second = rng.normal(size=(2, 2_000, 3))
    scores = first + second + 1.5 * first * second
    labels = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
    phi = {("a",): first, ("b",): second}
    for weights in (None, rng.uniform(0.5, 2, 2_000)):
        found = describe_interactions(phi, HeldOut(labels, weights), Objective("softmax"))
        assert found["p"] < 1e-6
        assert found["pairs"][0]["gain"]["loss"] < 0 < found["pairs"][0]["gain"]["auc"]


def test_sentences():
    phi, held_out = drawn(0, "logistic", lambda s, a, b: s + a * b)
    clear = in_words(describe_interactions(phi, held_out, Objective("logistic")))
    assert clear.startswith("Columns of silo0 and silo1 interact (p = ")
    assert clear.endswith(" of AUC.")
    nothing = in_words(describe_interactions(*drawn(0, "logistic"), Objective("logistic")))
    assert nothing.startswith("No interaction between silos was found that a head could use (p = ")
    small = {"p": 1e-4, "pairs": [{"silos": ["a", "b"], "p": 1e-4, "gain": {"loss": 0.1, "auc": -0.1}}]}
    assert in_words(small) == "Columns of a and b may interact (p = 0.0001), but a head would gain little."


def test_reasons():
    phi, held_out = drawn(0, "squared")
    squared, names = Objective("squared"), ["silo0", "silo1"]
    cases = {
        "the model has a head": (Phis(names, phi, phi, "test"), Objective("squared", combine=Hidden(2)), False),
        "no samples are held out, and residuals of training samples are too small": (
            Phis(names, phi, phi, "train"),
            squared,
            False,
        ),
        "masks: hubs know only sums of the silos' phi, not each silo's": (
            Phis(names, phi, phi, "test"),
            squared,
            True,
        ),
        "there is one silo": (Phis(names[:1], phi, phi, "test"), squared, False),
    }
    for reason, (phis, objective, only_sums) in cases.items():
        found = interactions_of(phis, held_out, objective, only_sums=only_sums)
        assert found == {"reason": reason, "words": f"Interactions between silos were not tested: {reason}."}
    few = {group: numbers[:150] for group, numbers in phi.items()}
    found = describe_interactions(few, HeldOut(held_out.labels[:150]), squared)
    assert found == {"reason": f"150 samples are held out, and the test takes {FEWEST}"}
    constant = {**phi, ("silo1",): np.ones_like(phi["silo1",])}
    found = describe_interactions(constant, held_out, squared)
    assert found == {"reason": "fewer than two silos have a phi that differs between samples"}


@pytest.mark.parametrize("labels", [None, "lab"])
def test_real_parties_say_what_the_simulation_says(labels, tmp_path):
    config = with_keys(RIDGE, evaluate={"every": 2, "holdout": 0.5}, federation={"labels": labels})
    planned = plan(config)
    train_plan(planned, tmp_path / "run")
    expected = RunFolder(tmp_path / "run").subsets()["interactions"]
    office = InProcess(config, shards(planned)).run()
    assert 0 < expected["p"] <= 1
    for hub, found in office.subsets.items():
        if labels is None or hub == f"hub.{labels}":
            assert found["interactions"]["words"] == expected["words"]
            assert found["interactions"]["p"] == pytest.approx(expected["p"], rel=1e-6)
