"""A CSV file in pieces that end where a line does, as long as no cell is in quotes: Arrow parses a piece on all cores.

In a cell in quotes a line may end without the row ending. From the first such cell on, therefore, the file is parsed
as a stream, which Arrow does on one core.
"""

import csv
import io
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pcsv

from tdcd.tables.cells import kind_of
from tdcd.tables.diagnosis import unclosed_quote
from tdcd.tables.dialect import Dialect, arrow_stream

BLOCK_BYTES = 1 << 20
"""How much is parsed at a time, on one core: each column of a block costs some calls, however few rows it has."""
PIECE_BYTES = 1 << 23
"""How much is read at a time."""
BEGINNING_BYTES = 1 << 16
"""How much is read to see how long lines are."""
FIRST_ROWS = 8
"""How many are looked at to see what their cells are."""
_SOMETHING = re.compile(rb"\S")


def parsed(
    path: Path, header: Sequence[str], dialect: Dialect, convert: pcsv.ConvertOptions
) -> Iterator[pa.RecordBatch]:
    """The rows of a CSV file, some at a time.

    Raises:
        pa.ArrowInvalid: a cell is not what it should be, or a quote is never closed.
    """
    if path.suffix.lower() == ".gz" or dialect.encoding != "utf-8":
        return _stream(path, arrow_stream(path), dialect, convert)
    return _pieces(path, header, dialect, convert)


def expected_rows(path: Path, num_columns: int) -> int:
    """About how many rows a CSV file has, by the lines at its beginning; 0 if it is compressed."""
    if path.suffix.lower() == ".gz":
        return 0
    with path.open("rb") as file:
        beginning, size = file.read(BEGINNING_BYTES), os.fstat(file.fileno()).st_size
    lines = beginning.count(b"\n") * size // max(1, len(beginning))
    # A little more, for shorter lines later; but a cell takes a byte at least.
    return min(lines + lines // 32, size // max(1, num_columns))


def other_than_numbers(path: Path, names: Sequence[str], dialect: Dialect) -> frozenset[str]:
    """The columns of a CSV file that begin with true, false or a date.

    Told in advance, they need not be found by reading the file in vain; what comes later, this does not see.
    """
    assert dialect.delimiter is not None
    try:
        with dialect.open(path) as file:
            rows = [*islice(csv.DictReader(file, delimiter=dialect.delimiter), FIRST_ROWS)]
    except (csv.Error, OSError, EOFError, zlib.error):
        return frozenset()
    found = set()
    for name in names:
        cells = [cell.strip() for row in rows if (cell := row.get(name))]
        known = [cell for cell in cells if cell not in dialect.blank]
        if known and kind_of(known[0], dialect) in ("truth", "date"):
            found.add(name)
    return frozenset(found)


def _stream(
    path: Path, file: Any, dialect: Dialect, convert: pcsv.ConvertOptions, names: Sequence[str] = ()
) -> Iterator[pa.RecordBatch]:
    """A file from here to its end; with ``names``, there is no header."""
    read = pcsv.ReadOptions(block_size=BLOCK_BYTES, encoding=dialect.arrow_encoding, column_names=[*names])
    parse = pcsv.ParseOptions(delimiter=dialect.delimiter, newlines_in_values=True)
    with pcsv.open_csv(file, read, parse, convert) as reader:
        yield from reader
    if unclosed_quote(path, dialect) is not None:
        raise pa.ArrowInvalid("a quote is never closed")


def _pieces(
    path: Path, header: Sequence[str], dialect: Dialect, convert: pcsv.ConvertOptions
) -> Iterator[pa.RecordBatch]:
    read = pcsv.ReadOptions(block_size=BLOCK_BYTES, column_names=[*header])
    parse = pcsv.ParseOptions(delimiter=dialect.delimiter)
    with path.open("rb") as file:
        if not _is_header(file.readline(), header, dialect):
            yield from _stream(path, arrow_stream(path), dialect, convert)
            return
        for room, end in _whole_lines(file):
            if room.find(b'"', 0, end) >= 0:
                file.seek(-end, 1)
                yield from _stream(path, file, dialect, convert, header)
                return
            piece = memoryview(room)[:end]
            if _SOMETHING.search(piece):
                table = pcsv.read_csv(pa.BufferReader(piece), read, parse, convert)
                # As one batch: each column of a batch costs some calls.
                yield from table.combine_chunks().to_batches()


def _is_header(line: bytes, header: Sequence[str], dialect: Dialect) -> bool:
    """Whether the first line is all of the header: a name in quotes may have more lines."""
    assert dialect.delimiter is not None
    text = line.decode("utf-8-sig", "replace")
    try:
        return next(csv.reader([text], delimiter=dialect.delimiter, strict=True), []) == [*header]
    except csv.Error:
        return False


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
