"""Compiling: programs kept on disk, so that the second start of a command is fast, and no warnings about slow ones."""

import os
import platform
from pathlib import Path

VARIABLE = "TDCD_CACHE"
"""The environment variable that names the cache folder; if it is empty, nothing is kept."""


def keep_compiled() -> Path | None:
    """Keep compiled programs in ``$TDCD_CACHE/compiled``, by default ``~/.cache/tdcd/compiled``.

    Each machine has its own folder there, since programs are compiled for its processor. A cache that JAX is set up
    to use, and a folder that cannot be written, are left alone. JAX reads these settings from the environment
    when it is imported, so this comes before that; commands that need no JAX can then do without it.

    Returns:
        The folder; None if this changed nothing.
    """
    chosen = os.environ.get(VARIABLE, "~/.cache/tdcd")
    if not chosen or "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return None
    try:
        folder = Path(chosen).expanduser().absolute() / "compiled" / (platform.node() or "machine")
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        # A user without a home folder, as in containers, is a RuntimeError.
        return None
    if not os.access(folder, os.W_OK):
        return None
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    return folder


def silence_alarms() -> None:
    """Keep XLA's own log off the screen, such as its warning about slow compilations; failures raise an error anyway.

    It is read when JAX is imported, so this comes before that. A level that the user set stays.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
