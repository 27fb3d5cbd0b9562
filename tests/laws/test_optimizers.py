"""Optimisers, schedules and clipping against plain loops that take Optax's own optimisers, step size and all."""

import jax
import numpy as np
import optax
import pytest

from support import oracle
from support.problems import Problem, Shape, distance
from tdcd.blocks import Linear, Mlp
from tdcd.config import check_config
from tdcd.config.members import variant_of
from tdcd.core.objective import Objective

SHAPE = Shape(clients=(3, 4), columns=(2, 3), num_samples=60, batch_size=12, blocks=(Linear(), Mlp((4,))))
ROUNDS, ETA = 4, 0.1
TOTAL = ROUNDS * SHAPE.local_steps
CLIP = 0.2
"""Shorter than most gradients of the problem, and longer than some."""


def optax_says(optimizer, factor=lambda t: 1.0):
    """A client's step by Optax: the optimiser begins each round anew, the schedule's factor goes on."""

    def step(block, slopes, memory, eta, t):
        with jax.enable_x64(True):
            made = optimizer(eta * factor(t))
            memory = made.init(block) if memory is None else memory
            updates, memory = made.update(slopes, memory, block)
            return [np.asarray(one) for one in optax.apply_updates(block, updates)], memory

    return step


def hub_says(optimizer):
    def step(block, average, memory):
        slopes = [a - b for a, b in zip(block, average, strict=True)]
        return optax_says(lambda _: optimizer)(block, slopes, memory, 1.0, 0)

    return step


def cosine(t):
    return (1 + np.cos(np.pi * t / TOTAL)) / 2


def clipped(optimizer):
    return lambda eta: optax.chain(optax.clip_by_global_norm(CLIP), optimizer(eta))


CASES = {
    "momentum": ({"optimizer": "momentum", "momentum": 0.8}, optax_says(lambda eta: optax.sgd(eta, 0.8))),
    "adam, cosine": ({"optimizer": "adam", "schedule": "cosine"}, optax_says(optax.adam, cosine)),
    "clip": ({"clip": CLIP}, optax_says(clipped(optax.sgd))),
    "clip, linear": ({"clip": CLIP, "schedule": "linear"}, optax_says(clipped(optax.sgd), lambda t: 1 - t / TOTAL)),
    "clip, adam": ({"clip": CLIP, "optimizer": "adam"}, optax_says(clipped(optax.adam))),
}
HUBS = {
    "hub momentum": ({"hub_optimizer": "momentum", "hub_step_size": 0.5, "momentum": 0.7}, optax.sgd(0.5, 0.7)),
    "hub adam": ({"hub_optimizer": "adam", "hub_step_size": 0.05}, optax.adam(0.05)),
}


def assert_alike(keys, variation):
    train = {"rounds": ROUNDS, "local_steps": SHAPE.local_steps, **keys}
    problem = Problem.draw(SHAPE, Objective("logistic", 0.1), 7, step_size=ETA)
    expected = problem.solve(ROUNDS, variation)
    assert distance(problem.simulate(ROUNDS, variant=variant_of(check_config({"train": train}))), expected) < 1e-10
    assert distance(problem.solve(ROUNDS), expected) > 1e-4


@pytest.mark.parametrize("name", CASES)
def test_clients_follow_their_gradients_as_optax_does(name):
    keys, step = CASES[name]
    assert_alike(keys, oracle.Variation(step=step))


@pytest.mark.parametrize("name", HUBS)
def test_hubs_follow_the_average_as_optax_does(name):
    keys, optimizer = HUBS[name]
    assert_alike(keys, oracle.Variation(hub=hub_says(optimizer)))


def test_the_whole_gradient_of_a_client_has_the_norm_that_is_clipped():
    """One norm over all arrays of a block, the regulariser's part counted in; short gradients stay as they are."""
    seen = []

    def watched(block, slopes, memory, eta, t):
        seen.append(np.sqrt(sum(float(np.sum(one**2)) for one in slopes)))
        return CASES["clip"][1](block, slopes, memory, eta, t)

    problem = Problem.draw(SHAPE, Objective("logistic", 0.1), 7, step_size=ETA)
    problem.solve(ROUNDS, oracle.Variation(step=watched))
    assert min(seen) < CLIP < max(seen)
