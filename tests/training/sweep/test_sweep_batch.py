"""Runs in one compiled program give what each gives by itself."""

import jax
import numpy as np
import pytest

from tdcd.config import check_config
from tdcd.config.resolve import plan
from tdcd.training.sweep import runner
from tdcd.training.sweep.runner import runs_at_once
from tdcd.training.train import measure, simulate

BASE = {"dtype": "float64", "data": {"source": "diabetes"}, "federation": {"silos": 2, "clients": [3, 2]}}


def plans_of(block, count=2, loss="squared", **train):
    source = {"squared": "diabetes", "softmax": "digits"}[loss]
    return [
        plan(
            check_config(
                BASE
                | {
                    "seed": seed,
                    "data": {"source": source, "rows": 200},
                    "model": {"block": block, "hidden": [3], "l2": 0.02 * seed},
                    "train": {"local_steps": 3, "batch_size": 24, "step_size": 0.02 + 0.03 * seed, **train},
                }
            )
        )
        for seed in range(count)
    ]


def by_itself(planned, rounds):
    simulation = simulate(planned)
    return simulation, simulation.advance(simulation.init(), 0, rounds)


CASES = [
    ("linear", "squared", {}, "grouped"),
    ("linear", "softmax", {"gradient": "mean"}, "grouped"),
    ("linear", "squared", {"minibatches": "full"}, "grouped"),
    ("linear", "squared", {"engine": "clients"}, "clients"),
    ("mlp", "squared", {}, "clients"),
    ("mlp", "softmax", {"minibatches": "reused"}, "clients"),
]


@pytest.mark.parametrize(("block", "loss", "train", "engine"), CASES)
def test_a_batch_equals_its_runs(block, loss, train, engine):
    plans = plans_of(block, loss=loss, **train)
    assert runs_at_once(plans[0]) > 1
    together = simulate(*plans, most_rounds=4)
    assert together.engine == engine
    start = together.init()
    found = together.advance(together.advance(start, 0, 7), 7, 2)
    figures = measure(together, found.blocks, 9)
    for planned, own, state in zip(plans, figures, together.part(found), strict=True):
        simulation, expected = by_itself(planned, 9)
        for one, leaf in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, leaf, rtol=0, atol=1e-10)
        (alone,) = measure(simulation, expected.blocks, 9)
        assert own.train_loss == pytest.approx(alone.train_loss, rel=1e-10)
        assert own.test_loss == pytest.approx(alone.test_loss, rel=1e-10)
        for split, names in alone.metrics.items():
            assert own.metrics[split] == pytest.approx(names, rel=1e-9)
    moved = np.abs(np.asarray(jax.tree.leaves(found)[0]) - np.asarray(jax.tree.leaves(start)[0]))
    assert moved.max() > 1e-2


def test_rounds_that_need_another_padding_are_the_same(monkeypatch):
    """With a usual padding that is too small for most rounds, they run in several calls of other widths."""
    monkeypatch.setattr("tdcd.federation.placement.Padding._rounded", lambda padding, above_mean: 4)
    plans = plans_of("mlp", count=2)
    together = simulate(*plans, most_rounds=6)
    found = together.part(together.advance(together.init(), 0, 6))
    monkeypatch.undo()
    for state, planned in zip(found, plans, strict=True):
        _, expected = by_itself(planned, 6)
        for one, leaf in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, leaf, rtol=0, atol=1e-10)


def test_chunks_of_samples_leave_no_trace(monkeypatch):
    together = simulate(*plans_of("linear", loss="softmax"))
    blocks = jax.tree.map(lambda leaf: leaf + 0.1 * np.arange(leaf.size).reshape(leaf.shape), together.init().blocks)
    whole = measure(together, blocks, 0)
    monkeypatch.setattr("tdcd.simulation.simulate.SCORES_AT_ONCE", 2 * 10 * 60)
    parts = measure(together, blocks, 0)
    for one, other in zip(whole, parts, strict=True):
        assert one.train_loss == pytest.approx(other.train_loss, rel=1e-12)
        assert one.metrics["train"] == pytest.approx(other.metrics["train"], rel=1e-12)


def test_heavy_runs_stay_by_themselves_on_a_cpu(monkeypatch):
    monkeypatch.setattr(runner, "TINY", 10)
    monkeypatch.setattr(runner, "CELLS", 10)
    assert runs_at_once(plans_of("mlp", count=1)[0]) == 1
    assert runs_at_once(plans_of("linear", count=1)[0]) == 1
