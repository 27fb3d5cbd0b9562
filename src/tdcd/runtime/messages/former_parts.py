"""The parts of an exchange as version 0.2 wrote them into checkpoints, a structure for each flow.

They are no longer sent. A checkpoint of format 5 may hold some: a hub continues from it and sends them, when asked,
as :class:`~tdcd.runtime.messages.messages.Part`.
"""

import re

import msgspec

from tdcd.runtime.messages.structure import Array, EvaluationFigures, Json, Message, NamedArrays, NamedArraysInFiles


class _Former(Message, frozen=True, kw_only=True):
    received: dict[str, str]


class PhiPart(_Former, frozen=True, kw_only=True, tag="phi_part"):
    """A silo's phi of the round's minibatches, as the exchange encodes it; it may be sent some rounds before."""

    arrays: NamedArrays
    absent: Array | None = None
    """1 for the samples of clients without an answer."""


class ScoresPart(_Former, frozen=True, kw_only=True, tag="scores_part"):
    """A silo's phi of all samples."""

    train: Array
    test: Array
    penalty: float
    train_absent: Array | None = None
    test_absent: Array | None = None
    absent: dict[str, list[int]] = msgspec.field(default_factory=dict)
    """By client: the rounds since the last scores in which it was left out."""
    unscored: list[str] = msgspec.field(default_factory=list)
    """The clients whose rows are not in these scores."""
    intercept: Array | None = None
    """``[C]``: what is left of the silo's phi where it is dropped, if anything is."""


class SlopePart(_Former, frozen=True, kw_only=True, tag="slope_part"):
    """The slope of every row's loss in the round's minibatches, or what else the steps need, from the hub with the
    labels.
    """

    slope: Array
    weights: Array | None = None
    """What each row weighs, if not all weigh the same."""
    absent: Array | None = None
    """1 for the samples that some silo lacks, whose slope is zero."""


class FiguresPart(_Former, frozen=True, kw_only=True, tag="figures_part"):
    """What an evaluation gave, from the hub with the labels."""

    figures: EvaluationFigures | None
    """None if no training sample was scored by all silos: the history has no line of it."""
    absent: dict[str, list[int]] = msgspec.field(default_factory=dict)
    """By client of any silo: the rounds since the last line in which it was left out."""
    unscored: list[str] = msgspec.field(default_factory=list)
    """The clients whose rows are not in these figures."""


class ModelPart(_Former, frozen=True, kw_only=True, tag="model"):
    """A silo's block at the end, if all agreed to share the model."""

    block: NamedArraysInFiles
    preparation: Json | None = None


FormerPart = PhiPart | ScoresPart | SlopePart | FiguresPart | ModelPart
_DIGESTS = re.compile("([0-9a-f]{32})+")


def is_former(digests: str | None) -> bool:
    """Whether digests of what a hub sent are of such structures: now every one has its flow's name before it."""
    return digests is not None and _DIGESTS.fullmatch(digests) is not None
