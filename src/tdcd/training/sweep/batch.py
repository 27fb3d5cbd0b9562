"""Batches of runs: those of the same shapes in one compiled program, each with a run folder of its own."""

from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path

import jax
import numpy as np

from tdcd.blocks import Linear
from tdcd.config.resolve import Plan
from tdcd.core.stopping import Interrupted
from tdcd.federation.placement import Placer
from tdcd.prediction.predictions import scores_of
from tdcd.records.history import Record
from tdcd.records.run_folder import RunFolder
from tdcd.simulation.engines.base import ROUNDS_PER_CALL
from tdcd.simulation.simulate import FITS_WELL
from tdcd.training.recording import TrainingRun
from tdcd.training.train import Progress, Training, ledger_of, simulate

CELLS = 1 << 15
"""Linear blocks are batched in groups if a silo's clients times the rows of a minibatch are no more than this."""
TINY = 1 << 14
"""Other blocks are batched on a CPU if all clients' rows of a minibatch are fewer numbers than this."""
AT_ONCE_ON_CPU, AT_ONCE = 1 << 17, 1 << 28
"""Most cells, or numbers, of all runs of a batch of runs: a CPU's cache holds few, an accelerator's memory many."""


def runs_at_once(plan: Plan) -> int:
    """How many runs like this one go into one batch of runs; at most 1 if it had better run by itself."""
    federation, settings = plan.federation, plan.settings
    rows, cpu = settings.effective_batch_size(federation.num_samples), jax.default_backend() == "cpu"
    if _stays_on_host(plan):
        return 1
    if all(type(block) is Linear for block in plan.blocks):
        cells = rows * max(silo.num_clients for silo in federation.silos)
        return (AT_ONCE_ON_CPU if cpu else AT_ONCE) // cells if cells <= CELLS else 1
    numbers = max(
        silo.num_clients * Placer(silo.owner(), rows).usual * prod(silo.feature_shape) for silo in federation.silos
    )
    if cpu:
        return AT_ONCE_ON_CPU // numbers if numbers < TINY else 1
    return AT_ONCE // (numbers * federation.num_silos * settings.num_exchanged)


def _stays_on_host(plan: Plan) -> bool:
    """Whether the data is to stay in a file, or outside an accelerator's memory: a batch of runs puts it there."""
    tables = [silo.features for silo in plan.federation.silos]
    if any(isinstance(table, np.memmap) for table in tables):
        return True
    if jax.default_backend() == "cpu" or plan.config.data.keep != "auto":
        return plan.config.data.keep == "host"
    memory = jax.local_devices()[0].memory_stats()["bytes_limit"]
    return bool(sum(table.nbytes for table in tables) > FITS_WELL * memory)


def train_together(
    plans: Sequence[Plan],
    folders: Sequence[Path],
    *,
    observe: Callable[[Progress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[list[Record]]:
    """The histories of runs of the same data and settings but for seed, step size and l2.

    They are begun or resumed in their folders; those whose checkpoints are of different rounds, as after a crash,
    continue in batches of their own.
    """
    runs = _attached(plans, folders)
    every = plans[0].config.evaluate.every
    for begin in sorted({run.round for run in runs}):
        alike = [index for index, run in enumerate(runs) if run.round == begin]
        simulation = simulate(*(plans[index] for index in alike), most_rounds=min(every, ROUNDS_PER_CALL))
        training = Training(simulation, [runs[index] for index in alike])
        if training.train(observe, should_stop) == "interrupted":
            raise Interrupted
    for plan, run in zip(plans, runs, strict=True):
        has_held_out = plan.federation.test_labels is not None
        run.conclude(scores_of(plan.federation, plan.blocks, run.model[0]) if has_held_out else None)
    return [run.history for run in runs]


def _attached(plans: Sequence[Plan], folders: Sequence[Path]) -> list[TrainingRun]:
    """The runs as they stand in their folders."""
    simulation, runs = simulate(*plans), []
    states = simulation.part(simulation.init())
    ledger = ledger_of(simulation, states[0].blocks, plans[0].colocation, plans[0].moved)
    for plan, folder, state in zip(plans, folders, states, strict=True):
        run = TrainingRun(plan, state, ledger, simulation.engine)
        run.attach(folder, resume=RunFolder(folder).is_begun, by="sweep")
        runs.append(run)
    return runs
