"""Curves as SVG that goes into a page as it is: text stays text, colours follow the page's light or dark mode."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tdcd.report.axes import HEIGHT, WIDTH, Axes, chart, legend, padded
from tdcd.report.html import Html
from tdcd.report.units import figure

COLOURS = ("#2f7fd6", "#e0762f", "#2a9d74", "#a364c9", "#d1495b", "#8c8436", "#4aa3b5", "#7d7d7d")
"""They can be told apart on white and on black."""
DASHES = ((), (5, 2), (1, 1.2), (5, 1.5, 1, 1.5))
"""So that no two of the first curves differ by colour alone; in widths of the line."""
LINE_WIDTH = 1.8
FEW_POINTS = 25
"""Curves with at most this many points show each of them."""
MOST_POINTS = 1000
"""Of a curve with more, so many are drawn."""
LARGEST = 1e100
"""Points beyond are not drawn: a diverging run reaches numbers at which an axis overflows."""
_TOP, _KEY_ROW = 4, 15


@dataclass(frozen=True)
class Curve:
    """A line of a figure; points that are not finite are left out."""

    label: str
    x: ArrayLike
    y: ArrayLike
    spread: ArrayLike | None = None
    """``[points]``: half the height of a shaded band around each, such as the standard deviation over seeds; or
    ``[2, points]``: how far the band reaches below and above."""

    def points(self) -> NDArray[np.float64]:
        """``[4, points]``: x and y of the points that can be drawn, and how far their band reaches below and above."""
        x, y = np.asarray(self.x, np.float64), np.asarray(self.y, np.float64)
        spread = np.zeros_like(y) if self.spread is None else np.asarray(self.spread, np.float64)
        rows = np.stack([x, y, *np.broadcast_to(spread, (2, len(y)))])
        return rows[:, (np.abs(rows) < LARGEST).all(axis=0)]


def line_figure(
    curves: Sequence[Curve], xlabel: str, ylabel: str, *, log_y: bool | None = None, inset: int | None = None
) -> Html:
    """Curves over a common axis, as an ``<svg>`` element that describes itself to screen readers.

    The same input gives the same bytes.

    Args:
        log_y: a logarithmic y axis; by default when all values are positive and span more than a decade.
        inset: also draw the last ``inset`` points of every curve, enlarged in the figure's corner.
    """
    lines = [curve.points() for curve in curves]
    log = spans_decades([line[1] for line in lines]) if log_y is None else log_y
    lines = [_positive(line) for line in lines] if log else lines
    keys, top = _legend([printable(curve.label) for curve in curves])
    height = HEIGHT + top - _TOP - _KEY_ROW - 5
    axes = _axes(lines, log, top=top, height=height - top - 42)
    parts = [axes.frame(printable(xlabel), printable(ylabel)), *map(partial(_curve, axes), lines, count()), *keys]
    if inset is not None:
        parts += _enlarged(axes, [line[:, -inset:] for line in lines])
    return chart(parts, _description(curves, xlabel, ylabel), height=height)


def _positive(line: NDArray[np.float64]) -> NDArray[np.float64]:
    """What a logarithmic axis has room for; a band that reaches to zero ends at a tenth of its point."""
    x, y, below, above = line[:, line[1] > 0]
    return np.stack([x, y, np.minimum(below, 0.9 * y), above])


def _axes(lines: Sequence[NDArray[np.float64]], log: bool, **place: float) -> Axes:
    """Axes with room for all lines and their bands."""
    x, y, below, above = np.concatenate([*lines, np.empty((4, 0))], axis=1)
    across, up = (0.0, 1.0), (0.1, 1.0) if log else (0.0, 1.0)
    if x.size:
        across = padded(float(x.min()), float(x.max()))
        up = padded(float((y - below).min()), float((y + above).max()), log)
    return replace(Axes(across, up, log_y=log, whole_x=bool(x.size and (x % 1 == 0).all())), **place)  # type: ignore[arg-type]


def _curve(axes: Axes, line: NDArray[np.float64], index: int) -> str:
    """A line with its band, and a mark on each point if they are few."""
    colour, dashes = COLOURS[index % len(COLOURS)], _dashes(index)
    x, y, below, above = line
    parts = []
    if below.any() or above.any():
        parts.append(axes.band(x, y - below, y + above, colour, most=MOST_POINTS))
    parts.append(axes.line(x.tolist(), y.tolist(), colour=colour, dashes=dashes, most=MOST_POINTS))
    if len(x) <= FEW_POINTS:
        parts.append(axes.dots(x.tolist(), y.tolist(), "points", colour))
    return "".join(parts)


def _dashes(index: int) -> str:
    return " ".join(f"{LINE_WIDTH * length:g}" for length in DASHES[index % len(DASHES)])


def _legend(labels: Sequence[str]) -> tuple[list[str], float]:
    """What each curve is, in as many columns as there is room for; and where the axes begin below that."""
    columns = max(1, min(len(labels), 80 // (6 + max(map(len, labels), default=1))))
    keys = []
    for place, label in enumerate(labels):
        row, column = divmod(place, columns)
        left, y = 10 + column * (WIDTH - 20) / columns, _TOP + 8 + row * _KEY_ROW
        keys.append(legend(left, y, COLOURS[place % len(COLOURS)], label, _dashes(place), length=24))
    return keys, _TOP + math.ceil(len(labels) / columns) * _KEY_ROW + 5


def _enlarged(axes: Axes, lines: Sequence[NDArray[np.float64]]) -> Iterator[str]:
    """Lines once more, in the corner of the axes."""
    left, top = axes.left + 0.52 * axes.width, axes.top + 0.02 * axes.height
    width, height = 0.46 * axes.width, 0.4 * axes.height
    # With room for the ticks' numbers.
    box = f'x="{left - 30:.1f}" y="{top:.1f}" width="{width + 30:.1f}" height="{height + 18:.1f}"'
    yield f'<rect class="inset" {box}/>'
    corner = _axes(lines, axes.log_y, left=left, top=top, width=width, height=height)
    yield corner.frame("", "")
    yield from map(partial(_curve, corner), lines, count())


def spans_decades(values: Sequence[NDArray[np.float64]]) -> bool:
    """Whether all numbers are positive and the largest is more than ten times the smallest."""
    every = np.concatenate([*values, np.empty(0)])
    return bool(every.size and every.min() > 0 and every.max() > 10 * every.min())


def printable(text: str) -> str:
    """XML has no control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _description(curves: Sequence[Curve], xlabel: str, ylabel: str) -> str:
    ends = [
        f"{curve.label} from {figure(line[1, 0])} to {figure(line[1, -1])}"
        for curve in curves
        if (line := curve.points()).size
    ]
    return printable(f"{ylabel} against {xlabel}: {', '.join(ends) or 'nothing to draw'}")
