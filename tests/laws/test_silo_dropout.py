"""Silo dropout against the plain loops, and its laws: no dropout, who is drawn, and an unbiased gradient."""

from functools import partial

import numpy as np
import pytest

from support import oracle
from support.problems import Problem, Shape, arrays, distance
from tdcd.blocks import Ensemble, Linear
from tdcd.core.codecs.codec import Sending, seed_words
from tdcd.core.codecs.quantised import Quantised
from tdcd.core.family.dropout import SiloDropout
from tdcd.core.family.labels import LabelsAt
from tdcd.core.family.overlap import Overlap
from tdcd.core.family.participation import RandomClients
from tdcd.core.objective import Objective
from tdcd.core.variant import Variant

SHAPE = Shape(clients=(3, 4), columns=(2, 3), num_samples=60, batch_size=12, blocks=(Linear(), Ensemble((4,), 2, 0.0)))
ROUNDS, SEED, TOLERANCE = 4, 7, 1e-10


def with_ones(problem):
    """The problem with a column of ones at the end of the first silo's."""
    problem.federation.silos[0].features[:, -1] = 1
    return problem


def bits(dropout, round_index, silo, batches=3, seed=SEED):
    sending = Sending(seed_words(seed), np.int32(round_index), silo, (batches, SHAPE.batch_size, 1))
    return np.asarray(dropout.kept(sending))


def plain(dropout, batches=3):
    """What a silo sees of a sample, in plain words."""
    drawn = {}

    def seen(round_index, silo, place, x):
        if (round_index, silo) not in drawn:
            drawn[round_index, silo] = bits(dropout, round_index, silo, batches).ravel()
        if drawn[round_index, silo][place]:
            return x
        return None if silo != dropout.intercept else np.where(np.arange(len(x)) == len(x) - 1, 1.0, 0.0)

    return seen


@pytest.mark.parametrize(
    ("loss", "parts", "variation", "changes"),
    [
        ("softmax", {}, {}, {"minibatches": "reused", "gradient": "mean"}),
        ("squared", {"timing": Overlap(1)}, {"age": lambda silo, r: min(r, 1)}, {}),
        ("logistic", {"knowledge": LabelsAt(1)}, {}, {}),
        ("softmax", {"knowledge": LabelsAt(0)}, {}, {}),
        ("poisson", {"knowledge": LabelsAt(1)}, {}, {}),
        (
            "logistic",
            {"participation": RandomClients(0.5)},
            {"answering": lambda r, j, k: RandomClients(0.5).answering(SEED, r, j, k).tolist()},
            {},
        ),
    ],
)
def test_it_is_what_the_plain_loops_do(loss, parts, variation, changes):
    compare(loss, parts, variation, changes, 0)


def test_without_an_intercept_nothing_is_left_of_the_first_silo_either():
    compare("logistic", {}, {}, {}, None)


def compare(loss, parts, variation, changes, intercept):
    problem = with_ones(Problem.draw(SHAPE, Objective(loss, 0.1), SEED, **changes))
    dropout = SiloDropout(0.4, intercept)
    batches = 1 if changes.get("minibatches") == "reused" else 3
    expected = problem.solve(ROUNDS, oracle.Variation(seen=plain(dropout, batches), **variation))
    assert distance(problem.simulate(ROUNDS, variant=Variant(dropout=dropout, **parts)), expected) < TOLERANCE
    assert distance(problem.solve(ROUNDS, oracle.Variation(**variation)), expected) > 1e-4


def test_a_silo_that_is_dropped_adds_nothing_also_in_few_bits():
    """With few bits a zero becomes a small number on its way; its receivers put the zero in again."""
    problem = with_ones(Problem.draw(SHAPE, Objective("squared", 0.1), SEED))
    dropout, exchange, outputs = SiloDropout(0.4, 0), Quantised(8), 1

    def sent(link, round_index, silo, places, phi):
        stream = {"across": 0, "down": 1, "up": 2}[link]
        shape = (3, SHAPE.batch_size, outputs)
        sending = Sending(seed_words(SEED), np.int32(round_index), silo, shape, stream, np.array(places))
        width = np.abs(phi).max(axis=0) / 127
        dither = np.asarray(sending.dither(), np.float64)
        arrived = width * (np.clip(np.round(phi / np.where(width > 0, width, 1) + dither), -128, 127) - dither)
        if link == "down" or silo == dropout.intercept:
            return arrived
        return np.where(bits(dropout, round_index, silo).ravel()[places][:, None], arrived, 0)

    variant = Variant(dropout=dropout, exchange=exchange, client_exchange=exchange)
    expected = problem.solve(ROUNDS, oracle.Variation(seen=plain(dropout), sent=sent))
    assert distance(problem.simulate(ROUNDS, variant=variant), expected) < TOLERANCE


@pytest.mark.optimised
def test_a_rate_of_zero_is_algorithm_1_bit_for_bit():
    problem = Problem.draw(SHAPE, Objective("logistic", 0.1), SEED)
    assert Variant(dropout=SiloDropout(0.0)) == Variant()
    assert distance(problem.simulate(3, variant=Variant(dropout=SiloDropout(0.0, 0))), problem.simulate(3)) == 0


def test_who_is_dropped_is_a_function_of_seed_round_silo_and_place():
    dropout = SiloDropout(0.3)
    drawn = {(s, r, j): bits(dropout, r, j, seed=s).tobytes() for s in (0, 1) for r in range(10) for j in (0, 1)}
    assert len({*drawn.values()}) == len(drawn)
    assert bits(dropout, 3, 1, seed=1).tobytes() == drawn[1, 3, 1]
    shape, places = (3, SHAPE.batch_size, 1), np.array([[4, 0], [35, 12]])
    at = dropout.kept(Sending(seed_words(0), np.int32(3), 1, shape, places=places))
    assert (np.asarray(at) == bits(dropout, 3, 1, seed=0).ravel()[places]).all()
    share = np.mean([bits(dropout, r, 0) for r in range(400)])
    assert abs(share - 0.7) < 4 * (0.21 / (400 * 36)) ** 0.5
    both = np.mean([bits(dropout, r, 0) & bits(dropout, r, 1) for r in range(400)])
    assert abs(both - 0.49) < 4 * (0.25 / (400 * 36)) ** 0.5
    for rate in (-0.1, 1.0, float("nan")):
        with pytest.raises(ValueError, match="must be at least 0 and below 1, not"):
            SiloDropout(rate)


def slope_beside(others, label, own):
    return oracle.slope_of("logistic", own + others, label)


def subset_gradient(problem, rate):
    """The gradient of the mean over subsets of silos, weighted by their probability, of the loss of that subset."""
    silos, labels = problem.silos(), problem.federation.labels
    start, total = arrays(problem.start), [[np.zeros_like(a) for a in block] for block in arrays(problem.start)]
    for sample, label in enumerate(labels):
        phi = [silo.model.phi(block, silo.features[sample]) for silo, block in zip(silos, start, strict=True)]
        for kept in np.ndindex(2, 2):
            weight = np.prod([1 - rate if one else rate for one in kept]) / len(labels)
            for j in np.flatnonzero(kept):
                others = kept[1 - j] * phi[1 - j]
                slope = partial(slope_beside, others, label)
                row = silos[j].model.gradient(start[j], silos[j].features[sample], slope)
                total[j] = [a + weight * b for a, b in zip(total[j], row, strict=True)]
    return total


def test_the_mean_step_is_the_gradient_of_the_mean_loss_over_subsets():
    """Q = 1, every sample in each minibatch: a round's step is eta times the gradient, with mean that of the mean."""
    problem = Problem.draw(SHAPE, Objective("logistic"), 3, step_size=1.0, minibatches="full")
    problem = problem.with_settings(local_steps=1)
    simulation = problem.simulation(variant=Variant(dropout=SiloDropout(0.3)))
    start, expected, moved = arrays(problem.start), subset_gradient(problem, 0.3), []
    for round_index in range(400):
        now = arrays(simulation.advance(simulation.state_of(problem.start), round_index, 1))
        moved.append([[a - b for a, b in zip(*both, strict=True)] for both in zip(start, now, strict=True)])
    for j, block in enumerate(expected):
        for place, leaf in enumerate(block):
            steps = np.array([one[j][place] for one in moved])
            assert (abs(steps.mean(axis=0) - leaf) < 5 * steps.std(axis=0) / 20 + 1e-12).all()
            assert steps.std(axis=0).max() > 1e-4


def test_fast_engines_say_by_name_that_they_do_not_run_it():
    problem = Problem.draw(Shape((3, 2), (2, 3)), Objective("squared"), 1)
    variant = Variant(dropout=SiloDropout(0.2))
    assert problem.simulation(variant=variant).engine == "clients"
    with pytest.raises(ValueError, match="engine = 'grouped': it runs Algorithm 1 as it is, and dropout differs"):
        problem.simulation("grouped", variant=variant)
