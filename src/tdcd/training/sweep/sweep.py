"""A sweep on disk: a folder with a run folder for each setting, and ``sweep.json`` with what came out."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tdcd.config import check_config
from tdcd.config.user_code import refuse_code
from tdcd.records.history import Record
from tdcd.records.model_file import RESTORE
from tdcd.records.outcome import Stopping, verdict
from tdcd.records.run_folder import RunFolder, SweepFolder
from tdcd.training.sweep.grid import Grid, Setting, expand
from tdcd.training.sweep.runner import RunTask, SweepProgress, run_all

SettingStatus = Literal["finished", "diverged", "unfinished"]


@dataclass(frozen=True)
class Outcome:
    """What one setting's run folder holds."""

    setting: Setting
    history: list[Record]
    """Empty if it has not begun."""
    status: SettingStatus

    @property
    def final(self) -> Record | None:
        """The record of the model that stays; None if none has a finite loss."""
        kept = Stopping.of(self.setting.config.model_dump()).kept(self.history) if self.history else None
        return None if kept is None or kept.diverged else kept


@dataclass(frozen=True)
class Sweep:
    """The outcomes of all settings."""

    grid: Grid
    folder: Path
    outcomes: tuple[Outcome, ...]

    @property
    def best(self) -> int | None:
        """Which finished run has the lowest held-out loss, or training loss if nothing is held out."""
        losses = {
            place: final.train_loss if final.test_loss is None else final.test_loss
            for place, outcome in enumerate(self.outcomes)
            if outcome.status == "finished" and (final := outcome.final) is not None
        }
        return min(losses, key=lambda place: losses[place]) if losses else None


def run_sweep(
    grid: Grid,
    folder: Path,
    *,
    observe: Callable[[SweepProgress], None] = lambda step: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Sweep:
    """Run what is missing in ``folder``, and write ``sweep.json`` there, whatever happens on the way.

    Raises:
        Interrupted: ``should_stop`` returned True; what was done is in the folder.
    """
    write_json(read_outcomes(grid, folder))
    tasks = [RunTask(setting.name, setting.config, folder / setting.name) for setting in grid.settings]
    try:
        run_all(tasks, observe=observe, should_stop=should_stop)
    finally:
        sweep = read_outcomes(grid, folder)
        write_json(sweep)
    return sweep


def read_grid(folder: Path, *, allow_code: bool = False) -> Grid:
    """The settings of the sweep in ``folder``; refused if they name code that the caller does not allow."""
    sweep = SweepFolder(folder)
    grid = expand(sweep.keys(), str(sweep.file))
    if not allow_code:
        refuse_code(grid.keys, str(sweep.file))
    names = {setting.name for setting in grid.settings}
    strangers = [name for name in sweep.begun_runs() if name not in names]
    if strangers:
        raise ValueError(
            f"{sweep.file} belongs to another sweep: {folder / strangers[0]} is none of its runs; {RESTORE}"
        )
    return grid


def read_outcomes(grid: Grid, folder: Path) -> Sweep:
    """What the run folders under ``folder`` hold by now."""
    return Sweep(grid, folder, tuple(_outcome(setting, RunFolder(folder / setting.name)) for setting in grid.settings))


def _outcome(setting: Setting, run: RunFolder) -> Outcome:
    history = run.records() if run.is_begun else []
    if not history:
        return Outcome(setting, [], "unfinished")
    if history[-1].diverged:
        return Outcome(setting, history, "diverged")
    # A baseline takes other rounds than its configuration has; the folder has the right ones.
    stopping = Stopping.of(check_config(run.config(), str(run.config_file)).model_dump())
    if not stopping.is_complete(history):
        return Outcome(setting, history, "unfinished")
    return Outcome(setting, history, "diverged" if verdict(history, stopping) else "finished")


def write_json(sweep: Sweep) -> None:
    """Write ``sweep.json``: the configuration, lists and all, and what each run came to."""
    runs = [_numbers(outcome) for outcome in sweep.outcomes]
    SweepFolder(sweep.folder).write(sweep.grid.keys, [*sweep.grid.varied], runs)


def _numbers(outcome: Outcome) -> dict[str, Any]:
    final = outcome.final
    facts = {"folder": outcome.setting.name, "values": outcome.setting.values, "status": outcome.status}
    if final is None:
        return facts
    return facts | {
        "round": final.round,
        "iteration": final.iteration,
        "train_loss": final.train_loss,
        "test_loss": final.test_loss,
        "metrics": final.metrics,
        "bytes": final.bytes.total,
        "evaluation_bytes": None if final.evaluation_bytes is None else final.evaluation_bytes.total,
        "seconds": final.seconds,
    }
