"""Curves of which every figure is known."""

import numpy as np

from tdcd.reproduction.results import CurveResult, ExperimentResult

ROUNDS = np.arange(0, 101, 5)
SEEDS = 5


def falling(rate, floor=0.0, noise=0.0, rounds=ROUNDS, local_steps=1, **more):
    """A loss that falls from 1 towards ``floor``, a little higher or lower for each seed."""
    jitter = noise * np.random.default_rng(round(rate * 1e6)).normal(size=(SEEDS, 1))
    losses = floor + jitter + np.exp(-rate * rounds) * np.ones((SEEDS, 1))
    sizes = {"megabytes": rounds * 1.0, "hub_megabytes": rounds * 0.5, "hub_messages": 2, "parameters": 100} | more
    return CurveResult(f"Q = {local_steps}", rounds, losses, local_steps=local_steps, **sizes)


def diverging(label="Q = 50"):
    losses = np.full((SEEDS, len(ROUNDS)), np.nan)
    losses[:, 0] = 1.0
    return CurveResult(label, ROUNDS, losses, ROUNDS * 0.001, ROUNDS * 0.001)


def experiment(name, curves, optimum=None, **more):
    return ExperimentResult(name, name, "table", tuple(curves), optimum, **more)
