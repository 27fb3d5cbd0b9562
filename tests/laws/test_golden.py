"""Short trajectories of fixed configurations, and the losses that they end with: a change of numbers is seen here.

A change that is meant, such as another rule for drawing minibatches, writes new numbers here and says why.
"""

import pytest

from support.in_process import InProcess
from tdcd.config import check_config
from tdcd.config.resolve import plan
from tdcd.runtime.compute.client_data import shards
from tdcd.training.train import measure, simulate

pytestmark = pytest.mark.optimised
ROUNDS = 4
SILOS = [{"name": "a", "clients": 3}, {"name": "b", "clients": 2}]
DIABETES, CANCER, DIGITS = ({"source": name, "rows": 200} for name in ("diabetes", "breast_cancer", "digits"))
UNEVEN = {"data": CANCER, "federation": {"rows": "dirichlet"}}
MOMENTUM = {"optimizer": "momentum", "hub_optimizer": "momentum", "momentum": 0.5}
CNN = {"block": "cnn", "channels": [3], "kernel": [3, 3], "embedding": 5, "l2": 0.01}

GOLDEN = {
    "ridge, clients": ({"data": DIABETES}, {"engine": "clients"}, 0.2806533417940376),
    "ridge, grouped": ({"data": DIABETES}, {"engine": "grouped"}, 0.2806533417940376),
    "ridge, flat": ({"data": DIABETES}, {"engine": "flat"}, 0.2806533417940376),
    "logistic, grouped": (
        {"data": CANCER, "federation": {"rows": "dirichlet"}},
        {"gradient": "mean"},
        0.2638312955547755,
    ),
    "logistic, flat": ({"data": CANCER}, {"engine": "flat", "minibatches": "reused"}, 0.269198533193049),
    "softmax, full minibatches": ({"data": DIGITS}, {"minibatches": "full"}, 1.3820707586717387),
    "mlp": ({"data": DIGITS, "model": {"block": "mlp", "hidden": [4]}}, {"minibatches": "reused"}, 2.3282810751612812),
    "linear and mlp": ({"data": CANCER, "model": {"block": ["linear", "mlp"], "hidden": [4]}}, {}, 0.355505976287225),
    "cnn": ({"data": DIGITS, "model": CNN}, {"local_steps": 2}, 2.6098163367691085),
    "momentum": (
        {"data": DIABETES},
        {"optimizer": "momentum", "hub_optimizer": "momentum", "momentum": 0.5},
        0.2755527355295966,
    ),
    "adam": ({"data": CANCER}, {"optimizer": "adam", "schedule": "cosine"}, 0.11034188826550562),
    "half of the clients": ({"data": DIABETES}, {"participation": 0.5}, 0.28782556771350315),
    "fedbcd": ({"data": DIABETES}, {"algorithm": "fedbcd"}, 0.28683888981453626),
}
BATCH = [0.2894166344115823, 0.28690647926221585]
PARTIES = 0.10943324803328167


def planned(sections, train, **keys):
    steps = {"rounds": ROUNDS, "local_steps": 3, "batch_size": 24, "step_size": 0.05, **train}
    model = {"block": "linear", "l2": 0.01, **sections.get("model", {})}
    chosen = {"dtype": "float64", "silos": SILOS, "evaluate": {"every": ROUNDS}, **sections}
    return plan(check_config({**chosen, "model": model, "train": steps, **keys}))


def losses(*plans):
    simulation = simulate(*plans)
    state = simulation.advance(simulation.init(), 0, ROUNDS)
    return [figures.train_loss for figures in measure(simulation, state.blocks, ROUNDS)]


@pytest.mark.parametrize("name", GOLDEN)
def test_a_run_ends_with_the_loss_that_it_ended_with(name):
    sections, train, expected = GOLDEN[name]
    assert losses(planned(sections, train)) == pytest.approx([expected], rel=1e-9)


def test_so_does_a_batch_of_runs():
    assert losses(*(planned({"data": DIABETES}, {}, seed=seed) for seed in (1, 2))) == pytest.approx(BATCH, rel=1e-9)


def test_so_do_hubs_and_clients():
    chosen = planned({"data": CANCER}, {"hub_optimizer": "adam", "hub_step_size": 0.1})
    office = InProcess(chosen.config, shards(chosen)).run()
    assert [history[-1].train_loss for history in office.history.values()] == pytest.approx([PARTIES] * 2, rel=1e-9)
