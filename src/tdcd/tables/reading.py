"""Tables from CSV and Parquet files, streamed: memory stays below twice that of the columns as float32."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tdcd.tables.diagnosis import diagnose, is_unicode, unclosed_quote
from tdcd.tables.errors import TableError
from tdcd.tables.rows import BLANKS, Category, Column, Columns, RawRows

BLOCK_BYTES = 1 << 19
"""How much of a CSV file is parsed at a time."""
BATCH_ROWS = 1 << 15
"""How many rows of a Parquet file are decoded at a time."""


class _Unfit(Exception):  # noqa: N818
    """Something in the file is not as it must be; the diagnosis finds out where."""


class _NamedLabels(Exception):  # noqa: N818
    """The labels are not numbers."""


def read_rows(path: Path, columns: Columns) -> RawRows:
    """The rows of a CSV or Parquet file.

    Everything that is wrong with the file is reported at once, in a :class:`TableError`. Blank are empty cells and
    ``NA``, ``N/A``, ``NaN`` and ``null``.
    """
    wanted = columns.among(path, read_header(path, columns.id))
    try:
        try:
            rows = _stream(path, wanted, named_labels=False)
        except _NamedLabels:
            rows = _stream(path, wanted, named_labels=True)
    except (_Unfit, pa.ArrowException) as error:
        raise diagnose(path, wanted, str(error)) from None
    if _repeat(rows.ids) or not len(rows) or (not is_parquet(path) and unclosed_quote(path)):
        raise diagnose(path, wanted, "ids repeat")
    return rows


def _repeat(ids: Sequence[str]) -> bool:
    """Whether an id is there twice. A set of all would take more memory than the ids."""
    hashes = np.fromiter(map(hash, ids), np.int64, len(ids))
    hashes.sort()
    return bool((hashes[1:] == hashes[:-1]).any()) and len(set(ids)) < len(ids)


def is_parquet(path: Path) -> bool:
    """Whether the file's name says Parquet; one that says neither that nor CSV is refused."""
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise TableError([f"{path}: the name of a table must end in .csv or .parquet"])
    return path.suffix.lower() == ".parquet"


def read_header(path: Path, id_column: str | None = None) -> list[str]:
    """The names of the columns; refuses a file that cannot be read, or a Parquet file whose ids are no ids."""
    try:
        if not is_parquet(path):
            return _csv_header(path)
        schema = pq.read_schema(path)
    except FileNotFoundError:
        raise TableError([f"{path}: there is no such file"]) from None
    except OSError as error:
        raise TableError([f"{path}: cannot be read: {error.strerror or error}"]) from None
    except (csv.Error, pa.ArrowInvalid) as error:
        raise TableError([f"{path}: is damaged: {error}"]) from None
    if id_column in schema.names:
        kind = schema.field(id_column).type
        if pa.types.is_floating(kind):
            raise TableError([f"{path}, column '{id_column}': ids must be whole numbers or text, not {kind}"])
    return list(schema.names)


def _csv_header(path: Path) -> list[str]:
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        header = next(csv.reader(file), [])
    if not header:
        raise TableError([f"{path}: is empty: it needs a header line with the columns' names, and rows"])
    if not is_unicode("".join(header)):
        raise TableError([f"{path}, line 1: is not UTF-8: save the file in that encoding"])
    return header


def _stream(path: Path, wanted: Columns, *, named_labels: bool) -> RawRows:
    assert wanted.features is not None
    ids: list[str] = []
    names = {name: _Names() for name in wanted.categorical}
    amounts = {name: _Amounts(np.float32) for name in wanted.features if name not in names}
    labels = _Texts() if named_labels else _Amounts(np.float64)
    for batch in _batches(path, wanted):
        ids += _texts(batch.column(wanted.id)).to_pylist()
        for name, column in names.items():
            column.extend(batch.column(name))
        for name, amount in amounts.items():
            amount.extend(as_numbers(batch.column(name)))
        if wanted.label is not None:
            labels.extend(batch.column(wanted.label) if named_labels else _label_numbers(batch.column(wanted.label)))
    blank = [column.blank for column in names.values()] + [amount.blank for amount in amounts.values()]
    if not wanted.blanks and any(blank):
        raise _Unfit("blank cells")
    if labels.blank or any(not text.strip() for text in ids):
        raise _Unfit("blank ids or labels")
    features: dict[str, Column] = {
        name: names[name].column() if name in names else amounts[name].column() for name in wanted.features
    }
    return RawRows(str(path), ids, features, None if wanted.label is None else labels.column())


def _batches(path: Path, wanted: Columns) -> Iterator[pa.RecordBatch]:
    """The wanted columns of the file, some rows at a time: in a CSV file, amounts as numbers and the rest as text."""
    assert wanted.features is not None
    texts = [wanted.id, *wanted.categorical, *([] if wanted.label is None else [wanted.label])]
    columns = [*texts, *(name for name in wanted.features if name not in wanted.categorical)]
    if is_parquet(path):
        yield from pq.ParquetFile(path).iter_batches(BATCH_ROWS, columns=columns)
        return
    types = {name: pa.string() if name in texts else pa.float64() for name in columns}
    with pcsv.open_csv(
        path,
        pcsv.ReadOptions(block_size=BLOCK_BYTES),
        pcsv.ParseOptions(newlines_in_values=True),
        pcsv.ConvertOptions(column_types=types, include_columns=columns, null_values=BLANKS),
    ) as reader:
        yield from reader


def _texts(column: pa.Array) -> pa.Array:
    return pc.fill_null(pc.cast(column, pa.string()), "")


def as_numbers(column: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    """The column as float64, NaN where blank."""
    if pa.types.is_string(column.type) or pa.types.is_dictionary(column.type):
        column = _texts(column)
        column = pc.if_else(pc.is_in(column, pa.array(BLANKS)), None, column)
    if pa.types.is_boolean(column.type):
        column = pc.cast(column, pa.int8())
    return np.asarray(pc.cast(column, pa.float64(), safe=False).to_numpy(zero_copy_only=False))


def _label_numbers(column: pa.Array) -> NDArray[Any]:
    try:
        return as_numbers(column)
    except pa.ArrowException:
        raise _NamedLabels from None


class _Amounts:
    """A column of numbers that grows in place: joining pieces at the end would need twice the memory."""

    def __init__(self, dtype: type[np.floating[Any]]) -> None:
        self._dtype, self._bytes, self.blank = dtype, bytearray(), False

    def extend(self, numbers: NDArray[Any]) -> None:
        with np.errstate(over="ignore"):
            part = numbers.astype(self._dtype)
        if np.isinf(part).any():
            raise _Unfit("infinite numbers")
        self.blank = self.blank or bool(np.isnan(part).any())
        self._bytes += part.tobytes()

    def column(self) -> Any:
        return np.frombuffer(self._bytes, self._dtype)


class _Texts:
    """A column of texts that grows."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    @property
    def blank(self) -> bool:
        return any(text in BLANKS for text in self._texts)

    def extend(self, column: pa.Array) -> None:
        self._texts += _texts(column).to_pylist()

    def column(self) -> list[str]:
        return self._texts


class _Names:
    """A column of names that grows; levels are numbered as they come."""

    def __init__(self) -> None:
        self._codes, self._levels, self.blank = bytearray(), dict.fromkeys(BLANKS, -1), False

    def extend(self, column: pa.Array) -> None:
        encoded = _texts(column).dictionary_encode()
        codes = np.array([self._code(level) for level in encoded.dictionary.to_pylist()], np.int32)
        part = codes[encoded.indices.to_numpy()]
        self.blank = self.blank or bool((part < 0).any())
        self._codes += part.tobytes()

    def _code(self, level: str) -> int:
        return self._levels.setdefault(level, len(self._levels) - len(BLANKS))

    def column(self) -> Category:
        return Category(np.frombuffer(self._codes, np.int32), tuple(self._levels)[len(BLANKS) :])
