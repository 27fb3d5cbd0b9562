"""Places at which a test can make a party crash; they do nothing in real runs.

``TDCD_FAILPOINT=NAME`` kills the process (SIGKILL) when it gets to the failpoint of that name, ``NAME:3`` at the third
time. Every rename is a failpoint too, without being written down: ``rename.FILE``.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

VARIABLE = "TDCD_FAILPOINT"

_on_hit: Callable[[str], None] | None = None


def failpoint(*name: str) -> None:
    """A place where a crash must do no harm; the parts of its name are joined only if a test asks for it."""
    if _on_hit is not None:
        _on_hit(".".join(name))


def arm(on_hit: Callable[[str], None]) -> None:
    """Call ``on_hit`` with the name of every failpoint from now on."""
    global _on_hit  # noqa: PLW0603
    if _on_hit is None:
        # Python announces every rename just before it happens.
        sys.addaudithook(_on_audit)
    _on_hit = on_hit


def kill_at(place: str) -> Callable[[str], None]:
    """What kills this process at ``NAME``, or at the third hit for ``NAME:3``."""
    wanted, _, count = place.partition(":")
    left = int(count or 1)

    def on_hit(name: str) -> None:
        nonlocal left
        left -= name == wanted
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    return on_hit


def _on_audit(what: str, arguments: tuple[Any, ...]) -> None:
    if what == "os.rename":
        failpoint(f"rename.{Path(os.fsdecode(arguments[1])).name}")


def arm_as_asked() -> None:
    """Arm the failpoint that the environment names, if any."""
    if place := os.environ.get(VARIABLE):
        arm(kill_at(place))
