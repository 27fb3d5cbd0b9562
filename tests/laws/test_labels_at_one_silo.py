"""Labels at one silo: what is told of a row says how its loss goes on, so training is as with labels everywhere."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support.problems import NUM_CLASSES, SPLITS, Problem, Shape, distance
from tdcd.blocks import Ensemble, Linear, Mlp
from tdcd.core.codecs.quantised import Quantised
from tdcd.core.family.labels import LabelsAt
from tdcd.core.family.overlap import Overlap
from tdcd.core.knowledge import Known
from tdcd.core.losses import Huber, Loss, Poisson
from tdcd.core.objective import Objective
from tdcd.core.round import Widths, round_of
from tdcd.core.variant import Variant

LOSSES = ("squared", "logistic", "softmax", "poisson", "huber")
BLOCKS = (Linear(), Mlp((4,)), Ensemble((3,), 2, 0.0))
SHAPE = Shape(clients=(3, 4, 2), columns=(2, 3, 2), num_samples=60, batch_size=12, blocks=BLOCKS)
ROUNDS = 4
AT = 1


def draw_scores(loss, rng, count=300):
    outputs = NUM_CLASSES if loss == "softmax" else 1
    return rng.normal(size=(count, outputs)) * rng.choice([0.1, 1, 2 if loss == "poisson" else 8], size=(count, 1))


def draw_labels(loss, rng, count=300):
    return {
        "squared": rng.normal(size=count),
        "logistic": rng.integers(0, 2, count),
        "softmax": rng.integers(0, NUM_CLASSES, count),
        "poisson": rng.poisson(2.0, count),
        "huber": 3 * rng.normal(size=count),
    }[loss]


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-11), ("float32", 2e-3)])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_loss_follows_from_what_is_sent(loss, dtype, tolerance):
    """Both the loss, up to a constant, and its slope; also where the model is sure, rightly or wrongly.

    Single precision cannot tell a slope of 1 - 1e-7 from one: there it is good to three digits only.
    """
    rng, objective = np.random.default_rng(2), Objective(loss)
    with jax.enable_x64(dtype == "float64"):
        scores, change = (jnp.asarray(draw_scores(loss, rng), dtype) for _ in range(2))
        labels = jnp.asarray(draw_labels(loss, rng), objective.label_dtype(dtype))
        before = objective.statistic(scores, labels)
        grown = objective.losses(scores + change, labels) - objective.losses(scores, labels)
        assert np.abs(objective.change(before, change) - grown).max() < tolerance * np.abs(grown).max()
        after = jax.grad(lambda change: jnp.sum(objective.change(before, change)))(change)
        expected = jax.grad(lambda scores: jnp.sum(objective.losses(scores, labels)))(scores + change)
        assert np.abs(after - expected).max() < 10 * tolerance * max(1, np.abs(expected).max())


@pytest.mark.parametrize("loss", LOSSES)
def test_a_slope_of_zero_moves_nothing(loss):
    """A row that the model is entirely sure of, in single precision; then the label cannot be told, and need not be."""
    objective, outputs = Objective(loss), NUM_CLASSES if loss == "softmax" else 1
    sure = jnp.zeros((1, objective.kind.statistic_width(outputs)), np.float32)
    moved = jax.grad(lambda change: jnp.sum(objective.change(sure, change)))(jnp.zeros((1, outputs), np.float32))
    assert (moved == 0).all()


def draw(loss, **changes):
    return Problem.draw(SHAPE, Objective(loss, 0.1), 7, **changes)


def trained(problem, at=AT):
    return problem.simulate(ROUNDS, variant=Variant(knowledge=LabelsAt(at)))


@pytest.mark.parametrize(
    ("loss", "minibatches"),
    [("logistic", "fresh"), ("softmax", "reused"), ("squared", "full"), ("poisson", "fresh"), ("huber", "fresh")],
)
def test_training_is_what_the_plain_loops_do_with_labels_everywhere(loss, minibatches):
    problem = draw(loss, minibatches=minibatches, step_size=0.1 if loss == "poisson" else 0.3)
    expected = problem.solve(ROUNDS)
    assert distance(trained(problem), expected) < 1e-10
    # The loops send the very messages of this member, slopes and no labels, and come to the same.
    flows = round_of(Variant(knowledge=LabelsAt(AT)), len(SHAPE.clients), Widths(1, 1))
    assert "slope" in [flow.name for flow in flows.training]
    assert distance(problem.solve(ROUNDS, flows=flows), expected) < 1e-10


def weighted(problem, weights):
    return replace(problem, federation=replace(problem.federation, weights=weights))


@pytest.mark.parametrize("loss", ["logistic", "poisson"])
@pytest.mark.parametrize("split", SPLITS)
def test_samples_weigh_as_much_as_with_labels_everywhere(split, loss):
    """However the rows are split; some weigh nothing."""
    weights = np.random.default_rng(3).gamma(1.0, size=SHAPE.num_samples) * (np.arange(SHAPE.num_samples) % 7 > 0)
    problem = weighted(draw(loss, split=split), weights)
    expected = problem.solve(ROUNDS)
    assert distance(trained(problem), expected) < 1e-10
    assert distance(weighted(problem, None).solve(ROUNDS), expected) > 1e-3


def test_so_do_classes():
    problem = draw("softmax")
    balanced = replace(problem, federation=problem.federation.class_weighted("balanced"))
    assert distance(trained(balanced), balanced.solve(ROUNDS)) < 1e-10
    by_class = replace(problem, federation=problem.federation.class_weighted({1: 4.0}))
    assert distance(trained(by_class), by_class.solve(ROUNDS)) < 1e-10


@dataclass(frozen=True)
class Exponential(Loss):
    """e^s - y s in its own words: it tells its label, and the score as it is."""

    wide: int = 2

    def losses(self, scores, labels):
        return jnp.exp(scores[..., 0]) - labels * scores[..., 0]

    def statistic(self, scores, labels, response):
        return jnp.concatenate([labels[..., None], scores], axis=-1)

    def statistic_width(self, num_outputs):
        return self.wide

    def change(self, told, change, response):
        label, score, change = told[..., 0], told[..., 1], change[..., 0]
        return jnp.exp(score + change) - jnp.exp(score) - label * change


def test_a_loss_of_ones_own_says_what_is_sent():
    problem = draw("poisson")
    own = replace(problem, objective=Objective(Exponential(), 0.1))
    assert distance(trained(own), problem.solve(ROUNDS)) < 1e-10
    wrong = replace(problem, objective=Objective(Exponential(3), 0.1))
    with pytest.raises(
        ValueError, match="Exponential loss has a statistic of 2 numbers, and its statistic_width says 3: make"
    ):
        trained(wrong)


class Capped(Poisson):
    """Another loss than the one that it inherits from."""

    def losses(self, scores, labels):
        return jnp.minimum(super().losses(scores, labels), 100)


def test_what_a_loss_inherits_is_not_described():
    assert (Capped.statistic, Capped.change, Capped().statistic_width(1)) == (None, None, 1)
    with pytest.raises(
        ValueError, match="labels at one silo: the poisson loss has no `change` to follow it from its slope"
    ):
        Objective(Capped()).check_labels(np.ones(3), everywhere=False)
    assert Huber(2.0).statistic_width(1) == 1


@pytest.mark.parametrize("at", [0, 1, 2])
def test_it_does_not_matter_which_silo_has_them(at):
    problem = draw("logistic")
    assert distance(trained(problem, at), problem.simulate(ROUNDS, engine="clients")) < 1e-12


@pytest.mark.parametrize(("loss", "local_steps"), [("squared", 1), ("logistic", 5), ("softmax", 5), ("huber", 5)])
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

    ours, frozen = ([loss_after(rounds, knowledge) for rounds in (0, 1, 5)] for knowledge in (LabelsAt(AT), Frozen(AT)))
    assert max(ours[1:]) < ours[0]
    assert frozen[1] > 2 * frozen[0]
    # A frozen slope has no least loss: with weights that multiply each other, the ensemble's grow beyond all numbers.
    assert not np.isfinite(frozen[2])


def test_the_other_silos_never_use_a_label():
    objective, rng = Objective("softmax"), np.random.default_rng(0)
    phi, received = (jnp.asarray(rng.normal(size=(5, NUM_CLASSES))) for _ in range(2))
    without = LabelsAt(AT).losses(0, phi, Known(None, received, phi), objective)
    with_some = LabelsAt(AT).losses(0, phi, Known(jnp.arange(5), received, phi), objective)
    assert (without == with_some).all()


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (
            {"timing": Overlap(1)},
            r"LabelsAt\(silo=1\) does not go with timing = Overlap\(rounds=1.* this round's blocks",
        ),
        (
            {"timing": Overlap(0, (1, 1, 2))},
            r"does not go with timing = .* slopes are of this round's blocks; leave one",
        ),
        (
            {"client_exchange": Quantised(8)},
            r"does not go with client_exchange = Quantised\(bits=8\): .* no short form",
        ),
    ],
)
def test_what_slopes_do_not_go_with_is_refused_in_python_too(parts, words):
    with pytest.raises(ValueError, match=words):
        draw("logistic").simulation(variant=Variant(knowledge=LabelsAt(AT), **parts))
    assert Variant(knowledge=LabelsAt(AT), timing=Overlap(0, (1, 1, 1))).clashes(3) == ()
