"""From a run folder to a tracker, once or while the run continues. The folder is only read."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from tdcd.records.files import open_plain
from tdcd.records.history import Record, flat
from tdcd.records.manifest import Manifest, covered
from tdcd.records.outcome import Stopping, verdict
from tdcd.records.run_folder import RunFolder

RunEnding = Literal["finished", "diverged", "unfinished"]


class TrackedPoint(NamedTuple):
    """The figures of one evaluated round."""

    round: int
    seconds: float
    """Since 1970: when it was evaluated, by training time."""
    figures: Mapping[str, float]


class Tracker(Protocol):
    """A tracker that runs are sent to."""

    where: str
    """For people: where it can be seen."""

    def settings(self, settings: Mapping[str, str]) -> None:
        """Take the settings by dotted name."""

    def points(self, points: list[TrackedPoint]) -> None:
        """Take figures, in the order of rounds."""

    def file(self, path: Path, folder: str) -> None:
        """Take a file, to be kept in ``folder``; empty for the top."""

    def end(self, ending: RunEnding) -> None:
        """Close; nothing follows."""


class MissingExtraError(ValueError):
    """A package that only trackers need is not installed."""

    def __init__(self, extra: str) -> None:
        """Say how to get it."""
        super().__init__(f'--to {extra} needs a package that is not installed: pip install "tdcd[{extra}]"')


LOOK_S = 1.0
REPORT_S = 10.0
"""How long the report may take after the end of a run that is followed."""


class HistoryLines:
    """The new records of a history that grows."""

    def __init__(self, path: Path) -> None:
        """Begin at the first line."""
        self._path, self._offset, self._last = path, 0, -1

    def new(self) -> Iterator[Record]:
        """The records of later rounds than those before; a line that is not whole yet waits."""
        if self._path.stat().st_size < self._offset:
            # A resumed run dropped lines, and writes them again as they were.
            self._offset = 0
        begin = self._offset
        with open_plain(self._path) as file:
            file.seek(begin)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                try:
                    record = Record.from_json(line.decode())
                except ValueError as error:
                    if not begin:
                        raise ValueError(f"{self._path} has a line that is not a history record: {error}") from None
                    # It may have been rewritten and have grown since: the next look reads it from the start.
                    self._offset = 0
                    return
                self._offset += len(line)
                if record.round > self._last:
                    self._last = record.round
                    yield record


def track(
    run: RunFolder, tracker: Tracker, *, live: bool = False, should_stop: Callable[[], bool] = lambda: False
) -> RunEnding:
    """Send all that is in a run folder to a tracker; if it is ``live``, until the run ends. Returns how it ended."""
    # Refused before anything is sent: settings and figures are read from these files, too.
    _files(run)
    lines, started = HistoryLines(run.history_file), _started(run)
    tracker.settings({key: _text(value) for key, value in flat(run.config()).items()})
    while True:
        # Asked before the lines are read: what a run writes at its end is not missed.
        is_over = not live or _is_over(run)
        tracker.points([_point(record, started) for record in lines.new()])
        if is_over or should_stop():
            break
        time.sleep(LOOK_S)
    if live and is_over:
        _wait_for(run.report_file, should_stop)
    for path, folder in _files(run):
        tracker.file(path, folder)
    ending = _ending(run)
    tracker.end(ending)
    return ending


def _files(run: RunFolder) -> list[tuple[Path, str]]:
    """What a tracker keeps, and in which folder: all it takes to predict, the manifest and the report.

    A link is refused. Whoever made the folder chose where it leads: any file of this machine would be copied.
    """
    home, files = run.path.resolve(), []
    for path in [*(run.path / name for name in covered(run)), Manifest(run).file, run.report_file]:
        if path.exists() and path.resolve() != home / path.relative_to(run.path):
            raise ValueError(
                f"{path} is a link, or is in a linked folder, and is not copied: put the file itself there"
            )
        # Ids, labels and predictions of single samples stay where they are.
        if path != run.held_out_file and path.is_file():
            files.append((path, "" if path.parent == run.path else path.parent.name))
    return files


def _is_over(run: RunFolder) -> bool:
    """Whether the run has ended, or was stopped."""
    try:
        return "files" in Manifest(run).read()
    except FileNotFoundError:
        return _ending(run) != "unfinished"


def _ending(run: RunFolder) -> RunEnding:
    history = run.records()
    stopping = Stopping.of(run.config())
    if not history or not stopping.is_complete(history):
        return "unfinished"
    return "diverged" if verdict(history, stopping) else "finished"


def _started(run: RunFolder) -> float:
    """When training began, in seconds since 1970."""
    try:
        return datetime.fromisoformat(Manifest(run).read()["sessions"][0]["started"]).timestamp()
    except (OSError, ValueError, LookupError):
        return run.config_file.stat().st_mtime


def _point(record: Record, started: float) -> TrackedPoint:
    values: dict[str, float | None] = {
        "train/loss": record.train_loss,
        "test/loss": record.test_loss,
        "train/gap": record.gap,
        "train/gradient_norm": record.gradient_norm,
        "epsilon": record.epsilon,
        "block_epsilon": record.block_epsilon,
    }
    for split, figures in record.metrics.items():
        values |= {f"{split}/{name}": value for name, value in figures.items()}
    values |= {f"bytes/{name}": float(value) for name, value in _sent(record).items()}
    values["seconds"] = record.seconds
    known = {name: value for name, value in values.items() if value is not None}
    return TrackedPoint(record.round, started + record.seconds, known)


def _sent(record: Record) -> Mapping[str, int]:
    sent = {**vars(record.bytes), "total": record.bytes.total}
    return sent if record.evaluation_bytes is None else {**sent, "evaluation": record.evaluation_bytes.total}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _wait_for(path: Path, should_stop: Callable[[], bool]) -> None:
    deadline = time.monotonic() + REPORT_S
    while not path.exists() and time.monotonic() < deadline and not should_stop():
        time.sleep(LOOK_S / 4)
