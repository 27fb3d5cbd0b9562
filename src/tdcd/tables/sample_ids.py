"""Many ids in little memory: a tenth of what as many texts of Python take."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self, overload

import numpy as np
from numpy.typing import NDArray

from tdcd.tables.rows import id_order

AT_ONCE = 1 << 16
"""How many ids are texts at a time."""
SPARE = 4
"""Ids are kept as they come where the longest one would give all of them so many times the room that they take."""
ASCII = 128
MOST_DIGITS = 18
"""The digits of the longest number that 64 bits hold in any case, and a sign."""


class SampleIds(Sequence[str]):
    """Ids in one array, UTF-8 in the width of the longest; where one is far longer, or has a zero byte, as texts.

    UTF-8 sorts as the texts do, character by character.

    >>> ids = SampleIds.of(["10", "9", "1"])
    >>> [*ids.take(ids.order())], ids[1]
    (['1', '9', '10'], '9')
    """

    def __init__(self, values: NDArray[Any]) -> None:
        """Take an array as :meth:`of` makes it."""
        self._values = values

    @classmethod
    def of(cls, texts: Sequence[str]) -> Self:
        """Pack texts."""
        encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
        width = max(map(len, encoded), default=0)
        fits = width * len(encoded) <= SPARE * sum(map(len, encoded)) + AT_ONCE
        starts = range(0, len(encoded), AT_ONCE)
        if not fits or any(b"\0" in b"".join(encoded[start : start + AT_ONCE]) for start in starts):
            return cls(np.array([*texts, None], object)[:-1])
        return cls(np.array(encoded, f"S{max(width, 1)}"))

    @classmethod
    def joined(cls, parts: "Sequence[SampleIds]") -> Self:
        """Those of all parts, one after the other."""
        values = [part._values for part in parts]
        if len({array.dtype.kind for array in values}) == 1:
            return cls(np.concatenate(values))
        return cls.of([text for part in parts for text in part])

    def take(self, places: NDArray[Any]) -> Self:
        """The ids at these places."""
        return type(self)(self._values[places])

    def repeated(self) -> int | None:
        """The first place whose id is that of the place before it."""
        same = np.flatnonzero(self._values[1:] == self._values[:-1])
        return int(same[0]) + 1 if len(same) else None

    def order(self) -> NDArray[np.int64]:
        """See :func:`tdcd.tables.rows.id_order`."""
        digits = self._digits()
        if self._values.dtype.kind == "O" or digits is True:
            return id_order([*self])
        order: NDArray[np.int64] = np.argsort(self._values, kind="stable")
        return order if digits is False else order[np.argsort(digits[order], kind="stable")]

    def _digits(self) -> "NDArray[np.int64] | bool":
        """The whole numbers that the ids are; False where one is none, and True where one may be too large."""
        if self._values.dtype.kind == "O" or not len(self._values):
            return False
        letters = np.ascontiguousarray(self._values).view(np.uint8).reshape(len(self), -1)
        negative = letters[:, 0] == ord("-")
        count = np.zeros(len(self), np.uint8)
        numbers = np.zeros(len(self), np.int64)
        for column, letter in enumerate(letters.T):
            is_digit = (letter >= ord("0")) & (letter <= ord("9"))
            if not (is_digit | (letter == 0) | (negative if column == 0 else False)).all():
                return False
            if column <= MOST_DIGITS:
                numbers = np.where(is_digit, numbers * 10 + (letter - ord("0")), numbers)
                count += is_digit
        if not count.all():
            return False
        return True if letters.shape[1] > MOST_DIGITS else np.where(negative, -numbers, numbers)

    def write_json(self, write: Callable[[bytes], Any]) -> None:
        """What ``json.dumps`` makes of the list of all, piece by piece."""
        write(b"[")
        for start in range(0, len(self), AT_ONCE):
            piece = json.dumps(_texts(self._values[start : start + AT_ONCE]))[1:-1]
            write((", " if start else "").encode() + piece.encode())
        write(b"]")

    def __len__(self) -> int:
        """How many there are."""
        return len(self._values)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[str]: ...
    def __getitem__(self, place: int | slice) -> str | Sequence[str]:
        """An id, or those of a range."""
        return type(self)(self._values[place]) if isinstance(place, slice) else _text(self._values[place])

    def __iter__(self) -> Iterator[str]:
        """All of them as texts."""
        for start in range(0, len(self), AT_ONCE):
            yield from _texts(self._values[start : start + AT_ONCE])

    def __eq__(self, other: object) -> bool:
        """Whether another sequence has the same ids."""
        if not isinstance(other, SampleIds) or len(self) != len(other):
            return False
        if self._values.dtype.kind == other._values.dtype.kind:
            return bool(np.array_equal(self._values, other._values))
        return all(map(str.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]


def _texts(values: NDArray[Any]) -> list[str]:
    if values.dtype.kind == "S" and np.ascontiguousarray(values).view(np.uint8).max(initial=0) < ASCII:
        # Without a call for each.
        letters: list[str] = values.astype(f"U{values.dtype.itemsize}").tolist()
        return letters
    return [_text(value) for value in values.tolist()]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else bytes(value).decode("utf-8", "surrogatepass")
