"""The history of a run: one JSON line per evaluated round, the first before training."""

import builtins
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

import msgspec

from tdcd.core.certificate import Certificate, gap_of
from tdcd.core.ledger import Traffic
from tdcd.records.files import parse_json, plain_lines

_EVALUATION = ("evaluation_bytes", "evaluation_messages")
_TRAFFIC = {"bytes", "messages", *_EVALUATION}
"""The fields that are counts by link class."""


@dataclass(frozen=True)
class Record:
    """The global model after some round, and what it cost to get there."""

    round: int
    iteration: int
    """Local steps so far, rounds times Q."""
    train_loss: float
    """The objective over all training samples that were scored; not finite when the run diverged, or such a step was
    taken back."""
    test_loss: float | None
    """The loss over the held-out samples; None if there are none."""
    metrics: dict[str, dict[str, float | None]]
    """``train`` and ``test`` figures by name."""
    bytes: Traffic
    """Bytes that the rounds sent since the start, without evaluations; rounds with absent clients count as whole."""
    messages: Traffic
    """Messages that the rounds sent since the start."""
    seconds: float = field(compare=False)
    """Training time since the start."""
    absent: dict[str, list[int]] = field(default_factory=dict)
    """In a real federation: the rounds since the line before in which hubs continued without a client, by client."""
    unscored: list[str] = field(default_factory=list)
    """The clients whose rows are not in this line's figures."""
    evaluation_bytes: Traffic | None = None
    """Bytes that the evaluations sent since the start, including this one; None in a history of an earlier version."""
    evaluation_messages: Traffic | None = None
    """Messages that the evaluations sent since the start."""
    worse_than: Literal["", "start", "best"] = ""
    """What the training loss of this line is above, see :mod:`tdcd.records.outcome`: that before training, or far
    above the lowest."""
    step: float | None = None
    """Where steps are steered: what the hubs' first step size was multiplied by, up to this line."""
    taken_back: bool = False
    """Whether the training loss had risen, or was no longer finite: the steps since the line before were taken back."""
    gap: float | None = None
    """The training loss is at most so much above the best possible one, see :mod:`tdcd.core.certificate`; None where
    that was not worked out, or cannot be proven."""
    gradient_norm: float | None = None
    """Where nothing can be proven: the norm of the objective's gradient over all training samples, if it is known."""
    epsilon: float | None = None
    """What hubs' messages up to this line have spent of a sample's phi, see :mod:`tdcd.core.codecs.noise`; None where
    phi has no noise."""
    block_epsilon: float | None = None
    """The same of what a client's steps changed of the block, see :mod:`tdcd.core.codecs.block_noise`."""

    @property
    def diverged(self) -> bool:
        """Whether the loss stopped being a finite number, and the run ended with that: it was not taken back."""
        return not math.isfinite(self.train_loss) and not self.taken_back

    def certified(self, certificate: Certificate, before: Sequence[float]) -> Self:
        """The line with its gap or, where nothing can be proven, with the norm of the gradient.

        Args:
            before: the bounds that earlier certificates proved.
        """
        if math.isnan(certificate.loss):
            return self
        gap = gap_of(self.train_loss, certificate, before)
        norm = certificate.gradient_norm if gap is None and math.isfinite(certificate.gradient_norm) else None
        return replace(self, gap=gap, gradient_norm=norm)

    def to_json(self) -> str:
        """One line; numbers that are not finite become null, and absences stand there only if there are any."""
        return self._line(self.seconds)

    def without_seconds(self) -> str:
        """The line without the time, which each hub measures for itself: all hubs of a run have the same."""
        return self._line(0.0)

    def _line(self, seconds: float) -> str:
        # Not by dataclasses.asdict: its copies take longer than all the rest of a line.
        fields: dict[str, Any] = {**vars(self), "seconds": seconds}
        unset = (
            "absent",
            "unscored",
            "worse_than",
            "step",
            "taken_back",
            "gap",
            "gradient_norm",
            "epsilon",
            "block_epsilon",
            *_EVALUATION,
        )
        for name in unset:
            # A field that was never set is not among them.
            if not fields.get(name):
                fields.pop(name, None)
        for name in _TRAFFIC & fields.keys():
            fields[name] = vars(fields[name])
        for name in ("train_loss", "test_loss"):
            if fields[name] is not None and not math.isfinite(fields[name]):
                fields[name] = None
        if self.diverged:
            fields["diverged"] = True
        return json.dumps(fields)

    @classmethod
    def from_json(cls, line: str | builtins.bytes) -> Self:
        """The record of one line; ValueError for one that is none."""
        fields = parse_json(line)
        if isinstance(fields, dict):
            fields.pop("diverged", None)
            if fields.get("train_loss", 0) is None:
                fields["train_loss"] = math.nan
            if unknown := fields.keys() - cls.__dataclass_fields__.keys():
                raise ValueError(f"there is no field {min(unknown)!r}")
        # Created again, since msgspec leaves fields that are not given to the class, where vars() does not see them.
        return replace(msgspec.convert(fields, cls))


def read_history(path: Path) -> list[Record]:
    """All records of a ``history.jsonl``; an unreadable line is named, and one that a crash cut short left out."""
    records = []
    for number, line in plain_lines(path):
        try:
            records.append(Record.from_json(line))
        except ValueError as error:
            raise ValueError(f"{path}, line {number} is not a history record: {error}") from None
    return records


def flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Nested fields by dotted name; lists stay as they are.

    >>> flat({"round": 1, "metrics": {"train": {"auc": 0.5}}})
    {'round': 1, 'metrics.train.auc': 0.5}
    """
    flattened: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping):
            flattened |= {f"{name}.{key}": item for key, item in flat(value).items()}
        else:
            flattened[name] = value
    return flattened
