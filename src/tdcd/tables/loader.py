"""Tables from CSV and Parquet files, streamed: little memory is needed beside the columns."""

import csv
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

from tdcd.tables.cells import as_texts
from tdcd.tables.diagnosis import diagnose
from tdcd.tables.dialect import DEFAULT, Dialect, is_parquet
from tdcd.tables.errors import TableError
from tdcd.tables.growing import CategoryColumn, LabelColumn, NamedLabels, NumericColumn, TextColumn, Unfit
from tdcd.tables.pieces import expected_rows, other_than_numbers, parsed
from tdcd.tables.rows import Column, Columns, RawRows

CHUNK_ROWS = 1 << 15
"""How many rows of a Parquet file are decoded at a time."""
CHUNK_VALUES = 1 << 19
"""How many values of one, where rows are given some at a time."""


def read_rows(path: Path, columns: Columns) -> RawRows:
    """The rows of a CSV or Parquet file.

    Everything that is wrong with the file is reported at once, in a :class:`TableError`. Blank are empty cells,
    ``NA``, ``N/A``, ``NaN`` and ``null``, and what the dialect adds.
    """
    header, dialect = read_header(path, columns.id, columns.dialect)
    wanted = replace(columns.among(path, header), dialect=dialect)
    if wanted.weight is not None:
        # It is read as one more column of amounts.
        wanted = replace(wanted, features=(*(wanted.features or ()), wanted.weight))
    try:
        rows = _read(path, wanted)
    except (Unfit, pa.ArrowException, UnicodeDecodeError) as error:
        raise diagnose(path, wanted, str(error)) from None
    except (OSError, EOFError, zlib.error) as error:
        raise TableError([f"{path}: is damaged: {error}"]) from None
    if repeat(rows.ids) or not len(rows):
        raise diagnose(path, wanted, "ids repeat")
    return rows if wanted.weight is None else with_weights(rows, wanted.weight)


def read_chunks(path: Path, columns: Columns) -> Iterator[RawRows]:
    """The rows of a file that :func:`read_rows` takes, without labels and weights: some at a time, in its order."""
    header, dialect = read_header(path, columns.id, columns.dialect)
    wanted = replace(columns.among(path, header), dialect=dialect, label=None, weight=None)
    rows = max(1, CHUNK_VALUES // max(1, len(wanted.features or ())))
    given, attempts = 0, _attempts(path, wanted)
    while True:
        before = given
        try:
            for chunk in _chunks(path, wanted, attempts[0], rows):
                # What was given as numbers, before a cell that is none, is not given again.
                rest, before = chunk.slice(min(before, len(chunk))), max(0, before - len(chunk))
                if len(rest):
                    found = collect(str(path), [rest], wanted, named_labels=False)
                    given += len(rest)
                    yield found
            return
        except pa.ArrowInvalid:
            if len(attempts) == 1:
                raise
            del attempts[0]


def with_weights(rows: RawRows, name: str) -> RawRows:
    """The rows with the last column of amounts as their weights."""
    weights = np.asarray(rows.features[name], np.float64)
    wrong = np.flatnonzero(~(weights >= 0))
    if len(wrong):
        value = "blank" if np.isnan(weights[wrong[0]]) else f"{weights[wrong[0]]:g}"
        one = f"that of id {rows.ids[wrong[0]]!r} is {value}"
        raise TableError([f"{rows.source}, column '{name}': a weight is a number of at least 0, and {one}"])
    features = {other: column for other, column in rows.features.items() if other != name}
    counters = tuple(other for other in rows.counters if other != name)
    kinds = {other: kind for other, kind in rows.kinds.items() if other != name}
    return replace(rows, features=features, weights=weights, kinds=kinds, counters=counters)


def _read(path: Path, wanted: Columns) -> RawRows:
    """The rows, at first on the assumption that labels and most amounts are numbers, which is fastest."""
    named_labels, attempts, num_columns = False, _attempts(path, wanted), len(wanted.features or ())
    expected = _rows_said(path) if is_parquet(path) else expected_rows(path, num_columns)
    while True:
        try:
            chunks = _chunks(path, wanted, attempts[0])
            return collect(str(path), chunks, wanted, named_labels=named_labels, expected=expected)
        except NamedLabels:
            named_labels = True
        except pa.ArrowInvalid:
            if len(attempts) == 1:
                raise
            del attempts[0]


def _attempts(path: Path, wanted: Columns) -> list[frozenset[str]]:
    """Which amounts of a CSV file to read as texts: at first those that begin with something other than numbers."""
    amounts = wanted.features or ()
    return (
        [frozenset()] if is_parquet(path) else [other_than_numbers(path, amounts, wanted.dialect), frozenset(amounts)]
    )


def _rows_said(path: Path) -> int:
    """The rows that a Parquet file says it has; not more than it has bytes, since anybody can write anything there."""
    return min(int(pq.read_metadata(path).num_rows), path.stat().st_size)


def repeat(ids: Sequence[str]) -> bool:
    """Whether an id occurs twice. A set of all would take more memory than the ids."""
    hashes = np.fromiter(map(hash, ids), np.int64, len(ids))
    hashes.sort()
    return bool((hashes[1:] == hashes[:-1]).any()) and len(set(ids)) < len(ids)


def read_header(path: Path, id_column: str | None = None, dialect: Dialect = DEFAULT) -> tuple[list[str], Dialect]:
    """The names of the columns, and the dialect with this file's delimiter.

    Refuses a file that cannot be read, or a Parquet file whose id column cannot hold ids.
    """
    try:
        if not is_parquet(path):
            return dialect.header(path, id_column)
        schema = pq.read_schema(path)
    except FileNotFoundError:
        raise TableError([f"{path}: there is no such file"]) from None
    except OSError as error:
        raise TableError([f"{path}: cannot be read: {error.strerror or error}"]) from None
    except (csv.Error, pa.ArrowInvalid, EOFError, zlib.error) as error:
        raise TableError([f"{path}: is damaged: {error}"]) from None
    if id_column in schema.names:
        kind = schema.field(id_column).type
        if pa.types.is_floating(kind):
            raise TableError([f"{path}, column '{id_column}': ids must be whole numbers or text, not {kind}"])
    return list(schema.names), dialect


def collect(
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
        ids += as_texts(chunk.column(wanted.id)).to_pylist()
        for name, column in (names | amounts).items():
            column.extend(chunk.column(name))
        if wanted.label is not None:
            labels.extend(chunk.column(wanted.label))
    if not wanted.blanks and any(column.blank for column in (names | amounts).values()):
        raise Unfit("blank cells")
    if labels.blank or not all(map(str.strip, ids)):
        raise Unfit("blank ids or labels")
    features: dict[str, Column] = {name: (names | amounts)[name].column() for name in wanted.features}
    kinds = {name: one.kind for name, one in amounts.items() if one.kind is not None and not one.is_all_blank}
    counters = tuple(name for name, amount in amounts.items() if amount.counts)
    return RawRows(source, ids, features, None if wanted.label is None else labels.column(), kinds, counters)


def _chunks(
    path: Path, wanted: Columns, text_amounts: frozenset[str], rows: int = CHUNK_ROWS
) -> Iterator[pa.RecordBatch]:
    """The wanted columns of the file, some rows at a time: in a CSV file, amounts as numbers and the rest as text.

    Args:
        text_amounts: those that are read as text, too.
        rows: how many of a Parquet file at a time.
    """
    assert wanted.features is not None
    texts = [wanted.id, *wanted.categorical, *([] if wanted.label is None else [wanted.label])]
    columns = [*texts, *(name for name in wanted.features if name not in wanted.categorical)]
    if is_parquet(path):
        yield from pq.ParquetFile(path).iter_batches(rows, columns=columns)
        return
    types = {name: pa.string() if name in text_amounts or name in texts else pa.float64() for name in columns}
    blank, decimal = wanted.dialect.blank, wanted.dialect.decimal
    convert = pcsv.ConvertOptions(column_types=types, include_columns=columns, null_values=blank, decimal_point=decimal)
    header, dialect = read_header(path, wanted.id, wanted.dialect)
    yield from parsed(path, header, dialect, convert)
