"""Momentum of each client that lasts across rounds: the oracle, a checkpoint, absence, and real parties."""

import numpy as np
import pytest

from support.in_process import InProcess
from support.problems import Problem, Shape, arrays, distance
from support.simulated import RIDGE, assert_same_history, simulated, with_keys
from tdcd import Linear, Mlp, Variant
from tdcd.config import ConfigError
from tdcd.core.codecs.fixed_point import FixedBlocks
from tdcd.core.family.momentum import ClientMomentum
from tdcd.core.family.overlap import Overlap
from tdcd.core.objective import Objective
from tdcd.core.schedule import batch_ids
from tdcd.runtime.compute.client_data import shards
from tdcd.runtime.job import Job

SHAPE = Shape(clients=(3, 4), columns=(2, 3), num_samples=60, batch_size=12, blocks=(Linear(), Mlp((4,))))
DECAY = 0.7
OWN = """
from tdcd import Overlap, Variant
from tdcd.core.codecs.fixed_point import FixedBlocks
from tdcd.core.family.momentum import ClientMomentum

lasting = Variant(update=ClientMomentum(0.7))
late = Variant(update=ClientMomentum(0.7), timing=Overlap(1))
slow = Variant(update=ClientMomentum(0.7), timing=Overlap(0, (2, 1)))
hidden = Variant(update=ClientMomentum(0.7), block_exchange=FixedBlocks())
"""


def test_with_one_client_in_one_silo_it_is_plain_momentum():
    """Nothing interrupts the velocity: as many steps of momentum SGD on the same minibatches."""
    shape = Shape(clients=(1,), columns=(3,), num_samples=40, batch_size=8)
    problem = Problem.draw(shape, Objective("logistic", 0.1), 3)
    found = problem.simulate(4, variant=Variant(update=ClientMomentum(DECAY)))
    chosen = problem.settings
    velocity, block = None, [array.copy() for array in arrays(problem.start)[0]]
    x, y = np.asarray(problem.federation.silos[0].features), problem.federation.labels
    for round_index in range(4):
        ids = batch_ids(chosen.seed, [round_index], num_samples=40, batch_size=8, local_steps=chosen.local_steps)[0]
        for minibatch in ids:
            score = x[minibatch] @ block[0]
            slope = 1 / (1 + np.exp(-score)) - y[minibatch][:, None]
            gradient = x[minibatch].T @ slope / len(minibatch) + 0.1 * block[0]
            velocity = gradient if velocity is None else DECAY * velocity + gradient
            block = [block[0] - chosen.step_size * velocity]
    np.testing.assert_allclose(found[0][0], block[0], atol=1e-12)


def test_without_decay_it_is_plain_sgd_and_with_it_another():
    problem = Problem.draw(SHAPE, Objective("squared", 0.1), 7)
    assert distance(problem.simulate(3, variant=Variant(update=ClientMomentum(0.0))), problem.simulate(3)) < 1e-12
    assert distance(problem.simulate(3, variant=Variant(update=ClientMomentum(DECAY))), problem.simulate(3)) > 1e-4


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "own_memory.py").write_text(OWN)
    return str(tmp_path)


@pytest.mark.parametrize("name", ["lasting", "late"])
def test_real_parties_have_the_simulations_history(name, folder):
    config = with_keys(RIDGE, train={"variant": f"own_memory:{name}", "folder": folder})
    planned, result = simulated(config)
    office = InProcess(config, shards(planned)).run()
    assert_same_history(office, result)


def test_a_hub_that_comes_back_has_its_clients_memories(folder):
    config = with_keys(RIDGE, train={"variant": "own_memory:lasting", "folder": folder})
    planned, result = simulated(config)
    office = InProcess(config, shards(planned))
    office.start()
    hub = Job(config).hubs[0]
    while office.states.get(hub) is None or office.states[hub].round < 3:
        assert office.deliver()
    office.come_back(hub, office.states[hub])
    while office.deliver():
        pass
    assert {end.status for end in office.ends.values()} == {"finished"}
    for history in office.history.values():
        last = history[-1]
        assert last.train_loss == pytest.approx(result.history[-1].train_loss, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("slow", "memories of clients do not go with periods above 1"),
        ("hidden", "a hub would see each client's memory, and sums of blocks hide it"),
    ],
)
def test_what_does_not_go_with_it_is_refused(name, message, folder):
    config = with_keys(RIDGE, train={"variant": f"own_memory:{name}", "folder": folder})
    with pytest.raises(ConfigError, match=message):
        Job(config)
    problem = Problem.draw(SHAPE, Objective("squared"), 1)
    other = Overlap(0, (2, 1)) if name == "slow" else Overlap()
    codec = FixedBlocks() if name == "hidden" else Variant().block_exchange
    with pytest.raises(ValueError, match=message):
        problem.simulation(variant=Variant(update=ClientMomentum(), timing=other, block_exchange=codec))
