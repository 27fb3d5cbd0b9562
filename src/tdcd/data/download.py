"""Downloads of public data: whole and checked, or not at all."""

import shutil
import uuid
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from rich.console import Console
from rich.progress import wrap_file

TIMEOUT = 30.0
"""Seconds without a byte after which a mirror counts as down."""


class DownloadError(OSError):
    """No address gave the file; ``tried`` says why, address by address."""

    def __init__(self, tried: dict[str, str]) -> None:
        super().__init__("; ".join(f"{address}: {reason}" for address, reason in tried.items()))
        self.tried = tried


def download(addresses: Sequence[str], path: Path, check: Callable[[Path], object]) -> None:
    """Save the file at the first good address as ``path``, whole and checked or not at all.

    Args:
        addresses: tried in turn.
        check: raises ``OSError``, ``EOFError`` or ``zlib.error`` if the file that it is given is not the right one.
    """
    tried: dict[str, str] = {}
    for address in addresses:
        # A name of its own, so that two processes that download at once do not write into one file.
        partial = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _save(address, partial)
            check(partial)
            partial.replace(path)
        except (OSError, HTTPException, EOFError, zlib.error) as error:
            tried[address] = reason(error)
        else:
            return
        finally:
            with suppress(OSError):  # There is no partial file after a success, nor in a folder that cannot be written.
                partial.unlink()
    raise DownloadError(tried)


def reason(error: Exception) -> str:
    """Why a request failed, without the wrapping that urllib puts around it."""
    return str(error.reason if type(error) is URLError else error)


def _save(address: str, path: Path) -> None:
    console = Console(stderr=True)
    with urlopen(address, timeout=TIMEOUT) as response, path.open("wb") as file:
        expected = int(response.headers.get("Content-Length", 0))
        with wrap_file(
            response,
            expected,
            description=address.rsplit("/", 1)[-1],
            console=console,
            transient=True,
            disable=not console.is_terminal,
        ) as source:
            shutil.copyfileobj(source, file)
        received = file.tell()
    if expected and received != expected:
        raise OSError(f"it ended after {received} of {expected} bytes")
