"""What a run shows on the terminal: live progress and the result table."""

from pathlib import Path
from types import TracebackType
from typing import Self

import rich.progress
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from tdcd.train import Progress, Result


class Watch:
    """A progress bar with the round, the loss, the rounds per second and the time left.

    Where the output is not a terminal, one line at each tenth of the way instead.
    """

    def __init__(self, console: Console) -> None:
        """Show on ``console``."""
        self._console = console
        self._stopped = False
        self._bar = rich.progress.Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._bar.add_task("train", total=None, loss="...", speed="")
        self._tenths = -1

    def __enter__(self) -> Self:
        """Start the display."""
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        self._bar.stop()

    def stop(self) -> None:
        """Ask the run to end after the current round."""
        self._stopped = True
        self._console.print("Stopping after this round; once more to stop at once.", highlight=False)

    def should_stop(self) -> bool:
        """Whether the run was asked to end."""
        return self._stopped

    def observe(self, news: Progress) -> None:
        """Take news from the run."""
        bar = self._bar.tasks[0]
        if bar.total is None:
            self._bar.reset(bar.id, total=news.rounds, completed=news.round)
        speed = f"{bar.speed:,.1f} rounds/s" if bar.speed else ""
        self._bar.update(bar.id, completed=news.round, speed=speed)
        if news.record is None:
            return
        self._bar.update(bar.id, loss=f"{news.record.train_loss:.4g}")
        tenths = news.round * 10 // max(news.rounds, 1)
        if not self._console.is_terminal and tenths > self._tenths:
            self._tenths = tenths
            line = f"round {news.round}/{news.rounds}  loss {news.record.train_loss:.4g}"
            self._console.print(line, highlight=False)


def show_result(console: Console, result: Result, page: Path) -> None:
    """The final figures, and where everything is."""
    shown = next(record for record in reversed(result.history) if not record.diverged)
    table = Table("", "training", "held out")
    held_out = shown.metrics.get("test", {})
    table.add_row("loss", _number(shown.train_loss), _number(shown.test_loss))
    for name, value in shown.metrics["train"].items():
        table.add_row(
            {"rmse": "RMSE", "r2": "R2", "auc": "AUC"}.get(name, name), _number(value), _number(held_out.get(name))
        )
    console.print(table)
    total = _size(shown.bytes.total)
    console.print(
        f"{shown.round} rounds, {shown.iteration} local steps, {total} sent, {shown.seconds:.1f} s", highlight=False
    )
    if result.status == "diverged":
        settings = result.simulation.settings
        console.print(
            f"The loss stopped being finite by round {result.history[-1].round}; the model of round {result.round} is "
            f"kept. Try a smaller train.step_size (it is {settings.step_size:g}), fewer train.local_steps (they are "
            f"{settings.local_steps}), or data.standardize = true.",
            style="red",
            highlight=False,
        )
    if result.status == "interrupted":
        console.print(
            f"Interrupted at round {result.round}. To go on: tdcd run --resume {result.folder}", highlight=False
        )
    console.print(f"Run folder: {result.folder}", soft_wrap=True, highlight=False)
    console.print(f"Report:     {page}", soft_wrap=True, highlight=False)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
