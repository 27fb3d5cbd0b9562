"""The algorithm is written once: an error in its one update shows in every engine and in the real parties."""

import jax
import numpy as np
import pytest

from support import oracle
from support.in_process import InProcess
from support.problems import ENGINES, arrays, distance
from tdcd.config import check_config
from tdcd.config.resolve import plan
from tdcd.core import algorithm
from tdcd.core.update import Sgd
from tdcd.federation.silos import start_blocks
from tdcd.runtime.compute.client_data import shards
from tdcd.training.train import simulate

ROUNDS = 3
WAYS = (*ENGINES, "batch of runs", "hubs and clients")


def planned(engine="auto", step_size=0.05):
    keys = {"rounds": ROUNDS, "local_steps": 3, "batch_size": 32, "step_size": step_size, "engine": engine}
    return plan(
        check_config(
            {
                "dtype": "float64",
                "data": {"source": "diabetes"},
                "silos": [{"name": "clinic", "clients": 3}, {"name": "lab", "clients": 2}],
                "model": {"block": "linear", "l2": 0.01},
                "train": keys,
                "evaluate": {"every": ROUNDS},
            }
        )
    )


def found_by(way):
    """The hub blocks after all rounds."""
    if way == "hubs and clients":
        chosen = planned()
        office = InProcess(chosen.config, shards(chosen)).run()
        return arrays([office.blocks()[f"hub.{silo}"] for silo in ("clinic", "lab")])
    plans = [planned(), planned(step_size=0.02)] if way == "batch of runs" else [planned(way)]
    simulation = simulate(*plans)
    return arrays(simulation.part(simulation.advance(simulation.init(), 0, ROUNDS))[0])


def expected():
    """The same by the oracle, which shares nothing with them but the minibatches."""
    chosen = planned()
    settings = chosen.settings
    return oracle.train(
        [
            oracle.Silo(oracle.Linear(), np.asarray(silo.features), [rows.tolist() for rows in silo.rows])
            for silo in chosen.federation.silos
        ],
        chosen.federation.labels,
        arrays(start_blocks(chosen.federation, chosen.blocks, 1, settings)),
        loss="squared",
        l2=0.01,
        num_rounds=ROUNDS,
        local_steps=settings.local_steps,
        batch_size=settings.batch_size,
        step_size=settings.step_size,
        minibatches=settings.minibatches,
        gradient=settings.gradient,
        seed=settings.seed,
    )


def turned_local_update(moving, gradient, descent, right=algorithm.local_update):
    return right(moving, jax.tree.map(lambda slope: 0.9 * slope, gradient), descent)


def turned_step(self, block, gradient, state, step_size, right=Sgd.step):
    return right(self, block, gradient, state, 0.9 * step_size)


ERRORS = {"local_update": (algorithm, turned_local_update), "step": (Sgd, turned_step)}


@pytest.fixture
def fresh_programs():
    """Nothing that was compiled with the right update is used here, nor the wrong one afterwards."""
    jax.clear_caches()
    yield
    jax.clear_caches()


def test_all_ways_are_the_algorithm():
    right = expected()
    assert max(distance(found_by(way), right) for way in WAYS) < 1e-10


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_in_the_one_update_is_everywhere(name, fresh_programs, monkeypatch):
    right, (owner, wrong) = expected(), ERRORS[name]
    monkeypatch.setattr(owner, name, wrong)
    found = {way: distance(found_by(way), right) for way in WAYS}
    assert min(found.values()) > 1e-3, found
