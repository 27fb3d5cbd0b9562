"""Cells of amounts: numbers, true and false as 1 and 0, and dates as days since 1970-01-01."""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tdcd.tables.dialect import Dialect

CellKind = Literal["number", "truth", "date"]
KIND_WORDS: Mapping[CellKind, str] = {
    "number": "amount",
    "truth": "true/false, as 1 and 0",
    "date": "date, as days since 1970-01-01",
}
LARGEST = float(np.finfo(np.float32).max)
"""Larger amounts than this are refused: their squares could not be summed, and float32 could not hold them."""
DAY_US = 86_400_000_000
_MOMENTS = [pa.timestamp(unit, zone) for unit in ("us", "ns") for zone in (None, "UTC")]
_TRUTHS = ("true", "false")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d:?\d\d)?)?", re.ASCII)


def as_texts(column: pa.Array | pa.ChunkedArray) -> Any:
    """The column as texts, empty where nothing is."""
    return pc.fill_null(pc.cast(column, pa.string()), "")


def as_numbers(column: pa.Array | pa.ChunkedArray, dialect: Dialect) -> NDArray[Any]:
    """The column as float64, NaN where blank."""
    if _is_text(column.type):
        return _numbers(_known(column, dialect), dialect)
    if pa.types.is_boolean(column.type):
        column = pc.cast(column, pa.int8())
    return _without_blanks(_floats(column), dialect)


def _numbers(texts: Any, dialect: Dialect) -> NDArray[Any]:
    if dialect.decimal != ".":
        if pc.any(pc.match_substring(texts, ".")).as_py():
            raise pa.ArrowInvalid(f"a point, though data.decimal = {dialect.decimal!r}")
        texts = pc.replace_substring(texts, dialect.decimal, ".")
    return _without_blanks(_floats(texts), dialect)


def _without_blanks(numbers: NDArray[Any], dialect: Dialect) -> NDArray[Any]:
    for blank in dialect.blank_numbers:
        numbers = np.where(numbers == blank, np.nan, numbers)
    return numbers


def as_amounts(
    column: pa.Array | pa.ChunkedArray, dialect: Dialect, kind: CellKind | None = None
) -> tuple[NDArray[Any], CellKind | None]:
    """The column as float64, NaN where blank, and what its cells are; None if all are blank.

    Args:
        kind: what they must be, if that is known.
    """
    if not _is_text(column.type):
        return _NATIVE[_native(column.type)](column, dialect), _native(column.type)
    known = _known(column, dialect)
    if known.null_count == len(known):
        return np.full(len(known), np.nan), kind
    # Finding out that no cell is a number takes far longer than reading them.
    kind = kind or kind_of(known.drop_null()[0].as_py(), dialect)
    for candidate in _READERS if kind is None else (kind,):
        try:
            return _READERS[candidate](known, dialect), candidate
        except pa.ArrowInvalid:
            continue
    raise pa.ArrowInvalid("cells that are not amounts")


def kind_of(text: str, dialect: Dialect) -> CellKind | None:
    """What one cell is, if it is an amount at all."""
    text = text.strip()
    if _NUMBER.fullmatch(text if dialect.decimal == "." else text.replace(".", "?").replace(dialect.decimal, ".")):
        return "number"
    if text.lower() in _TRUTHS:
        return "truth"
    if _DATE.fullmatch(text):
        try:
            datetime.fromisoformat(text[:10])
        except ValueError:
            return None
        return "date"
    return None


def holds_names(column: pa.Array | pa.ChunkedArray, dialect: Dialect) -> bool:
    """Whether a column of texts holds names rather than amounts.

    It does if most cells that are not blank are no numbers, and they are not dates, or true and false, either. A few
    that are none in a column of numbers are mistakes.
    """
    known = _known(column, dialect).drop_null()
    mark = re.escape(dialect.decimal)
    numbers = pc.match_substring_regex(known, rf"^[+-]?([0-9]+({mark}[0-9]*)?|{mark}[0-9]+)([eE][+-]?[0-9]+)?$")
    if 2 * (pc.sum(numbers).as_py() or 0) >= len(known):
        return False
    try:
        as_amounts(known, dialect)
    except pa.ArrowInvalid:
        return True
    return False


def days_in_words(days: float) -> str:
    """A number of days since 1970-01-01 as a date.

    >>> days_in_words(19723.5)
    '2024-01-01'
    """
    return str(np.datetime64("1970-01-01") + int(np.floor(days)))


def moment_in_words(days: float) -> str:
    """A number of days since 1970-01-01 as a date, with the time of day where it is not midnight.

    >>> moment_in_words(19723.0), moment_in_words(19723.5)
    ('2024-01-01', '2024-01-01 12:00:00')
    """
    moment = np.datetime64("1970-01-01", "s") + round(days * DAY_US / 1_000_000)
    return str(moment).replace("T", " ").removesuffix(" 00:00:00")


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind))


def _native(kind: Any) -> CellKind:
    if pa.types.is_boolean(kind):
        return "truth"
    return "date" if pa.types.is_date(kind) or pa.types.is_timestamp(kind) else "number"


def _known(column: Any, dialect: Dialect) -> Any:
    """Texts without blanks around them, null where they stand for nothing."""
    texts = as_texts(column)
    return pc.utf8_trim_whitespace(pc.if_else(pc.is_in(texts, pa.array(dialect.blank)), None, texts))


def _floats(column: Any) -> NDArray[Any]:
    floats = column if column.type == pa.float64() else pc.cast(column, pa.float64(), safe=False)
    return np.asarray(floats.to_numpy(zero_copy_only=False))


def _truths(texts: Any, _: Dialect) -> NDArray[Any]:
    lowered = pc.utf8_lower(texts)
    if not pc.all(pc.is_in(lowered.drop_null(), pa.array(_TRUTHS))).as_py():
        raise pa.ArrowInvalid("neither true nor false")
    return _floats(pc.cast(pc.equal(lowered, _TRUTHS[0]), pa.int8()))


def _days(texts: Any, _: Dialect) -> NDArray[Any]:
    for moment in _MOMENTS:
        try:
            return _since_1970(pc.cast(texts, moment))
        except pa.ArrowInvalid:
            continue
    raise pa.ArrowInvalid("not dates")


def _since_1970(moments: Any) -> NDArray[Any]:
    """Dates or times as days, with fractions."""
    microseconds = pc.cast(moments, pa.timestamp("us", getattr(moments.type, "tz", None)), safe=False)
    return _floats(pc.cast(microseconds, pa.int64())) / DAY_US


_READERS: Mapping[CellKind, Any] = {"number": _numbers, "truth": _truths, "date": _days}
"""The readers of texts, null where blank, in the order in which they are tried."""
_NATIVE: Mapping[CellKind, Any] = {
    "number": as_numbers,
    "truth": as_numbers,
    "date": lambda column, dialect: _since_1970(column),
}
"""The readers of Arrow's own types."""
