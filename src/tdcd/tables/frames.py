"""Rows from data frames and arrays in memory, as they would be read from a file."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tdcd.core.words import counted
from tdcd.tables.cells import as_amounts, as_texts, holds_names, kind_of
from tdcd.tables.diagnosis import LARGEST
from tdcd.tables.dialect import Dialect
from tdcd.tables.errors import TableError
from tdcd.tables.growing import NamedLabels, Unfit
from tdcd.tables.loader import collect, repeat, with_weights
from tdcd.tables.rows import PLACE, Columns, RawRows

NOT_AN_AMOUNT = (
    ', as most of the column is: correct it; or give data={"blank": [...]} if it stands for a blank; or make the '
    "column categorical if it holds names"
)


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
            pa.DictionaryArray.from_arrays(one.indices.cast(pa.int32()), one.dictionary.cast(pa.string()))
            for one in column.chunks
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


def frame_rows(table: pa.Table, name: str, columns: Columns) -> RawRows:
    """The rows of an Arrow table of :func:`arrow_of`.

    Args:
        columns: which to read; by default all, and those of :func:`named_columns` are names. With the id column
            :data:`PLACE`, rows are known by their places.
    """
    if columns.id == PLACE:
        table = table.append_column(PLACE, pa.array([str(place) for place in range(len(table))], pa.string()))
    wanted = columns.among(name, table.column_names)
    assert wanted.features is not None
    if columns.features is None:
        names = named_columns(table.select(wanted.features), wanted.dialect) | {*wanted.categorical}
        wanted = replace(wanted, categorical=tuple(one for one in wanted.features if one in names))
    if wanted.weight is not None:
        # Read as one more column of amounts, and taken out again.
        wanted = replace(wanted, features=(*(wanted.features or ()), wanted.weight))
    features: tuple[str, ...] = wanted.features or ()
    label = [] if wanted.label is None else [wanted.label]
    chosen = pa.table(
        {
            one: _as_names(table.column(one), name, one) if one in wanted.categorical else table.column(one)
            for one in dict.fromkeys([wanted.id, *label, *features])
        }
    )
    if pa.types.is_floating(chosen.column(wanted.id).type):
        raise TableError([f"{name}, column '{wanted.id}': ids must be whole numbers or text, not amounts"])
    if not len(chosen):
        raise TableError([f"{name}: has no rows"])
    try:
        rows = _collect(name, chosen, wanted)
    except (Unfit, pa.ArrowException) as error:
        advice = NOT_AN_AMOUNT if columns.features is None else ""
        raise TableError([*_problems(chosen, name, wanted, advice)] or [f"{name}: {error}"]) from None
    rows = rows if wanted.weight is None else with_weights(rows, wanted.weight)
    if repeat(rows.ids):
        twice = next(one for one in rows.ids if rows.ids.count(one) > 1)
        raise TableError([f"{name}, column '{wanted.id}': {twice!r} is there twice: an id stands for one sample"])
    return rows


def _collect(name: str, chosen: pa.Table, wanted: Columns) -> RawRows:
    try:
        return collect(name, chosen.to_batches(), wanted, named_labels=False, expected=len(chosen))
    except NamedLabels:
        return collect(name, chosen.to_batches(), wanted, named_labels=True, expected=len(chosen))


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


def _problems(table: pa.Table, name: str, wanted: Columns, advice: str) -> Iterator[str]:
    """What is wrong with the columns of a frame, one sentence each.

    Args:
        advice: what to do about cells that are no amounts.
    """
    assert wanted.features is not None
    dialect = wanted.dialect
    for title in [wanted.id, *([] if wanted.label is None else [wanted.label])]:
        blank = [
            place for place, text in enumerate(as_texts(table.column(title)).to_pylist()) if _is_blank(text, dialect)
        ]
        if blank:
            yield f"{name}, column '{title}': row {blank[0]} is blank"
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


def _is_blank(text: str, dialect: Dialect) -> bool:
    return text.strip() in dialect.blank


def _odd(column: pa.ChunkedArray, dialect: Dialect) -> str:
    """The first cell that is no amount, or not of the kind that the first amount is."""
    texts = [text for text in as_texts(column).to_pylist() if not _is_blank(text, dialect)]
    kinds = [kind_of(text, dialect) for text in texts]
    expected = next((kind for kind in kinds if kind is not None), "number")
    return next((text for text, kind in zip(texts, kinds, strict=True) if kind != expected), "texts")
