"""Runs in one compiled program give what each gives by itself."""

import jax
import numpy as np
import pytest
from tdcd.sweep.client_batch import ClientBatch
from tdcd.sweep.evaluation import Evaluator
from tdcd.sweep.lane_batch import LaneBatch

from tdcd.config import check_config
from tdcd.run import plan
from tdcd.simulation.simulate import Simulation
from tdcd.sweep import batch
from tdcd.sweep.batch import batch_of, runs_at_once
from tdcd.train import measure

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
    simulation = Simulation(planned.federation, planned.blocks, planned.objective, planned.settings)
    hub_blocks = simulation.advance(simulation.init(), 0, rounds)
    return simulation, hub_blocks


def stacked(trees):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def starts(plans):
    return stacked([Simulation(p.federation, p.blocks, p.objective, p.settings).init() for p in plans])


CASES = [
    ("linear", "squared", {}, LaneBatch),
    ("linear", "softmax", {"gradient": "mean"}, LaneBatch),
    ("linear", "squared", {"minibatches": "full"}, LaneBatch),
    ("mlp", "squared", {}, ClientBatch),
    ("mlp", "softmax", {"minibatches": "reused"}, ClientBatch),
]


@pytest.mark.parametrize(("block", "loss", "train", "kind"), CASES)
def test_a_batch_equals_its_runs(block, loss, train, kind):
    plans = plans_of(block, loss=loss, **train)
    assert runs_at_once(plans[0]) > 1
    with jax.enable_x64(True):
        together = batch_of(plans, every=4)
        assert isinstance(together, kind)
        found = together.advance(together.advance(starts(plans), 0, 7), 7, 2)
        figures = Evaluator(plans)(found)
        for run, planned in enumerate(plans):
            simulation, expected = by_itself(planned, 9)
            for own, leaf in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
                np.testing.assert_allclose(own[run], leaf, rtol=0, atol=1e-10)
            alone = measure(simulation, planned.federation, expected)
            assert figures[run].train_loss == pytest.approx(alone.train_loss, rel=1e-10)
            assert figures[run].test_loss == pytest.approx(alone.test_loss, rel=1e-10)
            for split, names in alone.metrics.items():
                assert figures[run].metrics[split] == pytest.approx(names, rel=1e-9)
    moved = np.abs(np.asarray(jax.tree.leaves(found)[0]) - np.asarray(jax.tree.leaves(starts(plans))[0]))
    assert moved.max() > 1e-2


def test_rounds_that_need_another_padding_are_the_same(monkeypatch):
    """With a usual padding that is too small for most rounds, they run in several calls of other widths."""
    monkeypatch.setattr("tdcd.placement.Padding._rounded", lambda padding, above_mean: 4)
    plans = plans_of("mlp", count=2)
    with jax.enable_x64(True):
        found = batch_of(plans, every=6).advance(starts(plans), 0, 6)
    monkeypatch.undo()
    for run, planned in enumerate(plans):
        _, expected = by_itself(planned, 6)
        for own, leaf in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(own[run], leaf, rtol=0, atol=1e-10)


def test_chunks_of_samples_leave_no_trace(monkeypatch):
    plans = plans_of("linear", loss="softmax")
    with jax.enable_x64(True):
        hub_blocks = jax.tree.map(lambda leaf: leaf + 0.1 * np.arange(leaf.size).reshape(leaf.shape), starts(plans))
        whole = Evaluator(plans)(hub_blocks)
        monkeypatch.setattr("tdcd.sweep.evaluation.SCORES_AT_ONCE", 2 * 10 * 60)
        parts = Evaluator(plans)(hub_blocks)
    for one, other in zip(whole, parts, strict=True):
        assert one.train_loss == pytest.approx(other.train_loss, rel=1e-12)
        assert one.metrics["train"] == pytest.approx(other.metrics["train"], rel=1e-12)


def test_heavy_runs_stay_by_themselves_on_a_cpu(monkeypatch):
    monkeypatch.setattr(batch, "TINY", 10)
    monkeypatch.setattr(batch, "CELLS", 10)
    assert runs_at_once(plans_of("mlp", count=1)[0]) == 1
    assert runs_at_once(plans_of("linear", count=1)[0]) == 1
