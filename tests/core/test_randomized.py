"""Randomised response and the losses that are corrected for it: unbiased exactly, curved as before."""

from math import exp, log

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tdcd.core.objective import Objective
from tdcd.core.randomized import Response

CASES = [("logistic", 2, 0.3), ("logistic", 2, 2.0), ("softmax", 2, 1.0), ("softmax", 5, 0.5)]


@pytest.fixture(autouse=True)
def exact():
    with jax.enable_x64(True):
        yield


def scores(loss, classes):
    return jnp.asarray(np.random.default_rng(0).normal(0, 2, (7, 1 if loss == "logistic" else classes)))


def by_label(classes):
    """``[classes, 7]``: every row of the scores with every label."""
    return np.repeat(np.arange(classes)[:, None], 7, axis=1)


def by_row(objective, what=lambda function: function):
    """``[classes, 7, ...]``: the loss, or ``what`` is made of it, of every row with every label; one program."""

    def one(row, label):
        return objective.losses(row[None], label[None])[0]

    return jax.jit(jax.vmap(jax.vmap(what(one)), (None, 0)))


def chances(epsilon, classes):
    """T: of every label, what it becomes."""
    response = Response.of(epsilon, classes)
    return np.full((classes, classes), response.other) + np.diag([response.slope] * classes)


@pytest.mark.parametrize(("epsilon", "classes"), [(0.1, 2), (1.0, 2), (1.0, 10), (3.0, 4)])
def test_the_chances_are_those_of_randomised_response(epsilon, classes):
    response = Response.of(epsilon, classes)
    assert response.keep == pytest.approx(exp(epsilon) / (exp(epsilon) + classes - 1), rel=1e-14)
    assert response.keep + (classes - 1) * response.other == pytest.approx(1, rel=1e-14)
    # What epsilon promises: no outcome is more than e^epsilon times as likely for one label as for another.
    table = chances(epsilon, classes)
    assert (table.max(axis=0) / table.min(axis=0)) == pytest.approx(exp(epsilon), rel=1e-12)


@pytest.mark.parametrize(("loss", "classes", "epsilon"), CASES)
def test_the_mean_over_all_outcomes_is_the_loss_of_the_true_label(loss, classes, epsilon):
    phi, labels = scores(loss, classes), by_label(classes)
    given = by_row(Objective(loss, label_epsilon=epsilon))(phi, labels)
    expected = by_row(Objective(loss))(phi, labels)
    np.testing.assert_allclose(chances(epsilon, classes) @ given, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("loss", "classes", "epsilon"), CASES)
def test_gradients_are_those_of_plain_loops_and_the_curvature_stays(loss, classes, epsilon):
    phi, labels = np.asarray(scores(loss, classes)), by_label(classes)
    plain, corrected = Objective(loss), Objective(loss, label_epsilon=epsilon)
    inverse = np.linalg.inv(chances(epsilon, classes))
    found = by_row(corrected, jax.grad)(phi, labels)
    for place, row in enumerate(phi):
        for noisy in range(classes):
            slope = np.zeros(len(row))
            for true in range(classes):
                # The derivative of the loss is the predicted probability minus 1 at the label.
                if loss == "logistic":
                    slope += inverse[noisy, true] * (1 / (1 + np.exp(-row)) - true)
                else:
                    slope += inverse[noisy, true] * (np.exp(row) / np.exp(row).sum() - np.eye(classes)[true])
            np.testing.assert_allclose(found[noisy, place], slope, rtol=1e-10, atol=1e-12)
    curved, before = (by_row(objective, jax.hessian)(phi, labels) for objective in (corrected, plain))
    np.testing.assert_allclose(curved, before, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("loss", "classes", "epsilon"), CASES)
def test_the_corrected_loss_follows_from_the_slope(loss, classes, epsilon):
    """What silos without labels step on."""
    phi, corrected = scores(loss, classes), Objective(loss, label_epsilon=epsilon)
    change = jnp.asarray(np.random.default_rng(1).normal(0, 1, phi.shape))

    @jax.jit
    def both(labels):
        grown = corrected.losses(phi + change, labels) - corrected.losses(phi, labels)
        return corrected.change(corrected.statistic(phi, labels), change), grown

    for labels in by_label(classes):
        told, grown = both(labels)
        np.testing.assert_allclose(told, grown, rtol=1e-9, atol=1e-11)


def test_what_has_no_meaning_is_refused():
    with pytest.raises(ValueError, match="label_epsilon = 1: randomised response needs classes, and the squared loss"):
        Objective("squared", label_epsilon=1.0)
    for epsilon, words in ((0.0, "above 0"), (-1.0, "above 0"), (float("nan"), "above 0"), (30.0, "at most 20")):
        with pytest.raises(ValueError, match=words):
            Objective("logistic", label_epsilon=epsilon)


def test_epsilon_of_log_3_keeps_three_of_four():
    assert Response.of(log(3), 2) == pytest.approx((0.75, 0.25))
