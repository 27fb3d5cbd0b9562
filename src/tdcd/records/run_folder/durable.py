"""Files that survive a crash."""

import json
import os
from pathlib import Path
from typing import Any

from tdcd.records.plain_file import parse_json, read_plain


def write_durably(path: Path, content: bytes) -> None:
    """Replace a file's content: after a crash at any moment it is the old one or the new one, never a part."""
    temporary = f"{path}.tmp"
    write_synced(temporary, content)
    os.replace(temporary, path)  # noqa: PTH105
    sync_folder(path.parent)


def write_synced(path: Path | str, content: bytes) -> None:
    """Write a file whose content is durable then, but not its name."""
    with open(path, "wb", buffering=0) as file:  # noqa: PTH123
        write_all(file.fileno(), content)
        os.fsync(file.fileno())


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
