"""How one raw column becomes features: amounts scaled, binned or piecewise linear, names one-hot."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from tdcd.core.words import counted

if TYPE_CHECKING:
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
        from tdcd.tables.cells import moment_in_words  # noqa: PLC0415 - few columns are dates

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
class Standardized:
    """How a column of amounts becomes a feature: ``(x - mean) / scale``, a blank as ``x = fill``."""

    fill: float
    mean: float
    scale: float
    indicator: bool
    """Whether a second feature marks blanks."""

    @classmethod
    def fit(cls, column: "NumericStats", standardize: bool) -> Self:
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
    def fit(cls, name: str, column: "CategoryStats", rare: int, *, has_shares: bool = False) -> Self:
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

    def apply(self, column: "Category", out: NDArray[Any]) -> None:
        """Write the features of these names to ``out``."""
        places = {level: place for place, level in enumerate(self.levels)}
        unseen = len(self.levels) if self.other else -1
        blank = out.shape[1] - 1 if self.indicator else unseen
        place = np.array([*(places.get(level, unseen) for level in column.levels), blank])[column.codes]
        out[:] = 0
        rows = np.flatnonzero(place >= 0)
        out[rows, place[rows]] = 1

    def unseen(self, column: "Category") -> tuple[list[str], int]:
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
    def fit(cls, name: str, column: "SketchStats", bins: int) -> Self:
        """The encoding of a column with this sketch."""
        _refuse_empty(name, column)
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


CHUNK = 1 << 16
"""The rows that are computed at a time in float64."""


@dataclass(frozen=True)
class Piecewise:
    r"""How a column of amounts becomes features: its position within each bin (Gorishniy et al., 2022).

    .. math:: e_t(x) = \min\Big(1, \max\Big(0, \frac{x - b_{t-1}}{b_t - b_{t-1}}\Big)\Big)

    with b the edges of the bins: 0 below a bin, 1 above it, and linear inside. So a linear block learns a continuous
    function that bends at the edges, and a network sees small and large changes of a value alike. Centred, each feature
    has its mean over the training rows taken off, as standardised amounts have: networks learn from large steps then.

    >>> out = np.empty((3, 2))
    >>> Piecewise((0.0, 1.0, 3.0), (0.5, 0.5), False, False).apply(np.array([-1.0, 0.5, 2.0]), out)
    >>> out.tolist()
    [[0.0, 0.0], [0.5, 0.0], [1.0, 0.5]]
    """

    edges: tuple[float, ...]
    """Where bins begin and end; a column that is the same everywhere has one, and a column of blanks none."""
    mean: tuple[float, ...]
    """The positions of the training rows on average, by the sketches; a blank has these."""
    centred: bool
    """Whether the features are positions less their mean."""
    indicator: bool
    """Whether a last feature marks blanks."""
    is_date: bool = False
    """Whether the amounts are dates, as days since 1970-01-01."""

    @classmethod
    def fit(cls, name: str, column: "SketchStats", bins: int, *, is_centred: bool) -> Self:
        """The encoding of a column with this sketch.

        A value that many rows share takes one bin of those that :class:`Binned` would have, and the others are for the
        rest of the rows. The outer two end at the sketch's first and last number. Values beyond these count as the
        numbers do, so that no party learns the smallest or the largest value.
        """
        _refuse_empty(name, column)
        cuts, numbers = column.sketch.cuts_beside_shared(bins), [*column.sketch.counts]
        # A first bin that has one number only has no width.
        edges = tuple(dict.fromkeys([*numbers[:1], *cuts, *numbers[-1:]]))
        encoding = cls(edges, (0.0,) * max(1, len(edges) - 1), is_centred, column.missing > 0, column.is_date)
        if not numbers:
            return encoding
        positions = encoding._positions(np.array(numbers))
        mean = np.average(positions, axis=0, weights=[*column.sketch.counts.values()])
        return replace(encoding, mean=tuple(mean.tolist()))

    def cells(self) -> list[Cell]:
        """Nothing: a value is not in one bin alone."""
        return []

    def names(self, column: str) -> list[str]:
        """The features' names."""
        ranges = [Cell(above=low, up_to=high, is_date=self.is_date) for low, high in pairwise(self.edges)]
        return [_in_words(column, cell) for cell in ranges or [Cell()]] + [f"{column} missing"] * self.indicator

    def apply(self, values: NDArray[Any], out: NDArray[Any]) -> None:
        """Write the features of these values to ``out``: computed in float64, and only then in its precision."""
        blank, width = np.isnan(values), len(self.mean)
        for start in range(0, len(values), CHUNK):
            rows = slice(start, start + CHUNK)
            positions = self._positions(values[rows].astype(np.float64))
            positions[blank[rows]] = self.mean
            out[rows, :width] = positions - self.mean if self.centred else positions
        if self.indicator:
            out[:, width] = blank

    def _positions(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """``[n, T]``, from 0 to 1."""
        low, high = np.array(self.edges[:-1]), np.array(self.edges[1:])
        if not len(low):
            return np.zeros((len(values), len(self.mean)))
        positions: NDArray[np.float64] = np.clip((values[:, None] - low) / (high - low), 0, 1)
        return positions

    def unscaled(self, column: str, weights: NDArray[Any]) -> tuple[dict[str, NDArray[Any]], NDArray[Any]]:
        """What a value that crosses each bin adds, and what the means take from the intercept."""
        own = dict(zip(self.names(column), weights, strict=True))
        average = np.array(self.mean) @ weights[: len(self.mean)]
        own[f"{column} missing"] = average + (weights[-1] if self.indicator else 0)
        return own, -average if self.centred else np.zeros(weights.shape[1])

    def to_json(self) -> dict[str, Any]:
        """The encoding in values that JSON writes exactly; only dates say what they are."""
        return {key: value for key, value in asdict(self).items() if key != "is_date" or value}


def _refuse_empty(name: str, column: "SketchStats") -> None:
    """A sketch without numbers of a column that has values says nothing of where bins begin."""
    if column.known and not column.sketch.counts:
        raise ValueError(
            f"column '{name}': no client has enough values to say where bins begin without revealing values: set "
            "model.encoding = 'standard' and leave model.bins out, or have fewer clients with more rows"
        )


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


def fit_encoding(
    name: str, column: "ColumnStats", *, standardize: bool, rare: int, bins: int | None, is_piecewise: bool
) -> ColumnEncoding:
    """The encoding of a column with these figures."""
    from tdcd.tables.summary import CategoryStats, SketchStats  # noqa: PLC0415 - as in tdcd.tables.preparation

    if isinstance(column, CategoryStats):
        return OneHot.fit(name, column, rare, has_shares=bins is not None and not is_piecewise)
    if isinstance(column, SketchStats):
        assert bins is not None
        if is_piecewise:
            return Piecewise.fit(name, column, bins, is_centred=standardize)
        return Binned.fit(name, column, bins)
    return Standardized.fit(column, standardize)


_BY_KEY = {"levels": OneHot, "cuts": Binned, "edges": Piecewise}
"""Each encoding by a field that only it has."""


def encoding_from_json(value: Mapping[str, Any]) -> ColumnEncoding:
    """What ``to_json`` of a part gave."""
    fields: dict[str, Any] = {key: tuple(of) if isinstance(of, list) else of for key, of in value.items()}
    kind: Any = next((kind for key, kind in _BY_KEY.items() if key in value), Standardized)
    part: ColumnEncoding = kind(**fields)
    return part
