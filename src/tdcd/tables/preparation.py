"""From raw columns to features: blanks filled, names one-hot, amounts standardised, all by figures of the whole silo.

A client makes a :class:`Summary` of its training rows, which is sums and counts and no rows. The hub merges those of
its clients in their order and fits a :class:`Preparation`, which every client applies to its rows. The simulation does
the same with the same functions.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tdcd.tables.rows import Category, RawRows

MOST_LEVELS = 1000
"""A column with more frequent levels than this is not a category."""


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


@dataclass(frozen=True)
class Summary:
    """Sums and counts over training rows, for each column. It holds no rows."""

    columns: Mapping[str, NumericStats | CategoryStats]

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
        return {name: column._asdict() for name, column in self.columns.items()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """What :meth:`to_json` gave."""
        return cls({name: (CategoryStats if "levels" in of else NumericStats)(**of) for name, of in value.items()})


def summarize(rows: RawRows, chosen: NDArray[np.bool_]) -> Summary:
    """The summary of a client's rows that are ``chosen`` ``[n]``: its training rows, whatever the table's order."""
    # Sums depend on their order in the last bits, so it is that of the ids.
    order = np.array(sorted(np.flatnonzero(chosen).tolist(), key=rows.ids.__getitem__), np.int64)
    columns: dict[str, NumericStats | CategoryStats] = {
        name: CategoryStats.of(Category(column.codes[order], column.levels))
        if isinstance(column, Category)
        else NumericStats.of(column[order])
        for name, column in rows.features.items()
    }
    return Summary(columns)


def merge_summaries(summaries: Mapping[str, Summary]) -> Summary:
    """Over all rows of a silo, merged in the order of its clients, who are the keys."""
    (first, merged), *others = summaries.items()
    for client, summary in others:
        try:
            merged = merged.merge(summary)
        except ValueError as error:
            raise ValueError(f"clients '{first}' and '{client}': {error}") from None
    return merged


@dataclass(frozen=True)
class Scaled:
    """How a column of amounts becomes a feature: ``(x - mean) / scale``, a blank as ``x = fill``."""

    fill: float
    mean: float
    scale: float
    indicator: bool
    """Whether a second feature marks blanks."""

    @classmethod
    def fit(cls, column: NumericStats, standardize: bool) -> Self:
        """For a column with these figures."""
        mean, scale = (column.mean, column.deviation or 1.0) if standardize else (0.0, 1.0)
        return cls(column.mean, mean, scale, column.missing > 0)

    def names(self, column: str) -> list[str]:
        """Of the features."""
        return [column] + [f"{column} missing"] * self.indicator

    def apply(self, values: NDArray[Any], out: NDArray[Any]) -> None:
        """Write the features of these values to ``out``: computed in float64, and only then in its precision."""
        blank = np.isnan(values)
        known = np.where(blank, self.fill, values.astype(np.float64))
        out[:, 0] = (known - self.mean) / self.scale
        if self.indicator:
            out[:, 1] = blank

    def unscaled(self, column: str, weights: NDArray[Any]) -> tuple[dict[str, NDArray[Any]], NDArray[Any]]:
        """Coefficients in the column's own unit, and what they take from the intercept."""
        slope = weights[0] / self.scale
        blank = slope * self.fill + (weights[1] if self.indicator else 0)
        return {column: slope, f"{column} missing": blank}, -slope * self.mean


@dataclass(frozen=True)
class OneHot:
    """How a column of names becomes features: one per level, and one for rare or unseen levels if rare ones exist."""

    levels: tuple[str, ...]
    other: bool
    indicator: bool
    """Whether a last feature marks blanks."""

    @classmethod
    def fit(cls, name: str, column: CategoryStats, rare: int) -> Self:
        """For a column with these counts; levels with fewer than ``rare`` rows are rare, as is one called "other"."""
        kept = tuple(sorted(level for level, n in column.levels.items() if n >= rare and level != "other"))
        if len(kept) > MOST_LEVELS:
            raise ValueError(
                f"column '{name}' has {len(kept)} levels with at least {rare} rows each, more than {MOST_LEVELS}: "
                "leave it out, or raise data.rare"
            )
        return cls(kept, len(kept) < len(column.levels), column.missing > 0)

    def names(self, column: str) -> list[str]:
        """Of the features."""
        others = [f"{column}=other"] * self.other + [f"{column} missing"] * self.indicator
        return [f"{column}={level}" for level in self.levels] + others

    def apply(self, column: Category, out: NDArray[Any]) -> None:
        """Write the features of these names to ``out``."""
        places = {level: place for place, level in enumerate(self.levels)}
        unseen = len(self.levels) if self.other else -1
        blank = out.shape[1] - 1 if self.indicator else unseen
        place = np.array([*(places.get(level, unseen) for level in column.levels), blank])[column.codes]
        out[:] = 0
        rows = np.flatnonzero(place >= 0)
        out[rows, place[rows]] = 1

    def unscaled(self, column: str, weights: NDArray[Any]) -> tuple[dict[str, NDArray[Any]], NDArray[Any]]:
        """The weights as they are; nothing for the intercept."""
        nothing = np.zeros(weights.shape[1])
        other = weights[len(self.levels)] if self.other else nothing
        own = {f"{column}={level}": weight for level, weight in zip(self.levels, weights, strict=False)}
        own |= {f"{column}=other": other, f"{column} missing": weights[-1] if self.indicator else other}
        return own, nothing


@dataclass(frozen=True)
class Preparation:
    """How a silo's raw columns become its features."""

    parts: Mapping[str, Scaled | OneHot]
    """By raw column, in order."""

    @classmethod
    def fit(cls, summary: Summary, *, standardize: bool = True, rare: int = 1) -> Self:
        """From the merged summary of the silo's training rows.

        Args:
            standardize: amounts to mean 0 and variance 1; a constant column becomes 0.
            rare: levels with fewer rows than this are one level, "other".
        """
        fitted = {
            name: OneHot.fit(name, column, rare)
            if isinstance(column, CategoryStats)
            else Scaled.fit(column, standardize)
            for name, column in summary.columns.items()
        }
        prepared = cls(fitted)
        # What a blank or an unseen level adds has a name too when the model is exported.
        names = [{name, *part.names(name), f"{name} missing", f"{name}=other"} for name, part in fitted.items()]
        twice = [name for name, count in Counter(one for some in names for one in some).items() if count > 1]
        if twice:
            raise ValueError(f"two features would be called '{twice[0]}': rename a column")
        return prepared

    @property
    def columns(self) -> tuple[str, ...]:
        """The features' names, D of them."""
        return tuple(feature for name, part in self.parts.items() for feature in part.names(name))

    @property
    def categorical(self) -> tuple[str, ...]:
        """The raw columns that hold names."""
        return tuple(name for name, part in self.parts.items() if isinstance(part, OneHot))

    def apply(self, rows: RawRows, dtype: DTypeLike, num_ones: int = 0) -> NDArray[Any]:
        """``[n, D + num_ones]``: the features of these rows in the precision of the run, and columns of ones."""
        features = np.ones((len(rows), len(self.columns) + num_ones), dtype)
        start = 0
        for name, part in self.parts.items():
            width = len(part.names(name))
            part.apply(rows.features[name], features[:, start : start + width])  # type: ignore[arg-type]
            start += width
        return features

    def unscaled(self, weights: NDArray[Any]) -> tuple[dict[str, NDArray[Any]], NDArray[Any]]:
        """A linear block ``[D, C]`` in the columns' own units: coefficients ``[C]`` by name, and the intercept ``[C]``.

        A row's score is the intercept, plus coefficient times value for its amounts that are not blank, plus the
        coefficient of ``COLUMN=LEVEL`` for each of its names (of ``COLUMN=other`` if that level is not there), plus
        the coefficient of ``COLUMN missing`` for each blank.
        """
        weights = np.asarray(weights, np.float64)
        coefficients: dict[str, NDArray[Any]] = {}
        intercept = np.zeros(weights.shape[1])
        start = 0
        for name, part in self.parts.items():
            width = len(part.names(name))
            own, shift = part.unscaled(name, weights[start : start + width])
            coefficients.update(own)
            intercept += shift
            start += width
        return coefficients, intercept

    def to_json(self) -> dict[str, Any]:
        """As values that JSON writes exactly."""
        return {name: asdict(part) for name, part in self.parts.items()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """What :meth:`to_json` gave."""

        def part(of: dict[str, Any]) -> Scaled | OneHot:
            return OneHot(**of | {"levels": tuple(of["levels"])}) if "levels" in of else Scaled(**of)

        return cls({name: part(of) for name, of in value.items()})
