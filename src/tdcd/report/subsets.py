"""The part of a report about silos that are missing: what each contributes, and what every subset of them reaches."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tdcd.records.run_folder import RunFolder
from tdcd.report import html
from tdcd.report.folder import SPLITS, Run, metric_title
from tdcd.report.html import Html
from tdcd.report.signed_bars import signed_bars
from tdcd.report.units import figure

MOST_ROWS = 16
"""A longer table is folded."""


def subsets(run: Run) -> Iterator[Html]:
    """What ``subsets.json`` says; nothing if it is not there."""
    folder = RunFolder(run.path)
    found = folder.subsets()
    if not found.get("subsets"):
        return
    try:
        parts = [*_parts(run, found)]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder.subsets_file} is damaged: {error!r}") from None
    yield html.section("What each silo contributes", *parts)


def _parts(run: Run, found: Mapping[str, Any]) -> Iterator[Html]:
    names, split = [str(name) for name in found["silos"]], SPLITS[found.get("samples", "test")]
    losses: dict[frozenset[str], float | None] = {frozenset(one["silos"]): one["loss"] for one in found["subsets"]}
    together = losses.get(frozenset(names))
    stand_in = "nothing takes its place" if found.get("silo_dropout") else "its mean takes its place"
    yield html.paragraph(
        f"The model, after training, on {split} samples of which a silo's columns are missing: {stand_in}."
    )
    gains = [
        (name, loss - together)
        for name in names
        if together is not None and (loss := losses.get(frozenset(names) - {name})) is not None
    ]
    if len(names) > 1 and gains:
        words = ", ".join(f"{name} {figure(gain)}" for name, gain in gains)
        span = min(gain for _, gain in gains), max(gain for _, gain in gains)
        drawing = signed_bars(gains, f"How much larger the loss is without a silo: {words}", span)
        yield html.figures([(drawing, f"How much larger the {split} loss is without a silo")])
    table = _table(run, names, found["subsets"], split)
    yield table if len(found["subsets"]) <= MOST_ROWS else html.folded("The figures of all subsets of silos", table)


def _table(run: Run, names: Sequence[str], found: Sequence[Mapping[str, Any]], split: str) -> Html:
    """All silos first, then with fewer and fewer of them."""
    rows = []
    for one in sorted(found, key=lambda one: -len(one["silos"])):
        missing = [name for name in names if name not in one["silos"]]
        words = "all silos" if not missing else " and ".join(one["silos"]) or "no silo"
        rows.append([words, figure(one["loss"]), *(figure(one["metrics"].get(name)) for name in run.metric_names)])
    heads = [f"{split} {name}" for name in ("loss", *map(metric_title, run.metric_names))]
    return html.table(["silos that are there", *heads], rows, numbers=True)
