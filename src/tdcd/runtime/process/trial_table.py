"""The live table of a trial: rounds, losses, bytes and who is connected."""

from typing import Any, Self

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

from tdcd.pages.kit.formats import bytes_in_words
from tdcd.runtime.process.trial import Trial


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
    """One line per hub, with its clients."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("hub", "round", "doing", "loss", "held out", "sent", "clients", "hubs", "waiting for"):
        is_text = column in ("hub", "doing", "waiting for")
        table.add_column(column, justify="left" if is_text else "right", no_wrap=column != "waiting for")
    statuses = trial.statuses()
    for index, hub in enumerate(trial.job.hubs):
        status, clients = statuses.get(hub), set(trial.job.clients(index))
        if status is None:
            table.add_row(hub, "", "starting")
            continue
        present = set(status["connected"])
        table.add_row(
            hub,
            f"{status['round']}/{status['rounds']}",
            status["status"] or status["phase"],
            _number(status["train_loss"]),
            _number(status["test_loss"]),
            bytes_in_words(status["bytes_sent"]),
            f"{len(present & clients)}/{len(clients)}",
            f"{len(present - clients)}/{len(trial.job.hubs) - 1}",
            "; ".join(filter(None, (_names(status["missing"]), _left_out(status["left_out"])))),
        )
    return table


def _names(parties: list[str]) -> str:
    shown = [party.rpartition(".")[2] if party.startswith("client.") else party for party in parties[:4]]
    return ", ".join(shown) + (", ..." if len(parties) > 4 else "")


def _left_out(clients: list[str]) -> str:
    """The mark of clients that the round continues without.

    >>> _left_out(["client.lab.north"])
    'left out: north'
    """
    return f"left out: {_names(clients)}" if clients else ""


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
