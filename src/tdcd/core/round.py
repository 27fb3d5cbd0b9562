r"""What a communication round is, as a value: which party sends what to which, in which form, and when.

:mod:`tdcd.core.algorithm` has the arithmetic of Algorithm 1; this module has its messages. A :class:`Round` is a list
of flows of training and one of evaluation. Whoever has to know what is sent reads them: the general engine, the hubs'
and clients' machines, the ledger (bytes), the pace of rounds (time), the audit (who sees what).

With labels everywhere, a round of training is

=========== ============== ================================================================== ==============
flow        link           what a message carries                                             route
=========== ============== ================================================================== ==============
block       hub to client  the hub's block                                                    inside a silo
phi         client to hub  phi of the client's rows of the round's minibatches                inside a silo
phi         hub to hub     phi of the round's minibatches                                     :class:`Everyone`
received    hub to client  the sum of the others' phi, of the client's rows                   inside a silo
block       client to hub  the client's block after its local steps                           inside a silo
=========== ============== ================================================================== ==============

Where steps are scaled by the silos' curvature, clients send their hub ``products`` of their features once, before round
0. An evaluation sends ``evaluated``, the hub's block, down, and ``scores`` up and between hubs.

Where steps are scaled, on every sample, hubs send each other ``step_products`` with phi, from which
mixtures follow (:mod:`tdcd.core.family.mixing`); a silo that alone has labels sends ``step_sums`` with the slopes.

Some evaluations have a certificate (:mod:`tdcd.core.certificate`): ``gram`` between hubs, from which the weights
follow (the ``mixture``); ``witness``, blocks, down, and ``witness_scores`` up and between hubs; ``residual``, every
sample's slope, down and, from a silo that alone has labels, between hubs; ``gradient`` up; ``norm`` between hubs, and
``gap`` from a silo that alone has labels.

Where rows of a silo belong to many samples (:mod:`tdcd.core.shared_rows`), phi and scores go up once per distinct row,
and residuals come down summed by rows. So do slopes, weighed, where a round is one local step of linear blocks: after a
first step the loss of each sample is a function of its own, and what comes down as ``received`` is of samples.

With labels at silo s, phi goes :class:`To` s, and ``slope``, what the losses of its samples follow from, comes
:class:`From` s; the clients of the other silos receive rows of that. Where slopes are encrypted
(:mod:`tdcd.core.family.encrypted`), they receive all of it as ``sealed``; ``share``, ``masked`` and ``sums`` follow.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from tdcd.core.codecs.codec import Bounded, is_identity, scores_codec
from tdcd.core.codecs.fixed_point import FixedBlocks, FixedPoint, largest_product
from tdcd.core.family.mixing import WIDTH

if TYPE_CHECKING:
    from tdcd.core.codecs.encrypted import EncryptedSums
    from tdcd.core.variant import Variant

LinkClass = Literal["client_to_hub", "hub_to_client", "hub_to_hub"]
FlowName = Literal[
    "block",
    "memory",
    "phi",
    "received",
    "key",
    "slope",
    "sealed",
    "share",
    "masked",
    "sums",
    "weights",
    "evaluated",
    "scores",
    "intercept",
    "figures",
    "gram",
    "mixture",
    "witness",
    "witness_scores",
    "residual",
    "certified",
    "gradient",
    "norm",
    "gap",
    "model",
    "products",
    "step_products",
    "step_sums",
]
"""One flow on each link; ``evaluated`` is the hub's block whose scores are wanted, ``model`` the one of the end."""
Carries = Literal["samples", "rows", "parameters", "products", "memory", "vector", "encrypted", "figures"]
"""What a message has numbers of: of samples, of a client's distinct rows, of a block's parameters, of pairs of a silo's
features, of a client's memory, a vector, ciphertexts; or figures, whose bytes do not count."""
When = Literal["begun", "ended"]
CertificateKind = Literal["", "witness", "model", "gradient"]
"""What certificates are of: nothing; a gap, proven by a witness or by the model itself; or any block's gradient."""
WITNESSES = 64
"""The most rounds whose models a witness is a mixture of."""


class Route(Protocol):
    """Which hubs a hub sends something to."""

    def receivers(self, silo: int, num_silos: int) -> tuple[int, ...]:
        """The silos whose hubs the hub of ``silo`` sends it to, in silo order."""
        ...


@dataclass(frozen=True)
class Everyone:
    """Every hub sends it to every other one.

    >>> Everyone().receivers(1, 3)
    (0, 2)
    """

    def receivers(self, silo: int, num_silos: int) -> tuple[int, ...]:
        """All other silos."""
        return tuple(other for other in range(num_silos) if other != silo)


@dataclass(frozen=True)
class To:
    """Every other hub sends it to the hub of one silo.

    >>> [To(1).receivers(silo, 3) for silo in range(3)]
    [(1,), (), (1,)]
    """

    silo: int

    def receivers(self, silo: int, num_silos: int) -> tuple[int, ...]:
        """The one hub, unless it is the sender."""
        return () if silo == self.silo else (self.silo,)


@dataclass(frozen=True)
class From:
    """The hub of one silo sends it to every other one.

    >>> [From(1).receivers(silo, 3) for silo in range(3)]
    [(), (0, 2), ()]
    """

    silo: int

    def receivers(self, silo: int, num_silos: int) -> tuple[int, ...]:
        """All other silos of the one hub, and none of another."""
        return Everyone().receivers(silo, num_silos) if silo == self.silo else ()


@dataclass(frozen=True)
class Flow:
    """One kind of message: what it carries, its sender and receiver, and its form."""

    name: FlowName
    link: LinkClass
    carries: Carries = "samples"
    width: int = 1
    """The numbers of each sample, or of a vector."""
    codec: Any = None
    """Of samples a :class:`~tdcd.core.codecs.codec.Codec`, of a block on its way up a
    :class:`~tdcd.core.codecs.codec.BlockCodec`; None: numbers as they are."""
    route: Route = Everyone()
    """Between hubs; inside a silo a client and its hub are the only ones."""
    silos: tuple[int, ...] | None = None
    """The silos whose parties send it; None: all."""
    when: When = "begun"
    """Inside a silo: whether it is sent when a silo's local steps begin, or when they end; that differs for a silo
    with a period."""
    within: FlowName | None = None
    """The flow whose messages it travels in; None if it has messages of its own."""
    dtype: str | None = None
    """Of its numbers, where there is no codec; None: that of the run."""

    def is_of(self, silo: int) -> bool:
        """Whether the parties of a silo send it."""
        return self.silos is None or silo in self.silos


def is_of_rows(flow: Flow | None) -> bool:
    """Whether there is a flow, and it is of clients' distinct rows."""
    return flow is not None and flow.carries == "rows"


class Widths(NamedTuple):
    """How many numbers a sample has."""

    phi: int
    """C of phi, and so of the scores of one silo."""
    statistic: int
    """W: where one silo has the labels, what the others receive in place of the labels and the others' phi."""
    weighs: bool = False
    """Whether they also receive what a sample weighs."""
    certificate: CertificateKind = ""
    shared: tuple[int, ...] = ()
    """The silos whose clients have rows that belong to many samples."""
    one_step: bool = False
    """Whether a round is one local step of linear blocks, for which slopes of samples can be summed."""
    mixes: bool = False
    """Whether hubs continue from mixtures of their last rounds' models."""


@dataclass(frozen=True)
class Round:
    """All flows of a communication round, of an evaluation and of a certificate."""

    num_silos: int
    training: tuple[Flow, ...]
    evaluation: tuple[Flow, ...]
    certificate: tuple[Flow, ...] = ()
    ending: tuple[Flow, ...] = (Flow("model", "hub_to_hub", "parameters"),)
    """What hubs send each other at the end, if all agreed to share the model; it is in no ledger."""
    beginning: tuple[Flow, ...] = ()
    """What is sent once, before round 0, with the last message of the handshake."""
    mixes: bool = False
    """Whether hubs continue from mixtures of their last rounds' models."""

    def between_hubs(self) -> Iterator[Flow]:
        """What hubs send each other, of training, of evaluation and of a certificate, in this order."""
        all_flows = (*self.training, *self.evaluation, *self.certificate)
        yield from (flow for flow in all_flows if flow.link == "hub_to_hub")

    def receivers(self, name: str, silo: int) -> tuple[int, ...]:
        """The silos whose hubs the hub of a silo sends a flow to; none if there is no such flow."""
        for flow in (*self.between_hubs(), *self.ending):
            if flow.name == name:
                return flow.route.receivers(silo, self.num_silos)
        return ()

    def flow(self, name: FlowName, link: LinkClass, silo: int = 0) -> Flow | None:
        """What the parties of a silo send of a flow of training, of a certificate or once; None if they send none.

        >>> from tdcd.core.variant import Variant
        >>> round_of(Variant(), 2, Widths(1, 1)).flow("slope", "hub_to_hub") is None
        True
        """
        all_flows = (*self.training, *self.certificate, *self.beginning)
        wanted = (flow for flow in all_flows if (flow.name, flow.link) == (name, link) and flow.is_of(silo))
        return next(wanted, None)

    def codec(self, name: FlowName, link: LinkClass, silo: int = 0, default: Any = None) -> Any:
        """The form of :meth:`flow`; ``default`` if there is no such flow."""
        flow = self.flow(name, link, silo)
        return default if flow is None else flow.codec

    def scored_at(self, silo: int) -> int:
        """The silo whose hub works out what the clients of ``silo`` receive: its own, unless it is sent slopes.

        >>> from tdcd.core.family.labels import LabelsAt
        >>> from tdcd.core.variant import Variant
        >>> [round_of(Variant(knowledge=LabelsAt(1)), 3, Widths(1, 1)).scored_at(silo) for silo in range(3)]
        [1, 1, 1]
        """
        senders = (other for other in range(self.num_silos) if silo in self.receivers("slope", other))
        return next(senders, silo)

    @property
    def encrypted(self) -> "EncryptedSums | None":
        """The form of the slopes, if only their sender can read them; None if there are no slopes, or all can."""
        forms = (flow.codec for flow in self.training if flow.carries == "encrypted")
        return next(forms, None)

    @property
    def summed_phi(self) -> FixedPoint | None:
        """The form of phi, if hubs can use nothing but sums of it."""
        codec = self.codec("phi", "hub_to_hub")
        return codec if isinstance(codec, FixedPoint) else None

    @property
    def summed_blocks(self) -> FixedBlocks | None:
        """The form of clients' blocks, if a hub can use nothing but their sum."""
        codec = self.codec("block", "client_to_hub", self.scored_at(0))
        return codec if isinstance(codec, FixedBlocks) else None

    @property
    def largest_product(self) -> float:
        """The largest inner product of gradients that a hub can send."""
        return math.inf if self.summed_phi is None else largest_product(self.num_silos)

    @property
    def bounded(self) -> tuple[Bounded | None, Bounded | None]:
        """The forms of what hubs send of samples, and of clients' blocks, where they have a range; else None."""
        samples = self.codec("phi", "hub_to_hub") if self.encrypted is None else self.encrypted
        return samples if isinstance(samples, Bounded) else None, self.summed_blocks

    def answers(self) -> dict[FlowName, FlowName]:
        """By flow down, in the order of a round: the flow up with which clients answer it, which is the next one.

        An evaluation comes first. A certificate waits for the other hubs' scores, and meanwhile clients work out phi.

        >>> from tdcd.core.variant import Variant
        >>> round_of(Variant(), 2, Widths(1, 1)).answers()
        {'evaluated': 'scores', 'block': 'phi', 'received': 'block'}
        """
        answers: dict[FlowName, FlowName] = {}
        places = [place for place, flow in enumerate(self.training) if flow.name == "received"]
        before = places[0] if places else 0
        for flows in (self.evaluation, self.training[:before], self.certificate, self.training[before:]):
            down = None
            for flow in flows:
                if flow.within is None and flow.link == "hub_to_client":
                    down = flow.name
                elif flow.within is None and flow.link == "client_to_hub" and down is not None:
                    answers.setdefault(down, flow.name)
        return answers

    @property
    def centre(self) -> int | None:
        """The silo whose hub alone receives phi and answers; None if all hubs exchange it."""
        receiving = {other for silo in range(self.num_silos) for other in self.receivers("phi", silo)}
        return receiving.pop() if len(receiving) == 1 and self.receivers("slope", next(iter(receiving))) else None

    def broadcasters(self) -> tuple[int, ...]:
        """The silos whose hubs send several others the same."""
        return tuple(
            silo
            for silo in range(self.num_silos)
            if any(len(flow.route.receivers(silo, self.num_silos)) > 1 for flow in self.between_hubs())
        )


def round_of(variant: "Variant", num_silos: int, widths: Widths) -> Round:
    """The messages of a member of the family.

    >>> from tdcd.core.variant import Variant
    >>> for flow in round_of(Variant(), 2, Widths(1, 1)).training:
    ...     print(flow.name, flow.link)
    block hub_to_client
    phi client_to_hub
    phi hub_to_hub
    received hub_to_client
    block client_to_hub
    """
    training, evaluation = _training(variant, num_silos, widths), _evaluation(variant, num_silos, widths)
    certificate = tuple(_certificate(variant, num_silos, widths)) if widths.certificate else ()
    beginning = tuple(_beginning(variant, num_silos, widths))
    return Round(num_silos, tuple(training), tuple(evaluation), certificate, beginning=beginning, mixes=widths.mixes)


def _beginning(variant: "Variant", num_silos: int, widths: Widths) -> Iterator[Flow]:
    if variant.encrypted is not None:
        label_silo = variant.knowledge.scored_at(0)
        others = tuple(silo for silo in range(num_silos) if silo != label_silo)
        form, answer = variant.encrypted, From(label_silo)
        yield Flow("key", "hub_to_hub", "encrypted", 1, form, answer, silos=(label_silo,), within="slope")
        yield Flow("key", "hub_to_client", "encrypted", 1, form, silos=others, within="sealed")
    if variant.curved is not None:
        yield Flow("products", "client_to_hub", "products", widths.phi, dtype=_summed(variant))


def _training(variant: "Variant", num_silos: int, widths: Widths) -> Iterator[Flow]:
    knowledge, inside = variant.knowledge, variant.client_exchange
    yield Flow("block", "hub_to_client", "parameters")
    if variant.carried is not None:
        yield Flow("memory", "hub_to_client", "memory", within="block")
    if num_silos > 1:
        # A dither, and a silo that is dropped, are of samples.
        is_of_rows = is_identity(inside) and not variant.dropout.rate
        adds_up = is_of_rows and widths.one_step and knowledge.gives_slopes
        yield from _inside(Flow("phi", "client_to_hub", width=widths.phi, codec=inside), num_silos, widths, is_of_rows)
        yield Flow("phi", "hub_to_hub", width=widths.phi, codec=variant.exchange, route=knowledge.route)
        if widths.mixes:
            yield _products_between(variant, "step_products", WIDTH, None, within="phi")
        scoring, others = _split(variant, num_silos)
        if others and variant.encrypted is not None:
            yield from _encrypted(variant, widths, scoring, others)
            return
        if others:
            answer = From(knowledge.scored_at(others[0]))
            yield Flow("slope", "hub_to_hub", width=widths.statistic, route=answer)
            if widths.weighs:
                yield Flow("weights", "hub_to_hub", route=answer, within="slope")
            if widths.mixes:
                yield Flow("step_sums", "hub_to_hub", "vector", WIDTH, route=answer, within="slope")
        yield Flow("received", "hub_to_client", width=widths.phi, codec=inside, silos=scoring, when="ended")
        summed = tuple(silo for silo in others if adds_up and silo in widths.shared)
        others = tuple(silo for silo in others if silo not in summed)
        down = Flow("received", "hub_to_client", codec=inside, when="ended")
        if others:
            yield replace(down, width=widths.statistic, silos=others)
            if widths.weighs:
                yield Flow("weights", "hub_to_client", silos=others, when="ended", within="received")
        if summed:
            yield replace(down, carries="rows", width=widths.phi, silos=summed)
    yield Flow("block", "client_to_hub", "parameters", codec=variant.block_exchange, when="ended")
    if variant.carried is not None:
        yield Flow("memory", "client_to_hub", "memory", when="ended", within="block")


def _encrypted(variant: "Variant", widths: Widths, scoring: tuple[int, ...], others: tuple[int, ...]) -> Iterator[Flow]:
    """What follows phi where slopes are encrypted."""
    form, label_silo, width = variant.encrypted, scoring[0], widths.phi
    answer, there = From(label_silo), To(label_silo)
    yield Flow("slope", "hub_to_hub", "encrypted", width, form, answer, silos=(label_silo,))
    yield Flow("received", "hub_to_client", width=width, codec=variant.client_exchange, silos=scoring, when="ended")
    block = Flow("block", "client_to_hub", "parameters", codec=variant.block_exchange, silos=scoring, when="ended")
    yield block
    yield Flow("sealed", "hub_to_client", "encrypted", width, form, silos=others, when="ended")
    yield Flow("share", "client_to_hub", "encrypted", width, form, silos=others, when="ended")
    yield Flow("masked", "hub_to_hub", "encrypted", width, form, route=there, silos=others)
    yield Flow("sums", "hub_to_hub", "encrypted", width, form, answer, silos=(label_silo,))


def _inside(flow: Flow, num_silos: int, widths: Widths, is_of_rows: bool = True) -> Iterator[Flow]:
    """A flow between clients and hubs: of samples or, where rows belong to many of them, of distinct rows."""
    shared = widths.shared if is_of_rows else ()
    others = tuple(silo for silo in range(num_silos) if silo not in shared)
    if others:
        yield replace(flow, silos=others) if shared else flow
    if shared:
        yield replace(flow, carries="rows", silos=shared)


def _evaluation(variant: "Variant", num_silos: int, widths: Widths) -> Iterator[Flow]:
    route, dropout = variant.knowledge.route, variant.dropout
    yield Flow("evaluated", "hub_to_client", "parameters")
    yield from _inside(Flow("scores", "client_to_hub", width=widths.phi), num_silos, widths)
    yield Flow("scores", "hub_to_hub", width=widths.phi, codec=scores_codec(variant.exchange), route=route)
    if dropout.rate and dropout.intercept is not None:
        silo = (dropout.intercept,)
        yield Flow("intercept", "hub_to_hub", "vector", widths.phi, route=route, silos=silo, within="scores")
    if route != Everyone():
        yield Flow("figures", "hub_to_hub", "figures", route=From(variant.knowledge.scored_at(0)))


def _certificate(variant: "Variant", num_silos: int, widths: Widths) -> Iterator[Flow]:
    """In float64, but for sums in fixed point, and the gradients of other blocks than linear ones."""
    kind, route, codec = widths.certificate, variant.knowledge.route, scores_codec(variant.exchange)
    is_star, answer, exact = route != Everyone(), From(variant.knowledge.scored_at(0)), "float64"
    if kind == "witness":
        yield _products_between(variant, "gram", WITNESSES**2, exact)
        if is_star:
            yield Flow("mixture", "hub_to_hub", "vector", WITNESSES, route=answer, dtype=exact)
    blocks = 2 if kind == "witness" else 1
    if kind != "gradient":
        yield Flow("witness", "hub_to_client", "parameters", blocks, dtype=exact)
        up = Flow("witness_scores", "client_to_hub", width=blocks * widths.phi, dtype=exact)
        yield from _inside(up, num_silos, widths)
        yield Flow("witness_scores", "hub_to_hub", width=blocks * widths.phi, codec=codec, route=route, dtype=exact)
    numbers = None if kind == "gradient" else exact
    if is_star:
        yield Flow("residual", "hub_to_hub", width=widths.phi, route=answer, dtype=numbers)
    yield from _inside(Flow("residual", "hub_to_client", width=widths.phi, dtype=numbers), num_silos, widths)
    if kind == "gradient":
        yield Flow("certified", "hub_to_client", "parameters", within="residual")
    yield Flow("gradient", "client_to_hub", "parameters", dtype=_summed(variant) or numbers)
    yield Flow("norm", "hub_to_hub", "figures", route=route)
    if is_star:
        yield Flow("gap", "hub_to_hub", "figures", route=answer)


def _products_between(
    variant: "Variant", name: FlowName, width: int, dtype: str | None, within: FlowName | None = None
) -> Flow:
    """Inner products of gradients: of one that hubs know nothing but the sum of, there are three numbers."""
    route = variant.knowledge.route
    if variant.summed_phi is None:
        return Flow(name, "hub_to_hub", "vector", width, route=route, within=within, dtype=dtype)
    return Flow(name, "hub_to_hub", "vector", 3 * width, route=route, within=within, dtype="uint32")


def _summed(variant: "Variant") -> str | None:
    """The dtype of what a hub can only add up: numbers in fixed point, where blocks are; else None."""
    return None if variant.summed_blocks is None else "uint32"


def _split(variant: "Variant", num_silos: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The silos whose own hub works out what their clients receive, and those for which another hub does."""
    silos = range(num_silos)
    own = tuple(silo for silo in silos if variant.knowledge.scored_at(silo) == silo)
    return own, tuple(silo for silo in silos if silo not in own)
