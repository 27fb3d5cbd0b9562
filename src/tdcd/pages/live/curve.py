"""The figures of a history, thinned as it grows.

Every point stands for ``stride`` lines in a row: the figures of the last of them, and the lowest and highest of all.
When there are too many points, neighbours become one. So a spike in a long run gets narrower, but never disappears.
"""

import math
from collections.abc import Sequence
from typing import Any

MOST_POINTS = 500
"""There are never more, and from then on never fewer than half."""
MOST_COLUMNS = 64
"""Further figures are left out: a line can name any number of them."""

Value = float | None


class Point:
    """Some lines in a row."""

    __slots__ = ("high", "last", "low", "round")

    def __init__(self, round_index: int, values: Sequence[Value]) -> None:
        """One line."""
        self.round, self.last, self.low, self.high = round_index, [*values], [*values], [*values]

    def take(self, after: "Point") -> None:
        """Stand for the lines of ``after``, too."""
        self.round, self.last = after.round, after.last
        self.low = [_extreme(min, pair) for pair in zip(self.low, after.low, strict=True)]
        self.high = [_extreme(max, pair) for pair in zip(self.high, after.high, strict=True)]


def _extreme(choose: Any, pair: tuple[Value, Value]) -> Value:
    return choose((value for value in pair if value is not None), default=None)  # type: ignore[no-any-return]


class ThinnedHistory:
    """The figures of one run, line by line; each is a column."""

    def __init__(self, most_points: int = MOST_POINTS) -> None:
        """Begin without a line."""
        self._most_points = most_points
        self.columns: list[str] = []
        self.points: list[Point] = []
        self.stride, self._in_last = 1, 0
        self.num_lines = 0

    def add(self, round_index: int, figures: dict[str, Value]) -> None:
        """Add one line."""
        self.num_lines += 1
        new = [name for name in figures if name not in self.columns][: MOST_COLUMNS - len(self.columns)]
        if new:
            self._widen(new)
        values = [figures.get(name) for name in self.columns]
        point = Point(round_index, [value if value is not None and math.isfinite(value) else None for value in values])
        if self.points and self._in_last < self.stride:
            self.points[-1].take(point)
            self._in_last += 1
            return
        self.points.append(point)
        self._in_last = 1
        if len(self.points) > self._most_points:
            self._thin()

    def _widen(self, names: list[str]) -> None:
        self.columns += names
        for point in self.points:
            for values in (point.last, point.low, point.high):
                values.extend([None] * len(names))

    def _thin(self) -> None:
        """Make one point of two neighbours; an odd one at the end stays, and takes more lines."""
        for index in range(0, len(self.points) - 1, 2):
            self.points[index].take(self.points[index + 1])
        is_odd = len(self.points) % 2
        self.points = self.points[::2]
        self._in_last += 0 if is_odd else self.stride
        self.stride *= 2
