"""How one raw column becomes features: amounts scaled or binned, names one-hot."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from tdcd.core.words import counted
from tdcd.tables.cells import moment_in_words
from tdcd.tables.rows import Category
from tdcd.tables.summary import CategoryStats, ColumnStats, NumericStats, SketchStats

BLANK, OTHER = "(blank)", "other"
"""Levels of rows without a value, and with a rare or unseen one."""


class Cell(NamedTuple):
    """A bin or a level of a raw column."""

    level: str = ""
    """The level of a category; ``BLANK`` for blanks of any column; empty for a bin."""
    above: float | None = None
    """A bin has the values above this; None where it is open."""
    up_to: float | None = None
    """A bin has the values up to this, itself included; None where it is open."""
    share: float = 0.0
    """The share of the training rows, as far as sketches show."""
    is_date: bool = False
    """Whether a bin's ends are dates, as days since 1970-01-01."""

    @property
    def ends(self) -> tuple[str | None, str | None]:
        """``above`` and ``up_to`` as texts, dates as dates."""
        above, up_to = (
            end if end is None else moment_in_words(end) if self.is_date else short(end)
            for end in (self.above, self.up_to)
        )
        return above, up_to


class ColumnEncoding(Protocol):
    """How a column becomes features."""

    def names(self, column: str) -> list[str]:
        """The features' names."""
        ...

    def apply(self, values: Any, out: NDArray[Any]) -> None:
        """Write the features of a column to ``out`` ``[n, width]``."""
        ...

    def cells(self) -> list[Cell]:
        """The bins or levels that the features stand for, in order; nothing if they are no such things.

        A cell after those of the features has none, and adds nothing.
        """
        ...

    def unscaled(self, column: str, weights: NDArray[Any]) -> tuple[dict[str, NDArray[Any]], NDArray[Any]]:
        """Coefficients ``[C]`` in the column's own unit, by name, and what they add to the intercept."""
        ...

    def to_json(self) -> dict[str, Any]:
        """The encoding in values that JSON writes exactly."""
        ...


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
        """The encoding of a column with these figures."""
        mean, scale = (column.mean, column.deviation or 1.0) if standardize else (0.0, 1.0)
        return cls(column.mean, mean, scale, column.missing > 0)

    def names(self, column: str) -> list[str]:
        """The features' names."""
        return [column] + [f"{column} missing"] * self.indicator

    def apply(self, values: NDArray[Any], out: NDArray[Any]) -> None:
        """Write the features of these values to ``out``: computed in float64, and only then in its precision."""
        blank = np.isnan(values)
        known = np.where(blank, self.fill, values.astype(np.float64))
        out[:, 0] = (known - self.mean) / self.scale
        if self.indicator:
            out[:, 1] = blank

    def cells(self) -> list[Cell]:
        """Nothing: an amount has no bins."""
        return []

    def unscaled(self, column: str, weights: NDArray[Any]) -> tuple[dict[str, NDArray[Any]], NDArray[Any]]:
        """Coefficients in the column's own unit, and what they take from the intercept."""
        slope = weights[0] / self.scale
        blank = slope * self.fill + (weights[1] if self.indicator else 0)
        return {column: slope, f"{column} missing": blank}, -slope * self.mean

    def to_json(self) -> dict[str, Any]:
        """The encoding in values that JSON writes exactly."""
        return asdict(self)


MOST_LEVELS = 1000
"""A column with more frequent levels than this is not a category."""


@dataclass(frozen=True)
class OneHot:
    """How a column of names becomes features: one per level, and one for rare or unseen levels if rare ones exist."""

    levels: tuple[str, ...]
    other: bool
    indicator: bool
    """Whether a last feature marks blanks."""
    shares: tuple[float, ...] = ()
    """The share of the training rows that have each feature, for additive models; otherwise not kept."""

    @classmethod
    def fit(cls, name: str, column: CategoryStats, rare: int, *, has_shares: bool = False) -> Self:
        """The encoding for these counts; levels with fewer than ``rare`` rows are rare, as is one called "other"."""
        kept = tuple(sorted(level for level, n in column.levels.items() if n >= rare and level != "other"))
        if len(kept) > MOST_LEVELS:
            raise ValueError(
                f"column '{name}' has {len(kept)} levels with at least {counted(rare, 'row')} each, more than "
                f"{MOST_LEVELS}: leave it out, or raise data.rare"
            )
        part = cls(kept, len(kept) < len(column.levels), column.missing > 0)
        if not has_shares:
            return part
        known = sum(column.levels.values())
        counts = [column.levels[level] for level in kept]
        counts += [known - sum(counts)] * part.other + [column.missing] * part.indicator
        return replace(part, shares=tuple(count / (known + column.missing) for count in counts))

    def names(self, column: str) -> list[str]:
        """The features' names."""
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

    def unseen(self, column: Category) -> tuple[list[str], int]:
        """The levels that have no feature of their own, and how many rows have one of them."""
        places = [place for place, level in enumerate(column.levels) if level not in {*self.levels}]
        counts = np.bincount(column.codes[column.codes >= 0], minlength=len(column.levels))[places]
        return [column.levels[place] for place, count in zip(places, counts, strict=True) if count], int(counts.sum())

    def cells(self) -> list[Cell]:
        """What the features stand for; at the end what has no feature, as a level that training never saw."""
        levels = [*self.levels, *[OTHER] * self.other, *[BLANK] * self.indicator]
        cells = [Cell(level, share=share) for level, share in zip(levels, self.shares, strict=False)]
        return cells + [Cell(OTHER)] * (bool(cells) and not self.other)

    def unscaled(self, column: str, weights: NDArray[Any]) -> tuple[dict[str, NDArray[Any]], NDArray[Any]]:
        """The weights as they are; nothing for the intercept."""
        nothing = np.zeros(weights.shape[1])
        other = weights[len(self.levels)] if self.other else nothing
        own = {f"{column}={level}": weight for level, weight in zip(self.levels, weights, strict=False)}
        own |= {f"{column}=other": other, f"{column} missing": weights[-1] if self.indicator else other}
        return own, nothing

    def to_json(self) -> dict[str, Any]:
        """The encoding in values that JSON writes exactly."""
        return asdict(self)


@dataclass(frozen=True)
class Binned:
    """How a column of amounts becomes features: 1 for the bin that a value is in, 0 for the others."""

    cuts: tuple[float, ...]
    """Where bins end: a bin has the values above one cut and up to the next, itself included."""
    shares: tuple[float, ...]
    """The share of the training rows in each bin, one more than cuts, by the sketches; that of blanks at the end."""
    indicator: bool
    """Whether a last feature marks blanks."""
    is_date: bool = False
    """Whether the amounts are dates, as days since 1970-01-01."""

    @classmethod
    def fit(cls, name: str, column: SketchStats, bins: int) -> Self:
        """The encoding of a column with this sketch."""
        if column.known and not column.sketch.counts:
            raise ValueError(
                f"column '{name}': no client has enough values to say where bins begin without revealing values: "
                "leave model.bins out, or have fewer clients with more rows"
            )
        cuts, counts = column.sketch.bins(bins)
        # The sketches lack the values of clients with a handful of rows.
        total, blank = column.known + column.missing, [column.missing] * (column.missing > 0)
        known = [count * column.known / (sum(counts) or 1) for count in counts]
        shares = tuple(count / (total or 1) for count in [*known, *blank])
        return cls(cuts, shares, column.missing > 0, column.is_date)

    def cells(self) -> list[Cell]:
        """What the features stand for."""
        ranges = [("", *ends) for ends in pairwise([None, *self.cuts, None])]
        ranges += [(BLANK, None, None)] * self.indicator
        return [Cell(*ends, share, self.is_date) for ends, share in zip(ranges, self.shares, strict=True)]

    def names(self, column: str) -> list[str]:
        """The features' names."""
        return [_in_words(column, cell) for cell in self.cells()]

    def apply(self, values: NDArray[Any], out: NDArray[Any]) -> None:
        """Write the features of these values to ``out``."""
        blank = np.isnan(values)
        out[:] = 0
        rows = np.flatnonzero(~blank)
        out[rows, np.searchsorted(self.cuts, values[rows].astype(np.float64))] = 1
        # A blank where training had none counts as an average row does.
        out[blank] = np.arange(out.shape[1]) == len(self.cuts) + 1 if self.indicator else self.shares

    def unscaled(self, column: str, weights: NDArray[Any]) -> tuple[dict[str, NDArray[Any]], NDArray[Any]]:
        """The weights as they are; nothing for the intercept."""
        own = dict(zip(self.names(column), weights, strict=True))
        if not self.indicator:
            own[f"{column} missing"] = np.array(self.shares) @ weights
        return own, np.zeros(weights.shape[1])

    def to_json(self) -> dict[str, Any]:
        """The encoding in values that JSON writes exactly; only dates say what they are."""
        return {key: value for key, value in asdict(self).items() if key != "is_date" or value}


def _in_words(column: str, cell: Cell) -> str:
    above, up_to = cell.ends
    if cell.level == BLANK:
        return f"{column} missing"
    if above is None:
        return f"{column} any" if up_to is None else f"{column} <= {up_to}"
    return f"{column} > {above}" if up_to is None else f"{column} {above} to {up_to}"


def short(number: float) -> str:
    """The number in the fewest characters that give it back.

    >>> short(20.0), short(0.25), short(1234567.0)
    ('20', '0.25', '1234567')
    """
    return repr(number).removesuffix(".0")


def fit_encoding(name: str, column: ColumnStats, *, standardize: bool, rare: int, bins: int | None) -> ColumnEncoding:
    """The encoding of a column with these figures."""
    if isinstance(column, CategoryStats):
        return OneHot.fit(name, column, rare, has_shares=bins is not None)
    if isinstance(column, SketchStats):
        assert bins is not None
        return Binned.fit(name, column, bins)
    return Scaled.fit(column, standardize)


def encoding_from_json(value: Mapping[str, Any]) -> ColumnEncoding:
    """What ``to_json`` of a part gave."""
    fields: dict[str, Any] = {key: tuple(of) if isinstance(of, list) else of for key, of in value.items()}
    kind: Any = OneHot if "levels" in value else Binned if "cuts" in value else Scaled
    part: ColumnEncoding = kind(**fields)
    return part
