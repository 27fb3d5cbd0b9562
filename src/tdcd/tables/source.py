"""Where tables come from: CSV files, Parquet files and data frames, each opened once and read as Arrow batches.

A CSV file is parsed in pieces that end where a line does, as long as no cell is in quotes: Arrow parses a piece on all
cores. In a cell in quotes a line may end without the row ending. From the first such cell on, therefore, the file is
parsed as a stream, which Arrow does on one core.
"""

import csv
import gzip
import io
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import IO, Any, Protocol, Self, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

from tdcd.core.words import counted
from tdcd.tables.cells import holds_names, kind_of
from tdcd.tables.dialect import DEFAULT, DELIMITERS, Dialect, is_decoded
from tdcd.tables.errors import TableError
from tdcd.tables.rows import PLACE, Columns

ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")
BLOCK_BYTES = 1 << 20
"""How much of a CSV file is parsed at a time, on one core: each column of a block costs some calls, however few rows it
has."""
PIECE_BYTES = 1 << 23
"""How much of one is read at a time."""
BEGINNING_BYTES = 1 << 16
"""How much of one is read to see how long lines are."""
FIRST_ROWS = 8
"""How many rows of one are looked at to see what their cells are."""
CHUNK_ROWS = 1 << 15
"""How many rows of a Parquet file are decoded at a time."""
_SOMETHING = re.compile(rb"\S")


class Source(Protocol):
    """A table that is open. Leaving its ``with`` block closes it."""

    name: str
    """What messages call it: a file's path, or a frame's name."""
    header: list[str]
    """The columns' names."""

    def wanted(self, columns: Columns) -> Columns:
        """The same with every feature by name, and how this table is written; refuses columns that it lacks."""
        ...

    def expected_rows(self, num_columns: int) -> int:
        """About how many rows it has, if ``num_columns`` of them are read; 0 if that is not known."""
        ...

    def attempts(self, amounts: Sequence[str]) -> list[frozenset[str]]:
        """Which amounts to read as texts, in the order in which to try it: reading all as numbers is fastest."""
        ...

    def batches(self, wanted: Columns, texts: frozenset[str], rows: int = CHUNK_ROWS) -> Iterator[pa.RecordBatch]:
        """The wanted columns, some rows at a time.

        Args:
            wanted: as :meth:`wanted` gave them.
            texts: the amounts that are read as texts.
            rows: how many at a time, where the table is not parsed.

        Raises:
            pa.ArrowInvalid: a cell is not what it should be, or a quote is never closed.
        """
        ...

    def table(self) -> pa.Table:
        """All of it; of a CSV file every cell exactly as it is written."""
        ...

    def __enter__(self) -> Self:
        """The table itself."""
        ...

    def __exit__(self, *_: object) -> None:
        """Close it."""
        ...


def open_table(path: Path, id_column: str | None = None, dialect: Dialect = DEFAULT) -> "CsvFile | ParquetFile":
    """A CSV or Parquet file. Refuses one that cannot be read.

    Args:
        id_column: helps to find out what separates the fields of a CSV file; one that cannot hold ids is refused.
    """
    try:
        return ParquetFile(path, id_column, dialect) if is_parquet(path) else CsvFile(path, id_column, dialect)
    except FileNotFoundError:
        raise TableError([f"{path}: there is no such file"]) from None
    except OSError as error:
        raise TableError([f"{path}: cannot be read: {error.strerror or error}"]) from None
    except (csv.Error, pa.ArrowInvalid, EOFError, zlib.error) as error:
        raise TableError([f"{path}: is damaged: {error}"]) from None


def is_parquet(path: Path) -> bool:
    """Whether the file's name says Parquet; one that says neither that nor CSV is refused."""
    if not path.name.lower().endswith(ENDINGS):
        raise TableError([f"{path}: the name of a table must end in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}"])
    return path.suffix.lower() == ".parquet"


class _Borrowed(io.RawIOBase):
    """A file that is read by several readers in turn. What one of them closes is this, not the file."""

    def __init__(self, file: io.FileIO) -> None:
        self._file = file

    def readable(self) -> bool:
        """Always: it is opened for reading."""
        return True

    def seekable(self) -> bool:
        """Whether the file is."""
        return self._file.seekable()

    def fileno(self) -> int:
        """The number of the open file."""
        return self._file.fileno()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place of the file."""
        return self._file.seek(offset, whence)

    def readinto(self, buffer: Any) -> int | None:
        """Read on."""
        return self._file.readinto(buffer)


class CsvFile:
    """A CSV file, gzipped or not."""

    unit = "line"

    def __init__(self, path: Path, id_column: str | None, dialect: Dialect) -> None:
        self.name, self._is_gzipped = str(path), path.suffix.lower() == ".gz"
        self._file = path.open("rb", buffering=0)
        try:
            self.header, self.dialect = self._header(id_column, dialect)
        except BaseException:
            self._file.close()
            raise

    def _header(self, id_column: str | None, dialect: Dialect) -> tuple[list[str], Dialect]:
        """The columns, and the dialect with the delimiter of this file.

        Where it is not given, it is the one that gives the most columns; one that gives a column of ids is preferred.
        """
        self.dialect = dialect
        headers = {}
        for mark in dialect.delimiter or "".join(DELIMITERS):
            with self.text() as file:
                headers[mark] = next(csv.reader(file, delimiter=mark), [])
        mark = max(headers, key=lambda delimiter: (id_column in headers[delimiter], len(headers[delimiter])))
        if not headers[mark]:
            raise TableError([f"{self.name}: is empty: it needs a header line with the columns' names, and rows"])
        if not is_decoded("".join(headers[mark])):
            raise TableError([f"{self.name}, line 1: {dialect.not_decoded()}"])
        return headers[mark], replace(dialect, delimiter=mark)

    def __enter__(self) -> Self:
        """The table itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self._file.close()

    def _bytes(self) -> io.BufferedReader:
        """The file from its beginning, as it is."""
        self._file.seek(0)
        return io.BufferedReader(_Borrowed(self._file), BEGINNING_BYTES)

    def _unpacked(self) -> IO[bytes]:
        """The file from its beginning, without compression."""
        return cast("IO[bytes]", gzip.GzipFile(fileobj=self._bytes())) if self._is_gzipped else self._bytes()

    def _stream(self) -> Any:
        """The file from its beginning, without compression, as Arrow reads it fastest."""
        return pa.CompressedInputStream(self._bytes(), "gzip") if self._is_gzipped else self._bytes()

    def text(self) -> IO[str]:
        """The file from its beginning as text; bytes that are not in the encoding become surrogates."""
        encoding = "utf-8-sig" if self.dialect.encoding == "utf-8" else self.dialect.encoding
        return io.TextIOWrapper(self._unpacked(), encoding=encoding, errors="surrogateescape", newline="")

    def unclosed_quote(self) -> int | None:
        """The line on which the record begins whose quote is never closed, if there is one."""
        with self._unpacked() as file:
            quotes = sum(block.count(b'"') for block in iter(lambda: file.read(1 << 20), b""))
        if quotes % 2 == 0:
            return None
        line = 1
        with self.text() as text:
            reader = csv.reader(text, delimiter=self.dialect.delimiter or ",", strict=True)
            try:
                for _ in reader:
                    line = reader.line_num + 1
            except csv.Error as error:
                return line if "unexpected end" in str(error) else None
        return None

    def wanted(self, columns: Columns) -> Columns:
        """See :class:`Source`."""
        return replace(columns.among(self.name, self.header), dialect=self.dialect)

    def expected_rows(self, num_columns: int) -> int:
        """The number of rows, estimated from the first lines; 0 if the file is compressed."""
        if self._is_gzipped:
            return 0
        beginning, size = self._bytes().read(BEGINNING_BYTES), os.fstat(self._file.fileno()).st_size
        lines = beginning.count(b"\n") * size // max(1, len(beginning))
        # A little more, for shorter lines later; but a cell takes a byte at least.
        return min(lines + lines // 32, size // max(1, num_columns))

    def attempts(self, amounts: Sequence[str]) -> list[frozenset[str]]:
        """At first only those are texts that begin with true, false or a date; then all of them."""
        return [self.other_than_numbers(amounts), frozenset(amounts)]

    def other_than_numbers(self, names: Sequence[str]) -> frozenset[str]:
        """The columns that begin with true, false or a date.

        Known in advance, they need not be found by reading the file in vain; what comes later, this does not see.
        """
        assert self.dialect.delimiter is not None
        try:
            with self.text() as file:
                rows = [*islice(csv.DictReader(file, delimiter=self.dialect.delimiter), FIRST_ROWS)]
        except (csv.Error, OSError, EOFError, zlib.error):
            return frozenset()
        others = set()
        for name in names:
            cells = [cell.strip() for row in rows if (cell := row.get(name))]
            known = [cell for cell in cells if cell not in self.dialect.blank]
            if known and kind_of(known[0], self.dialect) in ("truth", "date"):
                others.add(name)
        return frozenset(others)

    def batches(self, wanted: Columns, texts: frozenset[str], rows: int = CHUNK_ROWS) -> Iterator[pa.RecordBatch]:
        """See :class:`Source`: amounts as numbers, and all else as text."""
        named = [wanted.id, *wanted.categorical, *([] if wanted.label is None else [wanted.label])]
        columns = _chosen(wanted)
        types = {name: pa.string() if name in texts or name in named else pa.float64() for name in columns}
        convert = pcsv.ConvertOptions(
            column_types=types,
            include_columns=columns,
            null_values=self.dialect.blank,
            decimal_point=self.dialect.decimal,
        )
        return self.parsed(convert)

    def parsed(self, convert: pcsv.ConvertOptions) -> Iterator[pa.RecordBatch]:
        """The rows with these conversions, some at a time."""
        if self._is_gzipped or self.dialect.encoding != "utf-8":
            yield from self._streamed(self._stream(), convert)
            return
        read = pcsv.ReadOptions(block_size=BLOCK_BYTES, column_names=[*self.header])
        parse = pcsv.ParseOptions(delimiter=self.dialect.delimiter)
        file = self._bytes()
        if not self._is_header(file.readline()):
            yield from self._streamed(self._stream(), convert)
            return
        for room, end in _whole_lines(file):
            if room.find(b'"', 0, end) >= 0:
                file.seek(-end, 1)
                yield from self._streamed(file, convert, self.header)
                return
            piece = memoryview(room)[:end]
            if _SOMETHING.search(piece):
                table = pcsv.read_csv(pa.BufferReader(piece), read, parse, convert)
                # As one batch: each column of a batch costs some calls.
                yield from table.combine_chunks().to_batches()

    def _streamed(self, file: Any, convert: pcsv.ConvertOptions, names: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
        """The rows from here to the file's end; with ``names``, there is no header."""
        read = pcsv.ReadOptions(block_size=BLOCK_BYTES, encoding=self.dialect.arrow_encoding, column_names=[*names])
        parse = pcsv.ParseOptions(delimiter=self.dialect.delimiter, newlines_in_values=True)
        with pcsv.open_csv(file, read, parse, convert) as reader:
            yield from reader
        if self.unclosed_quote() is not None:
            raise pa.ArrowInvalid("a quote is never closed")

    def _is_header(self, line: bytes) -> bool:
        """Whether the first line is all of the header: a name in quotes may have more lines."""
        assert self.dialect.delimiter is not None
        text = line.decode("utf-8-sig", "replace")
        try:
            return next(csv.reader([text], delimiter=self.dialect.delimiter, strict=True), []) == [*self.header]
        except csv.Error:
            return False

    def table(self) -> pa.Table:
        """Every cell exactly as it is written."""
        return pcsv.read_csv(
            self._stream(),
            read_options=pcsv.ReadOptions(encoding=self.dialect.arrow_encoding),
            parse_options=pcsv.ParseOptions(delimiter=self.dialect.delimiter, newlines_in_values=True),
            convert_options=pcsv.ConvertOptions(column_types=dict.fromkeys(self.header, pa.string())),
        )


def _whole_lines(file: io.BufferedReader) -> Iterator[tuple[bytearray, int]]:
    """The next lines, and where they end in the memory that they are in; one that is longer than a piece comes whole.

    All pieces use the same memory: asking the system for more takes longer than reading them.
    """
    # More than a small file has, so that its end is seen at once.
    room = bytearray(min(PIECE_BYTES, os.fstat(file.fileno()).st_size + 1))
    while size := file.readinto(room):
        end = size if size < len(room) else room.rfind(b"\n") + 1
        if end:
            file.seek(end - size, 1)
            yield room, end
        else:
            line = room + file.readline()
            yield line, len(line)


class ParquetFile:
    """A Parquet file. Of the dialect only the decimal mark and the blanks count, in its texts."""

    unit = "row"

    def __init__(self, path: Path, id_column: str | None, dialect: Dialect) -> None:
        self.name, self.dialect, self._bytes = str(path), dialect, path.stat().st_size
        self._file = pq.ParquetFile(path)
        self.header = list(self._file.schema_arrow.names)
        try:
            self._check_ids(id_column)
        except TableError:
            self._file.close()
            raise

    def _check_ids(self, id_column: str | None) -> None:
        if id_column in self.header:
            kind = self._file.schema_arrow.field(id_column).type
            if pa.types.is_floating(kind):
                raise TableError([f"{self.name}, column '{id_column}': ids must be whole numbers or text, not {kind}"])

    def __enter__(self) -> Self:
        """The table itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self._file.close()

    def wanted(self, columns: Columns) -> Columns:
        """See :class:`Source`."""
        self._check_ids(columns.id)
        return replace(columns.among(self.name, self.header), dialect=self.dialect)

    def expected_rows(self, num_columns: int) -> int:
        """The rows that the file says it has; not more than it has bytes: anybody can write anything there."""
        return min(int(self._file.metadata.num_rows), self._bytes)

    def attempts(self, amounts: Sequence[str]) -> list[frozenset[str]]:
        """None: the file has types of its own."""
        return [frozenset()]

    def batches(self, wanted: Columns, texts: frozenset[str], rows: int = CHUNK_ROWS) -> Iterator[pa.RecordBatch]:
        """See :class:`Source`."""
        yield from self._file.iter_batches(rows, columns=_chosen(wanted))

    def records(self) -> Iterator[Mapping[str, Any]]:
        """The rows one by one."""
        for batch in self._file.iter_batches(4096):
            yield from batch.to_pylist()

    def table(self) -> pa.Table:
        """All of it."""
        return self._file.read()


class Frame:
    """A data frame in memory: an Arrow table of :func:`arrow_of`."""

    unit = "row"

    def __init__(self, table: pa.Table, name: str) -> None:
        self.name, self._table = name, table
        self.header: list[str] = table.column_names

    def __enter__(self) -> Self:
        """The table itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def wanted(self, columns: Columns) -> Columns:
        """See :class:`Source`.

        Where features are not named, all others are, and those of :func:`named_columns` are names. With the id column
        :data:`PLACE`, rows are known by their places.
        """
        if columns.id == PLACE and PLACE not in self.header:
            places = pa.array([str(place) for place in range(len(self._table))], pa.string())
            self._table = self._table.append_column(PLACE, places)
            self.header = self._table.column_names
        wanted = columns.among(self.name, self.header)
        assert wanted.features is not None
        if columns.features is None:
            names = named_columns(self._table.select(wanted.features), wanted.dialect) | {*wanted.categorical}
            wanted = replace(wanted, categorical=tuple(name for name in wanted.features if name in names))
        if pa.types.is_floating(self._table.column(wanted.id).type):
            raise TableError([f"{self.name}, column '{wanted.id}': ids must be whole numbers or text, not amounts"])
        if not len(self._table):
            raise TableError([f"{self.name}: has no rows"])
        return wanted

    def expected_rows(self, num_columns: int) -> int:
        """All of them."""
        return len(self._table)

    def attempts(self, amounts: Sequence[str]) -> list[frozenset[str]]:
        """None: the frame has types of its own."""
        return [frozenset()]

    def batches(self, wanted: Columns, texts: frozenset[str], rows: int = CHUNK_ROWS) -> Iterator[pa.RecordBatch]:
        """See :class:`Source`."""
        yield from self.chosen(wanted).to_batches()

    def chosen(self, wanted: Columns) -> pa.Table:
        """The wanted columns; whole numbers become names where names are wanted."""
        columns = {name: self._table.column(name) for name in dict.fromkeys(_chosen(wanted))}
        return pa.table(
            {
                name: _as_names(column, self.name, name) if name in wanted.categorical else column
                for name, column in columns.items()
            }
        )

    def table(self) -> pa.Table:
        """All of it."""
        return self._table


def _chosen(wanted: Columns) -> list[str]:
    """The columns to read: id, names, label, amounts."""
    assert wanted.features is not None
    named = [wanted.id, *wanted.categorical, *([] if wanted.label is None else [wanted.label])]
    return [*named, *(name for name in wanted.features if name not in wanted.categorical)]


def arrow_of(frame: Any, name: str, columns: Sequence[str] = ()) -> pa.Table:
    """A frame of pandas or Polars, an Arrow table, a mapping of columns or a ``[rows, columns]`` array, as Arrow table.

    Args:
        name: what messages call it.
        columns: the names of an array's columns; x0, x1, ... by default.
    """
    try:
        if isinstance(frame, pa.Table):
            table = frame
        elif type(frame).__module__.partition(".")[0] == "pandas":
            table = pa.Table.from_pandas(frame, preserve_index=False)
        elif isinstance(frame, Mapping) or hasattr(frame, "__arrow_c_stream__"):
            table = pa.table(frame)
        else:
            table = _of_array(np.asarray(frame), columns)
    except (pa.ArrowException, TypeError, ValueError, AttributeError) as error:
        raise TableError([f"{name}: {type(frame).__name__} is not a table: {error}"]) from None
    twice = [column for column in table.column_names if table.column_names.count(column) > 1]
    if twice:
        raise TableError([f"{name}: column '{twice[0]}' is there twice: rename one"])
    return pa.table({column: _plain(table.column(column), name, column) for column in table.column_names})


def _of_array(array: Any, columns: Sequence[str]) -> pa.Table:
    if array.ndim < 2:
        raise ValueError(f"an array of shape {array.shape} is not [rows, columns]; try array.reshape(-1, 1)")
    flat = array.reshape(len(array), -1)
    names = columns or [f"x{place}" for place in range(flat.shape[1])]
    if len(names) != flat.shape[1]:
        raise ValueError(
            f"it has {counted(flat.shape[1], 'column')}, and there should be {len(names)}: {', '.join(names[:5])}, ..."
        )
    return pa.table({name: pa.array(flat[:, place]) for place, name in enumerate(names)})


def _plain(column: pa.ChunkedArray, name: str, title: str) -> pa.ChunkedArray:
    """A column of numbers, truths, dates or texts, or of categories that are texts; refuses lists and the like."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        # Arrow cannot cast all kinds of them at once.
        chunks = [
            pa.DictionaryArray.from_arrays(chunk.indices.cast(pa.int32()), chunk.dictionary.cast(pa.string()))
            for chunk in column.chunks
        ]
        return pa.chunked_array(chunks, pa.dictionary(pa.int32(), pa.string()))
    if pa.types.is_null(kind):
        return column.cast(pa.float64())
    if pa.types.is_string_view(kind) or pa.types.is_large_string(kind):
        return column.cast(pa.string())
    if pa.types.is_decimal(kind):
        return column.cast(pa.float64())
    plain = (pa.types.is_string, pa.types.is_boolean, pa.types.is_date, pa.types.is_timestamp)
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or any(is_so(kind) for is_so in plain)):
        raise TableError([f"{name}, column '{title}': is of type {kind}, not numbers, dates or texts"])
    return column


def named_columns(table: pa.Table, dialect: Dialect) -> set[str]:
    """The columns whose values are names.

    A categorical column holds names, whatever they look like. Texts are read as those of a CSV file: they are amounts
    if they are numbers, dates, or true and false.
    """
    return {
        field.name
        for field in table.schema
        if pa.types.is_dictionary(field.type)
        or (pa.types.is_string(field.type) and holds_names(table.column(field.name), dialect))
    }


def _as_names(column: pa.ChunkedArray, name: str, title: str) -> pa.ChunkedArray:
    """A column as names; whole numbers are names that look like numbers, other amounts are not names."""
    if not pa.types.is_floating(column.type):
        return column
    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid:
        known = pc.drop_null(column)
        if pc.all(pc.is_nan(known)).as_py():
            return pc.if_else(pc.is_nan(column), None, column).cast(pa.string())
        whole = pc.if_else(pc.is_nan(column), None, column)
        try:
            return whole.cast(pa.int64())
        except pa.ArrowInvalid:
            odd = next(value for value in pc.drop_null(whole).to_pylist() if value != int(value))
            raise TableError([f"{name}, column '{title}': holds amounts such as {odd}, not names"]) from None
