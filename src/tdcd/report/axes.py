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

    def across(self, value: float) -> float:
        """The place of an x value."""
        low, high = self.x
        return self.left + (value - low) / (high - low) * self.width

    def down(self, value: float) -> float:
        """The place of a y value."""
        low, high = self.y
        return self.top + (high - value) / (high - low) * self.height

    def frame(self, xlabel: str, ylabel: str) -> str:
        """The axes with ticks, grid and labels."""
        right, bottom = self.left + self.width, self.top + self.height
        parts = [f'<path class="axis" d="M{self.left:g} {self.top:g}V{bottom:g}H{right:g}"/>']
        for value in ticks(*self.x):
            x = self.across(value)
            parts.append(
                f'<path class="grid" d="M{x:.1f} {self.top:g}V{bottom:g}"/>'
                f'<text class="middle" x="{x:.1f}" y="{bottom + 14:g}">{tick(value)}</text>'
            )
        for value in ticks(*self.y):
            y = self.down(value)
            parts.append(
                f'<path class="grid" d="M{self.left:g} {y:.1f}H{right:g}"/>'
                f'<text class="end" x="{self.left - 5:g}" y="{y + 3.5:.1f}">{tick(value)}</text>'
            )
        middle = self.top + self.height / 2
        parts.append(
            f'<text class="middle" x="{self.left + self.width / 2:g}" y="{bottom + 30:g}">{escape(xlabel)}</text>'
            f'<text class="middle" transform="translate(11 {middle:g}) rotate(-90)">{escape(ylabel)}</text>'
        )
        return "".join(parts)

    def line(self, x: Sequence[float], y: Sequence[float], kind: str = "line", colour: str = "") -> str:
        """A polygon line; of very many corners, some."""
        places = np.unique(np.linspace(0, len(x) - 1, MOST_CORNERS).round().astype(int)) if len(x) else ()
        corners = "L".join(f"{self.across(x[place]):.1f} {self.down(y[place]):.1f}" for place in places)
        stroke = f' style="stroke: {colour}"' if colour else ""
        return f'<path class="{kind}"{stroke} d="M{corners}"/>'

    def dots(self, x: Iterable[float], y: Iterable[float], kind: str = "dots") -> str:
        """One dot per point: lines without length, with round ends."""
        places = "".join(
            f"M{self.across(a):.1f} {self.down(b):.1f}h0" for a, b in zip(x, y, strict=True) if self.has(a, b)
        )
        return f'<path class="{kind}" d="{places}"/>'

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


def legend(left: float, y: float, colour: str, text: str) -> str:
    """A piece of a line in its colour, and what it is."""
    return (
        f'<path class="line" style="stroke: {colour}" d="M{left:g} {y - 3.5:g}h14"/>'
        f'<text x="{left + 19:g}" y="{y:g}">{escape(text)}</text>'
    )


def cut(name: str, letters: int) -> str:
    """A name, shortened to so many letters.

    >>> cut("a long name", 7)
    'a long…'
    """
    return name if len(name) <= letters else name[: letters - 1] + "…"


def ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Round numbers from ``low`` to ``high``.

    >>> ticks(0, 1), ticks(-130, 270)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [-100.0, 0.0, 100.0, 200.0])
    """
    least = (high - low) / most
    power = 10.0 ** math.floor(math.log10(least))
    step = next(power * part for part in (1, 2, 5, 10) if power * part >= least)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 12) + 0.0 for number in range(first, last + 1)]


def tick(value: float) -> str:
    """A number on an axis.

    >>> tick(0.2), tick(-12000), tick(3e9)
    ('0.2', '−12,000', '3e+09')
    """
    text = f"{value:,.10g}" if abs(value) < 1e6 else f"{value:.6g}"
    return text.replace("-", "−") if abs(value) < 1e6 else text


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
