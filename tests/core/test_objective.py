import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdcd.core.objective import Objective

STEP = 1e-5
scores = st.floats(-20, 20)


def loss_of(objective, phi, label):
    with jax.enable_x64(True):
        return float(objective.losses(jnp.asarray([phi], jnp.float64), jnp.asarray([label]))[0])


def slopes_of(objective, phi, label):
    with jax.enable_x64(True):
        labels = jnp.asarray([label])
        return np.asarray(jax.grad(lambda at: objective.losses(at, labels)[0])(jnp.asarray([phi], jnp.float64)))[0]


def assert_differences(objective, phi, label):
    for output, slope in enumerate(slopes_of(objective, phi, label)):
        step = STEP * np.eye(len(phi))[output]
        difference = loss_of(objective, phi + step, label) - loss_of(objective, phi - step, label)
        assert slope == pytest.approx(difference / (2 * STEP), abs=1e-7)


@settings(max_examples=20)
@given(phi=scores, label=scores)
def test_squared_loss(phi, label):
    objective = Objective("squared")
    assert loss_of(objective, [phi], label) == pytest.approx((phi - label) ** 2 / 2)
    assert slopes_of(objective, [phi], label) == pytest.approx([phi - label])
    assert_differences(objective, np.array([phi]), label)


@settings(max_examples=20)
@given(phi=scores, label=st.sampled_from([0, 1]))
def test_logistic_loss(phi, label):
    objective = Objective("logistic")
    chance = 1 / (1 + np.exp(-phi))
    assert loss_of(objective, [phi], label) == pytest.approx(-np.log(chance if label else 1 / (1 + np.exp(phi))))
    assert slopes_of(objective, [phi], label) == pytest.approx([chance - label])
    assert_differences(objective, np.array([phi]), label)


@settings(max_examples=20)
@given(phi=st.lists(scores, min_size=3, max_size=3), label=st.integers(0, 2))
def test_softmax_loss(phi, label):
    objective = Objective("softmax")
    chances = np.exp(phi) / np.exp(phi).sum()
    assert loss_of(objective, phi, label) == pytest.approx(-np.log(chances[label]), abs=1e-12)
    assert slopes_of(objective, phi, label) == pytest.approx(chances - np.eye(3)[label])
    assert_differences(objective, np.array(phi), label)


@pytest.mark.parametrize("phi", [-1e4, 1e4])
def test_large_scores_overflow_nothing(phi):
    assert loss_of(Objective("logistic"), [phi], 0) == max(phi, 0)
    assert slopes_of(Objective("logistic"), [phi], 0) == pytest.approx([float(phi > 0)])
    assert loss_of(Objective("softmax"), [phi, 0.0], 1) == max(phi, 0)
    assert slopes_of(Objective("softmax"), [phi, 0.0], 1) == pytest.approx([float(phi > 0), -float(phi > 0)])


def test_two_class_softmax_is_logistic():
    for phi in (-3.0, 0.5):
        for label in (0, 1):
            assert loss_of(Objective("softmax"), [0.0, phi], label) == pytest.approx(
                loss_of(Objective("logistic"), [phi], label)
            )


def test_losses_keep_leading_axes():
    phi = np.random.default_rng(0).normal(size=(2, 5, 3))
    labels = np.array([[0, 1, 2, 0, 1], [2, 2, 0, 1, 0]])
    losses = Objective("softmax").losses(jnp.asarray(phi), jnp.asarray(labels))
    assert losses.shape == (2, 5)
    for row in np.ndindex(2, 5):
        assert float(losses[row]) == pytest.approx(loss_of(Objective("softmax"), phi[row], labels[row]), abs=1e-5)


def test_the_penalty_is_half_l2_times_the_squares_of_all_parameters():
    block = {"hidden": [{"weight": jnp.full((2, 3), 2.0), "bias": jnp.ones(3)}], "slice": jnp.full((3, 1), -1.0)}
    assert float(Objective("squared", 0.5).penalty(block)) == pytest.approx(0.25 * (6 * 4 + 3 + 3))
    slopes = jax.grad(Objective("squared", 0.5).penalty)(block)
    assert jax.tree.all(jax.tree.map(lambda slope, leaf: bool((slope == 0.5 * leaf).all()), slopes, block))
    assert float(Objective("squared").penalty(block)) == 0


def test_an_unknown_loss_is_refused():
    with pytest.raises(ValueError, match="hinge"):
        Objective("hinge")
