"""A batch of runs is the same engine with an axis for the runs, wherever the data stays."""

import jax
import numpy as np
import pytest

from tdcd import Federation, Linear, Mlp, Objective, Settings, load, standardize
from tdcd.core.execution import Execution
from tdcd.simulation.engines.base import Run
from tdcd.simulation.simulate import Simulation

TABLE = standardize(load("diabetes").split(0.2, seed=0)[0], None)[0]


def run_of(seed):
    federation = Federation.cut(TABLE, silos=2, clients=[3, 2], seed=seed)
    settings = Settings(local_steps=2, batch_size=24, step_size=0.02 * (1 + seed), seed=seed, dtype="float64")
    return Run(federation, Objective("squared", 0.01 * seed), settings)


@pytest.mark.parametrize(
    ("engine", "block"), [("clients", Mlp((3,))), ("grouped", Linear())], ids=["clients", "grouped"]
)
@pytest.mark.parametrize("keep", ["host", "device"])
def test_a_batch_equals_its_runs_wherever_the_data_stays(engine, block, keep):
    runs, blocks, execution = [run_of(seed) for seed in (0, 1, 2)], (block,) * 2, Execution(keep=keep, engine=engine)
    # Three rounds in calls of two: the second call is shorter than the first.
    together = Simulation.of_runs(runs, blocks, execution, most_rounds=2)
    found = together.part(together.advance(together.init(), 0, 3))
    for run, state in zip(runs, found, strict=True):
        alone = Simulation(*run[:1], blocks, *run[1:], Execution(engine=engine))
        expected = alone.advance(alone.init(), 0, 3)
        for one, leaf in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, leaf, rtol=0, atol=1e-12)
