"""Finds everything that is wrong with a table, line by line. Slow, and only called when something is."""

import csv
import json
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from tdcd.tables.cells import Kind, kind_of
from tdcd.tables.dialect import Dialect, is_decoded, is_parquet, open_bytes
from tdcd.tables.errors import TableError
from tdcd.tables.rows import Columns

LARGEST = float(np.finfo(np.float32).max)
"""Larger amounts than this are refused: their squares could not be summed, and float32 could not hold them."""
PER_COLUMN = 5
"""How many problems of one column are put in words, to leave room for those of others."""
_NOT_FINITE = re.compile(r"[+-]?(inf|infinity|nan)", re.IGNORECASE)
_COMMA = re.compile(r"[+-]?\d+,\d+", re.ASCII)
_DATE_LIKE = re.compile(r"\d{1,4}[./-]\d{1,2}[./-]\d{1,4}( .*)?", re.ASCII)
_MARKER = re.compile(r"[^\w\s]+|#?n/?a|none|unknown|missing", re.IGNORECASE)


def diagnose(path: Path, wanted: Columns, reason: str) -> TableError:
    """The error that lists what is wrong with the file; ``reason`` if nothing else is found.

    Args:
        wanted: with every feature by name.
    """
    found = _Found(path)
    seen: dict[str, int] = {}
    for line, fields in _records(path, wanted.dialect, found):
        _check(line, fields, wanted, seen, found)
    if not is_parquet(path):
        opened = unclosed_quote(path, wanted.dialect)
        if opened is not None:
            found.add(opened, None, "a quote is never closed, so that all that follows is one field: close it")
    if not found.num_records:
        found.add(None, None, "has a header but no rows")
    if found.undecoded:
        # Once for the whole file: its encoding is one mistake, in however many cells it shows.
        found.add(*found.undecoded[0], wanted.dialect.not_decoded(len(found.undecoded)))
    return found.error(reason)


class _Found:
    """Problems by column, the first of each in words."""

    def __init__(self, path: Path) -> None:
        self._path, self.unit = path, "row" if is_parquet(path) else "line"
        self._problems: dict[str | None, list[tuple[int, int, str]]] = {}
        self._counts: dict[str | None, int] = {}
        self._texts: dict[str, int] = {}
        self.kinds: dict[str, Kind] = {}
        """What the first cell that is an amount is, by column: all others must be the same."""
        self.undecoded: list[tuple[int, str]] = []
        """Line and column of the cells that are not in the file's encoding."""
        self.num_records = 0

    def add(self, line: int | None, column: str | None, what: str) -> None:
        self._counts[column] = self._counts.get(column, 0) + 1
        kept = self._problems.setdefault(column, [])
        if len(kept) < PER_COLUMN:
            place = [str(self._path)]
            place += [] if line is None else [f"{self.unit} {line}"]
            place += [] if column is None else [f"column '{column}'"]
            kept.append((line or 0, sum(self._counts.values()), f"{', '.join(place)}: {what}"))

    def add_text(self, line: int, column: str, what: str) -> None:
        self._texts[column] = self._texts.get(column, 0) + 1
        self.add(line, column, what)

    def error(self, reason: str) -> TableError:
        """All that was found; a column without a single number counts once."""
        for column, count in self._texts.items():
            if count == self._counts[column] == self.num_records > 1:
                *place, first = self._problems[column][0]
                self._problems[column] = [(place[0], place[1], f"{first} (none of its {count} values is a number)")]
                self._counts[column] = 1
        for name, kept in self._problems.items():
            if self._counts[name] > len(kept):
                *place, last = kept[-1]
                more = f"{self._counts[name] - len(kept)} more {'lines' if name is None else 'in this column'}"
                kept[-1] = (place[0], place[1], f"{last} (and {more})")
        if not self._problems:
            self.add(None, None, f"cannot be read: {reason}")
        ordered = sorted(item for items in self._problems.values() for item in items)
        return TableError([text for _, _, text in ordered], sum(self._counts.values()))


def _check(line: int, fields: dict[str, str], wanted: Columns, seen: dict[str, int], found: _Found) -> None:
    """Look at one record."""
    assert wanted.features is not None
    found.num_records += 1
    for name in (wanted.id, *([] if wanted.label is None else [wanted.label]), *wanted.features):
        text = fields[name]
        if not is_decoded(text):
            found.undecoded.append((line, name))
        elif name == wanted.id:
            first = seen.setdefault(text, line)
            if not text.strip():
                found.add(line, name, "the id is blank: every row needs one")
            elif first != line:
                found.add(line, name, f"the id {text!r} is on {found.unit} {first} already: keep one of the two rows")
        elif name == wanted.label:
            if _is_blank(text, wanted.dialect):
                found.add(line, name, "the label is blank: fill it in, or leave the row out")
            elif _NOT_FINITE.fullmatch(text):
                found.add(line, name, f"the label {text!r} is not finite: correct it, or leave the row out")
        elif _is_blank(text, wanted.dialect):
            if not wanted.blanks:
                found.add(line, name, "is blank: fill it in, leave the row out, or set data.missing = 'mean'")
        elif name not in wanted.categorical:
            _check_amount(line, name, text, wanted.dialect, found)


def unclosed_quote(path: Path, dialect: Dialect) -> int | None:
    """The line on which the record of a CSV file begins whose quote is never closed, if there is one."""
    with open_bytes(path) as file:
        quotes = sum(block.count(b'"') for block in iter(lambda: file.read(1 << 20), b""))
    if quotes % 2 == 0:
        return None
    line = 1
    with dialect.open(path) as text:
        reader = csv.reader(text, delimiter=dialect.delimiter or ",", strict=True)
        try:
            for _ in reader:
                line = reader.line_num + 1
        except csv.Error as error:
            return line if "unexpected end" in str(error) else None
    return None


def _is_blank(text: str, dialect: Dialect) -> bool:
    if text in dialect.blank or text.strip().lower() in ("nan", "-nan", "+nan"):
        return True
    return kind_of(text, dialect) == "number" and dialect.number(text) in dialect.blank_numbers


def _check_amount(line: int, name: str, text: str, dialect: Dialect, found: _Found) -> None:
    stripped = text.strip()
    if _NOT_FINITE.fullmatch(stripped):
        found.add(line, name, f"{text!r} is not finite: leave the cell empty if the value is not known")
        return
    kind = kind_of(stripped, dialect)
    if kind is not None:
        found.kinds.setdefault(name, kind)
    expected = found.kinds.get(name, "number")
    if kind != expected:
        found.add_text(line, name, f"{text!r} {_advice(stripped, expected, dialect)}")
    elif kind == "number" and abs(dialect.number(stripped)) > LARGEST:
        found.add(line, name, f"{text!r} is too large: amounts go up to 3.4e38, so give the column in another unit")


def _advice(text: str, expected: Kind, dialect: Dialect) -> str:
    """What is wrong with a cell that is not what its column holds, and what to do."""
    words = {"number": "is not a number", "truth": "is neither true nor false", "date": "is not a date"}[expected]
    if _MARKER.fullmatch(text):
        return f"{words}: if it stands for a blank, set data.blank = [{json.dumps(text, ensure_ascii=False)}]"
    if expected == "number" and dialect.decimal == "." and _COMMA.fullmatch(text):
        return f'{words}: write it with a point, or set data.decimal = "," if all tables have decimal commas'
    if expected == "number" and dialect.decimal == "," and "." in text:
        return f'{words}: there can be no point in it, since data.decimal = ","'
    if expected == "date" or _DATE_LIKE.fullmatch(text):
        return f"{words}: write dates as 2024-12-31, or list the column under categorical"
    return f"{words}: correct it, or list the column under categorical"


def _records(path: Path, dialect: Dialect, found: _Found) -> Iterator[tuple[int, dict[str, str]]]:
    """The records as texts by column, each with the line on which it begins, or its row in a Parquet file."""
    if is_parquet(path):
        line = 0
        for chunk in pq.ParquetFile(path).iter_batches(4096):
            for record in chunk.to_pylist():
                line += 1
                yield line, {name: _text(value, dialect) for name, value in record.items()}
        return
    mark = dialect.delimiter or ","
    with dialect.open(path) as file:
        reader = csv.reader(file, delimiter=mark)
        header = next(reader)
        line = reader.line_num + 1
        try:
            for fields in reader:
                if fields and len(fields) != len(header):
                    found.num_records += 1
                    advice = f"quote fields that hold {'commas' if mark == ',' else repr(mark)}, and close every quote"
                    found.add(line, None, f"has {len(fields)} fields, but the header has {len(header)}: {advice}")
                elif fields:
                    yield line, dict(zip(header, fields, strict=True))
                line = reader.line_num + 1
        except csv.Error as error:
            found.add(line, None, f"cannot be read: {error}")


def _text(value: Any, dialect: Dialect) -> str:
    if isinstance(value, float | Decimal):
        return str(value).replace(".", dialect.decimal)
    return "" if value is None else str(value)
