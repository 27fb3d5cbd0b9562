"""What a tracker is told of a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

Ending = Literal["finished", "diverged", "unfinished"]


class Point(NamedTuple):
    """The figures of one evaluated round."""

    round: int
    seconds: float
    """Since 1970: when it was evaluated, as far as training time tells."""
    figures: Mapping[str, float]


class Tracker(Protocol):
    """Where a run goes."""

    where: str
    """For people: where it can be seen."""

    def settings(self, settings: Mapping[str, str]) -> None:
        """Take the settings by dotted name."""

    def points(self, points: list[Point]) -> None:
        """Take figures, in the order of rounds."""

    def file(self, path: Path, folder: str) -> None:
        """Take a file, to be kept in ``folder``; empty for the top."""

    def end(self, ending: Ending) -> None:
        """Close; nothing follows."""


class MissingExtraError(ValueError):
    """A package that only trackers need is not installed."""

    def __init__(self, extra: str) -> None:
        """Say how to get it."""
        super().__init__(f'--to {extra} needs a package that is not installed: pip install "tdcd[{extra}]"')
