"""Compiled programs kept on disk, so that the second start of a command is fast."""

import os
import platform
from pathlib import Path

import jax

VARIABLE = "TDCD_CACHE"
"""The environment variable that names the cache folder; if it is empty, nothing is kept."""


def keep_compiled() -> Path | None:
    """Keep compiled programs in ``$TDCD_CACHE/compiled``, by default ``~/.cache/tdcd/compiled``.

    Each machine has a folder of its own there, since programs are compiled for its processor. A cache that JAX was told
    to use, and a folder that cannot be written, are left alone.

    Returns:
        The folder; None if this changed nothing.
    """
    chosen = os.environ.get(VARIABLE, "~/.cache/tdcd")
    if not chosen or jax.config.jax_compilation_cache_dir is not None:  # type: ignore[attr-defined]
        return None
    folder = Path(chosen).expanduser().absolute() / "compiled" / (platform.node() or "machine")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    if not os.access(folder, os.W_OK):
        return None
    settings = {"jax_compilation_cache_dir": str(folder), "jax_persistent_cache_min_compile_time_secs": 0.0}
    for name, value in settings.items():
        jax.config.update(name, value)  # type: ignore[no-untyped-call]
    return folder
