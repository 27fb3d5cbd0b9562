"""Progress and time limits of long estimates."""

import time
from collections.abc import Callable
from typing import NamedTuple


class EstimateProgress(NamedTuple):
    """News from a long estimate."""

    name: str
    """What is being worked out, such as ``"L_2"``."""
    done: int
    total: int
    """Parts finished, and parts in all."""
    value: float
    """The figure so far."""


EstimateObserver = Callable[[EstimateProgress], None]


def silent(progress: EstimateProgress) -> None:
    """The observer that shows nothing."""


class Meter:
    """Counts the parts of a long estimate, reports to the observer, and knows when time is up."""

    def __init__(self, total: int, seconds: float | None, observe: EstimateObserver) -> None:
        """Take the number of parts, and the seconds that they may take together."""
        if seconds is not None and not seconds > 0:
            raise ValueError(f"seconds must be a positive number, or None for no limit, not {seconds}")
        self._total, self._done, self._observe, self._seconds = total, 0, observe, seconds
        self.restart()

    def restart(self) -> None:
        """Count the seconds from now on: what came before was compiling."""
        self._end = None if self._seconds is None else time.monotonic() + self._seconds

    @property
    def expired(self) -> bool:
        """Whether the time is up."""
        return self._end is not None and time.monotonic() >= self._end

    def report(self, name: str, value: float, *, finished: bool) -> None:
        """Report a part's figure so far; ``finished`` counts it as done."""
        self._done += finished
        self._observe(EstimateProgress(name, self._done, self._total, value))
