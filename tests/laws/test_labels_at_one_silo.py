"""Labels at one silo: a slope tells how a row's loss goes on, so training is the same as with labels everywhere."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import NUM_CLASSES, Problem, Shape, distance

from tdcd.blocks import Linear, Mlp
from tdcd.core.knowledge import Known, LabelsAt, slope
from tdcd.core.objective import Objective
from tdcd.core.variant import Variant

LOSSES = ("squared", "logistic", "softmax")
BLOCKS = (Linear(), Mlp((4,)), Linear())
SHAPE = Shape(clients=(3, 4, 2), columns=(2, 3, 2), num_samples=60, batch_size=12, blocks=BLOCKS)
ROUNDS = 4
AT = 1


def draw_scores(loss, rng, count=300):
    outputs = NUM_CLASSES if loss == "softmax" else 1
    return rng.normal(size=(count, outputs)) * rng.choice([0.1, 1, 8], size=(count, 1))


def draw_labels(loss, rng, count=300):
    return {
        "squared": rng.normal(size=count),
        "logistic": rng.integers(0, 2, count),
        "softmax": rng.integers(0, NUM_CLASSES, count),
    }[loss]


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-11), ("float32", 2e-3)])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_slope_tells_how_the_loss_goes_on(loss, dtype, tolerance):
    """Both the loss, up to a constant, and its slope; also where the model is sure, rightly or wrongly.

    Single precision cannot tell a slope of 1 - 1e-7 from one: there it is good to three digits only.
    """
    rng, objective = np.random.default_rng(2), Objective(loss)
    with jax.enable_x64(dtype == "float64"):
        scores, change = (jnp.asarray(draw_scores(loss, rng), dtype) for _ in range(2))
        labels = jnp.asarray(draw_labels(loss, rng), objective.label_dtype(dtype))
        before = slope(scores, labels, objective)
        grown = objective.losses(scores + change, labels) - objective.losses(scores, labels)
        assert np.abs(objective.change(before, change) - grown).max() < tolerance * np.abs(grown).max()
        after = jax.grad(lambda change: jnp.sum(objective.change(before, change)))(change)
        assert np.abs(after - slope(scores + change, labels, objective)).max() < 10 * tolerance


@pytest.mark.parametrize("loss", LOSSES)
def test_a_slope_of_zero_moves_nothing(loss):
    """A row that the model is entirely sure of, in single precision; then the label cannot be told, and need not be."""
    objective, outputs = Objective(loss), NUM_CLASSES if loss == "softmax" else 1
    sure = jnp.zeros((1, outputs), np.float32)
    moved = jax.grad(lambda change: jnp.sum(objective.change(sure, change)))(jnp.zeros_like(sure))
    assert (moved == 0).all()


def draw(loss, **changes):
    return Problem.draw(SHAPE, Objective(loss, 0.1), 7, **changes)


def trained(problem, at=AT):
    return problem.simulate(ROUNDS, variant=Variant(knowledge=LabelsAt(at)))


@pytest.mark.parametrize(("loss", "minibatches"), [("logistic", "fresh"), ("softmax", "reused"), ("squared", "full")])
def test_training_is_what_the_plain_loops_do_with_labels_everywhere(loss, minibatches):
    problem = draw(loss, minibatches=minibatches, step_size=0.3)
    assert distance(trained(problem), problem.solve(ROUNDS)) < 1e-10


@pytest.mark.parametrize("at", [0, 1, 2])
def test_it_does_not_matter_which_silo_has_them(at):
    problem = draw("logistic")
    assert distance(trained(problem, at), problem.simulate(ROUNDS, engine="clients")) < 1e-12


@pytest.mark.parametrize(("loss", "local_steps"), [("squared", 1), ("logistic", 5), ("softmax", 5)])
def test_it_is_the_same_for_any_number_of_local_steps(loss, local_steps):
    problem = draw(loss).with_settings(local_steps=local_steps)
    assert distance(trained(problem), problem.simulate(ROUNDS, engine="clients")) < 1e-12


@dataclass(frozen=True)
class Frozen(LabelsAt):
    """What other systems do: the slope stays as it was when the round began."""

    def losses(self, silo, phi, known, objective):
        if silo == self.silo:
            return super().losses(silo, phi, known, objective)
        return jnp.sum(known.received * phi, axis=-1)


def test_large_steps_stay_stable_where_a_frozen_slope_does_not():
    drawn = Problem.draw(SHAPE, Objective("logistic", 0.01), 7, step_size=2.0, minibatches="full")
    problem = drawn.with_settings(local_steps=30)

    def loss_after(rounds, knowledge):
        simulation = problem.simulation(variant=Variant(knowledge=knowledge))
        blocks = simulation.advance(simulation.state_of(problem.start), 0, rounds).blocks
        return simulation.losses(blocks, simulation.scores(blocks), problem.federation.labels)[0]

    ours, frozen = ([loss_after(rounds, knowledge) for rounds in (0, 5)] for knowledge in (LabelsAt(AT), Frozen(AT)))
    assert ours[1] < ours[0]
    assert frozen[1] > 2 * frozen[0]


def test_the_other_silos_never_use_a_label():
    objective, rng = Objective("softmax"), np.random.default_rng(0)
    phi, received = (jnp.asarray(rng.normal(size=(5, NUM_CLASSES))) for _ in range(2))
    without = LabelsAt(AT).losses(0, phi, Known(None, received, phi), objective)
    with_some = LabelsAt(AT).losses(0, phi, Known(jnp.arange(5), received, phi), objective)
    assert (without == with_some).all()
