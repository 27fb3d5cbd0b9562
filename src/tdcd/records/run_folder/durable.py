"""Files that survive a crash."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from tdcd.records.plain_file import parse_json, read_plain

PRIVATE, SHARED = 0o600, 0o666
"""Who may read a new file: its owner alone, or everybody whom the process's umask lets."""


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
