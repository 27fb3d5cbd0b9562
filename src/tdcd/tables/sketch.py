"""Where the values of a column lie, in counts of several rows each: enough for quantiles, and no row's own value.

A client sorts its values and cuts them into groups. It sends one short number from among each group, and how many rows
the group has. Sketches of several clients merge by adding counts up, in any order and with the same result.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

GROUPS_PER_BIN = 8
"""A client's sketch has at most so many groups for every bin that is wanted."""
FEWEST = 5
"""Every group has at least so many rows."""
MOST_DIGITS = 17
"""With so many, every float64 is told from all others."""


def group_size(known: int, bins: int) -> int:
    """How many rows a group of a client with ``known`` values has at least."""
    return max(FEWEST, known // (GROUPS_PER_BIN * bins))


class QuantileSketch(NamedTuple):
    """Counts of rows around some numbers.

    How many rows are at most some number is known to within 3 g rows of each client, g being :func:`group_size`: the
    number lies inside one group only, which has fewer rows than that or is read at the value that most of it share.
    """

    counts: Mapping[float, int]
    """How many rows are around each number, in the order of the numbers."""

    @classmethod
    def of(cls, values: NDArray[np.float64], bins: int) -> Self:
        """Of these values, none of them blank; nothing of fewer than :data:`FEWEST`."""
        ordered, size = np.sort(values), group_size(len(values), bins)
        counts: dict[float, int] = {}
        start, number = 0, 0.0
        while start + size <= len(ordered):
            last = ordered[start + size - 1]
            first_equal, end = np.searchsorted(ordered, last), int(np.searchsorted(ordered, last, side="right"))
            # A value that a whole group shares stands for itself, so that many zeros are a bin of their own.
            is_shared = end - first_equal >= size
            number = float(last) if is_shared else short_number(*ordered[[start, (start + end) // 2, end - 1]])
            counts[number] = end - start
            start = end
        if counts:
            # Too few for a group of their own.
            counts[number] += len(ordered) - start
        return cls(counts)

    def merge(self, other: Self) -> Self:
        """Of both clients' values."""
        numbers = sorted(self.counts.keys() | other.counts.keys())
        return type(self)({one: self.counts.get(one, 0) + other.counts.get(one, 0) for one in numbers})

    def bins(self, most: int) -> tuple[tuple[float, ...], tuple[int, ...]]:
        """At most ``most`` bins of about equally many rows: where they are cut, and their counts, one more than cuts.

        A bin reaches from a cut, which is not in it, up to the next, which is. Cuts that many equal values bring
        together are one.
        """
        numbers, below = [*self.counts], np.cumsum([*self.counts.values()], dtype=np.int64)
        if not numbers:
            return (), (0,)
        total = int(below[-1])
        # The first number that has a q-th of the rows at or below it; whole numbers, so that nothing is rounded.
        wanted = -(-np.arange(1, most) * total // most)
        places = [place for place in np.unique(np.searchsorted(below, wanted)).tolist() if place < len(numbers) - 1]
        cuts = tuple(_between(numbers[place], numbers[place + 1]) for place in places)
        return cuts, tuple(np.diff([0, *below[places].tolist(), total]).tolist())

    def to_json(self) -> dict[str, Any]:
        """As values that JSON writes exactly."""
        return {"numbers": [*self.counts], "counts": [*self.counts.values()]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """What :meth:`to_json` gave."""
        counts = {float(one): int(count) for one, count in zip(value["numbers"], value["counts"], strict=True)}
        if not all(map(math.isfinite, counts)) or min(counts.values(), default=1) < 1:
            raise ValueError("a sketch has finite numbers, and counts of at least 1")
        return cls(counts)


def short_number(low: float, middle: float, high: float) -> float:
    """``middle`` or ``low``, rounded to the fewest digits that leave it from ``low`` to ``high``; 0 if that is there.

    >>> short_number(0.123456, 0.127, 0.131), short_number(1830, 1850, 2210), short_number(1, 1.5, 1.999)
    (0.13, 2000.0, 1.0)
    """
    if low <= 0 <= high:
        return 0.0
    rounded = (float(f"{one:.{digits}e}") for digits in range(MOST_DIGITS) for one in (middle, low))
    return next(one for one in rounded if low <= one <= high)


def _between(low: float, high: float) -> float:
    """A short number from ``low`` on and below ``high``, about half-way."""
    return short_number(low, low / 2 + high / 2, float(np.nextafter(high, low)))
