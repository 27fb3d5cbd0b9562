"""Where public data is kept, and what is said when it cannot be had."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

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
