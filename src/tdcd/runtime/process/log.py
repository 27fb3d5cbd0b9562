"""Events in the log: for people on a terminal, one JSON line each everywhere else."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from tdcd.core.words import one_line

MOST_LETTERS = 4000
"""The most letters of a fact on a terminal."""
logger = logging.getLogger("tdcd")


def event(what: str, level: int = logging.INFO, **facts: Any) -> None:
    """Log that something happened; ``what`` names the kind of event and never varies, ``facts`` do."""
    logger.log(level, what, extra={"facts": facts})


def open_log(party: str) -> None:
    """Send events to standard error from now on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_ForPeople() if sys.stderr.isatty() else _ForMachines(party))
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False


class _ForMachines(logging.Formatter):
    def __init__(self, party: str) -> None:
        super().__init__()
        self._party = party

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        facts = getattr(record, "facts", {})
        head = {"time": time, "level": record.levelname.lower(), "party": self._party, "event": record.getMessage()}
        # As ASCII, in which no character of another party's is a control character.
        return json.dumps({**head, **facts}, default=str)


class _ForPeople(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        facts = "  ".join(
            f"{name}={one_line(str(value), MOST_LETTERS)}" for name, value in getattr(record, "facts", {}).items()
        )
        mark = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        return f"{time}  {mark}{record.getMessage()}  {facts}".rstrip()
