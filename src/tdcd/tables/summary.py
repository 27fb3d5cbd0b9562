"""What a client reports of its columns: sums, counts and quantile sketches over training rows, and no rows.

The hub merges the summaries of its clients in their order; the simulation does the same with the same functions.

A quantile sketch says where the values of a column lie, in counts of several rows each: enough for quantiles, and no
row's own value. A client sorts its values and cuts them into groups. It sends one short number from among each group,
and how many rows the group has. Sketches of several clients merge by adding counts up, in any order and with the same
result.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from tdcd.tables.rows import Category, Column, RawRows

GROUPS_PER_BIN = 8
"""A client's sketch has at most so many groups for every bin that is wanted."""
FEWEST = 5
"""Every group has at least so many rows."""
MOST_DIGITS = 17
"""With so many, every float64 differs from all others."""


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
        """The sketch of values without blanks; empty for fewer values than :data:`FEWEST`."""
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
        """The sketch of two clients' values together."""
        numbers = sorted(self.counts.keys() | other.counts.keys())
        return type(self)({number: self.counts.get(number, 0) + other.counts.get(number, 0) for number in numbers})

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

    def cuts_beside_shared(self, most: int) -> tuple[float, ...]:
        """The cuts of at most ``most`` bins where no number has more rows than a bin: what a value that many rows share
        has beyond that does not count. So most bins are left for the rows with other values.

        >>> QuantileSketch({0.0: 97, 1.0: 1, 2.0: 1, 3.0: 1}).bins(4)[0]
        (0.0,)
        >>> QuantileSketch({0.0: 97, 1.0: 1, 2.0: 1, 3.0: 1}).cuts_beside_shared(4)
        (0.0, 1.0, 2.0)
        """
        counts = np.array([*self.counts.values()], np.int64)
        largest = counts.max(initial=0)
        while (share := -(-np.minimum(counts, largest).sum() // most)) < largest:
            largest = share
        return type(self)(dict(zip(self.counts, np.minimum(counts, largest).tolist(), strict=True))).bins(most)[0]

    def to_json(self) -> dict[str, Any]:
        """The same in values that JSON writes exactly."""
        return {"numbers": [*self.counts], "counts": [*self.counts.values()]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The value that :meth:`to_json` wrote."""
        counts = {float(number): int(count) for number, count in zip(value["numbers"], value["counts"], strict=True)}
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
    rounded = (float(f"{number:.{digits}e}") for digits in range(MOST_DIGITS) for number in (middle, low))
    return next(number for number in rounded if low <= number <= high)


def _between(low: float, high: float) -> float:
    """A short number from ``low`` on and below ``high``, about half-way."""
    return short_number(low, low / 2 + high / 2, float(np.nextafter(high, low)))


class NumericStats(NamedTuple):
    """What is known about a column of amounts."""

    known: int
    """How many values are not blank."""
    mean: float
    squares: float
    """The sum of their squared deviations from ``mean``."""
    missing: int

    @classmethod
    def of(cls, values: NDArray[Any]) -> Self:
        """The figures of these values; NaN is blank."""
        numbers = values[~np.isnan(values)].astype(np.float64)
        if not len(numbers):
            return cls(0, 0.0, 0.0, len(values))
        # Around the first value: the deviations of a constant are then exactly 0.
        shifted = numbers - numbers[0]
        mean = shifted.mean()
        squares = np.square(shifted - mean).sum()
        return cls(len(numbers), float(numbers[0] + mean), float(squares), len(values) - len(numbers))

    def merge(self, other: Self) -> Self:
        r"""The figures of two sets of rows together (Chan, Golub and LeVeque, 1979).

        .. math:: S = S_a + S_b + (m_b - m_a)^2 \frac{n_a n_b}{n_a + n_b}
        """
        known, missing = self.known + other.known, self.missing + other.missing
        if not self.known or not other.known:
            return (self if self.known else other)._replace(missing=missing)
        apart = other.mean - self.mean
        mean = self.mean + apart * (other.known / known)
        squares = self.squares + other.squares + apart * apart * (self.known * other.known / known)
        return type(self)(known, mean, squares, missing)

    @property
    def deviation(self) -> float:
        """The standard deviation of the values; 0 if there are none."""
        return math.sqrt(self.squares / self.known) if self.known else 0.0


class CategoryStats(NamedTuple):
    """What is known about a column of names."""

    levels: Mapping[str, int]
    """How many rows have each."""
    missing: int

    @classmethod
    def of(cls, column: Category) -> Self:
        """The counts of this column."""
        counts = np.bincount(column.codes + 1, minlength=len(column.levels) + 1).tolist()
        return cls({name: n for name, n in zip(column.levels, counts[1:], strict=True) if n}, counts[0])

    def merge(self, other: Self) -> Self:
        """The figures of two sets of rows together."""
        levels = dict(self.levels)
        for name, count in other.levels.items():
            levels[name] = levels.get(name, 0) + count
        return type(self)(levels, self.missing + other.missing)


class SketchStats(NamedTuple):
    """What is known about a column of amounts that is cut into bins."""

    sketch: QuantileSketch
    """The sketch of the values that are not blank."""
    known: int
    missing: int
    is_date: bool = False
    """Whether the values are dates, as days since 1970-01-01."""

    @classmethod
    def of(cls, values: NDArray[Any], bins: int, *, is_date: bool = False) -> Self:
        """The figures of these values, for so many bins; NaN is blank."""
        numbers = values[~np.isnan(values)].astype(np.float64)
        return cls(QuantileSketch.of(numbers, bins), len(numbers), len(values) - len(numbers), is_date)

    def merge(self, other: Self) -> Self:
        """The figures of two sets of rows together."""
        sketch = self.sketch.merge(other.sketch)
        is_date = self.is_date or other.is_date
        return type(self)(sketch, self.known + other.known, self.missing + other.missing, is_date)

    def to_json(self) -> dict[str, Any]:
        """The same in values that JSON writes exactly; only dates say what they are."""
        fields = self._asdict() | {"sketch": self.sketch.to_json()}
        return fields if self.is_date else {key: value for key, value in fields.items() if key != "is_date"}


ColumnStats = NumericStats | CategoryStats | SketchStats


@dataclass(frozen=True)
class Summary:
    """Sums and counts over training rows, for each column. It holds no rows."""

    columns: Mapping[str, ColumnStats]

    def merge(self, other: Self) -> Self:
        """The summary of two clients' rows together; the columns stay in the order of this summary."""
        problems = [f"column '{name}' is only in one" for name in self.columns.keys() ^ other.columns.keys()]
        problems += [
            f"column '{name}' holds names in one and amounts in the other"
            for name in self.columns.keys() & other.columns.keys()
            if type(self.columns[name]) is not type(other.columns[name])
        ]
        if problems:
            raise ValueError(f"the clients' tables differ: {'; '.join(sorted(problems))}")
        merged: dict[str, Any] = {n: mine.merge(other.columns[n]) for n, mine in self.columns.items()}  # type: ignore[arg-type]
        return type(self)(merged)

    def to_json(self) -> dict[str, Any]:
        """The same in values that JSON writes exactly."""
        return {
            name: column.to_json() if isinstance(column, SketchStats) else column._asdict()
            for name, column in self.columns.items()
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The value that :meth:`to_json` wrote."""

        def column(of: Mapping[str, Any]) -> ColumnStats:
            if "sketch" in of:
                return SketchStats(**{**of, "sketch": QuantileSketch.from_json(of["sketch"])})
            return CategoryStats(**of) if "levels" in of else NumericStats(**of)

        return cls({name: column(of) for name, of in value.items()})


def summarize(rows: RawRows, chosen: NDArray[np.bool_], bins: int | None = None) -> Summary:
    """The summary of a client's rows that are ``chosen`` ``[n]``: its training rows, whatever the table's order.

    Args:
        bins: amounts are to be cut into so many bins at most; by default they stay as they are.
    """
    # Sums depend on their order in the last bits, so it is that of the ids.
    order = np.array(sorted(np.flatnonzero(chosen).tolist(), key=rows.ids.__getitem__), np.int64)

    def stats(name: str, column: Column) -> ColumnStats:
        if isinstance(column, Category):
            return CategoryStats.of(Category(column.codes[order], column.levels))
        if bins is None:
            return NumericStats.of(column[order])
        return SketchStats.of(column[order], bins, is_date=rows.kinds.get(name) == "date")

    return Summary({name: stats(name, column) for name, column in rows.features.items()})


def merge_summaries(summaries: Mapping[str, Summary]) -> Summary:
    """Over all rows of a silo, merged in the order of its clients, who are the keys."""
    (first, merged), *others = summaries.items()
    for client, summary in others:
        try:
            merged = merged.merge(summary)
        except ValueError as error:
            raise ValueError(f"clients '{first}' and '{client}': {error}") from None
    return merged
