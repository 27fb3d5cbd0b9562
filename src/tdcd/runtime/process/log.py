"""Events in the log: for people on a terminal, one JSON line each everywhere else."""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Literal

from tdcd.core.words import one_line

MOST_LETTERS = 4000
"""The most letters of a fact on a terminal."""
logger = logging.getLogger("tdcd")
LogLevel = Literal["info", "warning", "error"]


def event(what: str, level: int = logging.INFO, **facts: Any) -> None:
    """Log that something happened; ``what`` names the kind of event and never varies, ``facts`` do."""
    logger.log(level, what, extra={"facts": facts})


def open_log(party: str, level: LogLevel = "info") -> None:
    """Send events of this level and above to standard error from now on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_ForPeople() if sys.stderr.isatty() else _ForMachines(party))
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False


@contextmanager
def opened_log(party: str, level: LogLevel = "info") -> Iterator[None]:
    """The same until the end of the block."""
    open_log(party, level)
    try:
        yield
    finally:
        logger.handlers.clear()


def is_for_machines() -> bool:
    """Whether standard error has JSON lines, and must have nothing else."""
    return any(isinstance(handler.formatter, _ForMachines) for handler in logger.handlers)


FAILED = "failed"
"""The event that says why a party ends with a status other than 0: the last line of its log."""


def failure_in(line: str) -> str:
    """Why a party failed, if this line of its log for machines says so; else nothing."""
    try:
        facts = json.loads(line)
    except ValueError:
        return ""
    return str(facts["why"]) if isinstance(facts, dict) and facts.get("event") == FAILED else ""


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
