"""The part of a report about columns: which matter, and what each adds to the score."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tdcd.core.words import counted
from tdcd.pages.kit import html
from tdcd.pages.kit.chart import Curve, line_figure, signed_bars
from tdcd.pages.kit.html import Html
from tdcd.records.model_file import read_block
from tdcd.records.run_folder import RecordedRun, RunFolder
from tdcd.tables.effects import Effect, average_row, by_spread, effects
from tdcd.tables.preparation import load_preparation

MOST_SILOS, MOST_COLUMNS, MOST_EFFECTS = 12, 10, 4
MOST_LEVELS = 12
"""More levels or bins of a column are not drawn, only those with the largest effects."""
MOST_OUTPUTS = 8


def columns(run: RecordedRun, unit: str, outputs: Sequence[str], linear: Sequence[str]) -> Iterator[Html]:
    """Importance and effects of columns, as far as the folder knows.

    Args:
        unit: what a score is, in words.
        outputs: the classes' names if every class has a score.
        linear: the silos whose blocks are linear.
    """
    folder = RunFolder(run.path)
    recorded = folder.subsets()
    try:
        if "importance" in recorded:
            yield html.section("Importance of columns", *_importance(recorded["importance"]))
        stored = {silo: [Effect.from_json(entry) for entry in own] for silo, own in recorded.get("effects", {}).items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{folder.subsets_file} is damaged: {error!r}") from None
    names = [silo.name for silo in run.federation.silos]
    known = {silo: stored.get(silo) or (_of_linear(folder, silo) if silo in linear else []) for silo in names}
    # The columns that matter on real rows come first; without importances, those whose effects differ most.
    rank = {
        (entry["silo"], entry["column"]): -entry["loss"] for entry in recorded.get("importance", {}).get("changes", ())
    }
    ranked = {
        silo: sorted(by_spread(own), key=lambda effect: rank.get((silo, effect.column), 0.0))
        for silo, own in known.items()
        if own
    }
    drawn = [*_drawn(ranked, outputs)]
    if drawn:
        yield html.section("Effects of columns", html.paragraph(_in_words(unit, averaged=bool(stored))), *drawn)


def _in_words(unit: str, *, averaged: bool) -> str:
    meaning = "averaged over rows of its silo" if averaged else "all else being the same"
    return (
        f"What a value of a column adds to {unit}, compared with the average row, {meaning}: the {MOST_EFFECTS} "
        "columns of each silo that decide most. Scores are sums over silos, so that no other silo's columns change "
        "these curves. tdcd export --effects writes those of all columns. A column with an effect need not be a cause."
    )


def _importance(recorded: Mapping[str, Any]) -> Iterator[Html]:
    yield html.paragraph(
        f"How much larger the loss is if a column's values are dealt to other rows ({counted(recorded['rows'], 'row')},"
        " one shuffle): permutation importance. Columns that say the same share it."
    )
    by_silo: dict[str, list[tuple[str, float]]] = {}
    for entry in recorded["changes"]:
        if entry["column"]:
            by_silo.setdefault(entry["silo"], []).append((str(entry["column"]), float(entry["loss"])))
    shown = {
        silo: sorted(own, key=lambda pair: -pair[1])[:MOST_COLUMNS] for silo, own in [*by_silo.items()][:MOST_SILOS]
    }
    values = [value for own in shown.values() for _, value in own if np.isfinite(value)] or [0.0]
    span = min(values), max(values)
    figures = []
    for silo, own in shown.items():
        words = f"Columns of {silo} that matter most: {', '.join(f'{name} {value:.3g}' for name, value in own[:3])}"
        more = len(by_silo[silo]) - len(own)
        figures.append((signed_bars(own, words, span), f"{silo}: {len(own)} of {len(by_silo[silo])}" if more else silo))
    yield html.figures(figures)


def _of_linear(folder: RunFolder, silo: str) -> list[Effect]:
    """The effects of a linear silo's columns, from the model alone; nothing if its part is not here."""
    path = folder.model.file(silo)
    if not path.is_file() or not folder.preparation_file(silo).is_file():
        return []
    preparation, weight = load_preparation(folder.path, silo), np.asarray(read_block(path)[0]["weight"], np.float64)
    average = average_row(preparation)
    own = weight[: average.shape[1]]
    return effects(preparation, lambda features: features @ own, average) if len(own) == average.shape[1] else []


def _drawn(known: Mapping[str, Sequence[Effect]], outputs: Sequence[str]) -> Iterator[Html]:
    figures = []
    for silo, own in [*known.items()][:MOST_SILOS]:
        for effect in own[:MOST_EFFECTS]:
            if effect.values.shape[1] <= MOST_OUTPUTS and np.isfinite(effect.values).all():
                figures.append((_drawing(effect, outputs), f"{silo}: {effect.column}"))
    if figures:
        yield html.figures(figures)


def _drawing(effect: Effect, outputs: Sequence[str]) -> Html:
    """A line over amounts; a bar for each level or bin, if there is one score."""
    count = effect.values.shape[1]
    names = outputs if len(outputs) == count else [str(number) for number in range(count)]
    if effect.places:
        known = len(effect.places)
        curves = [
            Curve(name if count > 1 else effect.column, effect.places, effect.values[:known, place])
            for place, name in enumerate(names)
        ]
        return line_figure(curves, effect.column, "effect", log_y=False, keys=count > 1)
    if count > 1:
        places = np.arange(1, len(effect.points) + 1)
        curves = [Curve(name, places, effect.values[:, place]) for place, name in enumerate(names)]
        return line_figure(curves, f"{effect.column}: its levels or bins, in order", "effect", log_y=False)
    rows = [*zip(effect.points, effect.values[:, 0].tolist(), strict=True)]
    if len(rows) > MOST_LEVELS:
        rows = sorted(rows, key=lambda row: -abs(row[1]))[:MOST_LEVELS]
    span = float(effect.values.min()), float(effect.values.max())
    words = ", ".join(f"{name} {value:.3g}" for name, value in rows[:3])
    return signed_bars(rows, f"Effect of {effect.column}: {words}", span)
