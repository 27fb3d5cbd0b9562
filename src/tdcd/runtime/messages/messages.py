"""Every message of the protocol, as a typed structure of one tagged union.

:mod:`tdcd.runtime.messages.structure` has the types of their fields. :mod:`tdcd.runtime.messages.wire` writes and reads
them, which checks the types. :mod:`tdcd.runtime.machine.parts` checks what types cannot say, such as a round's shapes.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tdcd.core.losses import Task
from tdcd.core.round import FlowName
from tdcd.records.files import NO_LINES, Mark
from tdcd.records.outcome import NO_CONTROL, NO_COURSES, Best, Courses
from tdcd.records.steering import StepControl
from tdcd.runtime.certificates.agreement import Card
from tdcd.runtime.messages.former_parts import FormerPart
from tdcd.runtime.messages.structure import (
    Array,
    BoundedCount,
    ClassNames,
    Digest,
    EvaluationFigures,
    FeatureShape,
    Json,
    LossWord,
    Message,
    NamedArrays,
    NamedArraysInFiles,
    Nonce,
    SettingValue,
)


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


EndStatus = Literal["finished", "diverged", "refused"]


class LabelTarget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What labels mean that are ready for training."""

    task: Task
    label_scale: float
    label_mean: float = 0.0
    classes: ClassNames = ()
    """By number; empty if classes are called by their numbers."""


class SharedSizes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The distinct rows of a silo's clients, see :class:`tdcd.core.shared_rows.SharedCounts`."""

    trained: BoundedCount
    scored: BoundedCount
    sent: BoundedCount
    drawn: BoundedCount


class Enrol(Message, frozen=True, kw_only=True, tag="enrol"):
    """Who a client is and which samples it has."""

    protocol: int
    session: str
    """A number that differs between processes of the client."""
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
    shared: Array | None = None
    """Of each sample which row it has, by any number, where rows belong to many samples."""
    rows: Digest
    card: Card | None = None


class ColumnSummary(Message, frozen=True, kw_only=True, tag="summary"):
    """Sums and counts of a client's columns."""

    summary: Json


class Ready(Message, frozen=True, kw_only=True, tag="ready"):
    """The client's features are ready; the shape of one sample."""

    feature_shape: FeatureShape
    products: Array | None = None
    """Where the hub's steps are scaled by curvature: the mean of the products of the client's features."""


class Diverged(Message, frozen=True, kw_only=True, tag="diverged"):
    """The client's block, phi or scores stopped being finite, or its block, for a ``reason``, cannot be sent."""

    reason: str = ""


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
    """Which training sample every row is; -1 if it is none."""
    test: Array
    num_rows: BoundedCount = 0
    """The training samples that the silo has, if it lacks some."""
    labels: Array | None = None
    """The label of every row, where the silo has labels."""
    weights: Array | None = None
    cards: dict[str, Card] = msgspec.field(default_factory=dict)


class Prepare(Message, frozen=True, kw_only=True, tag="prepare"):
    """How the silo's columns become features."""

    preparation: Json
    bias: bool = False
    absent: Array | None = None
    """For which of the silos that the preparation has stand-ins for each row needs them."""


class Stop(Message, frozen=True, kw_only=True, tag="stop"):
    """The run is over, for everybody or for the receiver."""

    status: EndStatus
    reason: str = ""
    session: str = ""
    """If one process alone must leave: the session of its ``enrol``, or the nonce of its ``hello``."""
    in_block: bool = False
    """Whether something in the sender's silo stopped being finite in this round, which the other hubs do not know."""


# A hub to another hub.
class LabelledSamples(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The labels of a silo's samples, by number: sent where silos may lack samples, and all have labels."""

    numbers: Array
    labels: Array | None = None
    names: list[str] | None = None
    """Instead of ``labels``, where these are no numbers."""
    weights: Array | None = None


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
    shared: dict[str, str] = msgspec.field(default_factory=dict)
    """Where silos lack samples: by silo, a keyed digest of the samples that both have."""
    labelled: LabelledSamples | None = None
    """The same, where all silos have labels: this one's."""
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
    key: NamedArrays = msgspec.field(default_factory=dict)
    """Of the hub with the labels, where slopes are encrypted: what clients hide their answers with."""
    held_out: BoundedCount = 0
    """The held-out rows of all clients."""
    shared: SharedSizes | None = None
    """Where rows belong to many samples."""


# What a round's flows carry, between a hub and its clients and between hubs.
class _FlowFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a part says that is no array."""


class ScoresFacts(_FlowFacts, frozen=True, kw_only=True, tag="scores"):
    """What a hub says with its scores."""

    penalty: float
    """The regulariser of its block."""
    absent: dict[str, list[int]] = msgspec.field(default_factory=dict)
    """By client: the rounds since the last scores in which it was left out."""
    unscored: list[str] = msgspec.field(default_factory=list)
    """The clients whose rows are not in these scores."""


class FiguresFacts(_FlowFacts, frozen=True, kw_only=True, tag="figures"):
    """What an evaluation gave, from the hub with the labels."""

    figures: EvaluationFigures | None
    """None if no training sample was scored by all silos: the history has no line of it."""
    absent: dict[str, list[int]] = msgspec.field(default_factory=dict)
    """By client of any silo: the rounds since the last line in which it was left out."""
    unscored: list[str] = msgspec.field(default_factory=list)
    """The clients whose rows are not in these figures."""


class ProofFacts(_FlowFacts, frozen=True, kw_only=True, tag="proof"):
    """What a hub says in a certificate."""

    is_whole: bool = True
    """Whether all clients answered, with finite numbers; if not, there is no certificate of this line."""
    models: BoundedCount = 0
    """Of products and of a mixture: how many rounds' models they are of."""
    square: float = 0.0
    """Of the norm of X' times the residuals, at most."""
    penalty: float = 0.0
    """The regulariser of the hub's block, in float64."""
    gradient_square: float = 0.0
    """Of the norm of the objective's gradient by the block of the witness."""


class GapFacts(_FlowFacts, frozen=True, kw_only=True, tag="gap"):
    """What a certificate gave, from the hub with the labels; nothing if there is none."""

    loss: float | None = None
    bound: float | None = None
    gradient_norm: float | None = None


class ModelFacts(_FlowFacts, frozen=True, kw_only=True, tag="model"):
    """What goes with a silo's block at the end."""

    preparation: Json | None = None
    """How its columns become features."""


PartFacts = ScoresFacts | FiguresFacts | ProofFacts | GapFacts | ModelFacts


class Part(Message, frozen=True, kw_only=True, tag="part"):
    """What one party sends another of a flow of :class:`tdcd.core.round.Round`.

    ======== ============== ==================================================================================
    flow     link           arrays
    ======== ============== ==================================================================================
    block    hub to client  the hub's block; ``memory.`` and a name: the client's memory, if its update has one
    phi      client to hub  the round, a dot and a name: phi of the client's rows of that round's minibatches
    phi      hub to hub     phi of the round's minibatches, which may be some rounds ahead
    slope    hub to hub     the slope of every row's loss, or what else the steps need; ``weights`` of the rows;
                            or the encrypted slopes of the minibatch
    sealed   hub to client  encrypted slopes; to a client that does not have it, what the opening has of the key
    share    client to hub  encrypted sums of the client's features times slopes
    masked   hub to hub     the silo's encrypted sums, with masks
    sums     hub to hub     all other silos' masked sums, decrypted
    received hub to client  the others' phi of the client's rows, or the slopes there; ``weights`` of the rows
    block    client to hub  the client's block after its steps, and its memory
    evaluated hub to client the hub's block, whose scores are wanted
    scores   client to hub  ``train`` and, if it has held-out rows, ``test``: phi of all the client's rows
    scores   hub to hub     the same of all samples; ``intercept``: what is left of phi where the silo is dropped
    figures  hub to hub     none: see :class:`FiguresFacts`
    gram     hub to hub     inner products of the gradients of the last rounds
    mixture  hub to hub     how much of each of those rounds' models the witness is
    witness  hub to client  the evaluated block and that of the witness
    witness_scores client to hub  both blocks' scores of the client's training rows, in float64
    witness_scores hub to hub     the same of all training samples
    residual hub to hub     the slope of every training sample's loss at the witness
    residual hub to client  the same of the client's rows; ``block.`` and a name: the block, where it is not linear
    gradient client to hub  the gradient of its rows' losses by the block
    norm     hub to hub     none: see :class:`ProofFacts`
    gap      hub to hub     none: see :class:`GapFacts`
    model    hub to hub     a silo's block at the end, if all agreed to share the model
    ======== ============== ==================================================================================

    Where clients are left out, ``absent`` is 1 for their samples (of scores ``train_absent`` and ``test_absent``). A
    client that steps then receives ``present``, how many samples are left of each minibatch, and ``rows``, how many
    the silo's clients that take part hold.
    """

    flow: FlowName
    arrays: NamedArraysInFiles = msgspec.field(default_factory=dict)
    """The arrays, as the flow's codec encodes them."""
    digests: dict[str, str] = msgspec.field(default_factory=dict)
    """Between hubs: the digest of what each hub sent in the exchange of the round before, if it sends several hubs the
    same."""
    group: Group | None = None
    """For blocks that are added up: the group of clients whose blocks are in the sum."""
    facts: PartFacts | None = None
    """What is no array."""

    @property
    def kind(self) -> str:
        """The flow."""
        return self.flow


Published = Hello | Opening | Part
PublishedKind = Literal["hello", "opening"] | FlowName


class Want(Message, frozen=True, kw_only=True, tag="want"):
    """Asks a hub for what it published."""

    what: PublishedKind


class Gone(Message, frozen=True, kw_only=True, tag="gone"):
    """The sender, which is at round ``now``, no longer has what was asked for."""

    what: PublishedKind
    now: int


class AlignHello(Message, frozen=True, kw_only=True, tag="align_hello"):
    """What hubs compare before they align."""

    answer: str
    config: dict[str, SettingValue]


class AlignIds(Message, frozen=True, kw_only=True, tag="align_ids"):
    """A client's ids."""

    answer: str
    ids: list[str]
    config: dict[str, SettingValue]


class AlignRows(Message, frozen=True, kw_only=True, tag="align_rows"):
    """One step of an alignment between hubs; see :class:`~tdcd.alignment.messages.Outgoing`.

    ``run`` of an answer to the receiver's points is the name of the comparison.
    """

    step: str
    rows: Array

    @property
    def topic(self) -> str:
        """See :class:`~tdcd.runtime.messages.structure.Message`."""
        return f"{self.kind} {self.step}"


class AlignCommon(Message, frozen=True, kw_only=True, tag="align_common"):
    """Which of a client's ids every silo has."""

    ids: list[str]


class PredictHello(Message, frozen=True, kw_only=True, tag="predict_hello"):
    """The samples that a hub has, as blinded points, and which training its block is of."""

    model_run: str | None = None
    model_status: str | None = None
    card: Card | None = None
    points: Array
    stand_ins: tuple[str, ...] = ()
    """The silos that its block has stand-ins for, where silos may lack samples."""
    config: dict[str, SettingValue]


class PredictReturned(Message, frozen=True, kw_only=True, tag="predict_returned"):
    """The receiver's points, blinded by the sender too, in their order; ``run`` names the comparison."""

    points: Array


class PredictScores(Message, frozen=True, kw_only=True, tag="predict_scores"):
    """A hub's phi of the samples that the receiver has too; ``places`` are those among the receiver's points.

    ``run`` names the comparison, or what its masks are of.
    """

    places: Array
    phi: Array


class PredictModel(Message, frozen=True, kw_only=True, tag="predict_model"):
    """The silo's own part of the model, for a client that scores its new rows."""

    preparation: Json
    feature_shape: FeatureShape
    outputs: BoundedCount
    """C, the scores of a sample."""
    block: NamedArrays
    absent: Array | None = None
    """Where silos may lack samples, once that is known of the client's rows: for which of the silos that the block has
    stand-ins for each row needs them."""
    config: dict[str, SettingValue]

    @property
    def topic(self) -> str:
        """See :class:`~tdcd.runtime.messages.structure.Message`."""
        return self.kind if self.absent is None else f"{self.kind} absent"


class PredictRows(Message, frozen=True, kw_only=True, tag="predict_rows"):
    """The ids of a client's new rows, and their phi; ``run`` is a digest of the question."""

    ids: list[str]
    phi: Array
    stands_in: bool = False
    """Whether stand-ins are in it, after a message with ``absent``."""
    config: dict[str, SettingValue]

    @property
    def topic(self) -> str:
        """See :class:`~tdcd.runtime.messages.structure.Message`."""
        return f"{self.kind} stands_in" if self.stands_in else self.kind


# A hub to itself, in files.
class Checkpoint(Message, frozen=True, kw_only=True, tag="checkpoint"):
    """A hub's state at the start of a round; see :class:`~tdcd.runtime.machine.instructions.State`."""

    block: NamedArrays
    memory: NamedArrays = msgspec.field(default_factory=dict)
    outbox: tuple[Published | FormerPart, ...] = ()
    digests: dict[int, dict[str, str]] = msgspec.field(default_factory=dict)
    unrecorded: tuple[BoundedCount, ...] = ()
    best: Best | None = None
    courses: Courses = NO_COURSES
    control: StepControl = NO_CONTROL
    candidates: NamedArrays = msgspec.field(default_factory=dict)
    uncertified: NamedArrays = msgspec.field(default_factory=dict)
    certified: BoundedCount = 0
    proven: float | None = None
    recorded: int = 0
    rows: tuple[Digest, ...] = ()
    history: Mark = NO_LINES
    absences: Mark = NO_LINES
    hubs: dict[str, str] = msgspec.field(default_factory=dict)
    chain: dict[int, str] | None = None


class Ended(Message, frozen=True, kw_only=True, tag="ended"):
    """The end of a hub's run; see :class:`~tdcd.runtime.machine.hub.Shutdown`."""

    status: EndStatus
    reason: str
    in_block: bool
    peers: tuple[str, ...]
    unaware: tuple[str, ...]
    outbox: tuple[Published | FormerPart, ...]


class AuditFigure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one attack of an audit recovered; see :class:`tdcd.audit.AuditFinding`."""

    line: Annotated[str, Meta(pattern="^[a-z ]{1,40}$")]
    measure: Annotated[str, Meta(pattern="^[A-Za-z ]{1,40}$")]
    recovered: float
    guess: float

    @property
    def gain(self) -> float:
        """The part of the gap between the guess and everything that it closed."""
        return 0.0 if self.guess >= 1 else max(0.0, (self.recovered - self.guess) / (1 - self.guess))


class AuditFigures(Message, frozen=True, kw_only=True, tag="audit_figures"):
    """What attacks on a client's rows, or on those of a silo's clients, recovered; none as a receipt."""

    figures: Annotated[list[AuditFigure], Meta(max_length=1000)]
    config: dict[str, SettingValue]


_OfClient = Enrol | ColumnSummary | Ready | Diverged | Bye
_OfHub = Who | Welcome | Prepare | Stop | Published | Want | Gone | Checkpoint | Ended
_OfDialogue = AlignHello | AlignIds | AlignRows | AlignCommon | PredictHello | PredictReturned | PredictScores
_OfPrediction = PredictModel | PredictRows | AuditFigures
AnyMessage = _OfClient | _OfHub | _OfDialogue | _OfPrediction
