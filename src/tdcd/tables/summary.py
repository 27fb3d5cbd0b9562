"""What a client says about its columns: sums and counts over training rows, and no rows.

The hub merges the summaries of its clients in their order; the simulation does the same with the same functions.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from tdcd.tables.rows import Category, Column, RawRows
from tdcd.tables.sketch import QuantileSketch


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
        """Of these values; NaN is blank."""
        numbers = values[~np.isnan(values)].astype(np.float64)
        if not len(numbers):
            return cls(0, 0.0, 0.0, len(values))
        # Around the first value: the deviations of a constant are then exactly 0.
        shifted = numbers - numbers[0]
        mean = shifted.mean()
        squares = np.square(shifted - mean).sum()
        return cls(len(numbers), float(numbers[0] + mean), float(squares), len(values) - len(numbers))

    def merge(self, other: Self) -> Self:
        r"""Of both together (Chan, Golub and LeVeque, 1979).

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
        """Of this column."""
        counts = np.bincount(column.codes + 1, minlength=len(column.levels) + 1).tolist()
        return cls({name: n for name, n in zip(column.levels, counts[1:], strict=True) if n}, counts[0])

    def merge(self, other: Self) -> Self:
        """Of both together."""
        levels = dict(self.levels)
        for name, count in other.levels.items():
            levels[name] = levels.get(name, 0) + count
        return type(self)(levels, self.missing + other.missing)


class SketchStats(NamedTuple):
    """What is known about a column of amounts that becomes bins."""

    sketch: QuantileSketch
    """Of the values that are not blank."""
    known: int
    missing: int

    @classmethod
    def of(cls, values: NDArray[Any], bins: int) -> Self:
        """Of these values, for so many bins; NaN is blank."""
        numbers = values[~np.isnan(values)].astype(np.float64)
        return cls(QuantileSketch.of(numbers, bins), len(numbers), len(values) - len(numbers))

    def merge(self, other: Self) -> Self:
        """Of both together."""
        sketch = self.sketch.merge(other.sketch)
        return type(self)(sketch, self.known + other.known, self.missing + other.missing)


ColumnStats = NumericStats | CategoryStats | SketchStats


@dataclass(frozen=True)
class Summary:
    """Sums and counts over training rows, for each column. It holds no rows."""

    columns: Mapping[str, ColumnStats]

    def merge(self, other: Self) -> Self:
        """Over both clients' rows; the columns stay in this one's order."""
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
        """As values that JSON writes exactly."""
        return {
            name: column._asdict() | ({"sketch": column.sketch.to_json()} if isinstance(column, SketchStats) else {})
            for name, column in self.columns.items()
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """What :meth:`to_json` gave."""

        def column(of: Mapping[str, Any]) -> ColumnStats:
            if "sketch" in of:
                return SketchStats(**{**of, "sketch": QuantileSketch.from_json(of["sketch"])})
            return CategoryStats(**of) if "levels" in of else NumericStats(**of)

        return cls({name: column(of) for name, of in value.items()})


def summarize(rows: RawRows, chosen: NDArray[np.bool_], bins: int | None = None) -> Summary:
    """The summary of a client's rows that are ``chosen`` ``[n]``: its training rows, whatever the table's order.

    Args:
        bins: amounts are to become so many bins at most; by default they stay amounts.
    """
    # Sums depend on their order in the last bits, so it is that of the ids.
    order = np.array(sorted(np.flatnonzero(chosen).tolist(), key=rows.ids.__getitem__), np.int64)

    def stats(column: Column) -> ColumnStats:
        if isinstance(column, Category):
            return CategoryStats.of(Category(column.codes[order], column.levels))
        return NumericStats.of(column[order]) if bins is None else SketchStats.of(column[order], bins)

    return Summary({name: stats(column) for name, column in rows.features.items()})


def merge_summaries(summaries: Mapping[str, Summary]) -> Summary:
    """Over all rows of a silo, merged in the order of its clients, who are the keys."""
    (first, merged), *others = summaries.items()
    for client, summary in others:
        try:
            merged = merged.merge(summary)
        except ValueError as error:
            raise ValueError(f"clients '{first}' and '{client}': {error}") from None
    return merged
