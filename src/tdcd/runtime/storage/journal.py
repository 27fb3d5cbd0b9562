"""A file of lines that only grows: each line is durable once it is written, and a torn one is none."""

import os
from pathlib import Path

from tdcd.records.files import write_durably


class Journal:
    """The file at ``path``, which need not be there before its first line."""

    def __init__(self, path: Path) -> None:
        self._path, self._unwritten = path, b""

    def lines(self) -> list[str]:
        """All whole lines on the disk."""
        # Bytes that are no text are for those to refuse who know what the lines must be.
        return self._path.read_bytes().decode(errors="replace").split("\n")[:-1] if self._path.exists() else []

    def keep(self, lines: list[str]) -> None:
        """Leave nothing in the file but these lines."""
        write_durably(self._path, "".join(line + "\n" for line in lines).encode())

    def append(self, line: str) -> None:
        """Add a line; if the disk takes no more, the line waits for the next call, or for :meth:`write`."""
        self._unwritten += f"{line}\n".encode()
        self.write()

    def write(self) -> None:
        """Write the lines that wait."""
        if not self._unwritten:
            return
        if not self._path.exists():
            write_durably(self._path, b"")
        with self._path.open("ab", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            try:
                written = file.write(self._unwritten)
                os.fsync(file.fileno())
            except OSError:
                file.truncate(size)
                raise
            if written < len(self._unwritten):
                file.truncate(size)
                raise OSError(f"{self._path}: the disk took only a part of a line")
        self._unwritten = b""
