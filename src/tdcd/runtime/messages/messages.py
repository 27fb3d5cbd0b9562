"""Every message of the protocol, as a typed structure of one tagged union.

:mod:`tdcd.runtime.messages.structure` has the types of their fields. :mod:`tdcd.runtime.messages.wire` writes and reads
them, which checks the types. :mod:`tdcd.runtime.machine.parts` checks what types cannot say, such as a round's shapes.
"""

from typing import Annotated, Literal

import msgspec

from tdcd.core.losses import Task
from tdcd.records.mark import NO_LINES, Mark
from tdcd.records.patience import Best
from tdcd.records.verdict import NO_COURSES, Courses
from tdcd.runtime.certificates.agreement import Card
from tdcd.runtime.messages.structure import (
    Array,
    BoundedCount,
    ClassNames,
    Digest,
    FeatureShape,
    Json,
    LossWord,
    Message,
    NamedArrays,
    NamedArraysInFiles,
    Nonce,
    Part,
    SettingValue,
)


class Remaining(msgspec.Struct, frozen=True, eq=False, forbid_unknown_fields=True):
    """What is left of a round's minibatches without the absent clients."""

    absent: Array
    """``[n]``: 1 for those of the client's rows that take no part."""
    present: Array
    """``[E]``: how many samples each minibatch still has."""
    rows: int
    """How many samples the silo's clients that take part hold."""


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The clients whose blocks a hub adds up: each sends its block times its part of their rows."""

    clients: tuple[BoundedCount, ...]
    """By index, in order."""
    rows: BoundedCount
    """The training rows that they hold together."""
    renewal: BoundedCount = 0
    """How often clients' keys, and so all masks, have been renewed: a block with former masks is recognised by it."""


class Outputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What labels ask of every silo's block."""

    loss: LossWord
    count: BoundedCount
    """C, the scores of a sample."""


MOST_ROUNDS = 10_000
"""Whose phi a client may send at once; a silo with a period sends that of all its rounds."""
EndStatus = Literal["finished", "diverged", "refused"]


class LabelTarget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What labels mean that are ready for training."""

    task: Task
    label_scale: float
    label_mean: float = 0.0
    classes: ClassNames = ()
    """By number; empty if classes are called by their numbers."""


class Enrol(Message, frozen=True, kw_only=True, tag="enrol"):
    """Who a client is and which samples it has."""

    protocol: int
    session: str
    """Tells one process of the client from another."""
    call: BoundedCount = 0
    """The number of the hub's last ``who``; 0 if there was none."""
    config: dict[str, SettingValue]
    ids: list[str]
    labels: Array | None = None
    label_names: list[str] | None = None
    """Instead of ``labels``, where these are no numbers."""
    weights: Array | None = None
    held_out: Array | None = None
    target: LabelTarget | None = None
    is_table: bool = False
    rows: Digest
    card: Card | None = None


class ColumnSummary(Message, frozen=True, kw_only=True, tag="summary"):
    """Sums and counts of a client's columns."""

    summary: Json


class Ready(Message, frozen=True, kw_only=True, tag="ready"):
    """The client's features are ready; the shape of one sample."""

    feature_shape: FeatureShape


class Phi(Message, frozen=True, kw_only=True, tag="phi"):
    """Phi of the client's rows, for each round that its silo sends phi of in this one."""

    phi: Annotated[tuple[NamedArrays, ...], msgspec.Meta(max_length=MOST_ROUNDS)]


class ClientBlock(Message, frozen=True, kw_only=True, tag="block"):
    """The client's block after its local steps, as the links encode it; and its memory, if its update carries one."""

    block: NamedArrays
    memory: NamedArrays = msgspec.field(default_factory=dict)
    group: Group | None = None


class Diverged(Message, frozen=True, kw_only=True, tag="diverged"):
    """The client's block, phi or scores stopped being finite, or its block, for a ``reason``, cannot be sent."""

    reason: str = ""


class Scores(Message, frozen=True, kw_only=True, tag="scores"):
    """Phi of all training rows and all held-out rows of the client, if it has any."""

    train: Array
    test: Array | None = None


class Bye(Message, frozen=True, kw_only=True, tag="bye"):
    """The sender knows that it is over."""


# A hub to its client.
class Who(Message, frozen=True, kw_only=True, tag="who"):
    """Asks a client to enrol."""

    call: BoundedCount = 0
    """Another number whenever the client joins: what a former process of it answered has another one."""


class Welcome(Message, frozen=True, kw_only=True, tag="welcome"):
    """Which samples the client's rows are, and what the labels mean."""

    session: str
    num_samples: BoundedCount
    num_outputs: BoundedCount
    loss: LossWord
    train: Array
    """Of every row: which training sample it is; -1 if it is none."""
    test: Array
    labels: Array | None = None
    """Of every row, where the silo has labels."""
    weights: Array | None = None
    cards: dict[str, Card] = msgspec.field(default_factory=dict)


class Prepare(Message, frozen=True, kw_only=True, tag="prepare"):
    """How the silo's columns become features."""

    preparation: Json
    bias: bool = False


class Evaluate(Message, frozen=True, kw_only=True, tag="evaluate"):
    """Asks for the scores of all rows with this block."""

    block: NamedArrays


class Begin(Message, frozen=True, kw_only=True, tag="begin"):
    """The block at the start of a round, and the client's memory, if its update carries one."""

    block: NamedArrays
    memory: NamedArrays = msgspec.field(default_factory=dict)
    group: Group | None = None


class Steps(Message, frozen=True, kw_only=True, tag="steps"):
    """The others' phi of the client's rows, or how the loss slopes there; asks for the local steps."""

    phi_others: NamedArrays
    weights: Array | None = None
    """What each of the rows weighs, if not all weigh the same and the client does not know it with the labels."""
    remaining: Remaining | None = None
    group: Group | None = None


class Stop(Message, frozen=True, kw_only=True, tag="stop"):
    """The run is over, for everybody or for the receiver."""

    status: EndStatus
    reason: str = ""
    session: str = ""
    """If one process alone must leave: the session of its ``enrol``, or the nonce of its ``hello``."""
    in_block: bool = False
    """Whether something in the sender's silo stopped being finite in this round, which the other hubs do not know."""


# A hub to another hub.
class Hello(Message, frozen=True, kw_only=True, tag="hello"):
    """What hubs compare before they train: keyed digests of secret, ids, held-out samples and labels.

    A hub that continues a run says which one.
    """

    protocol: int
    nonce: Nonce
    samples: int
    secret: str
    ids: str
    held_out: str
    labels: str | None = None
    """Where all silos have them."""
    outputs: Outputs | None = None
    """From the hub with the labels, if one silo alone has them."""
    card: Card | None = None
    config: dict[str, SettingValue]


class Opening(Message, frozen=True, kw_only=True, tag="opening"):
    """How large a silo is."""

    parameters: int
    block_up: BoundedCount
    """The bytes of a block that a client sends."""
    memory: BoundedCount = 0
    """The bytes of a client's memory, if its update carries one."""
    feature_shape: FeatureShape
    clients: list[BoundedCount]
    """The training rows of each client."""


class PhiPart(Part, frozen=True, kw_only=True, tag="phi_part"):
    """A silo's phi of the round's minibatches, as the exchange encodes it; it may be sent some rounds before."""

    arrays: NamedArrays
    absent: Array | None = None
    """1 for the samples of clients without an answer."""


class ScoresPart(Part, frozen=True, kw_only=True, tag="scores_part"):
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


class SlopePart(Part, frozen=True, kw_only=True, tag="slope_part"):
    """The slope of every row's loss in the round's minibatches, or what else the steps need, from the hub with the
    labels.
    """

    slope: Array
    weights: Array | None = None
    """What each row weighs, if not all weigh the same."""
    absent: Array | None = None
    """1 for the samples that some silo lacks, whose slope is zero."""


class EvaluationFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The global model's loss and metrics: see :class:`tdcd.records.history.Record`."""

    train_loss: float
    test_loss: float | None
    metrics: dict[str, dict[str, float | None]]


class FiguresPart(Part, frozen=True, kw_only=True, tag="figures_part"):
    """What an evaluation gave, from the hub with the labels."""

    figures: EvaluationFigures | None
    """None if no training sample was scored by all silos: the history has no line of it."""
    absent: dict[str, list[int]] = msgspec.field(default_factory=dict)
    """By client of any silo: the rounds since the last line in which it was left out."""
    unscored: list[str] = msgspec.field(default_factory=list)
    """The clients whose rows are not in these figures."""


class ModelPart(Part, frozen=True, kw_only=True, tag="model"):
    """A silo's block at the end, if all agreed to share the model."""

    block: NamedArraysInFiles
    preparation: Json | None = None


AnyPart = PhiPart | ScoresPart | SlopePart | FiguresPart | ModelPart
Published = Hello | Opening | AnyPart
PublishedKind = Literal["hello", "opening", "phi_part", "scores_part", "slope_part", "figures_part", "model"]


class Want(Message, frozen=True, kw_only=True, tag="want"):
    """Asks a hub for what it published."""

    what: PublishedKind


class Gone(Message, frozen=True, kw_only=True, tag="gone"):
    """The sender, which is at round ``now``, no longer has what was asked for."""

    what: PublishedKind
    now: int


class AlignHello(Message, frozen=True, kw_only=True, tag="align_hello"):
    """What hubs compare before they align."""

    method: str
    config: dict[str, SettingValue]


class AlignIds(Message, frozen=True, kw_only=True, tag="align_ids"):
    """A client's ids."""

    ids: list[str]
    config: dict[str, SettingValue]


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
    config: dict[str, SettingValue]


class PredictScores(Message, frozen=True, kw_only=True, tag="predict_scores"):
    """A hub's phi of the samples that the receiver has too; ``places`` are those in the receiver's list."""

    places: Array
    phi: Array


# A hub to itself, in files.
class Checkpoint(Message, frozen=True, kw_only=True, tag="checkpoint"):
    """A hub's state at the start of a round; see :class:`~tdcd.runtime.machine.instructions.State`."""

    block: NamedArrays
    memory: NamedArrays = msgspec.field(default_factory=dict)
    outbox: tuple[Published, ...] = ()
    digests: dict[int, dict[str, str]] = msgspec.field(default_factory=dict)
    unrecorded: tuple[BoundedCount, ...] = ()
    best: Best | None = None
    courses: Courses = NO_COURSES
    candidates: NamedArrays = msgspec.field(default_factory=dict)
    recorded: int = 0
    rows: tuple[Digest, ...] = ()
    history: Mark = NO_LINES
    absences: Mark = NO_LINES
    hubs: dict[str, str] = msgspec.field(default_factory=dict)


class Ended(Message, frozen=True, kw_only=True, tag="ended"):
    """The end of a hub's run; see :class:`~tdcd.runtime.machine.hub.Shutdown`."""

    status: EndStatus
    reason: str
    in_block: bool
    peers: tuple[str, ...]
    unaware: tuple[str, ...]
    outbox: tuple[Published, ...]


_OfClient = Enrol | ColumnSummary | Ready | Phi | ClientBlock | Diverged | Scores | Bye
_OfHub = Who | Welcome | Prepare | Evaluate | Begin | Steps | Stop | Published | Want | Gone | Checkpoint | Ended
_OfDialogue = AlignHello | AlignIds | AlignRows | AlignCommon | PredictHello | PredictScores
AnyMessage = _OfClient | _OfHub | _OfDialogue
