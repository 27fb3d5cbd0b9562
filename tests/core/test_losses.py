"""Losses beyond the first three: their derivatives, their minima and their figures, from mathematics."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import d2_tweedie_score, mean_absolute_error, mean_poisson_deviance
from test_objective import assert_differences, loss_of, slopes_of

from tdcd import Huber, Loss, Objective
from tdcd.core.losses import LOSSES, metrics, no_curvature
from tdcd.theory import constants

COUNTS = np.array([0.0, 1.0, 0.0, 3.0, 0.5, 7.0])


@settings(max_examples=20)
@given(score=st.floats(-5, 5), count=st.floats(0, 20))
def test_poisson_is_half_the_deviance(score, count):
    objective = Objective("poisson")
    assert loss_of(objective, [score], count) == pytest.approx(
        mean_poisson_deviance([count], [np.exp(score)]) / 2, abs=1e-9
    )
    assert slopes_of(objective, [score], count) == pytest.approx([np.exp(score) - count])
    assert_differences(objective, np.array([score]), count)


@settings(max_examples=20)
@given(score=st.floats(-5, 5), label=st.floats(-5, 5), delta=st.sampled_from([0.5, 1.35, 100.0]))
def test_huber_is_squared_inside_and_linear_outside(score, label, delta):
    objective, off = Objective(Huber(delta)), abs(score - label)
    expected = off**2 / 2 if off <= delta else delta * off - delta**2 / 2
    assert loss_of(objective, [score], label) == pytest.approx(expected)
    assert slopes_of(objective, [score], label) == pytest.approx([np.clip(score - label, -delta, delta)])


def minimised(objective, labels, steps=400, step_size=0.5):
    """The one score that fits all labels best, by plain gradient steps."""
    with jax.enable_x64(True):
        slope = jax.jit(
            jax.grad(lambda score: jnp.mean(objective.losses(jnp.full((len(labels), 1), score), jnp.asarray(labels))))
        )
        score = 0.0
        for _ in range(steps):
            score -= step_size * float(slope(score))
    return score


def test_the_best_score_without_features_is_known():
    """Poisson: the logarithm of the mean. Huber: between the mean and the median, which it nears with delta."""
    assert minimised(Objective("poisson"), COUNTS, step_size=0.3) == pytest.approx(np.log(COUNTS.mean()), abs=1e-9)
    assert minimised(Objective(Huber(100.0)), COUNTS) == pytest.approx(COUNTS.mean(), abs=1e-9)
    assert abs(minimised(Objective(Huber(0.1)), COUNTS, 4000) - np.median(COUNTS)) < 0.3


@pytest.mark.parametrize("name", [name for name, loss in LOSSES.items() if loss.curvature is not None])
def test_no_second_derivative_is_above_the_curvature(name):
    objective, rng = Objective(name), np.random.default_rng(0)
    outputs = 3 if name == "softmax" else 1
    with jax.enable_x64(True):
        curved = jax.jit(jax.hessian(lambda scores, label: objective.losses(scores[None], label[None])[0]))
        found = [
            np.linalg.norm(curved(jnp.asarray(rng.normal(size=outputs)), jnp.asarray(label)), 2)
            for label in (0, 1)
            for _ in range(20)
        ]
        found.append(np.linalg.norm(curved(jnp.zeros(outputs), jnp.asarray(0)), 2))
    assert max(found) <= objective.curvature + 1e-12
    assert max(found) > 0.6 * objective.curvature


def test_poisson_has_no_curvature_bound_and_the_theory_says_so():
    objective = Objective("poisson")
    text = "the poisson loss has no known bound of its second derivative, and Theorem 1 rests on one"
    assert no_curvature(objective.kind) == text
    with pytest.raises(ValueError, match=text):
        _ = objective.curvature
    with pytest.raises(ValueError, match=text):
        constants(None, [], objective)


def test_counts_are_measured_as_scikit_learn_does():
    scores = np.random.default_rng(1).normal(size=(len(COUNTS), 1))
    expected = np.exp(scores[:, 0])
    assert metrics("poisson", scores, COUNTS) == {
        "deviance": pytest.approx(mean_poisson_deviance(COUNTS, expected), rel=1e-12),
        "d2": pytest.approx(d2_tweedie_score(COUNTS, expected, power=1), rel=1e-12),
        "mae": pytest.approx(mean_absolute_error(COUNTS, expected), rel=1e-12),
    }
    assert [*LOSSES["poisson"].metric_names] == ["deviance", "d2", "mae"]
    assert metrics("poisson", scores, np.zeros(len(COUNTS)))["d2"] is None
    assert metrics("poisson", np.full((len(COUNTS), 1), 800.0), COUNTS) == {"deviance": None, "d2": None, "mae": None}


@pytest.mark.parametrize(
    ("name", "label", "text"),
    [
        ("poisson", -1.0, "poisson loss takes labels that are counts: 0 or more, not necessarily whole, not -1.0"),
        ("huber", np.inf, "huber loss takes labels that are finite numbers, not inf"),
    ],
)
def test_labels_that_a_loss_cannot_take_are_refused(name, label, text):
    with pytest.raises(ValueError, match=text):
        Objective(name).check_labels(np.array([0.0, label]))


@dataclass(frozen=True)
class LogCosh(Loss):
    """Close to the squared loss near 0, to the absolute value far from it."""

    width: float = 1.0

    def losses(self, scores, labels):
        return self.width * jnp.log(jnp.cosh((scores[..., 0] - labels) / self.width))


@dataclass
class Unhashable(Loss):
    width: float = 1.0


def test_a_loss_of_ones_own_has_the_defaults_of_amounts():
    own = LogCosh()
    assert isinstance(own, Loss)
    assert own.name == f"{__name__}:LogCosh"
    assert (own.tasks, own.num_outputs(5), own.label_dtype("float32")) == (("regression",), 1, np.float32)
    assert metrics(own, np.array([[1.0], [3.0]]), np.array([1.0, 1.0]), 2.0) == {
        "rmse": pytest.approx(2 * 2**0.5),
        "r2": None,
    }
    assert Objective(own) == Objective(LogCosh(1.0)) != Objective(LogCosh(2.0))
    # One that comes with the package goes by its name.
    assert Objective(Huber()) == Objective("huber")
    assert Objective(Huber(2.0)).kind.delta == 2


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (LogCosh, "loss must be one of squared, .*, or a tdcd.Loss of your own, not the class itself: call it"),
        (lambda: 1, "or a tdcd.Loss of your own, not function"),
        (Unhashable(), "Unhashable has no hash: make it a frozen dataclass"),
        ("hinge", "or a tdcd.Loss of your own, not 'hinge'"),
    ],
)
def test_what_is_no_loss_is_refused(loss, text):
    with pytest.raises(ValueError, match=text):
        Objective(loss)


def test_labels_at_one_silo_need_a_loss_with_change():
    with pytest.raises(
        ValueError, match=r"labels at one silo: the .*LogCosh loss has no `change` to follow it from its slope"
    ):
        Objective(LogCosh()).check_labels(np.ones(3), everywhere=False)
    for name in LOSSES:
        Objective(name).check_labels(np.ones(3), everywhere=False)


def test_a_delta_must_be_positive():
    with pytest.raises(ValueError, match="delta must be a positive number, not 0"):
        Huber(0)
