"""A small file that others replace now and then, read again only when it has changed."""

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

Content = TypeVar("Content")

MOST_BYTES = 16 << 20


class SmallFile(Generic[Content]):
    """What a file says; a file that cannot be read keeps what it said last, with the problem in words."""

    def __init__(self, path: Path, read: Callable[[Path], Content]) -> None:
        """Read ``path`` by ``read``, which raises OSError or ValueError for a file that is not as it should be."""
        self.path, self._read = path, read
        self.content: Content | None = None
        self.problem = ""
        self._known: tuple[int, ...] | None = None

    def look(self) -> None:
        """Read it if it is not as it was at the last look. A file that is not there is no problem."""
        try:
            facts = self.path.stat()
        except OSError:
            self._known, self.problem = None, ""
            return
        known = facts.st_ino, facts.st_mtime_ns, facts.st_size
        if known == self._known:
            return
        self._known, self.problem = known, ""
        if facts.st_size > MOST_BYTES:
            self.problem = f"{self.path} is too large to be what its name says"
            return
        try:
            self.content = self._read(self.path)
        except FileNotFoundError:
            self._known = None
        except (OSError, ValueError) as error:
            self.problem = str(error)
