"""``history.jsonl``, read on from where the last look ended."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from tdcd.records.files import open_plain
from tdcd.records.history import Record

MOST_BYTES = 1 << 20
"""Read at a time; a longer line is no line of a history."""
OVERLAP = 256
"""Bytes before the end of the last look that must still be the same."""

BYTES_PER_LOOK = 8 << 20
"""Of all histories together, so that a page is answered soon however much there is to read."""

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
