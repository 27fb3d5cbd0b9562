"""The metrics against scikit-learn's."""

import numpy as np
import pytest

from tdcd.core.losses import metrics
from tdcd.core.losses.figures import auc

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
