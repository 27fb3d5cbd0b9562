"""The metrics against scikit-learn's."""

from dataclasses import dataclass

import numpy as np
import pytest

from tdcd.core.losses import loss_of, metrics
from tdcd.core.losses.figures import auc, auc_of_bins, binned
from tdcd.core.losses.squared import Squared
from tdcd.core.randomized import KEPT, Response

pytestmark = pytest.mark.quick


@pytest.mark.slow  # importing scikit-learn takes longer than all tests of this module
def test_regression_equals_sklearn_in_the_labels_units():
    from sklearn.metrics import r2_score, root_mean_squared_error

    rng = np.random.default_rng(0)
    labels, scores = rng.normal(size=50), rng.normal(size=(50, 1))
    found = metrics("squared", scores, labels, label_scale=3.0)
    assert found["rmse"] == pytest.approx(3 * root_mean_squared_error(labels, scores[:, 0]), rel=1e-12)
    assert found["r2"] == pytest.approx(r2_score(labels, scores[:, 0]), rel=1e-12)


@pytest.mark.slow
def test_binary_equals_sklearn_with_ties():
    from sklearn.metrics import accuracy_score, roc_auc_score

    rng = np.random.default_rng(1)
    labels, scores = rng.integers(0, 2, 200), rng.integers(-3, 4, (200, 1)).astype(float)
    found = metrics("logistic", scores, labels)
    assert found["auc"] == pytest.approx(roc_auc_score(labels, scores[:, 0]), rel=1e-12)
    assert found["accuracy"] == accuracy_score(labels, scores[:, 0] > 0)


@pytest.mark.slow
def test_multiclass_equals_sklearn_one_against_the_rest():
    from sklearn.metrics import accuracy_score, roc_auc_score

    rng = np.random.default_rng(2)
    labels, scores = rng.integers(0, 4, 300), rng.normal(size=(300, 4))
    found = metrics("softmax", scores, labels)
    probabilities = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    assert found["auc"] == pytest.approx(roc_auc_score(labels, probabilities, multi_class="ovr"), rel=1e-12)
    assert found["accuracy"] == accuracy_score(labels, scores.argmax(axis=1))


def test_undefined_figures_are_none():
    assert auc(np.array([1.0, 2.0]), np.array([True, True])) is None
    assert metrics("squared", np.array([[np.nan]]), np.array([1.0])) == {"rmse": None, "r2": None}
    assert metrics("squared", np.array([[1.0], [1.0]]), np.array([2.0, 2.0])) == {"rmse": 1.0, "r2": None}
    assert metrics("softmax", np.array([[np.inf, 0.0]]), np.array([1])) == {"accuracy": None, "auc": None}


def every_outcome(scores, labels, num_classes, kept):
    """Each sample as often as randomised response would give each label, for chances that are whole parts."""
    noisy = [[label] * kept + [other for other in range(num_classes) if other != label] for label in labels]
    return np.repeat(scores, len(noisy[0]), axis=0), np.concatenate(noisy)


@pytest.mark.parametrize(("loss", "num_classes", "kept"), [("logistic", 2, 3), ("softmax", 3, 2), ("softmax", 4, 5)])
def test_figures_of_randomised_labels_are_those_of_the_true_ones(loss, num_classes, kept):
    rng = np.random.default_rng(4)
    labels = rng.integers(0, num_classes, 50)
    scores = rng.normal(0, 1, (50, 1 if loss == "logistic" else num_classes))
    scores += (labels[:, None] if loss == "logistic" else np.eye(num_classes)[labels]) * 1.5
    found = metrics(loss, *every_outcome(scores, labels, num_classes, kept), label_epsilon=np.log(kept))
    wanted = metrics(loss, scores, labels)
    assert found == pytest.approx(wanted, rel=1e-12)


def test_an_area_that_cannot_be_estimated():
    # Fewer positives than the noise alone would give.
    labels = np.array([1] + [0] * 9)
    assert metrics("logistic", np.arange(10.0)[:, None], labels, label_epsilon=1.0)["auc"] is None


@pytest.mark.parametrize("loss", ["squared", "huber", "poisson", "logistic", "softmax"])
def test_sums_of_parts_give_the_metrics_of_all(loss):
    rng = np.random.default_rng(3)
    kind, outputs = loss_of(loss), 3 if loss == "softmax" else 1
    scores = rng.normal(size=(5000, outputs))
    labels = {
        "poisson": rng.poisson(np.exp(scores[:, 0])).astype(float),
        "logistic": (scores[:, 0] + rng.normal(size=5000) > 0).astype(int),
        "softmax": (scores + rng.normal(size=scores.shape)).argmax(axis=1),
    }.get(loss, 7 + scores[:, 0] + rng.normal(size=5000))
    for response in (KEPT, Response.of(2.0, max(2, outputs))) if kind.target != "amount" else (KEPT,):
        parts = [kind.sums(own, truth) for own, truth in zip(np.split(scores, 5), np.split(labels, 5), strict=True)]
        added = {name: sum(part[name] for part in parts) for name in parts[0]}
        known, figures = kind.metrics(scores, labels, 2.0, response), kind.metrics_of_sums(added, 2.0, response)
        assert figures.keys() == known.keys()
        for name, value in figures.items():
            # An AUC counts scores that agree in their first bits as ties.
            assert value == pytest.approx(known[name], **({"abs": 1e-4} if name == "auc" else {"rel": 1e-10}))


def test_an_area_of_bins_is_off_by_no_more_than_its_ties():
    rng = np.random.default_rng(5)
    scores = np.concatenate([rng.normal(size=500) * 10.0 ** rng.integers(-30, 30, 500), [0.0, -0.0, np.inf, -np.inf]])
    positive = rng.random(504) < 0.3
    counts = binned(scores, positive)
    ties = counts[0] @ counts[1] / 2 / (positive.sum() * (~positive).sum())
    assert abs(auc_of_bins(counts) - auc(scores, positive)) <= ties + 1e-12
    assert ties < 0.01
    # Zeros of both signs are ties, exactly.
    assert auc_of_bins(binned(np.array([0.0, -0.0]), np.array([True, False]))) == 0.5


def test_amounts_that_are_alike_have_no_r2_of_sums():
    kind = loss_of("squared")
    assert kind.metrics_of_sums(kind.sums(np.zeros((9, 1)), np.full(9, 0.1)), 1.0, KEPT)["r2"] is None


def test_metrics_of_a_loss_of_ones_own_are_no_sums():
    @dataclass(frozen=True)
    class Own(Squared):
        def metrics(self, scores, labels, unit, response):
            return {"median": float(np.median(scores))}

    assert Own.sums is None
    assert Squared.sums is not None
