"""What hubs tell each other if one silo alone has labels: nothing here has a label, or a digest of one, in it."""

import msgspec

from tdcd.runtime.protocol.structure import Array, Count, LossWord, Part


class Outputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What labels ask of every silo's block."""

    loss: LossWord
    count: Count
    """C, the scores of a sample."""


class SlopePart(Part, frozen=True, kw_only=True, tag="slope_part"):
    """The slope of every row's loss in the round's minibatches, or what else it goes on from, from the hub with the
    labels.
    """

    slope: Array
    weights: Array | None = None
    """What each row weighs, if not all weigh the same."""
    absent: Array | None = None
    """1 for the samples that some silo lacks, whose slope is zero."""


class Figures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The global model's loss and metrics: see :class:`tdcd.records.history.Record`."""

    train_loss: float
    test_loss: float | None
    metrics: dict[str, dict[str, float | None]]


class FiguresPart(Part, frozen=True, kw_only=True, tag="figures_part"):
    """What an evaluation gave, from the hub with the labels."""

    figures: Figures | None
    """None if no training sample was scored by all silos: the history has no line of it."""
    absent: dict[str, list[int]] = msgspec.field(default_factory=dict)
    """By client of any silo: the rounds since the last line in which it was left out."""
    unscored: list[str] = msgspec.field(default_factory=list)
    """The clients whose rows are not in these figures."""
