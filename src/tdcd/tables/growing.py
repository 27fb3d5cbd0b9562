"""Columns that grow as the chunks of a file come in."""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tdcd.tables.cells import Kind, as_amounts, as_numbers, as_texts
from tdcd.tables.diagnosis import LARGEST
from tdcd.tables.dialect import Dialect
from tdcd.tables.memory import room_for
from tdcd.tables.rows import Category


class Unfit(Exception):  # noqa: N818
    """Something in the file is wrong; the diagnosis finds out where."""


class NamedLabels(Exception):  # noqa: N818
    """The labels are not numbers."""


class NumericColumn:
    """A column of amounts that grows in place: joining pieces at the end would need twice the memory.

    It is kept in float32 as long as that is exact, as for counts and flags, and else in float64.
    """

    def __init__(self, dialect: Dialect, expected: int) -> None:
        self._dialect, self._expected, self.blank = dialect, expected, False
        self._room, self._rows = room_for(0, np.float32), 0
        self.kind: Kind | None = None

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
            self._room = room_for(max(rows, self._expected, self._rows * 5 // 4), dtype)
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
