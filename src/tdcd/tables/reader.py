"""From a table to typed columns, streamed: little memory is needed in addition to the columns."""

import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tdcd.tables.aggregation import KindsDiffer, aggregated
from tdcd.tables.cells import LARGEST, CellKind, as_amounts, as_numbers, as_texts
from tdcd.tables.diagnosis import diagnose
from tdcd.tables.dialect import Dialect
from tdcd.tables.errors import TableError, caution
from tdcd.tables.rows import KEY_ADVICE, Category, Column, Columns, RawRows, spelt_otherwise
from tdcd.tables.source import CHUNK_ROWS, Source, open_table

CHUNK_VALUES = 1 << 19
"""How many values are decoded at a time, where rows are given some at a time."""


NO_LINK = (
    "its rows are known by keys: give the table with the '{}' and the '{}' of every sample too (--link; in Python "
    "model.linked)"
)


class Unfit(Exception):  # noqa: N818
    """Something in the table is wrong; the diagnosis finds out where."""


class NamedLabels(Exception):  # noqa: N818
    """The labels are not numbers."""


def read_rows(table: Path | Source, columns: Columns, *, may_be_empty: bool = False) -> RawRows:
    """The rows of a CSV or Parquet file, or of a table that is open.

    Everything that is wrong with it is reported at once, in a :class:`TableError`. Blank are empty cells, ``NA``,
    ``N/A``, ``NaN`` and ``null``, and what the dialect adds.

    Args:
        may_be_empty: whether a table with a header and no rows is one.
    """
    if isinstance(table, Path):
        # The key of a table that has a row for each sample is one more column.
        with open_table(table, columns.id if columns.takes_joined else columns.row_id, columns.dialect) as source:
            return read_rows(source, columns, may_be_empty=may_be_empty)
    if columns.is_keyed(table.header):
        return _linked(table, columns)
    wanted = table.wanted(replace(columns, key=None, link=None))
    if wanted.weight is not None:
        # It is read as one more column of amounts.
        wanted = replace(wanted, features=(*(wanted.features or ()), wanted.weight))
    is_named = columns.features is not None
    try:
        rows = _read(table, wanted)
    except (Unfit, KindsDiffer, pa.ArrowException, UnicodeDecodeError) as error:
        raise diagnose(table, wanted, str(error), is_named=is_named) from None
    except (OSError, EOFError, zlib.error) as error:
        raise TableError([f"{table.name}: is damaged: {error}"]) from None
    if repeat(rows.ids) or not (len(rows) or may_be_empty):
        raise diagnose(table, wanted, "ids repeat", is_named=is_named)
    return rows if wanted.weight is None or wanted.aggregate else _with_weights(rows, wanted.weight)


def _linked(table: Source, columns: Columns) -> RawRows:
    """The rows of a table whose rows belong to many samples: the row of every sample whose key is in the table."""
    assert columns.key is not None
    known = replace(columns, id=columns.key, key=None, link=None, label=None, weight=None, id_advice=KEY_ADVICE)
    if columns.link is None:
        raise TableError([f"{table.name}: {NO_LINK.format(columns.id, columns.key)}"])
    rows, samples = read_rows(table, known), _samples_of(columns)
    keys: Any = samples.features[columns.key]
    levels, places = columns.dialect.as_ids(keys.levels), {key: place for place, key in enumerate(rows.ids)}
    # A blank key, -1, finds the last entry.
    row = np.array([*(places.get(level, -1) for level in levels), -1], np.int64)[keys.codes]
    linked = np.flatnonzero(row >= 0)
    unknown = [level for level in levels if level not in places]
    hint = spelt_otherwise(rows.ids, rows.source, unknown, samples.source)
    if hint and len(linked):
        caution(f"column '{columns.key}': {hint}")
    if not len(linked):
        problem = f"{samples.source}: no sample has a '{columns.key}' that is in {rows.source}"
        raise TableError([f"{problem}: {hint or 'check that both mean the same'}"])
    joined, own = rows.take(row[linked]), samples.take(linked)
    return replace(joined, ids=own.ids, labels=own.labels, weights=own.weights, shared=row[linked])


def _samples_of(columns: Columns) -> RawRows:
    """The link table: the samples, with the keys of their rows, and labels and weights."""
    assert columns.key is not None
    assert columns.link is not None
    own = replace(
        columns.only([columns.key], [columns.key]),
        label=columns.label,
        weight=columns.weight,
        aggregate=(),
        key=None,
        link=None,
        blanks=True,
        repeat_advice="",
    )
    return read_rows(columns.link, own)


def keys_of(columns: Columns, ids: Collection[str]) -> set[str]:
    """What a silo's tables call the rows of these samples: by the samples' ids, or by their keys in the link table."""
    if columns.key is None:
        return {*ids}
    samples = _samples_of(replace(columns, label=None, weight=None))
    keys: Any = samples.features[columns.key]
    levels = columns.dialect.as_ids(keys.levels)
    coded = zip(samples.ids, keys.codes.tolist(), strict=True)
    return {levels[code] for sample, code in coded if code >= 0 and sample in ids}


def read_chunks(path: Path, columns: Columns) -> Iterator[RawRows]:
    """The rows of a file that :func:`read_rows` takes, without labels and weights: some at a time, in its order."""
    if columns.aggregate or columns.key is not None:
        # There are fewer rows than in the file, or they are of other files: what comes last may change the first one.
        whole = read_rows(path, columns)
        for start in range(0, len(whole), CHUNK_ROWS):
            yield whole.take(np.arange(start, min(start + CHUNK_ROWS, len(whole))))
        return
    with open_table(path, columns.id, columns.dialect) as source:
        wanted = replace(source.wanted(columns), label=None, weight=None)
        rows = max(1, CHUNK_VALUES // max(1, len(wanted.features or ())))
        given, attempts = 0, source.attempts(wanted.features or ())
        while True:
            before = given
            try:
                for chunk in source.batches(wanted, attempts[0], rows):
                    # What was given as numbers, before a cell that is none, is not given again.
                    rest, before = chunk.slice(min(before, len(chunk))), max(0, before - len(chunk))
                    if len(rest):
                        last = _collect(str(path), [rest], wanted, named_labels=False)
                        given += len(rest)
                        yield last
                return
            except pa.ArrowInvalid:
                if len(attempts) == 1:
                    raise
                del attempts[0]


def _read(table: Source, wanted: Columns) -> RawRows:
    """The rows, at first on the assumption that labels and most amounts are numbers, which is fastest."""
    amounts = wanted.features or ()
    named_labels, attempts, expected = False, table.attempts(amounts), table.expected_rows(len(amounts))
    while True:
        try:
            batches = table.batches(wanted, attempts[0])
            if wanted.aggregate:
                return aggregated(table.name, _pieces(table.name, batches, wanted, named_labels), wanted.aggregate)
            return _collect(table.name, batches, wanted, named_labels=named_labels, expected=expected)
        except NamedLabels:
            named_labels = True
        except pa.ArrowInvalid:
            if len(attempts) == 1:
                raise
            del attempts[0]


def _pieces(source: str, batches: Iterable[pa.RecordBatch], wanted: Columns, named_labels: bool) -> Iterator[RawRows]:
    """The rows of every batch by themselves, with their weights."""
    for batch in batches:
        rows = _collect(source, [batch], wanted, named_labels=named_labels)
        yield rows if wanted.weight is None else _with_weights(rows, wanted.weight)


def _collect(
    source: str, chunks: Iterable[pa.RecordBatch], wanted: Columns, *, named_labels: bool, expected: int = 0
) -> RawRows:
    """The rows in record batches that have the wanted columns.

    Args:
        expected: about how many rows there are, if that is known.

    Raises:
        Unfit: something in them is wrong.
        NamedLabels: the labels are not numbers; try again with ``named_labels``.
    """
    assert wanted.features is not None
    ids: list[str] = []
    names = {name: CategoryColumn(wanted.dialect) for name in wanted.categorical}
    amounts = {name: NumericColumn(wanted.dialect, expected) for name in wanted.features if name not in names}
    labels = TextColumn(wanted.dialect) if named_labels else LabelColumn(wanted.dialect)
    for chunk in chunks:
        ids += wanted.dialect.as_ids(as_texts(chunk.column(wanted.id)).to_pylist())
        for name, column in (names | amounts).items():
            column.extend(chunk.column(name))
        if wanted.label is not None:
            labels.extend(chunk.column(wanted.label))
    if not wanted.blanks and any(column.blank for column in (names | amounts).values()):
        raise Unfit("blank cells")
    if labels.blank or not all(map(str.strip, ids)):
        raise Unfit("blank ids or labels")
    features: dict[str, Column] = {name: (names | amounts)[name].column() for name in wanted.features}
    kinds = {
        name: column.kind for name, column in amounts.items() if column.kind is not None and not column.is_all_blank
    }
    counters = tuple(name for name, amount in amounts.items() if amount.counts)
    return RawRows(source, ids, features, None if wanted.label is None else labels.column(), kinds, counters)


def _with_weights(rows: RawRows, name: str) -> RawRows:
    """The rows with the last column of amounts as their weights."""
    weights = np.asarray(rows.features[name], np.float64)
    wrong = np.flatnonzero(~(weights >= 0))
    if len(wrong):
        value = "blank" if np.isnan(weights[wrong[0]]) else f"{weights[wrong[0]]:g}"
        example = f"that of id {rows.ids[wrong[0]]!r} is {value}"
        raise TableError([f"{rows.source}, column '{name}': a weight is a number of at least 0, and {example}"])
    features = {other: column for other, column in rows.features.items() if other != name}
    counters = tuple(other for other in rows.counters if other != name)
    kinds = {other: kind for other, kind in rows.kinds.items() if other != name}
    return replace(rows, features=features, weights=weights, kinds=kinds, counters=counters)


def repeat(ids: Sequence[str]) -> bool:
    """Whether an id occurs twice. A set of all would take more memory than the ids."""
    hashes = np.fromiter(map(hash, ids), np.int64, len(ids))
    hashes.sort()
    return bool((hashes[1:] == hashes[:-1]).any()) and len(set(ids)) < len(ids)


class NumericColumn:
    """A column of amounts that grows in place: joining pieces at the end would need twice the memory.

    It is kept in float32 as long as that is exact, as for counts and flags, and else in float64.
    """

    def __init__(self, dialect: Dialect, expected: int) -> None:
        self._dialect, self._expected, self.blank = dialect, expected, False
        self._room, self._rows = _room_for(0, np.float32), 0
        self.kind: CellKind | None = None

    def extend(self, column: pa.Array) -> None:
        """Add a chunk of it."""
        numbers, self.kind = as_amounts(column, self._dialect, self.kind)
        least, most = (numbers.min(), numbers.max()) if len(numbers) else (0.0, 0.0)
        if np.isnan(most):
            self.blank, known = True, numbers[~np.isnan(numbers)]
            least, most = known.min(initial=0.0), known.max(initial=0.0)
        if max(-least, most) > LARGEST:
            raise Unfit("infinite or too large numbers")
        dtype, rows = self._room.dtype, self._rows + len(numbers)
        if dtype == np.float32 and (np.abs(numbers.astype(np.float32) - numbers) > 0).any():
            dtype = np.dtype(np.float64)
        if rows > len(self._room) or dtype != self._room.dtype:
            known = self.column()
            self._room = _room_for(max(rows, self._expected, self._rows * 5 // 4), dtype)
            self._room[: self._rows] = known
        self._room[self._rows : rows] = numbers
        self._rows = rows

    @property
    def is_all_blank(self) -> bool:
        """Whether nothing is known of it."""
        return self.blank and bool(np.isnan(self.column()).all())

    @property
    def counts(self) -> bool:
        """Whether it only counts the rows; with one or two rows that cannot be known."""
        values = self.column()
        return len(values) > 2 and values[0] in (0, 1) and bool((np.diff(values) == 1).all())

    def column(self) -> NDArray[Any]:
        """All of it so far."""
        return self._room[: self._rows]


class LabelColumn:
    """Labels that grow, as long as they are numbers."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect, self._bytes, self.blank = dialect, bytearray(), False

    def extend(self, column: pa.Array) -> None:
        """Add a chunk of it."""
        try:
            numbers = as_numbers(column, self._dialect)
        except pa.ArrowException:
            raise NamedLabels from None
        if np.isinf(numbers).any():
            raise Unfit("infinite labels")
        self.blank = self.blank or bool(np.isnan(numbers).any())
        self._bytes += numbers.data

    def column(self) -> NDArray[Any]:
        """All of it so far."""
        return np.frombuffer(self._bytes, np.float64)


class TextColumn:
    """A column of texts that grows."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._texts: list[str] = []

    @property
    def blank(self) -> bool:
        """Whether a cell is blank."""
        return any(text in self._dialect.blank for text in self._texts)

    def extend(self, column: pa.Array) -> None:
        """Add a chunk of it."""
        self._texts += as_texts(column).to_pylist()

    def column(self) -> list[str]:
        """All of it so far."""
        return self._texts


class CategoryColumn:
    """A column of names that grows; levels are numbered as they come."""

    def __init__(self, dialect: Dialect) -> None:
        self._codes, self._levels, self.blank = bytearray(), dict.fromkeys(dialect.blank, -1), False
        self._num_blanks = len(self._levels)

    def extend(self, column: pa.Array) -> None:
        """Add a chunk of it."""
        encoded = as_texts(column).dictionary_encode()
        codes = np.array([self._code(level) for level in encoded.dictionary.to_pylist()], np.int32)
        part = codes[encoded.indices.to_numpy()]
        self.blank = self.blank or bool((part < 0).any())
        self._codes += part.tobytes()

    def _code(self, level: str) -> int:
        return self._levels.setdefault(level, len(self._levels) - self._num_blanks)

    def column(self) -> Category:
        """All of it so far."""
        return Category(np.frombuffer(self._codes, np.int32), tuple(self._levels)[self._num_blanks :])


def _room_for(rows: int, dtype: Any) -> NDArray[Any]:
    """``[rows]``: room for a column, with nothing in it yet.

    Arrow keeps memory at hand: asking the system for fresh memory takes longer than filling it.
    """
    return np.frombuffer(pa.allocate_buffer(rows * np.dtype(dtype).itemsize), dtype)


def give_back_memory() -> None:
    """Give the system what Arrow keeps for further columns, when no more tables are to be read."""
    pa.default_memory_pool().release_unused()
