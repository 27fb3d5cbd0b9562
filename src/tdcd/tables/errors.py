"""What is wrong with tables: every problem names its file, line and column, and says what to do."""

import sys
import warnings
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import Self

SHOWN = 20
"""How many problems an error lists; the others are counted."""


class TableError(ValueError):
    """Everything that is wrong with one table or several, the first problems in words and the number of all."""

    def __init__(self, problems: Sequence[str], total: int | None = None) -> None:
        """List the first of ``problems``; ``total`` counts those too that were not kept."""
        self.problems = list(problems[:SHOWN])
        self.total = len(problems) if total is None else total
        count = f"{self.total} problem" + ("s" if self.total > 1 else "")
        rest = f"; the first {len(self.problems)} are" if self.total > len(self.problems) else ""
        super().__init__(f"the data has {count}{rest}:\n" + "\n".join(f"  {problem}" for problem in self.problems))

    @classmethod
    def joined(cls, errors: Iterable["TableError"]) -> Self:
        """One error for several tables."""
        errors = list(errors)
        return cls([problem for error in errors for problem in error.problems], sum(error.total for error in errors))


class DataWarning(UserWarning):
    """Data that can be used, but may be a mistake. Commands print its sentence as one line."""


def caution(sentence: str) -> None:
    """Warn of data; the warning points to the code outside of this package that gave it."""
    frame: FrameType | None = sys._getframe(1)
    level = 2
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "tdcd":
        frame, level = frame.f_back, level + 1
    warnings.warn(sentence, DataWarning, stacklevel=level)
