"""Every part of a variant against the plain loops: what the seam promises, for any block, split and loss."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from support import oracle
from support.problems import Problem, Shape, arrays, distance
from tdcd.blocks import Linear, Mlp
from tdcd.core.codecs.codec import Identity
from tdcd.core.family.optimizers import ClientOptimizer, HubOptimizer, direction, schedule
from tdcd.core.family.participation import RandomClients
from tdcd.core.knowledge import Knowledge
from tdcd.core.objective import Objective
from tdcd.core.presence import FullParticipation
from tdcd.core.variant import Variant

TOLERANCE = 1e-10
SHAPE = Shape(clients=(3, 4), columns=(2, 3), num_samples=60, batch_size=12, blocks=(Linear(), Mlp((4,))))
ROUNDS = 4


def compare(variant: Variant, variation: oracle.Variation, loss: str = "logistic", **changes) -> None:
    """The variant is what the plain loops do, and not what Algorithm 1 does."""
    problem = Problem.draw(SHAPE, Objective(loss, 0.1), 7, **changes)
    expected = problem.solve(ROUNDS, variation)
    assert distance(problem.simulate(ROUNDS, variant=variant), expected) < TOLERANCE
    assert distance(problem.solve(ROUNDS), expected) > 1e-4


def with_momentum(decay):
    def step(block, slopes, memory, eta, t):
        memory = [np.zeros_like(a) for a in block] if memory is None else memory
        memory = [decay * v + slope for v, slope in zip(memory, slopes, strict=True)]
        return [a - eta * v for a, v in zip(block, memory, strict=True)], memory

    return step


def adam_step(block, slopes, memory, eta, t):
    count, means, squares = (0, [0 * a for a in block], [0 * a for a in block]) if memory is None else memory
    count += 1
    means = [0.9 * m + 0.1 * g for m, g in zip(means, slopes, strict=True)]
    squares = [0.999 * v + 0.001 * g**2 for v, g in zip(squares, slopes, strict=True)]
    ways = [
        m / (1 - 0.9**count) / (np.sqrt(v / (1 - 0.999**count)) + 1e-8) for m, v in zip(means, squares, strict=True)
    ]
    return [a - eta * way for a, way in zip(block, ways, strict=True)], (count, means, squares)


@pytest.mark.parametrize("minibatches", ["fresh", "reused"])
def test_momentum_at_the_clients(minibatches):
    variant = Variant(update=ClientOptimizer(direction("momentum", 0.8)))
    compare(variant, oracle.Variation(step=with_momentum(0.8)), minibatches=minibatches)


def test_adam_at_the_clients():
    compare(Variant(update=ClientOptimizer(direction("adam"))), oracle.Variation(step=adam_step))


def test_a_schedule_continues_from_round_to_round():
    total = ROUNDS * SHAPE.local_steps
    plain = oracle.Variation().step
    falling = oracle.Variation(step=lambda b, g, m, eta, t: plain(b, g, m, eta * (1 - t / total), t))
    compare(Variant(update=ClientOptimizer(factor=schedule("linear", total))), falling)
    cosine = oracle.Variation(step=lambda b, g, m, eta, t: plain(b, g, m, eta * (1 + np.cos(np.pi * t / total)) / 2, t))
    compare(Variant(update=ClientOptimizer(factor=schedule("cosine", total))), cosine)


def test_momentum_at_the_hubs_lasts_from_round_to_round():
    def hub(block, average, memory):
        moved, memory = with_momentum(0.7)(block, [a - b for a, b in zip(block, average, strict=True)], memory, 0.5, 0)
        return moved, memory

    compare(Variant(hub_update=HubOptimizer(direction("momentum", 0.7), 0.5)), oracle.Variation(hub=hub))


def test_a_hub_that_takes_whole_plain_steps_takes_the_average():
    problem = Problem.draw(SHAPE, Objective("squared", 0.1), 3)
    plain = Variant(hub_update=HubOptimizer(direction("sgd")), update=ClientOptimizer(optax.identity()))
    assert distance(problem.simulate(3, variant=plain), problem.simulate(3)) < 1e-12


@dataclass(frozen=True)
class Rounded:
    """Phi in whole steps."""

    step: float = 0.05

    def encode(self, phi, sending):
        return {"steps": jnp.round(phi / self.step).astype(jnp.int32)}

    def decode(self, sent, sending):
        return sent["steps"] * self.step

    def layout(self, shape, dtype):
        return {"steps": ("int32", shape)}


def in_steps(link, round_index, silo, places, phi):
    return np.round(phi / 0.05) * 0.05 if link == "across" else phi


@pytest.mark.parametrize("loss", ["squared", "softmax"])
def test_the_others_step_on_what_was_sent(loss):
    compare(Variant(exchange=Rounded()), oracle.Variation(sent=in_steps), loss)


@dataclass(frozen=True)
class Late:
    """The second silo's phi is two rounds old, the first one's fresh."""

    depth: int = 2

    def age(self, silo, round_index):
        return jnp.minimum(round_index, self.depth) if silo == 1 else 0

    def period(self, silo):
        return 1


def test_phi_may_come_from_blocks_of_earlier_rounds():
    late = oracle.Variation(age=lambda silo, r: min(r, 2) if silo == 1 else 0)
    compare(Variant(timing=Late()), late)


@dataclass(frozen=True)
class Frozen(Knowledge):
    """The slope of the loss stays as it was when the round began."""

    def needs_phi_start(self, silo):
        return True

    def received(self, silo, own, others, labels, objective):
        return others

    def losses(self, silo, phi, known, objective):
        total = known.phi_start + known.received
        slope = jnp.stack([total[..., 0] - known.labels], axis=-1)
        return jnp.sum(slope * phi, axis=-1)


def test_clients_may_know_something_else_than_the_others_phi():
    frozen = oracle.Variation(slope=lambda silo, loss, phi, start, others, label: start + others - label)
    compare(Variant(knowledge=Frozen()), frozen, "squared", minibatches="reused")


@pytest.mark.parametrize("gradient", ["unbiased", "mean"])
@pytest.mark.parametrize("minibatches", ["fresh", "full"])
def test_some_clients_answer(gradient, minibatches):
    some = RandomClients(0.5)
    answering = oracle.Variation(answering=lambda r, silo, clients: some.answering(7, r, silo, clients).tolist())
    compare(Variant(participation=some), answering, gradient=gradient, minibatches=minibatches)


def test_with_all_clients_drawn_it_is_algorithm_1():
    problem = Problem.draw(SHAPE, Objective("logistic", 0.1), 5)
    everybody = problem.simulate(3, variant=Variant(participation=RandomClients(1.0)))
    assert distance(everybody, problem.simulate(3)) < 1e-12


def test_who_answers_is_a_function_of_seed_round_and_silo():
    some = RandomClients(0.3)
    drawn = {(s, r, j): tuple(some.answering(s, r, j, 10)) for s in (0, 1) for r in range(20) for j in (0, 1)}
    assert all(sum(who) == 3 for who in drawn.values())
    assert len({*drawn.values()}) > 40
    assert tuple(some.answering(1, 7, 1, 10)) == drawn[1, 7, 1]
    assert RandomClients(0.01).answering(0, 0, 0, 5).sum() == 1
    counts = np.sum([some.answering(0, r, 0, 10) for r in range(2000)], axis=0)
    assert abs(counts - 600).max() < 120
    with pytest.raises(ValueError, match="must be above 0 and at most 1, not 0"):
        RandomClients(0)


def test_fast_engines_refuse_what_they_do_not_run_and_auto_goes_to_the_general_one():
    linear = Problem.draw(Shape((3, 2), (2, 3)), Objective("squared"), 1)
    variant = Variant(update=ClientOptimizer(direction("adam")))
    assert linear.simulation().engine == "grouped"
    assert linear.simulation(variant=variant).engine == "clients"
    with pytest.raises(ValueError, match="engine = 'grouped': it runs Algorithm 1 as it is, and update differs"):
        linear.simulation("grouped", variant=variant)
    with pytest.raises(ValueError, match="engine = 'flat': it needs all features on one device"):
        linear.simulation("flat", "host")
    mixed = Problem.draw(SHAPE, Objective("squared"), 1)
    with pytest.raises(ValueError, match="engine = 'grouped': it runs linear blocks only"):
        mixed.simulation("grouped")


@pytest.mark.optimised
def test_state_continues_bit_for_bit_in_any_grouping_of_rounds():
    problem = Problem.draw(SHAPE, Objective("logistic"), 2)
    variant = Variant(hub_update=HubOptimizer(direction("adam"), 0.1), timing=Late())
    simulation = problem.simulation(variant=variant)
    state = start = simulation.state_of(problem.start)
    for round_index in range(5):
        state = simulation.advance(state, round_index, 1)
    assert distance(arrays(simulation.advance(start, 0, 5)), arrays(state)) == 0


@dataclass(frozen=True)
class Shifted(Identity):
    """A codec that inherits from the plain one, and is another."""

    def encode(self, phi, sending):
        return {"phi": phi + 0.5}


@dataclass(frozen=True)
class FirstAlone(FullParticipation):
    """Participation that inherits from the full one, and is another: the first client alone answers."""

    def answering(self, seed, round_index, silo, num_clients):
        return np.arange(num_clients) == 0


@pytest.mark.parametrize(
    "variant",
    [Variant(exchange=Shifted()), Variant(client_exchange=Shifted()), Variant(participation=FirstAlone())],
    ids=["exchange", "client exchange", "participation"],
)
def test_what_inherits_from_a_plain_part_is_not_taken_for_it(variant):
    problem = Problem.draw(SHAPE, Objective("squared", 0.1), 3)
    assert distance(problem.simulate(3, variant=variant), problem.simulate(3)) > 1e-4
