"""A pair of axes as SVG, and what is drawn in it; written by hand, since a page has many and each must cost little."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tdcd.report.html import Html, escape

WIDTH, HEIGHT = 432, 260
"""Of a figure in its own units; the page scales it."""
MOST_CORNERS = 200
"""Of a curve."""
MOST_DOTS = 1500
"""More points are drawn as a density."""
_CELLS_ACROSS, _CELLS_DOWN, _SHADES = 54, 36, 8
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Axes:
    """Where numbers lie in a figure."""

    x: tuple[float, float]
    """Smallest and largest number."""
    y: tuple[float, float]
    left: float = 52
    top: float = 10
    width: float = WIDTH - 62
    height: float = HEIGHT - 52
    log_y: bool = False
    whole_x: bool = False
    """Whether the ticks of x are whole numbers."""

    def across(self, value: float) -> float:
        """The place of an x value."""
        low, high = self.x
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
        for value in ticks(*self.x, least=1 if self.whole_x else 0):
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
        return "".join(parts)

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
        places = np.unique(np.linspace(0, len(x) - 1, most).round().astype(int)) if len(x) else ()
        corners = "L".join(f"{self.across(x[place]):.1f} {self.down(y[place]):.1f}" for place in places)
        return f'<path class="{kind}"{_stroke(colour, dashes)} d="M{corners}"/>'

    def band(
        self, x: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64], colour: str, most: int
    ) -> str:
        """The area between two lines."""
        places = np.unique(np.linspace(0, len(x) - 1, most).round().astype(int))
        around = [*zip(x[places], low[places], strict=True), *zip(x[places][::-1], high[places][::-1], strict=True)]
        corners = "L".join(f"{self.across(a):.1f} {self.down(b):.1f}" for a, b in around)
        return f'<path class="band" style="fill: {colour}" d="M{corners}z"/>'

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
        # By the logarithm: a single point can be seen beside a thousand.
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


def chart(parts: Iterable[str], description: str, width: float = WIDTH, height: float = HEIGHT, kind: str = "") -> Html:
    """A figure that describes itself to screen readers."""
    body, words = "\n".join(parts), escape(description)
    return Html(
        f'<svg class="chart{kind and " " + kind}" role="img" aria-label="{words}" viewBox="0 0 {width:g} {height:g}">\n'
        f"<title>{words}</title>\n{body}\n</svg>"
    )


def legend(left: float, y: float, colour: str, text: str, dashes: str = "", length: float = 14) -> str:
    """A piece of a line in its colour, and what it is."""
    return (
        f'<path class="line"{_stroke(colour, dashes)} d="M{left:g} {y - 3.5:g}h{length:g}"/>'
        f'<text x="{left + length + 5:g}" y="{y:g}">{escape(text)}</text>'
    )


def _stroke(colour: str, dashes: str = "") -> str:
    return colour and f' style="stroke: {colour}{dashes and f"; stroke-dasharray: {dashes}"}"'


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
    found = [float(f"{part}e{power}") for power in powers for part in parts]
    return [value for value in found if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]


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
