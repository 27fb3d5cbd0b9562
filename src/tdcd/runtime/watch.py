"""The live table of a trial: rounds, losses, bytes and who is connected."""

from typing import Any, Self

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

from tdcd.report.units import bytes_in_words
from tdcd.runtime.launch import Trial


class TrialDisplay:
    """Shows a trial's parties while they work."""

    def __init__(self, console: Console, trial: Trial) -> None:
        self._trial = trial
        self._live = Live(console=console, auto_refresh=False, transient=False)

    def __enter__(self) -> Self:
        """Begin to show."""
        self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        """Leave the last table standing."""
        self._live.__exit__(None, None, None)

    def show(self) -> None:
        """Show how things stand now."""
        self._live.update(table_of(self._trial), refresh=True)


def table_of(trial: Trial) -> Table:
    """One line a hub, with its clients."""
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("hub", "round", "doing", "train loss", "test loss", "sent", "connected", "waiting for"):
        table.add_column(column, justify="right" if column in ("round", "train loss", "test loss", "sent") else "left")
    statuses = trial.statuses()
    for index, hub in enumerate(trial.job.hubs):
        status, clients = statuses.get(hub), trial.job.clients(index)
        if status is None:
            table.add_row(hub, "", "starting")
            continue
        peers = len(trial.job.hubs) - 1
        present = set(status["connected"])
        connected = f"{len(present & set(clients))}/{len(clients)} clients, {len(present - set(clients))}/{peers} hubs"
        table.add_row(
            hub,
            f"{status['round']}/{status['rounds']}",
            status["phase"] if status["status"] is None else status["status"],
            _number(status["train_loss"]),
            _number(status["test_loss"]),
            bytes_in_words(status["bytes_sent"]),
            connected,
            ", ".join(name.removeprefix("client.") for name in status["missing"][:4])
            + (", ..." if len(status["missing"]) > 4 else ""),
        )
    return table


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.5g}"
