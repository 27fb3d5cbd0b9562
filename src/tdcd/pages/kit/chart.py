"""Charts as SVG that goes into a page as it is: text stays text, colours follow the page's light or dark mode."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tdcd.core.words import figure
from tdcd.pages.kit.html import Html, escape

WIDTH, HEIGHT = 432, 260
"""The size of a figure in its own units; the page scales it."""
MOST_CORNERS = 200
"""The most corners of a curve."""
MOST_DOTS = 1500
"""More points are drawn as a density."""
_CELLS_ACROSS, _CELLS_DOWN, _SHADES = 54, 36, 8
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Axes:
    """The axes of a figure: numbers to places."""

    x: tuple[float, float]
    """Smallest and largest number."""
    y: tuple[float, float]
    left: float = 52
    top: float = 10
    width: float = WIDTH - 62
    height: float = HEIGHT - 52
    log_x: bool = False
    log_y: bool = False
    whole_x: bool = False
    """Whether the ticks of x are whole numbers."""

    def across(self, value: float) -> float:
        """The place of an x value."""
        low, high = self.x
        if self.log_x:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        return self.left + (value - low) / (high - low) * self.width

    def down(self, value: float) -> float:
        """The place of a y value."""
        low, high = self.y
        if self.log_y:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        return self.top + (high - value) / (high - low) * self.height

    def frame(self, xlabel: str, ylabel: str) -> str:
        """The axes with ticks, grid and labels."""
        right, bottom = self.left + self.width, self.top + self.height
        parts = [f'<path class="axis" d="M{self.left:g} {self.top:g}V{bottom:g}H{right:g}"/>']
        for value in log_ticks(*self.x) if self.log_x else ticks(*self.x, least=1 if self.whole_x else 0):
            x = self.across(value)
            parts.append(
                f'<path class="grid" d="M{x:.1f} {self.top:g}V{bottom:g}"/>'
                f'<text class="middle" x="{x:.1f}" y="{bottom + 14:g}">{tick(value)}</text>'
            )
        for value in log_ticks(*self.y) if self.log_y else ticks(*self.y):
            y, text = self.down(value), log_tick(value) if self.log_y else tick(value)
            parts.append(
                f'<path class="grid" d="M{self.left:g} {y:.1f}H{right:g}"/>'
                f'<text class="end" x="{self.left - 5:g}" y="{y + 3.5:.1f}">{text}</text>'
            )
        middle = self.top + self.height / 2
        parts.append(
            f'<text class="middle" x="{self.left + self.width / 2:g}" y="{bottom + 30:g}">{escape(xlabel)}</text>'
            f'<text class="middle" transform="translate(11 {middle:g}) rotate(-90)">{escape(ylabel)}</text>'
        )
        return _group(parts)

    def line(
        self,
        x: Sequence[float],
        y: Sequence[float],
        kind: str = "line",
        colour: str = "",
        dashes: str = "",
        most: int = MOST_CORNERS,
    ) -> str:
        """A polygon line; of more than ``most`` corners, some."""
        places = places_of(len(x), most)
        corners = "L".join(f"{self.across(x[place]):.1f} {self.down(y[place]):.1f}" for place in places)
        begin = "M" if corners else ""
        return f'<path class="{kind}"{_stroke(colour, dashes)} d="{begin}{corners}"/>'

    def band(
        self, x: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64], colour: str, most: int
    ) -> str:
        """The area between two lines."""
        places = places_of(len(x), most)
        around = [*zip(x[places], low[places], strict=True), *zip(x[places][::-1], high[places][::-1], strict=True)]
        corners = "L".join(f"{self.across(a):.1f} {self.down(b):.1f}" for a, b in around)
        return f'<path class="band" fill="{colour}" d="M{corners}z"/>'

    def dots(self, x: Iterable[float], y: Iterable[float], kind: str = "dots", colour: str = "") -> str:
        """One dot per point: lines without length, with round ends."""
        places = "".join(
            f"M{self.across(a):.1f} {self.down(b):.1f}h0" for a, b in zip(x, y, strict=True) if self.has(a, b)
        )
        return f'<path class="{kind}"{_stroke(colour)} d="{places}"/>'

    def has(self, x: float, y: float) -> bool:
        """Whether the point is inside."""
        return self.x[0] <= x <= self.x[1] and self.y[0] <= y <= self.y[1]

    def cloud(self, x: NDArray[np.float64], y: NDArray[np.float64]) -> str:
        """Points as dots; very many as a density, darker where there are more."""
        if len(x) <= MOST_DOTS:
            return self.dots(x.tolist(), y.tolist())
        counts, _, _ = np.histogram2d(x, y, (_CELLS_ACROSS, _CELLS_DOWN), (self.x, self.y))
        width, height = self.width / _CELLS_ACROSS, self.height / _CELLS_DOWN
        # By the logarithm: a single point can be seen next to a thousand.
        shades = np.ceil(_SHADES * np.log1p(counts) / math.log1p(max(counts.max(), 1))).astype(int)
        parts = []
        for shade in range(1, _SHADES + 1):
            cells = "".join(
                f"M{self.left + column * width:.1f} {self.top + (_CELLS_DOWN - 1 - row) * height:.1f}"
                f"h{width:.1f}v{height:.1f}h{-width:.1f}z"
                for column, row in np.argwhere(shades == shade).tolist()
            )
            if cells:
                parts.append(f'<path class="density" fill-opacity="{shade / _SHADES:.3f}" d="{cells}"/>')
        return "".join(parts)


def chart(
    parts: Iterable[str],
    description: str,
    width: float = WIDTH,
    height: float = HEIGHT,
    kind: str = "",
    data: Mapping[str, Any] | None = None,
) -> Html:
    """A figure that describes itself to screen readers.

    Args:
        data: what the page's script shows in tooltips, see :func:`_data`.
    """
    body, words = "\n".join(parts), escape(description)
    known = f' data-chart="{escape(json.dumps(data, separators=(",", ":"), ensure_ascii=False))}"' if data else ""
    # The page's script takes it away before it shows numbers; at the end, the other elements keep their places.
    return Html(
        f'<svg class="chart{kind and " " + kind}" role="img" aria-label="{words}" viewBox="0 0 {width:g} {height:g}"'
        f"{known}>\n{body}\n<title>{words}</title>\n</svg>"
    )


def legend(left: float, y: float, colour: str, text: str, dashes: str = "", length: float = 14) -> str:
    """A piece of a line in its colour, and what it is."""
    return (
        f'<path class="line"{_stroke(colour, dashes)} d="M{left:g} {y - 3.5:g}h{length:g}"/>'
        f'<text x="{left + length + 5:g}" y="{y:g}">{escape(text)}</text>'
    )


def _group(parts: Iterable[str]) -> str:
    """One element, so that those after it stay the same ones when a live page draws more or fewer."""
    return f"<g>{''.join(parts)}</g>"


def _stroke(colour: str, dashes: str = "") -> str:
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f' stroke="{colour}"{dashed}' if colour else ""


def places_of(count: int, most: int) -> NDArray[np.int64]:
    """Which of ``count`` points are drawn, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, most).round().astype(np.int64)) if count else np.zeros(0, np.int64)


def cut(name: str, letters: int) -> str:
    """A name, shortened to so many letters.

    >>> cut("a long name", 7)
    'a long…'
    """
    return name if len(name) <= letters else name[: letters - 1] + "…"


def ticks(low: float, high: float, most: int = 7, least: float = 0) -> list[float]:
    """Round numbers from ``low`` to ``high``, at most ``most`` and a bit, and at ``least`` so far apart.

    >>> ticks(0, 1), ticks(-130, 270), ticks(0, 3e-14, most=3), ticks(-0.1, 2.1, least=1)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [-100.0, 0.0, 100.0, 200.0], [0.0, 1e-14, 2e-14, 3e-14], [0.0, 1.0, 2.0])
    """
    apart = max((high - low) / most, least)
    power = math.floor(math.log10(apart))
    step = next(part * 10.0**power for part in (1, 2, 5, 10) if part * 10.0**power >= apart * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, max(0, 1 - power)) + 0.0 for number in range(first, last + 1)]


def log_ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Powers of ten from ``low`` to ``high``; if there is room, 2 and 5 times them too.

    >>> log_ticks(0.3, 12), log_ticks(0.1, 2e4)
    ([0.5, 1.0, 2.0, 5.0, 10.0], [0.1, 1.0, 10.0, 100.0, 1000.0, 10000.0])
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = math.ceil((last - first) / most)
    parts = (1, 2, 5) if high < 1000 * low else (1,)
    powers = [power for power in range(first, last + 1) if power % every == 0]
    ticks = [float(f"{part}e{power}") for power in powers for part in parts]
    return [value for value in ticks if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]


def log_tick(value: float) -> str:
    """A round number on a logarithmic axis, powers of ten in short form.

    >>> log_tick(0.02), log_tick(1e-5), log_tick(2e7)
    ('0.02', '10⁻⁵', '2×10⁷')
    """
    if 1e-3 <= value <= 1e3:
        return f"{value:g}"
    digit, _, power = f"{value:.0e}".partition("e")
    raised = str(int(power)).translate(_SUPERSCRIPTS)
    return f"10{raised}" if digit == "1" else f"{digit}×10{raised}"


def tick(value: float) -> str:
    """A number on an axis.

    >>> tick(0.2), tick(-12000), tick(3e9)
    ('0.2', '−12,000', '3e+09')
    """
    text = f"{value:,.10g}" if abs(value) < 1e6 else f"{value:.6g}"
    return text.replace("-", "−") if abs(value) < 1e6 else text


def padded(low: float, high: float, log: bool = False) -> tuple[float, float]:
    """A range with a little room at both ends, and never empty.

    >>> padded(0, 100), padded(5, 5), padded(1, 100, log=True)[0] < 1
    ((-4.0, 104.0), (4.8, 5.2), True)
    """
    if log:
        low, high = math.log10(low), math.log10(high)
    size = high - low
    room = 0.04 * (size if size > 1e-9 * max(abs(low), abs(high)) else abs(high) or 1.0)
    if log:
        room = max(room, 0.04)
        return 10 ** (low - room), 10 ** (high + room)
    return low - room, high + room


def robust_range(*values: NDArray[np.float64]) -> tuple[float, float]:
    """From the smallest to the largest number with a little room; a few that lie far out are left outside."""
    every = np.concatenate(values)
    low, high = float(every.min()), float(every.max())
    inner_low, inner_high = (float(value) for value in np.quantile(every, (0.005, 0.995)))
    room = (inner_high - inner_low) or abs(inner_high) or 1.0
    low, high = max(low, inner_low - room / 3), min(high, inner_high + room / 3)
    return low - 0.03 * (high - low or room), high + 0.03 * (high - low or room)


def steps(edges: Sequence[float], heights: Sequence[float]) -> tuple[list[float], list[float]]:
    """The corners of a histogram's outline."""
    x = [edge for pair in pairwise(edges) for edge in pair]
    return [x[0], *x, x[-1]], [0.0, *(height for height in heights for _ in range(2)), 0.0]


COLOURS = ("#2f7fd6", "#e0762f", "#2a9d74", "#a364c9", "#d1495b", "#8c8436", "#4aa3b5", "#7d7d7d")
"""They can be distinguished on white and on black."""
DASHES = ((), (5, 2), (1, 1.2), (5, 1.5, 1, 1.5))
"""So that no two of the first curves differ by colour alone; in widths of the line."""
LINE_WIDTH = 1.8
FEW_POINTS = 25
"""Curves with at most this many points show each of them."""
MOST_POINTS = 1000
"""The most points of a curve that are drawn."""
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
    note: str = ""
    """What stands next to the label above the axes, such as the last figure."""

    def points(self) -> NDArray[np.float64]:
        """``[4, points]``: x and y of the points that can be drawn, and how far their band reaches below and above."""
        x, y = np.asarray(self.x, np.float64), np.asarray(self.y, np.float64)
        spread = np.zeros_like(y) if self.spread is None else np.asarray(self.spread, np.float64)
        rows = np.stack([x, y, *np.broadcast_to(spread, (2, len(y)))])
        return rows[:, (np.abs(rows) < LARGEST).all(axis=0)]


def line_figure(
    curves: Sequence[Curve],
    xlabel: str,
    ylabel: str,
    *,
    log_x: bool = False,
    log_y: bool | None = None,
    inset: int | None = None,
    keys: bool = True,
    size: tuple[float, float] = (WIDTH, HEIGHT),
) -> Html:
    """Curves over a common axis, as an ``<svg>`` element that describes itself to screen readers.

    The same input gives the same bytes. The curves' numbers are in it as JSON, see :func:`_data`.

    Args:
        log_x: a logarithmic x axis, for positive numbers.
        log_y: a logarithmic y axis; by default when all values are positive and span more than a decade.
        inset: also draw the last ``inset`` points of every curve, enlarged in the figure's corner.
        keys: say above the axes which line is which; without it, the page has to.
        size: width and height, without the further lines of the keys.
    """
    lines = [curve.points() for curve in curves]
    log = spans_decades([line[1] for line in lines]) if log_y is None else log_y
    lines = [_positive(line) for line in lines] if log else lines
    labels = [printable(curve.label) for curve in curves]
    named = [printable(f"{curve.label} {curve.note}".rstrip()) for curve in curves]
    entries, top = _legend(named, size[0]) if keys else ([], _TOP + 6.0)
    height = size[1] + top - _TOP - _KEY_ROW - 5
    axes = _axes(lines, log_x, log, top=top, width=size[0] - 62, height=height - top - 42)
    parts = [axes.frame(printable(xlabel), printable(ylabel)), *map(partial(_curve, axes), lines, count()), *entries]
    if inset is not None:
        parts += _enlarged(axes, [line[:, -inset:] for line in lines])
    parts.append('<path class="cursor"/>')
    data = _data(axes, labels, lines, printable(xlabel))
    return chart(parts, _description(curves, xlabel, ylabel), size[0], height, data=data)


def _data(axes: Axes, labels: Sequence[str], lines: Sequence[NDArray[np.float64]], xlabel: str) -> dict[str, Any]:
    """What the page's script needs to say which points are next to the pointer: the axes, and the numbers drawn."""
    curves: list[dict[str, Any]] = []
    for label, (x, y, _, _) in zip(labels, lines, strict=True):
        drawn = places_of(len(x), MOST_POINTS)
        along = [_short(value) for value in x[drawn].tolist()]
        is_shared = bool(curves) and along == curves[0]["x"]
        curves.append({"label": label, **({} if is_shared else {"x": along}), "y": [*map(_short, y[drawn].tolist())]})
    return {
        "along": xlabel,
        "from": axes.x[0],
        "to": axes.x[1],
        "log": axes.log_x,
        "left": axes.left,
        "right": axes.left + axes.width,
        "top": axes.top,
        "bottom": axes.top + axes.height,
        "curves": curves,
    }


def _short(value: float) -> float:
    """Six figures are more than a page shows."""
    short = float(f"{value:.6g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _positive(line: NDArray[np.float64]) -> NDArray[np.float64]:
    """What a logarithmic axis has room for; a band that reaches to zero ends at a tenth of its point."""
    x, y, below, above = line[:, line[1] > 0]
    return np.stack([x, y, np.minimum(below, 0.9 * y), above])


def _axes(lines: Sequence[NDArray[np.float64]], log_x: bool, log_y: bool, **place: float) -> Axes:
    """Axes with room for all lines and their bands."""
    x, y, below, above = np.concatenate([*lines, np.empty((4, 0))], axis=1)
    across, up = ((0.1, 1.0) if log else (0.0, 1.0) for log in (log_x, log_y))
    if x.size:
        across = padded(float(x.min()), float(x.max()), log_x)
        up = padded(float((y - below).min()), float((y + above).max()), log_y)
    whole = bool(x.size and (x % 1 == 0).all())
    return replace(Axes(across, up, log_x=log_x, log_y=log_y, whole_x=whole), **place)  # type: ignore[arg-type]


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
    return _group(parts)


def _dashes(index: int) -> str:
    # Curves of one colour differ by their dashes.
    return " ".join(f"{LINE_WIDTH * length:g}" for length in DASHES[(index + index // len(COLOURS)) % len(DASHES)])


def _legend(labels: Sequence[str], width: float) -> tuple[list[str], float]:
    """What each curve is, in as many columns as there is room for; and where the axes begin below that."""
    columns = max(1, min(len(labels), int(width / 5.4) // (6 + max(map(len, labels), default=1))))
    keys = []
    for place, label in enumerate(labels):
        row, column = divmod(place, columns)
        left, y = 10 + column * (width - 20) / columns, _TOP + 8 + row * _KEY_ROW
        keys.append(legend(left, y, COLOURS[place % len(COLOURS)], label, _dashes(place), length=24))
    return keys, _TOP + math.ceil(len(labels) / columns) * _KEY_ROW + 5


def _enlarged(axes: Axes, lines: Sequence[NDArray[np.float64]]) -> Iterator[str]:
    """Lines once more, in the corner of the axes."""
    left, top = axes.left + 0.52 * axes.width, axes.top + 0.02 * axes.height
    width, height = 0.46 * axes.width, 0.4 * axes.height
    # With room for the ticks' numbers.
    box = f'x="{left - 30:.1f}" y="{top:.1f}" width="{width + 30:.1f}" height="{height + 18:.1f}"'
    yield f'<rect class="inset" {box}/>'
    corner = _axes(lines, axes.log_x, axes.log_y, left=left, top=top, width=width, height=height)
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


NAMES, ROW = 150, 20
"""The width of the names, and the height of a row."""
_VALUES = 46


def signed_bars(rows: Sequence[tuple[str, float]], description: str, span: tuple[float, float]) -> Html:
    """One bar per row.

    Args:
        span: the smallest and the largest number in all figures of this scale; without negative ones, zero is at the
            left.
    """
    largest = max(map(abs, span)) or 1.0
    zero = (NAMES + WIDTH) / 2 if span[0] < 0 else NAMES
    longest = WIDTH - zero - _VALUES
    parts = [f'<path class="axis" d="M{zero:g} 2V{len(rows) * ROW + 2}"/>']
    for index, (name, value) in enumerate(rows):
        y, length = 2 + index * ROW, abs(value) / largest * longest
        if value >= 0:
            kind, left, anchor, place = "right", zero, "start", zero + length + 5
        else:
            kind, left, anchor, place = "wrong", zero - length, "end", zero - length - 5
        parts.append(
            f"<g><title>{escape(f'{name}: {value:.6g}')}</title>{row_name(name, y)}"
            f'<rect class="{kind}" x="{left:.1f}" y="{y + 3}" width="{length:.1f}" height="{ROW - 6}" rx="2"/>'
            f'<text class="{anchor}" x="{place:.1f}" y="{y + 13.5}">{figure(value)}</text></g>'
        )
    return chart(parts, description, height=len(rows) * ROW + 4)


def row_name(name: str, top: float) -> str:
    """What a row is called, to its left."""
    return f'<text class="end name" x="{NAMES - 8}" y="{top + 13.5}">{escape(cut(name, 24))}</text>'
