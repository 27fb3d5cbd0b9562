"""The lock on a party's folder, which tells whether its process lives.

It belongs to the open file. A POSIX lock belongs to the process, and ends when any copy of the file's descriptor is
closed, by whatever part of the program.
"""

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

from tdcd.records.files import open_plain

TRIES, PAUSE_S = 20, 0.02
"""Who asks whether the process lives has the lock for a moment: that must not keep a party from starting."""


def is_alive(path: Path) -> bool:
    """Whether a process has the folder at ``path`` open."""
    if not (path / "hub.lock").exists():
        return False
    with open_plain(path / "hub.lock") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def lock(path: Path, pause: Callable[[float], None] = time.sleep) -> int:
    """Lock the folder for this process; the lock ends with the process, however that ends."""
    descriptor = os.open(path / "hub.lock", os.O_RDWR | os.O_CREAT, 0o644)
    for _ in range(TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pause(PAUSE_S)
        else:
            return descriptor
    os.close(descriptor)
    raise FileExistsError(f"{path} is in use by another process: stop that one first")
