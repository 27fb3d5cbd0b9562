"""Finds everything that is wrong with a table, line by line. Slow, and only called when something is."""

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from tdcd.tables.errors import SHOWN, TableError
from tdcd.tables.rows import BLANKS, Columns

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_NOT_FINITE = re.compile(r"[+-]?(inf|infinity|nan)", re.IGNORECASE)
_LARGEST = float(np.finfo(np.float32).max)


def diagnose(path: Path, wanted: Columns, reason: str) -> TableError:
    """The error that lists what is wrong with the file; ``reason`` if nothing else is found.

    Args:
        wanted: with every feature by name.
    """
    found = _Found(path)
    seen: dict[str, int] = {}
    for line, fields in _records(path, found):
        _check(line, fields, wanted, seen, found)
    if path.suffix.lower() == ".csv":
        opened = unclosed_quote(path)
        if opened is not None:
            found.add(opened, None, "a quote is never closed, so that all that follows is one field: close it")
    if not found.num_records:
        found.add(None, None, "has a header but no rows")
    return found.error(reason)


class _Found:
    """Problems by column, the first of each in words."""

    def __init__(self, path: Path) -> None:
        self._path, self.unit = path, "row" if path.suffix.lower() == ".parquet" else "line"
        self._problems: dict[str | None, list[tuple[int, int, str]]] = {}
        self._counts: dict[str | None, int] = {}
        self._texts: dict[str, int] = {}
        self.num_records = 0

    def add(self, line: int | None, column: str | None, what: str) -> None:
        self._counts[column] = self._counts.get(column, 0) + 1
        kept = self._problems.setdefault(column, [])
        if len(kept) < SHOWN:
            place = [str(self._path)]
            place += [] if line is None else [f"{self.unit} {line}"]
            place += [] if column is None else [f"column '{column}'"]
            kept.append((line or 0, sum(self._counts.values()), f"{', '.join(place)}: {what}"))

    def add_text(self, line: int, column: str, text: str) -> None:
        self._texts[column] = self._texts.get(column, 0) + 1
        self.add(line, column, f"{text!r} is not a number: correct it, or list the column under categorical")

    def error(self, reason: str) -> TableError:
        """All that was found; a column without a single number counts once."""
        for column, count in self._texts.items():
            if count == self._counts[column] == self.num_records > 1:
                *place, first = self._problems[column][0]
                self._problems[column] = [(place[0], place[1], f"{first} (none of its {count} values is a number)")]
                self._counts[column] = 1
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
        if not is_unicode(text):
            found.add(line, name, "is not UTF-8: save the file in that encoding")
        elif name == wanted.id:
            first = seen.setdefault(text, line)
            if not text.strip():
                found.add(line, name, "the id is blank: every row needs one")
            elif first != line:
                found.add(line, name, f"the id {text!r} is on {found.unit} {first} already: keep one of the two rows")
        elif name == wanted.label:
            if _is_blank(text):
                found.add(line, name, "the label is blank: fill it in, or leave the row out")
            elif _NOT_FINITE.fullmatch(text):
                found.add(line, name, f"the label {text!r} is not finite: correct it, or leave the row out")
        elif _is_blank(text):
            if not wanted.blanks:
                found.add(line, name, "is blank: fill it in, leave the row out, or set data.missing = 'mean'")
        elif name not in wanted.categorical:
            _check_number(line, name, text, found)


def is_unicode(text: str) -> bool:
    """Whether a text that was decoded with ``surrogateescape`` was UTF-8 throughout."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def unclosed_quote(path: Path) -> int | None:
    """The line of a CSV file on which the record begins that its last quote leaves open, if it does."""
    with path.open("rb") as file:
        quotes = sum(block.count(b'"') for block in iter(lambda: file.read(1 << 20), b""))
    if quotes % 2 == 0:
        return None
    line = 1
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as text:
        reader = csv.reader(text, strict=True)
        try:
            for _ in reader:
                line = reader.line_num + 1
        except csv.Error as error:
            return line if "unexpected end" in str(error) else None
    return None


def _is_blank(text: str) -> bool:
    return text in BLANKS or text.strip().lower() in ("nan", "-nan", "+nan")


def _check_number(line: int, name: str, text: str, found: _Found) -> None:
    stripped = text.strip()
    if _NOT_FINITE.fullmatch(stripped):
        found.add(line, name, f"{text!r} is not finite: leave the cell empty if the value is not known")
    elif not _NUMBER.fullmatch(stripped):
        found.add_text(line, name, text)
    elif abs(float(stripped)) > _LARGEST:
        found.add(line, name, f"{text!r} is too large for single precision: give the column in another unit")


def _records(path: Path, found: _Found) -> Iterator[tuple[int, dict[str, str]]]:
    """The records as texts by column, each with the line on which it begins, or its row in a Parquet file."""
    if path.suffix.lower() == ".parquet":
        line = 0
        for batch in pq.ParquetFile(path).iter_batches(4096):
            for record in batch.to_pylist():
                line += 1
                yield line, {name: _text(value) for name, value in record.items()}
        return
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        reader = csv.reader(file)
        header = next(reader)
        line = reader.line_num + 1
        try:
            for fields in reader:
                if fields and len(fields) != len(header):
                    found.num_records += 1
                    advice = "quote fields that hold commas, and close every quote"
                    found.add(line, None, f"has {len(fields)} fields, but the header has {len(header)}: {advice}")
                elif fields:
                    yield line, dict(zip(header, fields, strict=True))
                line = reader.line_num + 1
        except csv.Error as error:
            found.add(line, None, f"cannot be read: {error}")


def _text(value: Any) -> str:
    return "" if value is None else str(value)
