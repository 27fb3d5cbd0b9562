"""Training a batch of runs, all at the same round, each into a run folder of its own."""

from collections.abc import Callable, Sequence
from pathlib import Path

from tdcd.config.resolve import Plan
from tdcd.core.stopping import Interrupted
from tdcd.prediction.held_out import scores_of
from tdcd.records.history import Record
from tdcd.records.run_folder import RunFolder
from tdcd.simulation.engines.base import ROUNDS_PER_CALL
from tdcd.training.recording import TrainingRun
from tdcd.training.train import Progress, Training, ledger_of, simulate


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
