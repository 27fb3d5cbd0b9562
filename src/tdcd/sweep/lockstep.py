"""Training the runs of a batch, all at the same round, each into a run folder of its own."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tdcd.blocks.start import start_block
from tdcd.execution import Execution
from tdcd.history import Record
from tdcd.objective import Tree
from tdcd.recording import SECONDS_PER_CHECKPOINT, Pace, Status, TrainingRun
from tdcd.run import Interrupted, Plan, is_begun, save_assembled
from tdcd.sweep.batch import batch_of
from tdcd.sweep.evaluation import Evaluator
from tdcd.sweep.together import num_outputs
from tdcd.train import Progress, messages_of

CHECKPOINT_SHARE = 0.1
"""Of the time, at most so much goes into checkpoints."""


def train_together(
    plans: Sequence[Plan],
    folders: Sequence[Path],
    *,
    observe: Callable[[Progress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[list[Record]]:
    """The histories of runs that :func:`tdcd.sweep.batch.batch_of` can batch; begun or resumed in their folders.

    Runs whose checkpoints are of different rounds, as after a crash, go on in batches of their own.
    """
    with _context(plans[0]):
        runs = _attached(plans, folders)
        for begin in sorted({run.round for run in runs}):
            alike = [index for index, run in enumerate(runs) if run.round == begin]
            _Lockstep([plans[index] for index in alike], [runs[index] for index in alike]).train(observe, should_stop)
    for plan, folder, run in zip(plans, folders, runs, strict=True):
        save_assembled(plan, folder, run.hub_blocks)
    return [run.history for run in runs]


def _context(plan: Plan) -> Any:
    """The precision in which everything here is compiled and run."""
    context = ExitStack()
    context.enter_context(jax.enable_x64(plan.settings.dtype == "float64"))
    context.enter_context(Execution(precision=plan.config.train.precision).matrix_products(plan.settings.dtype))
    return context


def _attached(plans: Sequence[Plan], folders: Sequence[Path]) -> list[TrainingRun]:
    """The runs as they stand in their folders."""
    runs, outputs = [], num_outputs(plans[0])
    for plan, folder in zip(plans, folders, strict=True):
        hub_blocks = [
            start_block(block, plan.settings, index, silo.feature_shape, outputs)
            for index, (block, silo) in enumerate(zip(plan.blocks, plan.federation.silos, strict=True))
        ]
        sent = messages_of(plan.federation, plan.settings, hub_blocks, outputs, plan.apart)
        run = TrainingRun(plan.federation, plan.settings, hub_blocks, sent)
        run.attach(folder, plan.config.model_dump(), plan.config.evaluate.every if is_begun(folder) else None)
        runs.append(run)
    return runs


class _Lockstep:
    """Runs that are at the same round."""

    def __init__(self, plans: Sequence[Plan], runs: Sequence[TrainingRun]) -> None:
        train, self._every = plans[0].config.train, plans[0].config.evaluate.every
        self._runs, self._rounds = runs, train.rounds
        self._batch, self._evaluate = batch_of(plans, self._every), Evaluator(plans)
        self._hub_blocks: list[Tree] = jax.tree.map(lambda *leaves: np.stack(leaves), *(run.hub_blocks for run in runs))
        self._saved_at, self._save_after = time.monotonic(), SECONDS_PER_CHECKPOINT

    def train(self, observe: Callable[[Progress], None], should_stop: Callable[[], bool]) -> None:
        """Run what is left."""
        now, pace = self._runs[0].round, Pace()
        record = self._record()
        observe(Progress(now, self._rounds, record))
        while now < self._rounds and not all(run.diverged for run in self._runs):
            if should_stop():
                self._close("interrupted")
                raise Interrupted
            target = min(self._rounds, (now // self._every + 1) * self._every)
            rounds = pace.rounds(target - now)
            self._advance(now, rounds, pace)
            now += rounds
            record = self._record() if now == target else None
            observe(Progress(now, self._rounds, record))
            if record is not None and time.monotonic() - self._saved_at > self._save_after:
                self._checkpoint()
        self._close("finished")

    def _advance(self, now: int, rounds: int, pace: Pace) -> None:
        began = time.perf_counter()
        self._hub_blocks = self._batch.advance(self._hub_blocks, now, rounds)
        jax.block_until_ready(self._hub_blocks)  # type: ignore[no-untyped-call]
        seconds = time.perf_counter() - began
        pace.took(rounds, seconds)
        for run in self._still_finite():
            run.advanced(run.hub_blocks, rounds, seconds / len(self._runs))

    def _still_finite(self) -> list[TrainingRun]:
        return [run for run in self._runs if not run.diverged]

    def _record(self) -> Record | None:
        """Evaluate the runs that are due and have not diverged; the first one's record."""
        self._hand_out()
        if not any(run.is_due(self._every, self._rounds) for run in self._still_finite()):
            return None
        for run, figures in zip(self._runs, self._evaluate(self._hub_blocks), strict=True):
            if run.is_due(self._every, self._rounds) and not run.diverged and run.add(figures).diverged:
                run.close("diverged")
        return self._runs[0].history[-1]

    def _hand_out(self) -> None:
        """Give every run its blocks."""
        leaves, tree = jax.tree.flatten(self._hub_blocks)
        on_host = [np.asarray(leaf) for leaf in leaves]
        for index, run in enumerate(self._runs):
            if not run.diverged:
                run.hub_blocks = jax.tree.unflatten(tree, [leaf[index] for leaf in on_host])

    def _checkpoint(self) -> None:
        began = time.monotonic()
        for run in self._still_finite():
            run.checkpoint()
        self._saved_at = time.monotonic()
        self._save_after = max(SECONDS_PER_CHECKPOINT, (self._saved_at - began) / CHECKPOINT_SHARE)

    def _close(self, status: Status) -> None:
        self._hand_out()
        for run in self._still_finite():
            run.close(status)
