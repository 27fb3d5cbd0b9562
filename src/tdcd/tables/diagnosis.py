"""Finds everything that is wrong with a table, line by line. Slow, and only called when something is."""

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tdcd.tables.cells import LARGEST, CellKind, as_amounts, as_texts, kind_of
from tdcd.tables.dialect import Dialect, is_decoded
from tdcd.tables.errors import TableError
from tdcd.tables.rows import Columns
from tdcd.tables.source import CsvFile, Frame, ParquetFile, Source

PER_COLUMN = 5
"""How many problems of one column are put in words, to leave room for those of others."""
NOT_AN_AMOUNT = (
    ', as most of the column is: correct it; or give data={"blank": [...]} if it stands for a blank; or make the '
    "column categorical if it holds names"
)
"""What to do about a cell of a frame that is no amount."""
_NOT_FINITE = re.compile(r"[+-]?(inf|infinity|nan)", re.IGNORECASE)
_COMMA = re.compile(r"[+-]?\d+,\d+", re.ASCII)
_DATE_LIKE = re.compile(r"\d{1,4}[./-]\d{1,2}[./-]\d{1,4}( .*)?", re.ASCII)
_MARKER = re.compile(r"[^\w\s]+|#?n/?a|none|unknown|missing", re.IGNORECASE)


def diagnose(table: Source, wanted: Columns, reason: str, *, is_named: bool = True) -> TableError:
    """The error that lists what is wrong with a table; ``reason`` if nothing else is found.

    Args:
        wanted: with every feature by name.
        is_named: whether the features were named by the caller.
    """
    if isinstance(table, Frame):
        return TableError([*_of_frame(table, wanted, "" if is_named else NOT_AN_AMOUNT)] or [f"{table.name}: {reason}"])
    assert isinstance(table, CsvFile | ParquetFile)
    problems = _Problems(table.name, table.unit)
    seen: dict[str, tuple[int, str]] = {}
    for line, fields in _records(table, problems):
        _check(line, fields, wanted, seen, problems)
    if isinstance(table, CsvFile):
        opened = table.unclosed_quote()
        if opened is not None:
            problems.add(opened, None, "a quote is never closed, so that all that follows is one field: close it")
    if not problems.num_records:
        problems.add(None, None, "has a header but no rows")
    if problems.undecoded:
        # Once for the whole file: its encoding is one mistake, in however many cells it shows.
        problems.add(*problems.undecoded[0], wanted.dialect.not_decoded(len(problems.undecoded)))
    return problems.error(reason)


class _Problems:
    """Problems by column, the first of each in words."""

    def __init__(self, name: str, unit: str) -> None:
        self._name, self.unit = name, unit
        self._problems: dict[str | None, list[tuple[int, int, str]]] = {}
        self._counts: dict[str | None, int] = {}
        self._texts: dict[str, int] = {}
        self.kinds: dict[str, CellKind] = {}
        """What the first cell that is an amount is, by column: all others must be the same."""
        self.undecoded: list[tuple[int, str]] = []
        """Line and column of the cells that are not in the file's encoding."""
        self.num_records = 0

    def add(self, line: int | None, column: str | None, what: str) -> None:
        self._counts[column] = self._counts.get(column, 0) + 1
        kept = self._problems.setdefault(column, [])
        if len(kept) < PER_COLUMN:
            place = [self._name]
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


def _check(
    line: int, fields: dict[str, str], wanted: Columns, seen: dict[str, tuple[int, str]], problems: _Problems
) -> None:
    """Look at one record."""
    assert wanted.features is not None
    problems.num_records += 1
    for name in (wanted.id, *([] if wanted.label is None else [wanted.label]), *wanted.features):
        text = fields[name]
        if not is_decoded(text):
            problems.undecoded.append((line, name))
        elif name == wanted.id:
            first, written = seen.setdefault(wanted.dialect.as_ids([text])[0], (line, text))
            if not text.strip():
                problems.add(line, name, "the id is blank: every row needs one")
            elif first != line and not wanted.aggregate:
                where = f"the id {text!r} is on {problems.unit} {first} already"
                where += f", written {written!r} (data.ids = 'plain')" if written != text else ""
                problems.add(line, name, f"{where}: keep one of the two rows{wanted.repeat_advice}")
        elif name == wanted.label:
            if _is_blank(text, wanted.dialect):
                problems.add(line, name, "the label is blank: fill it in, or leave the row out")
            elif _NOT_FINITE.fullmatch(text):
                problems.add(line, name, f"the label {text!r} is not finite: correct it, or leave the row out")
        elif _is_blank(text, wanted.dialect):
            if not wanted.blanks:
                problems.add(line, name, "is blank: fill it in, leave the row out, or set data.missing = 'mean'")
        elif name not in wanted.categorical:
            _check_amount(line, name, text, wanted.dialect, problems)


def _is_blank(text: str, dialect: Dialect) -> bool:
    if text in dialect.blank or text.strip().lower() in ("nan", "-nan", "+nan"):
        return True
    return kind_of(text, dialect) == "number" and dialect.number(text) in dialect.blank_numbers


def _check_amount(line: int, name: str, text: str, dialect: Dialect, problems: _Problems) -> None:
    stripped = text.strip()
    if _NOT_FINITE.fullmatch(stripped):
        problems.add(line, name, f"{text!r} is not finite: leave the cell empty if the value is not known")
        return
    kind = kind_of(stripped, dialect)
    if kind is not None:
        problems.kinds.setdefault(name, kind)
    expected = problems.kinds.get(name, "number")
    if kind != expected:
        problems.add_text(line, name, f"{text!r} {_advice(stripped, expected, dialect)}")
    elif kind == "number" and abs(dialect.number(stripped)) > LARGEST:
        problems.add(line, name, f"{text!r} is too large: amounts go up to 3.4e38, so give the column in another unit")


def _advice(text: str, expected: CellKind, dialect: Dialect) -> str:
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


def _records(table: CsvFile | ParquetFile, problems: _Problems) -> Iterator[tuple[int, dict[str, str]]]:
    """The records as texts by column, each with the line on which it begins, or its row in a Parquet file."""
    dialect = table.dialect
    if isinstance(table, ParquetFile):
        for row, record in enumerate(table.records(), start=1):
            yield row, {name: _text(value, dialect) for name, value in record.items()}
        return
    mark = dialect.delimiter or ","
    with table.text() as file:
        reader = csv.reader(file, delimiter=mark)
        header = next(reader)
        line = reader.line_num + 1
        try:
            for fields in reader:
                if fields and len(fields) != len(header):
                    problems.num_records += 1
                    advice = f"quote fields that hold {'commas' if mark == ',' else repr(mark)}, and close every quote"
                    problems.add(line, None, f"has {len(fields)} fields, but the header has {len(header)}: {advice}")
                elif fields:
                    yield line, dict(zip(header, fields, strict=True))
                line = reader.line_num + 1
        except csv.Error as error:
            problems.add(line, None, f"cannot be read: {error}")


def _text(value: Any, dialect: Dialect) -> str:
    if isinstance(value, float | Decimal):
        return str(value).replace(".", dialect.decimal)
    return "" if value is None else str(value)


def _of_frame(frame: Frame, wanted: Columns, advice: str) -> Iterator[str]:
    """What is wrong with the columns of a frame, one sentence each.

    Args:
        advice: what to do about cells that are no amounts.
    """
    assert wanted.features is not None
    dialect, name, table = wanted.dialect, frame.name, frame.chosen(wanted)
    for title in [wanted.id, *([] if wanted.label is None else [wanted.label])]:
        texts = as_texts(table.column(title)).to_pylist()
        blank = [place for place, text in enumerate(texts) if _stands_for_blank(text, dialect)]
        if blank:
            yield f"{name}, column '{title}': row {blank[0]} is blank"
    ids = dialect.as_ids(as_texts(table.column(wanted.id)).to_pylist())
    twice = None if wanted.aggregate else next((sample for sample, n in Counter(ids).items() if n > 1), None)
    if twice is not None:
        yield (
            f"{name}, column '{wanted.id}': {twice!r} is there twice: an id stands for one sample{wanted.repeat_advice}"
        )
    for title in wanted.features:
        column = table.column(title)
        if title in wanted.categorical:
            blanks = pc.is_in(as_texts(column), pa.array(dialect.blank)).to_numpy()
        else:
            try:
                numbers, _ = as_amounts(column, dialect)
            except pa.ArrowInvalid:
                yield f"{name}, column '{title}': holds {_odd(column, dialect)!r}, which is not an amount{advice}"
                continue
            blanks = np.isnan(numbers)
            large = np.flatnonzero(np.abs(np.where(blanks, 0, numbers)) > LARGEST)
            if len(large):
                yield f"{name}, column '{title}': row {large[0]} is {numbers[large[0]]}, which is too large"
        if not wanted.blanks and blanks.any():
            yield f"{name}, column '{title}': row {int(np.argmax(blanks))} is blank, and data.missing = 'refuse'"


def _stands_for_blank(text: str, dialect: Dialect) -> bool:
    return text.strip() in dialect.blank


def _odd(column: pa.ChunkedArray, dialect: Dialect) -> str:
    """The first cell that is no amount, or not of the kind that the first amount is."""
    texts = [text for text in as_texts(column).to_pylist() if not _stands_for_blank(text, dialect)]
    kinds = [kind_of(text, dialect) for text in texts]
    expected = next((kind for kind in kinds if kind is not None), "number")
    return next((text for text, kind in zip(texts, kinds, strict=True) if kind != expected), "texts")
