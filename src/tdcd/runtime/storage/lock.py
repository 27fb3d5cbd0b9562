"""The lock on a hub's run folder, which tells whether its process lives."""

import fcntl
import os
from pathlib import Path


def is_alive(path: Path) -> bool:
    """Whether a process has the run folder at ``path`` open."""
    if not (path / "hub.lock").exists():
        return False
    with (path / "hub.lock").open("rb") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def lock(path: Path) -> int:
    """Lock the folder for this process; the lock ends with the process, however that ends."""
    descriptor = os.open(path / "hub.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise FileExistsError(f"{path} is in use by another process: stop that one first") from None
    return descriptor
