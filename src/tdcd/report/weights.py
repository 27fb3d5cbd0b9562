"""The part of a report about linear models: the columns of each silo that count most."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdcd.core.losses import fitting
from tdcd.records.model_file import read_block
from tdcd.records.run_folder import RunFolder
from tdcd.report import html
from tdcd.report.axes import WIDTH, chart, cut
from tdcd.report.folder import Run, SiloFacts
from tdcd.report.html import Html, escape
from tdcd.report.signed_bars import NAMES, ROW, row_name, signed_bars
from tdcd.report.units import counted, figure

MOST_COLUMNS = 10
MOST_OUTPUTS = 20
MOST_SILOS = 12
ONES = "bias"
"""What a column of ones is called, which is no column of the data."""


SCORES = {
    "squared": "the prediction, in standard deviations of the label",
    "huber": "the prediction, in standard deviations of the label",
    "logistic": "the logarithm of the odds",
    "poisson": "the logarithm of the prediction",
}
"""What a score is, by loss."""


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
    if len(names) > MOST_OUTPUTS:
        return
    # One scale for all silos, so that they can be compared.
    every = np.concatenate([own.values.ravel() for own in shown])
    span = float(every.min()), float(every.max())
    drawn = [(_drawn(own, names, span), _caption(own)) for own in shown]
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
    what = SCORES.get(_loss(run), "the score")
    many = " of each class" if first.values.shape[1] > 1 else ""
    return (
        f"The columns with the largest weights: how much one {unit} more of a column, or a category that is there, "
        f"adds to {what}{many}. All silos have one scale. tdcd export writes all weights, in the columns' own units."
    )


def _loss(run: Run) -> str:
    """What the settings say, or what fits the labels."""
    named, task = run.config.get("model", {}).get("loss"), _labels(run).get("task")
    return str(named or (fitting(task)[0] if task else ""))


def _outputs(run: Run, count: int) -> list[str]:
    """The classes' names, or their numbers."""
    names = _labels(run).get("classes", [])
    return [str(name) for name in names] if len(names) == count else [str(number) for number in range(count)]


def _labels(run: Run) -> dict[str, Any]:
    """What the labels are, as far as the folder knows."""
    folder = RunFolder(run.path)
    return dict(folder.labels()) if folder.labels_file.is_file() else {}


def _drawn(own: Weights, names: Sequence[str], span: tuple[float, float]) -> Html:
    if len(names) > 1:
        return _cells(own, names, max(map(abs, span)) or 1.0)
    return signed_bars([*zip(own.columns, own.values[:, 0].tolist(), strict=True)], _description(own), span)


def _cells(own: Weights, names: Sequence[str], largest: float) -> Html:
    """Several scores: one shaded cell for each."""
    rows, outputs = own.values.shape
    width = (WIDTH - NAMES) / outputs
    letters = max(2, int(width / 6))
    parts = [
        f'<text class="middle" x="{NAMES + (place + 0.5) * width:.1f}" y="12">{escape(cut(name, letters))}</text>'
        for place, name in enumerate(names)
    ]
    for row, name in enumerate(own.columns):
        y = 18 + row * ROW
        parts.append(row_name(name, y))
        for place, value in enumerate(own.values[row].tolist()):
            kind = "right" if value >= 0 else "wrong"
            number = f"{value:.2f}" if outputs <= 6 else ""
            parts.append(
                f"<g><title>{escape(f'{name}, {names[place]}: {value:.6g}')}</title>"
                f'<rect class="{kind}" x="{NAMES + place * width + 1:.1f}" y="{y + 1}" width="{width - 2:.1f}" '
                f'height="{ROW - 2}" rx="2" fill-opacity="{0.05 + 0.75 * abs(value) / largest:.3f}"/>'
                f'<text class="middle" x="{NAMES + (place + 0.5) * width:.1f}" y="{y + 13.5}">{number}</text></g>'
            )
    return chart(parts, _description(own), height=rows * ROW + 20)


def _description(own: Weights) -> str:
    named = zip(own.columns[:3], own.values, strict=False)
    first = ", ".join(f"{name} {figure(float(values[np.abs(values).argmax()]))}" for name, values in named)
    return f"Largest weights of silo {own.silo}: {first}"
