"""Several rows per sample, such as visits or claims: one row of figures per id, added up as the rows are read.

Memory grows with the ids, not with the rows. Figures are added up in the order of the rows, so that they are the same
to the last bit from a CSV file, a Parquet file and a frame.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.tables.cells import CellKind
from tdcd.tables.errors import TableError
from tdcd.tables.labels import canonical_label
from tdcd.tables.rows import COUNT, Category, Column, RawRows


class KindsDiffer(Exception):  # noqa: N818
    """A column's amounts are not all of one kind."""


def aggregated(source: str, chunks: Iterable[RawRows], figures: Sequence[str]) -> RawRows:
    """One row per id, in the order in which ids come: these figures of its rows.

    Blanks are left out of them; a figure of blanks alone is blank. All rows of an id must have the same label and
    weight.

    Raises:
        KindsDiffer: a column has amounts of several kinds, such as numbers and dates.
    """
    places: dict[str, int] = {}
    counts, columns = _Grown(0), dict[str, _AmountSums | _Names]()
    kinds: dict[str, CellKind] = {}
    labels, weights = _Same(source, "label"), _Same(source, "weight")
    for rows in chunks:
        place = np.array([places.setdefault(sample, len(places)) for sample in rows.ids], np.int64)
        counts.add(np.add, place, 1.0, len(places))
        for name, column in rows.features.items():
            made = columns.setdefault(name, _Names() if isinstance(column, Category) else _AmountSums(figures))
            made.add(place, column, len(places))
            kind = rows.kinds.get(name)
            if kind is not None and kinds.setdefault(name, kind) != kind:
                raise KindsDiffer(f"column '{name}' holds amounts of several kinds")
        labels.add(place, rows.ids, rows.labels)
        weights.add(place, rows.ids, rows.weights)
    features: dict[str, Column] = {COUNT: _narrow(counts.values)} if "count" in figures else {}
    kinds_of: dict[str, CellKind] = dict.fromkeys(features, "number")
    for name, made in columns.items():
        if isinstance(made, _Names):
            features[f"mode({name})"] = made.mode(len(places))
            continue
        for figure in (figure for figure in figures if figure != "count"):
            features[f"{figure}({name})"] = made.figure(figure)
            if name in kinds:
                kinds_of[f"{figure}({name})"] = "date" if kinds[name] == "date" and figure != "sum" else "number"
    return RawRows(source, [*places], features, labels.values, kinds_of, weights=weights.values)


class _Grown:
    """A number per id, which grows with the ids."""

    def __init__(self, start: float) -> None:
        self._start, self._room, self._size = start, np.empty(0), 0

    def add(self, operation: np.ufunc, place: NDArray[np.int64], values: Any, size: int) -> None:
        """Combine the numbers of these ids with values, one after another."""
        if size > len(self._room):
            grown = np.full(max(size, len(self._room) * 5 // 4), self._start, np.float64)
            grown[: len(self._room)] = self._room
            self._room = grown
        self._size = size
        operation.at(self._room, place, values)

    @property
    def values(self) -> NDArray[np.float64]:
        """One number per id."""
        return self._room[: self._size]


class _AmountSums:
    """A column of amounts: its figures by id."""

    def __init__(self, figures: Sequence[str]) -> None:
        self._known = _Grown(0)
        self._totals = _Grown(0) if {"sum", "mean"} & {*figures} else None
        self._least = _Grown(np.inf) if "min" in figures else None
        self._most = _Grown(-np.inf) if "max" in figures else None

    def add(self, place: NDArray[np.int64], column: Any, size: int) -> None:
        """Take rows in."""
        is_known = ~np.isnan(column)
        ids, values = place[is_known], column[is_known].astype(np.float64)
        self._known.add(np.add, ids, 1.0, size)
        for room, operation in ((self._totals, np.add), (self._least, np.minimum), (self._most, np.maximum)):
            if room is not None:
                room.add(operation, ids, values, size)

    def figure(self, figure: str) -> NDArray[Any]:
        """``[ids]``: one figure, blank where no row has a value."""
        known = self._known.values
        room = {"sum": self._totals, "mean": self._totals, "min": self._least, "max": self._most}[figure]
        assert room is not None
        values = np.where(known > 0, room.values, np.nan)
        return _narrow(values / np.maximum(known, 1) if figure == "mean" else values)


class _Names:
    """A column of names: how often each id has each."""

    def __init__(self) -> None:
        self._levels: dict[str, int] = {}
        self._pairs, self._counts = np.empty(0, np.int64), np.empty(0, np.int64)
        self._new: list[NDArray[np.int64]] = []
        self._num_new = 0

    def add(self, place: NDArray[np.int64], column: Any, size: int) -> None:
        """Take rows in."""
        code = np.array([self._levels.setdefault(level, len(self._levels)) for level in column.levels], np.int64)
        is_known = column.codes >= 0
        self._new.append((place[is_known] << 32) | code[column.codes[is_known]])
        self._num_new += len(self._new[-1])
        if self._num_new > len(self._pairs):
            self._merge()

    def _merge(self) -> None:
        pairs = np.concatenate([self._pairs, *self._new])
        counts = np.concatenate([self._counts, np.ones(self._num_new, np.int64)])
        self._pairs, which = np.unique(pairs, return_inverse=True)
        self._counts = np.zeros(len(self._pairs), np.int64)
        np.add.at(self._counts, which, counts)
        self._new, self._num_new = [], 0

    def mode(self, size: int) -> Category:
        """The most frequent name of every id; of several, the first in order."""
        self._merge()
        levels = sorted(self._levels)
        rank = np.empty(len(levels), np.int64)
        rank[[self._levels[level] for level in levels]] = np.arange(len(levels))
        ids, names = self._pairs >> 32, rank[self._pairs & 0xFFFFFFFF]
        order = np.lexsort((names, -self._counts, ids))
        known, first = np.unique(ids[order], return_index=True)
        chosen = np.full(size, -1, np.int64)
        chosen[known] = names[order][first]
        kept, codes = np.unique(chosen[known], return_inverse=True)
        result = np.full(size, -1, np.int32)
        result[known] = codes
        return Category(result, tuple(levels[level] for level in kept))


class _Same:
    """Labels or weights, which all rows of an id share."""

    def __init__(self, source: str, what: str) -> None:
        self._source, self._what, self._given = source, what, list[Any]()
        self._is_array = False

    def add(self, place: NDArray[np.int64], ids: Sequence[str], column: Any) -> None:
        """Take rows in; refuses an id that has two values."""
        if column is None:
            return
        self._is_array = isinstance(column, np.ndarray)
        values = column.tolist() if self._is_array else column
        for number, sample, value in zip(place.tolist(), ids, values, strict=True):
            if number == len(self._given):
                self._given.append(value)
            elif canonical_label(value) != canonical_label(self._given[number]):
                first, second = canonical_label(self._given[number]), canonical_label(value)
                raise TableError(
                    [
                        f"{self._source}: the rows of id {sample!r} have the {self._what}s {first} and {second}: with "
                        "aggregate, all rows of an id have the same"
                    ]
                )

    @property
    def values(self) -> Any:
        """One per id; None if there are none."""
        return np.array(self._given, np.float64) if self._is_array else self._given or None


def _narrow(values: NDArray[np.float64]) -> NDArray[Any]:
    """In float32 where that is the same, as columns of amounts are."""
    narrow = values.astype(np.float32)
    return narrow if np.array_equal(narrow.astype(np.float64), values, equal_nan=True) else values
