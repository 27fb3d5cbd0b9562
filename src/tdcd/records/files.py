"""Files: written so that they survive a crash, read as what anyone may have written, recognised by digests.

A pipe never ends, a device may not either, and JSON or TOML of many brackets exhausts the stack: a folder that was
copied from elsewhere must not stop a command, nor the page of all runs.
"""

import hashlib
import json
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from io import BufferedReader
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from tdcd.core.words import counted

MOST_BYTES = 256 << 20
"""The largest file that is read as a whole, unless its reader sets another limit."""
NUMBERS_AT_ONCE = 1 << 16
MOST_LINE_BYTES = 16 << 20
MOST_DEPTH = 64
"""The deepest nesting of tables and lists."""
_PART = r"""(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_DEEP_KEY = re.compile(rf"(?<![A-Za-z0-9_\\-])(?:{_PART}[ \t]*+\.[ \t]*+){{{MOST_DEPTH}}}")
"""A dotted key that is deeper: to parse it takes time in the square of its length."""
_TOO_DEEP = f"tables and lists are more than {MOST_DEPTH} deep in each other"
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
    stat.S_IFSOCK: "a socket",
}


def open_plain(path: Path) -> BufferedReader:
    """Open a plain file for reading; OSError for anything else, without waiting for a writer."""
    # Opening a device can do something, so it is not opened at all; what is opened may be another file by then.
    _check_plain(path, path.stat())
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        _check_plain(path, os.fstat(file))
    except OSError:
        os.close(file)
        raise
    return os.fdopen(file, "rb")


def _check_plain(path: Path, facts: os.stat_result) -> None:
    if not stat.S_ISREG(facts.st_mode):
        kind = _KINDS.get(stat.S_IFMT(facts.st_mode), "something else")
        raise OSError(f"{path} is {kind}, not a plain file, and is not read: remove it, or restore the file")


def read_plain(path: Path, most: int | None = MOST_BYTES) -> bytes:
    """The content of a plain file of ``most`` bytes at most; None for any size."""
    with open_plain(path) as file:
        content = file.read() if most is None else file.read(most + 1)
    if most is not None and len(content) > most:
        raise OSError(f"{path} is too large to be what its name says: it has more than {most} bytes")
    return content


def plain_lines(path: Path, start: int = 0, first: int = 1) -> Iterator[tuple[int, bytes]]:
    """The whole lines of a plain file, counted from 1, without their ends; a torn one at the end is none.

    Args:
        start: the byte at which to begin, and ``first`` the number of the line that begins there.
    """
    with open_plain(path) as file:
        file.seek(start)
        for number, line in enumerate(iter(lambda: file.readline(MOST_LINE_BYTES), b""), start=first):
            if line.endswith(b"\n"):
                yield number, line[:-1]
            elif len(line) == MOST_LINE_BYTES:
                raise ValueError(f"{path}, line {number} has more than {MOST_LINE_BYTES} bytes")


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON document; ValueError for one that is none, or is too deep."""
    return _shallow(json.loads, text)


def parse_toml(content: bytes) -> dict[str, Any]:
    """The keys of a TOML document; ValueError for one that is none, or is too deep."""
    text = content.decode()
    if _DEEP_KEY.search(text):
        raise ValueError(_TOO_DEEP)
    keys: dict[str, Any] = _shallow(tomllib.loads, text)
    return keys


def _shallow(parse: Callable[[Any], Any], text: str | bytes) -> Any:
    try:
        value = parse(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    level = [value]
    for _ in range(MOST_DEPTH):
        level = [inner for outer in level for inner in _inside(outer) if isinstance(inner, dict | list)]
        if not level:
            return value
    raise ValueError(_TOO_DEEP)


def _inside(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


PRIVATE, SHARED = 0o600, 0o666
"""Who may read a new file: its owner alone, or all users whom the process's umask admits."""


def write_durably(path: Path, content: bytes, mode: int = PRIVATE) -> None:
    """Replace a file's content: after a crash at any moment it is the old one or the new one, never a part.

    Args:
        mode: of the new file. Those of a run folder are for their owner alone.
    """
    temporary = f"{path}.tmp"
    write_synced(temporary, content, mode)
    os.replace(temporary, path)  # noqa: PTH105
    sync_folder(path.parent)


def write_synced(path: Path | str, content: bytes, mode: int = PRIVATE) -> None:
    """Write a new file whose content is durable then, but not its name."""
    file = create(path, mode)
    try:
        write_all(file, content)
        os.fsync(file)
    finally:
        os.close(file)


def create(path: Path | str, mode: int = PRIVATE) -> int:
    """Open a new file to write to, in place of one that a crash left; a link in its place is not followed."""
    with suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)


def write_all(file: int, content: bytes) -> None:
    """Write all of it to an open file; a single call may take a part only."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file, rest) :]


def sync_folder(path: Path) -> None:
    """Make durable which files a folder has."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_json(path: Path, value: Any) -> None:
    """Replace a file's content by a value as JSON, in the same way."""
    write_durably(path, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """The value in a JSON file."""
    try:
        return parse_json(read_plain(path))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None


class Mark(NamedTuple):
    """The first lines of a file. The mark one line further follows from this one and the line, without a look back."""

    lines: int = 0
    digest: str = ""

    def after(self, line: str) -> "Mark":
        """The mark one line further."""
        content = f"{self.digest}\n{line}".encode("utf-8", "surrogatepass")
        return Mark(self.lines + 1, hashlib.blake2b(content, digest_size=16).hexdigest())

    @classmethod
    def read(cls, value: Any) -> Self:
        """A mark that was saved as JSON; raises unless it is one."""
        match value:
            case [int(lines), str(digest)] if lines >= 0 and len(digest) == (32 if lines else 0):
                return cls(lines, digest)
        raise ValueError(f"{value!r:.80} does not say how many lines there are, and their digest")

    def difference(self, marks: list["Mark"]) -> str:
        """How a file with ``marks``, see :func:`marks_of`, differs in these first lines; nothing if it does not."""
        if self.lines >= len(marks):
            return f"has {counted(len(marks) - 1, 'readable line')} of the {self.lines} that were written"
        return (
            ""
            if marks[self.lines] == self
            else f"is not as it was written: its first {counted(self.lines, 'line')} differ"
        )


NO_LINES = Mark()


def marks_of(lines: Iterable[str]) -> list[Mark]:
    """The marks after no line, after the first, and so on."""
    return [*accumulate(lines, Mark.after, initial=NO_LINES)]


def digest_of(words: Any, arrays: Mapping[str, NDArray[Any] | range]) -> str:
    """A digest of words, as JSON, and of named arrays in any order; a range is the array of its numbers."""
    names = sorted(arrays)
    kinds = {name: np.dtype(np.int64) if isinstance(part, range) else part.dtype for name, part in arrays.items()}
    shapes = [
        [name, kinds[name].str, [len(part)] if isinstance(part := arrays[name], range) else part.shape]
        for name in names
    ]
    digest = hashlib.blake2b(json.dumps([words, shapes], sort_keys=True).encode(), digest_size=16)
    for name in names:
        for piece in _pieces(arrays[name]):
            digest.update(np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _pieces(array: NDArray[Any] | range) -> Iterator[NDArray[Any]]:
    if not isinstance(array, range):
        yield array
        return
    for start in range(array.start, array.stop, NUMBERS_AT_ONCE):
        yield np.arange(start, min(start + NUMBERS_AT_ONCE, array.stop), dtype=np.int64)
