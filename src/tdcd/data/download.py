"""Public data: the folder that it is kept in, downloads into it, and the message when it cannot be had."""

import os
import shutil
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
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


VARIABLE = "TDCD_DATA"
"""The environment variable that names the data folder."""


def data_folder(folder: str | Path | None = None) -> Path:
    """The folder of downloaded and hand-placed data: ``folder``, else ``$TDCD_DATA``, else ``~/.cache/tdcd``.

    For a user without a home folder, as in containers, ``~`` is the working folder.

    >>> data_folder("corpora").name
    'corpora'
    """
    chosen = Path(folder or os.environ.get(VARIABLE) or "~/.cache/tdcd")
    try:
        return chosen.expanduser().absolute()
    except RuntimeError:
        return Path(*chosen.parts[1:]).absolute()


class DataUnavailable(OSError):  # noqa: N818
    """Public data is neither in the data folder nor to be had from the network, or is not what it should be."""

    by_hand = ""
    """How to get data that is absent; empty if it is there, and wrong."""


def unavailable(what: str, *, looked: Iterable[Path], tried: Mapping[str, str], by_hand: str) -> DataUnavailable:
    """The error for absent data: where it was looked for, why each address failed, and how to get it by hand."""
    lines = [f"{what} is not in the data folder and could not be downloaded"]
    lines += [f"  looked for {path}" for path in looked]
    lines += [f"  tried {address}: {reason}" for address, reason in tried.items()]
    lines += [f"  by hand: {by_hand}", f"  (the environment variable {VARIABLE} names another data folder)"]
    error = DataUnavailable("\n".join(lines))
    error.by_hand = by_hand
    return error
