"""What a silo's runs have spent of its rows and labels, in a file that its hub keeps from run to run.

A line per event: a run begins, with all that it may spend; it ends, with what it has spent; another silo gets phi of
new rows, to predict with. So a run that never ends counts in full. Every line names the digest of the one before, and a
second file next to it has that of the last: a line that is missing or was changed is found, unless both files were put
back. They are the silo's own, and no other party is sent them.
"""

import fcntl
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

import msgspec

from tdcd.core.codecs.codec import blocks_until, messages_until
from tdcd.core.words import TextTable, counted
from tdcd.records.files import NO_LINES, PRIVATE, Mark, parse_json, plain_lines, read_plain, sync_folder, write_all
from tdcd.runtime.job import Job

if TYPE_CHECKING:
    from tdcd.core.codecs.noise import GaussianNoise

_RESTORE = "Restore the file: what was spent is in it alone"


class Spending(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of the file."""

    before: str
    """The digest of all lines before."""
    time: int
    """Seconds since 1970."""
    what: Literal["begun", "ended", "predicted"]
    run: str
    """The hub's nonce of the run; of predictions, the hubs' name of the one whose model predicts."""
    title: str
    to: list[str]
    """The other silos; of predictions, the one that gets phi, alone or in a sum."""
    sigma: float | None = None
    """The noise on phi; None: phi is sent as it is."""
    delta: float | None = None
    messages: int = 0
    """With a sample's phi, evaluations counted in: at most, or those that were sent."""
    block_sigma: float | None = None
    """The noise on what a client's steps changed of the block; None: its hub is sent it without any."""
    block_delta: float | None = None
    blocks: int = 0
    """That a client sent: at most, or so many as were sent."""
    has_labels: bool = False
    label_epsilon: float | None = None
    rows: int = 0
    """Of predictions: how many rows they are of."""


class Limits(NamedTuple):
    """What a silo is ready to spend; None: any amount."""

    epsilon: float | None = None
    """Of a row's phi, over all runs."""
    label_epsilon: float | None = None
    """Of a label, over all runs."""
    runs: int | None = None
    """On its labels as they are."""
    block_epsilon: float | None = None
    """Of a client's changes of blocks, over all runs."""


class Totals(NamedTuple):
    """What all runs of a file have spent together."""

    runs: int
    phi: float | None
    """Epsilon of a row's phi; None where a run sent phi as it is."""
    delta: float
    labels: float
    """Epsilon of a label: the sum of all runs. A hub does not see whether its clients drew the same labels again."""
    plain_labels: int
    """The runs on labels as they are."""
    blocks: float | None = None
    """Epsilon of a client's changes of blocks; None where a run sent them without noise."""
    predicted_rows: int = 0
    """The rows whose phi was sent, or published, to predict: once for every silo that got it."""

    @classmethod
    def of(cls, lines: list[Spending]) -> Self:
        """The sums over runs: of each the last line, which is its end if it has ended. Predictions have no noise."""
        latest, predicted = _latest(lines), [line for line in lines if line.what == "predicted"]
        delta = min((line.delta for line in latest if line.delta is not None), default=0.0)
        phi = _added_up([(line.sigma, line.delta, line.messages) for line in [*latest, *predicted]])
        blocks = _added_up([(line.block_sigma, line.block_delta, line.blocks) for line in latest])
        epsilons = [line.label_epsilon for line in latest if line.has_labels and line.label_epsilon is not None]
        plain = sum(line.has_labels and line.label_epsilon is None for line in latest)
        rows = sum(line.rows for line in predicted)
        return cls(len(latest), phi, delta, math.fsum(epsilons), plain, blocks, rows)

    def problems(self, limits: Limits) -> list[str]:
        """Which limits these sums are beyond."""
        beyond = []
        if limits.epsilon is not None and (self.phi is None or self.phi > limits.epsilon):
            spent = "phi without noise, which has no epsilon" if self.phi is None else f"{self.phi:.4g}"
            beyond.append(f"most_epsilon = {limits.epsilon:g}: with this run it would be {spent}")
        if limits.block_epsilon is not None and (self.blocks is None or self.blocks > limits.block_epsilon):
            spent = "changes without noise, which have no epsilon" if self.blocks is None else f"{self.blocks:.4g}"
            beyond.append(f"most_block_epsilon = {limits.block_epsilon:g}: with this run it would be {spent}")
        if limits.label_epsilon is not None and (self.labels > limits.label_epsilon or self.plain_labels):
            spent = f"{self.labels:.4g}"
            if self.plain_labels:
                spent = f"labels as they are in {counted(self.plain_labels, 'run')}, which has no epsilon"
            beyond.append(f"most_label_epsilon = {limits.label_epsilon:g}: with this run it would be {spent}")
        if limits.runs is not None and self.plain_labels > limits.runs:
            beyond.append(
                f"most_runs = {limits.runs}: with this run it would be {counted(self.plain_labels, 'run')} on labels "
                "as they are"
            )
        return beyond


class Account:
    """The file of a silo's hub."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        """Take the file, which need not be there."""
        self.path, self._clock = path, clock
        self._head = path.with_name(f"{path.name}.head")
        """How many lines there are, and their digest; locked while the file is read and added to."""

    def read(self) -> list[Spending]:
        """All lines, checked.

        Raises:
            ValueError: a line is missing, or not as it was written.
        """
        return self._read()[0]

    def begin(self, job: Job, silo: int, run: str, limits: Limits) -> None:
        """Count all that a run may spend, before anything is sent; a run that comes back is counted already.

        Raises:
            ValueError: it would be beyond a limit.
        """
        with self._locked() as head:
            lines, mark = self._read()
            if any(line.run == run for line in _latest(lines)):
                return
            line = self._line(job, silo, run, mark, "begun", job.config.train.rounds)
            if problems := Totals.of([*lines, line]).problems(limits):
                raise ValueError(f"{self.path}: {'; '.join(problems)}. This run is not begun")
            self._append(line, mark, head)

    def end(self, job: Job, silo: int, run: str, round_index: int) -> None:
        """Count what a run has spent that ended with this round."""
        with self._locked() as head:
            lines, mark = self._read()
            if not any(line.run == run and line.what == "ended" for line in lines):
                self._append(self._line(job, silo, run, mark, "ended", round_index), mark, head)

    def predicted(self, job: Job, run: str | None, to: str, rows: int) -> None:
        """Count phi of new rows that a silo is about to get, before it is sent: by the model of a run."""
        with self._locked() as head:
            mark = self._read()[1]
            now, title = int(self._clock()), job.config.title
            line = Spending(
                before=mark.digest, time=now, what="predicted", run=run or "", title=title, to=[to], rows=rows
            )
            self._append(line, mark, head)

    def _line(
        self, job: Job, silo: int, run: str, mark: Mark, what: Literal["begun", "ended"], round_index: int
    ) -> Spending:
        noise, config = _noise_on_phi(job, silo), job.config
        last, every = config.train.rounds, config.evaluate.every
        noisy = job.variant.noisy_blocks
        of_blocks = None if noisy is None else noisy.noise
        return Spending(
            before=mark.digest,
            time=int(self._clock()),
            what=what,
            run=run,
            title=config.title,
            to=[hub.removeprefix("hub.") for hub in job.peers(silo)],
            sigma=None if noise is None else noise.sigma,
            delta=None if noise is None else noise.delta,
            messages=messages_until(round_index, job.settings, job.timing, every, last),
            block_sigma=None if of_blocks is None else of_blocks.sigma,
            block_delta=None if of_blocks is None else of_blocks.delta,
            blocks=blocks_until(round_index, job.timing, last),
            has_labels=job.has_labels(silo),
            label_epsilon=config.federation.label_epsilon,
        )

    def _read(self) -> tuple[list[Spending], Mark]:
        lines, marks = list[Spending](), [NO_LINES]
        for number, content in plain_lines(self.path) if self.path.exists() else ():
            mark = marks[-1]
            try:
                line = msgspec.json.decode(content, type=Spending)
                if line.before != mark.digest:
                    raise ValueError("it does not follow the line before it")
            except (ValueError, msgspec.DecodeError) as error:
                raise ValueError(f"{self.path}, line {number}: {error}. {_RESTORE}") from None
            lines.append(line)
            marks.append(mark.after(content.decode()))
        if difference := self._last().difference(marks):
            raise ValueError(f"{self.path} {difference}. {_RESTORE}")
        return lines, marks[-1]

    def _last(self) -> Mark:
        """What the second file says: a crash may leave it a line behind, and never ahead."""
        content = read_plain(self._head) if self._head.exists() else b""
        try:
            return Mark.read(parse_json(content)) if content else NO_LINES
        except ValueError as error:
            raise ValueError(f"{self._head} is damaged: {error}. Restore the file") from None

    def _append(self, line: Spending, mark: Mark, head: int) -> None:
        content = msgspec.json.encode(line)
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, PRIVATE)
        try:
            # A crash, or a full disk, may have left a part of a line.
            whole = sum(len(line) + 1 for _, line in plain_lines(self.path))
            os.ftruncate(file, whole)
            write_all(file, content + b"\n")
            os.fsync(file)
        finally:
            os.close(file)
        # Of one length but for the number of lines, so that nothing is left of what it was.
        os.pwrite(head, json.dumps(mark.after(content.decode())).encode(), 0)
        os.fsync(head)
        sync_folder(self.path.parent)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """One process at a time reads and adds; gives the second file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self._head, os.O_WRONLY | os.O_CREAT, PRIVATE)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)


def _noise_on_phi(job: Job, silo: int) -> "GaussianNoise | None":
    """The noise on what the hub sends of its rows; None where it is not counted, or where slopes have none."""
    from tdcd.core.codecs.noise import noise_of  # noqa: PLC0415 - as above

    return noise_of(job.variant.exchange) if job.variant.knowledge.sends_phi(silo) else None


def _added_up(sent: Sequence[tuple[float | None, float | None, int]]) -> float | None:
    """Epsilon of all that was sent, by sigma, delta and number of messages; None where something has no noise."""
    if any(not sigma for sigma, _, _ in sent):
        return None
    # Gaussian mechanisms add up in inverse variances.
    precision = sum(messages / sigma**2 for sigma, _, messages in sent if sigma)
    if not precision:
        return 0.0
    from tdcd.core.codecs.noise import GaussianNoise  # noqa: PLC0415 - few hubs have an account

    delta = min(delta for _, delta, _ in sent if delta is not None)
    return GaussianNoise(1.0, 1 / math.sqrt(precision), delta).epsilon(1)


def _latest(lines: list[Spending]) -> list[Spending]:
    """The last line of every run."""
    return [*{line.run: line for line in lines if line.what != "predicted"}.values()]


def account_table(lines: list[Spending]) -> TextTable:
    """One row per run, and one for every silo that was sent phi to predict with."""
    rows = []
    for line in lines:
        if line.what == "predicted":
            state = f"phi of {counted(line.rows, 'row')} to predict with"
            rows.append([line.title, _when(line), ", ".join(line.to), "as it is", "–", "–", state])
    for line in _latest(lines):
        noise = None if line.sigma is None or line.delta is None else (line.sigma, line.delta)
        rows.append(
            [
                line.title,
                _when(line),
                ", ".join(line.to),
                "as it is" if noise is None else _epsilon_in_words(*noise, line.messages),
                "as they are"
                if line.block_sigma is None or line.block_delta is None
                else _epsilon_in_words(line.block_sigma, line.block_delta, line.blocks),
                _labels_in_words(line),
                "ended" if line.what == "ended" else "not ended: counted in full",
            ]
        )
    return TextTable(["run", "last line (UTC)", "silos", "epsilon of phi", "of blocks", "labels", "state"], rows)


def account_totals(totals: Totals) -> str:
    """The sums in a sentence."""
    phi = "no epsilon, since it was sent as it is" if totals.phi is None else f"{totals.phi:.4g}"
    delta = f" (delta = {totals.delta:g})" if totals.phi else ""
    blocks = "none, since a run sent them without noise" if totals.blocks is None else f"{totals.blocks:.4g}"
    return (
        f"{counted(totals.runs, 'run')}. Epsilon of a row's phi: {phi}{delta}. Epsilon of a label: {totals.labels:g}; "
        f"{counted(totals.plain_labels, 'run')} on labels as they are. Epsilon of a client's changes of blocks: "
        f"{blocks}. Phi sent to predict with: {counted(totals.predicted_rows, 'row')}."
    )


def as_facts(totals: Totals) -> str:
    """The same as JSON."""
    return json.dumps(totals._asdict())


def _when(line: Spending) -> str:
    return datetime.fromtimestamp(line.time, UTC).strftime("%Y-%m-%d %H:%M")


def _epsilon_in_words(sigma: float, delta: float, messages: int) -> str:
    from tdcd.core.codecs.noise import GaussianNoise  # noqa: PLC0415 - as above

    epsilon = GaussianNoise(1.0, sigma, delta).epsilon(messages)
    return "as it is" if epsilon is None else f"{epsilon:.4g}"


def _labels_in_words(line: Spending) -> str:
    if not line.has_labels:
        return "none here"
    return "as they are" if line.label_epsilon is None else f"epsilon {line.label_epsilon:g}"
