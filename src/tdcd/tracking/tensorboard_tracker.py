"""A run as TensorBoard's event files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tdcd.records.files import read_plain
from tdcd.tracking.tracker import MissingExtraError, RunEnding, TrackedPoint

SHOWN = (".toml", ".json")
"""Files that are shown as text; TensorBoard keeps no others."""


class TensorboardTracker:
    """One folder of event files."""

    def __init__(self, folder: Path) -> None:
        """Write to a new ``folder``.

        Raises:
            ValueError: tensorboardX is not installed.
            FileExistsError: there is a run already; a second one would be drawn over it.
        """
        try:
            from tensorboardX import SummaryWriter  # noqa: PLC0415 - an extra
        except ImportError:
            raise MissingExtraError("tensorboard") from None
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise FileExistsError(f"{folder} is there already and is not an empty folder: choose another --at")
        self._writer: Any = SummaryWriter(str(folder))
        self.where = f"{folder}: tensorboard --logdir {folder}"

    def settings(self, settings: Mapping[str, str]) -> None:
        """Write them as a table."""
        rows = "\n".join(f"| {key} | {_cell(value)} |" for key, value in settings.items())
        self._writer.add_text("settings", f"| setting | value |\n| --- | --- |\n{rows}", 0)

    def points(self, points: list[TrackedPoint]) -> None:
        """Write scalars, the round as the step."""
        for point in points:
            for key, value in point.figures.items():
                self._writer.add_scalar(key, value, point.round, walltime=point.seconds)
        self._writer.flush()

    def file(self, path: Path, folder: str) -> None:
        """Write a small text file as text."""
        if path.suffix in SHOWN and not folder:
            text = read_plain(path).decode()
            self._writer.add_text(path.name, "\n".join(f"    {line}" for line in text.splitlines()), 0)

    def end(self, ending: RunEnding) -> None:
        """Close the files."""
        self._writer.add_text("ended", ending, 0)
        self._writer.close()


def _cell(value: str) -> str:
    return value.replace("|", "\\|").replace("\n", " ")
