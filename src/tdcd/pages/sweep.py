"""A sweep's result table, for the terminal and the page, and the page with its curves."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tdcd.config.user_code import resume_command
from tdcd.core.words import TextTable, byte_unit, bytes_in_words, counted, duration, figure, metric_title
from tdcd.pages.kit import html
from tdcd.pages.kit.chart import COLOURS, Curve, line_figure
from tdcd.records.history import Record
from tdcd.records.run_folder import SweepFolder
from tdcd.training.sweep.sweep import Outcome, Sweep

MOST_CURVES = len(COLOURS)
"""More lines than colours cannot be distinguished."""


def result_table(sweep: Sweep) -> TextTable:
    """One row per setting: its values, the final losses and metrics, the bytes sent and the time."""
    names = _metric_names(sweep)
    head = [*sweep.grid.titles.values(), "train loss", "held-out loss", *(_title(*name) for name in names)]
    return TextTable([*head, "sent", "time"], [_row(outcome, names) for outcome in sweep.outcomes])


def _row(outcome: Outcome, names: Sequence[tuple[str, str]]) -> list[str]:
    values = [
        str(value).lower() if isinstance(value, bool) else str(value) for value in outcome.setting.values.values()
    ]
    final = outcome.final
    if outcome.status != "finished" or final is None:
        return [*values, outcome.status, *[figure(None)] * (len(names) + 3)]
    return [
        *values,
        figure(final.train_loss),
        figure(final.test_loss),
        *(figure(final.metrics.get(split, {}).get(name)) for split, name in names),
        bytes_in_words(final.bytes.total),
        duration(final.seconds),
    ]


def _metric_names(sweep: Sweep) -> list[tuple[str, str]]:
    """The metrics of some run, held out where samples are: (split, name)."""
    for outcome in sweep.outcomes:
        if (final := outcome.final) is not None:
            split = "test" if "test" in final.metrics else "train"
            return [(split, name) for name in final.metrics[split]]
    return []


def _title(split: str, name: str) -> str:
    return f"{'held-out' if split == 'test' else 'train'} {metric_title(name)}"


def write_page(sweep: Sweep) -> Path:
    """Write ``sweep.html`` into the sweep's folder; the page's path."""
    done = sum(outcome.status == "finished" for outcome in sweep.outcomes)
    parts = [
        html.header(
            "tdcd sweep",
            " × ".join(sweep.grid.titles.values()),
            [counted(len(sweep.outcomes), "setting"), f"{done:,} finished"],
        ),
        *_best(sweep),
        *_curves(sweep),
        html.section("All settings", html.table(*result_table(sweep), numbers=True)),
        html.section("Continue it, or look at one run", html.command(_commands(sweep))),
    ]
    title = f"{', '.join(sweep.grid.titles.values())} · tdcd sweep"
    return SweepFolder(sweep.folder).write_page(html.page(title, *parts))


def _best(sweep: Sweep) -> Iterator[html.Html]:
    if sweep.best is not None:
        outcome = sweep.outcomes[sweep.best]
        final = outcome.final
        assert final is not None
        kind, value = ("train", final.train_loss) if final.test_loss is None else ("held-out", final.test_loss)
        yield html.notice(f"The lowest {kind} loss, {figure(value)}, is that of {outcome.setting.name}.")


def _commands(sweep: Sweep) -> str:
    """To give where the sweep was started: the folder as its ``--out`` was written."""
    lines = [resume_command(sweep.folder, sweep.grid.keys)]
    begun = next((outcome.setting.name for outcome in sweep.outcomes if outcome.history), None)
    if begun is not None:
        lines.append(f"tdcd report {shlex.quote(str(sweep.folder / begun))}")
    return "\n".join(lines)


def _curves(sweep: Sweep) -> Iterator[html.Html]:
    lines = _lines(sweep)
    if not lines:
        return
    shown = sorted(lines, key=lambda label: _end(lines[label]))[:MOST_CURVES]
    kept = {label: histories for label, histories in lines.items() if label in shown}
    unit, size = byte_unit(max(history[-1].bytes.total for some in kept.values() for history in some))
    loss: Callable[[Record], float | None] = lambda record: record.train_loss  # noqa: E731
    drawn = [
        (_figure(kept, lambda record: record.round, loss, "round", "train loss"), "Loss over rounds"),
        (_figure(kept, lambda r: r.bytes.total / size, loss, f"{unit} sent", "train loss"), "Loss over bytes sent"),
    ]
    for split, name in _metric_names(sweep):

        def metric(record: Record, split: str = split, name: str = name) -> float | None:
            return record.metrics.get(split, {}).get(name)

        title = _title(split, name)
        svg = _figure(kept, lambda record: record.round, metric, "round", title, log_y=False)
        drawn.append((svg, f"{title[:1].upper()}{title[1:]} over rounds"))
    words = [html.paragraph("Lines are means over the seeds, bands one standard deviation.")] * _over_seeds(sweep)
    if len(shown) < len(lines):
        words.append(html.paragraph(f"Only the {len(shown)} with the lowest final loss of {len(lines)} are drawn."))
    yield html.section("Curves", *words, html.figures(drawn))


def _over_seeds(sweep: Sweep) -> bool:
    return "seed" in sweep.grid.varied


def _lines(sweep: Sweep) -> dict[str, list[list[Record]]]:
    """The finished runs of each line of a figure, by label: one per setting, seeds aside."""
    lines: dict[str, list[list[Record]]] = {}
    for outcome in sweep.outcomes:
        if outcome.status == "finished" and len(outcome.history) > 1:
            titles = sweep.grid.titles
            values = [f"{titles[key]} = {value}" for key, value in outcome.setting.values.items() if key != "seed"]
            lines.setdefault(", ".join(values) or "all seeds", []).append(outcome.history)
    return lines


def _end(histories: Sequence[Sequence[Record]]) -> float:
    return float(np.mean([history[-1].train_loss for history in histories]))


def _figure(
    lines: dict[str, list[list[Record]]],
    x: Callable[[Record], float],
    y: Callable[[Record], float | None],
    xlabel: str,
    ylabel: str,
    **options: Any,
) -> html.Html:
    curves = []
    for label, histories in lines.items():
        # Runs that ended early are short: a mean over seeds goes as far as all of them do.
        rounds = min(map(len, histories))
        values = np.array([[y(record) for record in history[:rounds]] for history in histories], np.float64)
        spread = values.std(axis=0, ddof=1) if len(histories) > 1 else None
        curves.append(Curve(label, [x(record) for record in histories[0][:rounds]], values.mean(axis=0), spread))
    return line_figure(curves, xlabel, ylabel, **options)
