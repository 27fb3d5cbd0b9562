"""Training a batch of runs, all at the same round, each into a run folder of its own."""

from collections.abc import Callable, Sequence
from pathlib import Path

from tdcd.config.resolve import Plan
from tdcd.core.stopping import Interrupted
from tdcd.records.history import Record
from tdcd.records.manifest import Manifest
from tdcd.records.patience import Stopping
from tdcd.records.run_folder import RunFolder
from tdcd.simulation.engines.base import ROUNDS_PER_CALL
from tdcd.tables.preparation import save_prepared
from tdcd.training.recording import TrainingRun
from tdcd.training.run import save_held_out, simulate
from tdcd.training.subsets import Trained, write_subsets
from tdcd.training.train import Progress, Training, ledger_of


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
    train, every = plans[0].config.train, plans[0].config.evaluate.every
    for begin in sorted({run.round for run in runs}):
        alike = [index for index, run in enumerate(runs) if run.round == begin]
        simulation = simulate(*(plans[index] for index in alike), most_rounds=min(every, ROUNDS_PER_CALL))
        training = Training(simulation, [runs[index] for index in alike], train.rounds, every)
        if training.train(observe, should_stop) == "interrupted":
            raise Interrupted
    for plan, folder, run in zip(plans, folders, runs, strict=True):
        save_prepared(folder, plan.federation, plan.objective)
        save_held_out(plan, folder, run.model[0])
        if not run.diverged:
            trained = Trained(plan.federation, plan.blocks, plan.objective, plan.variant)
            write_subsets(RunFolder(folder), trained, run.model[0])
        Manifest(RunFolder(folder)).seal()
    return [run.history for run in runs]


def _attached(plans: Sequence[Plan], folders: Sequence[Path]) -> list[TrainingRun]:
    """The runs as they stand in their folders."""
    simulation, runs = simulate(*plans), []
    states = simulation.part(simulation.init())
    ledger = ledger_of(simulation, states[0].blocks, plans[0].colocation, plans[0].moved)
    for plan, folder, state in zip(plans, folders, states, strict=True):
        stopping = Stopping.of(plan.config.model_dump())
        run = TrainingRun(plan.federation, plan.settings, state, ledger, simulation.engine, stopping)
        every = plan.config.evaluate.every if RunFolder(folder).is_begun else None
        run.attach(folder, plan.config.model_dump(), every, by="sweep")
        runs.append(run)
    return runs
