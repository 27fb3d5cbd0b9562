"""The part of a report about linear models: the columns of each silo that count most."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdcd.records.model_file import read_block
from tdcd.records.run_folder import RunFolder
from tdcd.report import html
from tdcd.report.axes import WIDTH, chart, cut
from tdcd.report.folder import Run, SiloFacts
from tdcd.report.html import Html, escape
from tdcd.report.units import counted, figure

MOST_COLUMNS = 10
MOST_OUTPUTS = 20
MOST_SILOS = 12
ONES = "bias"
"""What a column of ones is called, which is no column of the data."""
_LEFT, _ROW = 150, 20


class Weights(NamedTuple):
    """One silo's columns with the largest weights."""

    silo: str
    columns: Sequence[str]
    values: NDArray[np.float64]
    """``[columns, C]``."""
    num_columns: int
    """In all."""


def weights(run: Run) -> Iterator[Html]:
    """One figure per silo whose block is linear and in the folder."""
    found = [own for silo, kind in _blocks(run) if kind == "linear" and (own := _largest(run, silo)) is not None]
    if not found:
        return
    shown = found[:MOST_SILOS]
    names = _outputs(run, shown[0].values.shape[1])
    drawn = [
        (_bars(own) if own.values.shape[1] == 1 else _cells(own, names), _caption(own))
        for own in shown
        if own.values.shape[1] <= MOST_OUTPUTS
    ]
    if not drawn:
        return
    more = f" The first {len(shown)} silos are drawn." if len(found) > len(shown) else ""
    yield html.section("Weights per silo", html.paragraph(_in_words(run, shown[0]) + more), html.figures(drawn))


def _blocks(run: Run) -> Iterator[tuple[SiloFacts, str]]:
    block, silos = run.config.get("model", {}).get("block", ""), run.federation.silos
    kinds = [block] * len(silos) if isinstance(block, str) else block
    return zip(silos, kinds, strict=False)


def _largest(run: Run, silo: SiloFacts) -> Weights | None:
    """None if the silo's part of the model is not here, or if it has no columns to name."""
    path = RunFolder(run.path).model.file(silo.name)
    if len(silo.feature_shape) > 1 or not path.is_file():
        return None
    values = np.asarray(read_block(path)[0]["weight"], np.float64)
    names = silo.columns or tuple(f"column {number + 1}" for number in range(len(values)))
    kept = [place for place, name in enumerate(names) if name != ONES]
    if len(names) != len(values) or not kept:
        return None
    order = sorted(kept, key=lambda place: -float(np.abs(values[place]).max()))[:MOST_COLUMNS]
    return Weights(silo.name, [names[place] for place in order], values[order], len(kept))


def _caption(own: Weights) -> str:
    shown = len(own.columns)
    return own.silo if shown == own.num_columns else f"{own.silo}: {shown} of {counted(own.num_columns, 'column')}"


def _in_words(run: Run, first: Weights) -> str:
    unit = "standard deviation" if run.config.get("data", {}).get("standardize") else "unit"
    what = {"squared": "the prediction, in standard deviations of the label"}.get(_loss(run), "the score")
    if _loss(run) == "logistic":
        what = "the logarithm of the odds"
    many = " of each class" if first.values.shape[1] > 1 else ""
    return (
        f"How much one {unit} more of a column adds to {what}{many}; a category counts from absent to there. The "
        "columns with the largest weights; tdcd export writes all of them, in the columns' own units."
    )


def _loss(run: Run) -> str:
    return str(run.config.get("model", {}).get("loss", ""))


def _outputs(run: Run, count: int) -> list[str]:
    """The classes' names, or their numbers."""
    path = RunFolder(run.path).labels_file
    names = RunFolder(run.path).labels().get("classes", []) if path.is_file() else []
    return [str(name) for name in names] if len(names) == count else [str(number) for number in range(count)]


def _bars(own: Weights) -> Html:
    """One score: bars to the left and to the right of zero."""
    values = own.values[:, 0]
    largest, middle, half = float(np.abs(values).max()) or 1.0, (_LEFT + WIDTH) / 2, (WIDTH - _LEFT) / 2 - 46
    parts = [f'<path class="axis" d="M{middle:g} 2V{len(values) * _ROW + 2}"/>']
    for row, (name, value) in enumerate(zip(own.columns, values.tolist(), strict=True)):
        y, length = 2 + row * _ROW, abs(value) / largest * half
        side, kind, anchor = (
            (middle, "right", middle + length + 5) if value >= 0 else (middle - length, "wrong", middle - length - 5)
        )
        parts.append(
            f"<g><title>{escape(f'{name}: {value:.6g}')}</title>{_name(name, y)}"
            f'<rect class="{kind}" x="{side:.1f}" y="{y + 3}" width="{length:.1f}" height="{_ROW - 6}" rx="2"/>'
            f'<text class="{"start" if value >= 0 else "end"}" x="{anchor:.1f}" y="{y + 13.5}">{figure(value)}</text></g>'
        )
    return chart(parts, _description(own), height=len(values) * _ROW + 4)


def _cells(own: Weights, names: Sequence[str]) -> Html:
    """Several scores: one shaded cell for each."""
    rows, outputs = own.values.shape
    largest, width = float(np.abs(own.values).max()) or 1.0, (WIDTH - _LEFT) / outputs
    parts = [
        f'<text class="middle" x="{_LEFT + (place + 0.5) * width:.1f}" y="12">{escape(cut(name, max(2, int(width / 6))))}</text>'
        for place, name in enumerate(names)
    ]
    for row, name in enumerate(own.columns):
        y = 18 + row * _ROW
        parts.append(_name(name, y))
        for place, value in enumerate(own.values[row].tolist()):
            kind = "right" if value >= 0 else "wrong"
            number = f"{value:.2f}" if outputs <= 6 else ""
            parts.append(
                f"<g><title>{escape(f'{name}, {names[place]}: {value:.6g}')}</title>"
                f'<rect class="{kind}" x="{_LEFT + place * width + 1:.1f}" y="{y + 1}" width="{width - 2:.1f}" '
                f'height="{_ROW - 2}" rx="2" fill-opacity="{0.05 + 0.75 * abs(value) / largest:.3f}"/>'
                f'<text class="middle" x="{_LEFT + (place + 0.5) * width:.1f}" y="{y + 13.5}">{number}</text></g>'
            )
    return chart(parts, _description(own), height=rows * _ROW + 20)


def _name(name: str, y: float) -> str:
    return f'<text class="end name" x="{_LEFT - 8}" y="{y + 13.5}">{escape(cut(name, 24))}</text>'


def _description(own: Weights) -> str:
    named = zip(own.columns[:3], own.values, strict=False)
    first = ", ".join(f"{name} {figure(float(values[np.abs(values).argmax()]))}" for name, values in named)
    return f"Largest weights of silo {own.silo}: {first}"
