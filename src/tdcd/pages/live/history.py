"""``history.jsonl``, read on from where the last look ended, and its figures, thinned as it grows.

Every point stands for ``stride`` lines in a row: the figures of the last of them, and the lowest and highest of all.
When there are too many points, neighbours become one. So a spike in a long run gets narrower, but never disappears.
"""

import contextlib
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from tdcd.records.files import open_plain
from tdcd.records.history import Record

MOST_BYTES = 1 << 20
"""Read at a time; a longer line is no line of a history."""
OVERLAP = 256
"""Bytes before the end of the last look that must still be the same."""

BYTES_PER_LOOK = 8 << 20
"""The limit for all histories together, so that a page is answered soon however much there is to read."""

_DECODER = msgspec.json.Decoder(Record)


class Budget:
    """The bytes that may still be read in this look."""

    def __init__(self) -> None:
        """Begin a look."""
        self.left = BYTES_PER_LOOK


class HistoryReader:
    """The lines of one file that grows; it may also be replaced, as when a run is resumed, or disappear."""

    def __init__(self, path: Path) -> None:
        """Begin at the first line."""
        self.path = path
        self.num_lines = 0
        self.problem = ""
        """What is wrong with the file, in words."""
        self.is_behind = False
        """Whether there may be more lines than the last look was allowed to read."""
        self._offset, self._tail, self._file = 0, b"", (0, 0)

    def has_begun_anew(self) -> bool:
        """Whether the lines read so far are no longer those of the file; the next look then begins at the first."""
        try:
            with open_plain(self.path) as file:
                facts = os.fstat(file.fileno())
                file.seek(self._offset - len(self._tail))
                is_same = (facts.st_dev, facts.st_ino) == self._file and file.read(len(self._tail)) == self._tail
        except OSError:
            return False
        if is_same or not self._offset:
            return False
        self._offset, self._tail, self.num_lines, self.problem = 0, b"", 0, ""
        return True

    def news(self, budget: Budget) -> Iterator[Record]:
        """The records since the last look; a line that is not whole yet waits, and one that is none ends the reading.

        Raises:
            FileNotFoundError: there is no such file.
        """
        with open_plain(self.path) as file:
            facts = os.fstat(file.fileno())
            self._file = facts.st_dev, facts.st_ino
            while not self.problem and budget.left > 0 and (lines := self._next_lines(file)):
                for line in lines.splitlines():
                    record = self._read(line)
                    if record is None:
                        return
                    yield record
                self._offset += len(lines)
                self._tail = (self._tail + lines)[-OVERLAP:]
                budget.left -= len(lines)
            self.is_behind = not self.problem and budget.left <= 0

    def _next_lines(self, file: BinaryIO) -> bytes:
        """Whole lines from the offset on."""
        file.seek(self._offset)
        content = file.read(MOST_BYTES)
        end = content.rfind(b"\n") + 1
        if not end and len(content) == MOST_BYTES:
            self.problem = f"{self.path}, line {self.num_lines + 1} is not a history record: it does not end"
        return content[:end]

    def _read(self, line: bytes) -> Record | None:
        self.num_lines += 1
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            return _DECODER.decode(line)
        try:
            # Ten times slower, but it also reads numbers that are not finite.
            return Record.from_json(line)
        except ValueError as error:
            self.problem = f"{self.path}, line {self.num_lines} is not a history record: {error}"
            return None


MOST_POINTS = 500
"""There are never more, and from then on never fewer than half."""
MOST_COLUMNS = 64
"""Further figures are left out: a line can name any number of them."""

Value = float | None


class ThinnedPoint:
    """Some lines in a row."""

    __slots__ = ("high", "last", "low", "round")

    def __init__(self, round_index: int, values: Sequence[Value]) -> None:
        """One line."""
        self.round, self.last, self.low, self.high = round_index, [*values], [*values], [*values]

    def take(self, after: "ThinnedPoint") -> None:
        """Stand for the lines of ``after``, too."""
        self.round, self.last = after.round, after.last
        self.low = [_extreme(min, pair) for pair in zip(self.low, after.low, strict=True)]
        self.high = [_extreme(max, pair) for pair in zip(self.high, after.high, strict=True)]


def _extreme(choose: Any, pair: tuple[Value, Value]) -> Value:
    return choose((value for value in pair if value is not None), default=None)  # type: ignore[no-any-return]


class ThinnedHistory:
    """The figures of one run, line by line; each is a column."""

    def __init__(self, most_points: int = MOST_POINTS) -> None:
        """Begin without a line."""
        self._most_points = most_points
        self.columns: list[str] = []
        self.points: list[ThinnedPoint] = []
        self.stride, self._in_last = 1, 0
        self.num_lines = 0

    def add(self, round_index: int, figures: dict[str, Value]) -> None:
        """Add one line."""
        self.num_lines += 1
        new = [name for name in figures if name not in self.columns][: MOST_COLUMNS - len(self.columns)]
        if new:
            self._widen(new)
        values = [figures.get(name) for name in self.columns]
        point = ThinnedPoint(
            round_index, [value if value is not None and math.isfinite(value) else None for value in values]
        )
        if self.points and self._in_last < self.stride:
            self.points[-1].take(point)
            self._in_last += 1
            return
        self.points.append(point)
        self._in_last = 1
        if len(self.points) > self._most_points:
            self._thin()

    def _widen(self, names: list[str]) -> None:
        self.columns += names
        for point in self.points:
            for values in (point.last, point.low, point.high):
                values.extend([None] * len(names))

    def _thin(self) -> None:
        """Make one point of two neighbours; an odd one at the end stays, and takes more lines."""
        for index in range(0, len(self.points) - 1, 2):
            self.points[index].take(self.points[index + 1])
        is_odd = len(self.points) % 2
        self.points = self.points[::2]
        self._in_last += 0 if is_odd else self.stride
        self.stride *= 2
