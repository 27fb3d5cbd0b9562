"""The messages of aligning and predicting, where every party says a few things once."""

from tdcd.runtime.protocol.cards import Card
from tdcd.runtime.protocol.structure import Array, Message, Setting


class AlignHello(Message, frozen=True, kw_only=True, tag="align_hello"):
    """What hubs compare before they align."""

    method: str
    config: dict[str, Setting]


class AlignIds(Message, frozen=True, kw_only=True, tag="align_ids"):
    """A client's ids."""

    ids: list[str]
    config: dict[str, Setting]


class AlignRows(Message, frozen=True, kw_only=True, tag="align_rows"):
    """One step of an alignment between hubs; see :class:`~tdcd.alignment.messages.Outgoing`."""

    step: str
    rows: Array


class AlignCommon(Message, frozen=True, kw_only=True, tag="align_common"):
    """Which of a client's ids every silo has."""

    ids: list[str]


class PredictHello(Message, frozen=True, kw_only=True, tag="predict_hello"):
    """Which samples a hub has, by keyed digests, and which training its block is of."""

    model_run: str | None = None
    model_status: str | None = None
    card: Card | None = None
    digests: Array
    config: dict[str, Setting]


class PredictScores(Message, frozen=True, kw_only=True, tag="predict_scores"):
    """A hub's phi of the samples that the receiver has too; ``places`` are those in the receiver's list."""

    places: Array
    phi: Array
