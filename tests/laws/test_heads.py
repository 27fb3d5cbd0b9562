"""Heads on the sum of the silos' phi: their derivatives, the oracle, labels at one silo, and real parties."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support import oracle
from support.in_process import InProcess
from support.problems import Problem, Shape, distance
from support.simulated import RIDGE, assert_same_history, simulated, with_keys
from tdcd import LabelsAt, Linear, Mlp, Variant
from tdcd.core.family.heads import Hidden
from tdcd.core.objective import Objective
from tdcd.runtime.compute.client_data import shards

UNITS = 3
HEAD = Hidden(UNITS)
SHAPE = Shape(clients=(3, 4), columns=(2, 3), num_samples=60, batch_size=12, blocks=(Linear(), Mlp((4,))))
LOSSES = ("squared", "logistic", "softmax", "poisson", "huber")


def by_hand(loss, total, label):
    """The derivative by the sum, unit by unit."""
    outputs = len(total) // (1 + UNITS)
    score = total[:outputs].copy()
    for unit in range(UNITS):
        score += (-1) ** unit * np.maximum(0, total[(1 + unit) * outputs : (2 + unit) * outputs])
    slope = oracle.slope_of(loss, score, label)
    parts = [slope]
    for unit in range(UNITS):
        parts.append((-1) ** unit * slope * (total[(1 + unit) * outputs : (2 + unit) * outputs] > 0))
    return np.concatenate(parts)


VARIATION = oracle.Variation(slope=lambda silo, loss, phi, start, others, label: by_hand(loss, phi + others, label))


@pytest.mark.parametrize("loss", LOSSES)
def test_training_with_a_head_is_what_the_plain_loops_do(loss):
    problem = Problem.draw(SHAPE, Objective(loss, 0.1, combine=HEAD), 5)
    expected = problem.solve(3, VARIATION)
    assert distance(problem.simulate(3), expected) < 1e-10


@pytest.mark.parametrize("loss", ["squared", "softmax", "poisson"])
def test_with_labels_at_one_silo_the_others_take_the_very_same_steps(loss):
    problem = Problem.draw(SHAPE, Objective(loss, 0.1, combine=HEAD), 6)
    at_one = problem.simulate(3, variant=Variant(knowledge=LabelsAt(1)))
    assert distance(at_one, problem.simulate(3)) < 1e-10


@pytest.mark.parametrize("loss", LOSSES)
def test_derivatives_by_hand_are_those_of_the_scores(loss):
    rng, objective = np.random.default_rng(4), Objective(loss, combine=HEAD)
    outputs = 3 if loss == "softmax" else 1
    total, change = rng.normal(size=(2, 40, HEAD.width(outputs)))
    labels = (rng.random(40) * 2).astype(int).astype(objective.label_dtype("float64"))
    with jax.enable_x64(True):
        of_sum = jax.grad(lambda total: jnp.sum(objective.losses(total, labels)))
        np.testing.assert_allclose(objective.slopes(total, labels), of_sum(total), atol=1e-12)
        statistic = objective.statistic(total, labels)
        assert statistic.shape[-1] == objective.statistic_width(outputs)
        np.testing.assert_allclose(objective.change_slopes(statistic, change), of_sum(total + change), atol=1e-10)
        grown = objective.losses(total + change, labels) - objective.losses(total, labels)
        np.testing.assert_allclose(objective.change(statistic, change), grown, atol=1e-10)


SILOS = [{"name": "clinic", "clients": 3}, {"name": "lab", "clients": 2}, {"name": "bank", "clients": 1}]
CASES = {
    "linear": {"model": {"head": "hidden", "head_units": UNITS}},
    "mlp, labels at one silo": {
        "model": {"head": "hidden", "block": "mlp", "hidden": [3]},
        "federation": {"labels": "lab"},
    },
    "masks": {"model": {"head": "hidden"}, "silos": SILOS, "exchange": {"protect": "mask"}},
}


@pytest.mark.parametrize("keys", CASES.values(), ids=CASES.keys())
def test_real_parties_have_the_simulations_history(keys):
    config = with_keys(RIDGE, **keys)
    planned, result = simulated(config)
    office = InProcess(config, shards(planned))
    office.run()
    assert_same_history(office, result)
    assert len({record.train_loss for record in result.history}) > 1
