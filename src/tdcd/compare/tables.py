"""A comparison's tables, for the page and for the terminal."""

from collections.abc import Sequence

from tdcd.compare.comparison import Comparison, Contender
from tdcd.records.history import Record
from tdcd.report.page import METRIC_TITLES
from tdcd.report.text_table import TextTable
from tdcd.report.units import bytes_in_words, duration, figure

LOWER_IS_BETTER = ("loss", "rmse")


def summary(comparison: Comparison) -> TextTable:
    """One row per algorithm: how good, at what price, and what it took to get as far as TDCD."""
    level = comparison.tdcd.run.final.train_loss
    names = list(figures(comparison.tdcd.run.final))
    head = ["", *names, "rounds", "sent", "predicted time", "time to TDCD's final loss"]
    return TextTable(head, [_row(contender, level, names) for contender in comparison.contenders])


def _row(contender: Contender, level: float, names: Sequence[str]) -> list[str]:
    last, found = contender.run.history[-1], figures(contender.run.final)
    reached = contender.reached(level)
    return [
        contender.label + (" (diverged)" if contender.run.diverged else ""),
        *(figure(found.get(name)) for name in names),
        f"{last.round:,}",
        bytes_in_words(last.bytes.total),
        duration(contender.seconds(last)),
        "never" if reached is None else duration(contender.seconds(reached)),
    ]


def figures(record: Record) -> dict[str, float | None]:
    """What a model is judged by: the training loss and the held-out metrics."""
    held_out = record.metrics.get("test", {}).items()
    return {"train loss": record.train_loss} | {f"held-out {METRIC_TITLES.get(k, k)}": value for k, value in held_out}


def gain(name: str, alone: float | None, together: float | None) -> float | None:
    """How much better the federation's figure is than a silo's own; below 0 if it is worse.

    >>> gain("held-out accuracy", 0.75, 1.0), gain("train loss", 0.75, 1.0)
    (0.25, -0.25)
    """
    if alone is None or together is None:
        return None
    return alone - together if name.lower().endswith(LOWER_IS_BETTER) else together - alone


def joining(comparison: Comparison) -> TextTable:
    """One row per silo: its figures alone, and what the federation gains; the last row is the federation."""
    together = figures(comparison.tdcd.run.final)
    rows = []
    for contender in comparison.silo_only:
        alone = figures(contender.run.final)
        row = [f"{contender.silo} alone"]
        for name, joined in together.items():
            row += [figure(alone.get(name)), _signed(gain(name, alone.get(name), joined))]
        rows.append(row)
    head = ["", *(cell for name in together for cell in (name, "joining gains"))]
    return TextTable(
        head, [*rows, ["together", *(cell for value in together.values() for cell in (figure(value), ""))]]
    )


def _signed(value: float | None) -> str:
    if value is None:
        return figure(None)
    return ("+" if value > 0 else "−" if value < 0 else "") + figure(abs(value))
