"""The ledger: which messages rounds and evaluations send over which kind of link, and how many bytes they carry."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Literal, NamedTuple, Self, get_args

import numpy as np

from tdcd.core.family.scaled import products_shape
from tdcd.core.round import Flow, FlowName, LinkClass, Round
from tdcd.core.shared_rows import SharedCounts

Colocation = Literal["none", "silo", "all"]
"""Which parties share a machine: none; those of a silo; or all of them."""
Count = Literal["bytes", "messages"]
COUNTS: tuple[Count, ...] = get_args(Count)


@dataclass(frozen=True)
class Traffic:
    """A count by link class, of bytes or of messages; adds up and scales."""

    client_to_hub: int = 0
    """Blocks and phi, from the clients to their hub."""
    hub_to_client: int = 0
    """Blocks and the rows of the others' phi, from a hub to its clients."""
    hub_to_hub: int = 0
    """Phi, from each hub to every other; with labels at one silo phi to its hub, and slopes back. Of baselines that
    need it, also raw data between organisations, and hubs' models."""

    def __add__(self, other: Self) -> Self:
        """The traffic of both."""
        return type(self)(
            self.client_to_hub + other.client_to_hub,
            self.hub_to_client + other.hub_to_client,
            self.hub_to_hub + other.hub_to_hub,
        )

    def __mul__(self, times: int) -> Self:
        """The traffic of ``times`` such rounds."""
        return type(self)(self.client_to_hub * times, self.hub_to_client * times, self.hub_to_hub * times)

    @property
    def total(self) -> int:
        """The count over all links."""
        return self.client_to_hub + self.hub_to_client + self.hub_to_hub


class Sent(NamedTuple):
    """All messages of one kind, of rounds or of evaluations."""

    kind: FlowName | Literal["rows"]
    link: LinkClass
    messages: int
    bytes: int


class Moved(NamedTuple):
    """Raw data that an algorithm needs in another place than where it is, moved once, before the first round."""

    link: LinkClass
    bytes: tuple[int, ...]
    """What each sender sends: a client to its hub, or all clients of a silo together to another organisation."""


class Sizes(NamedTuple):
    """What the bytes of a run's messages depend on, in addition to its flows."""

    samples: tuple[int, int]
    """``(E, B)``: the samples of a round."""
    scored: int
    """The samples of an evaluation, the held-out ones counted in."""
    dtype: str
    parameters: Sequence[int]
    """The number of parameters of each silo's block."""
    blocks_up: Sequence[int] | None = None
    """Per silo, the bytes of a block on its way up; None: as many as on its way down."""
    memories: Sequence[int] = ()
    """Per silo, the bytes of a client's memory, if its update carries one."""
    trained: int = 0
    """The training samples, which certificates are of."""
    rows: Sequence[tuple[int, int]] = ()
    """Per silo, how many of the training samples and of all samples it has, where silos lack some."""
    shared: Sequence[SharedCounts | None] = ()
    """Per silo, its distinct rows, where they belong to many samples; () if none has any."""

    def sent(self, flow: Flow, silo: int, samples: int, *, of_round: bool) -> int:
        """Of how many samples, or distinct rows, the clients of a silo send or get numbers."""
        shared = self.shared[silo] if flow.carries == "rows" and self.shared else None
        if shared is None:
            return self.held(silo, samples, of_round=of_round)
        if of_round:
            return shared.sent + round(samples * shared.drawn / self.trained)
        return shared.trained if samples == self.trained else shared.scored

    def held(self, silo: int, samples: int, *, of_round: bool) -> int:
        """How many of so many samples a silo has: of a round's, its part of the training samples."""
        if not self.rows:
            return samples
        trained, scored = self.rows[silo]
        if of_round:
            return round(samples * trained / self.trained)
        return trained if samples == self.trained else scored

    @property
    def itemsize(self) -> int:
        """The bytes of one number."""
        return np.dtype(self.dtype).itemsize


class Load(NamedTuple):
    """A flow with its bytes, silo by silo."""

    flow: Flow
    each: tuple[int, ...]
    """The bytes of every message: between hubs all of it; inside a silo what does not depend on the client's rows."""
    together: tuple[int, ...]
    """Inside a silo: the rest, of all its clients together."""


def load_of(flow: Flow, sizes: Sizes, *, samples: int | None = None) -> Load:
    """The bytes of a flow's messages; outside of training, so many samples are scored."""
    silos, dtype = range(len(sizes.parameters)), flow.dtype or sizes.dtype
    itemsize = np.dtype(dtype).itemsize
    each, together = [0] * len(silos), [0] * len(silos)
    for silo in silos:
        if not flow.is_of(silo) or flow.carries == "figures":
            continue
        if flow.carries == "parameters":
            down = sizes.parameters[silo] * flow.width * itemsize
            is_up = flow.name == "block" and flow.link == "client_to_hub" and sizes.blocks_up is not None
            each[silo] = sizes.blocks_up[silo] if is_up else down  # type: ignore[index]
        elif flow.carries == "products":
            # Of linear blocks, with so many parameters for each feature.
            shape = products_shape(sizes.parameters[silo] // flow.width)
            each[silo] = math.prod(shape) * itemsize
        elif flow.carries == "memory":
            each[silo] = sizes.memories[silo]
        elif flow.carries == "encrypted":
            counts = sizes.parameters
            arrays = flow.codec.layout_of(flow.name, silo, sizes.samples[1], flow.width, counts).values()
            each[silo] = sum(math.prod(shape) * np.dtype(kind).itemsize for kind, shape in arrays)
        elif flow.carries == "vector":
            each[silo] = flow.width * itemsize
        elif flow.link == "hub_to_hub":
            rows = sizes.samples if samples is None else (samples,)
            each[silo] = _wire_bytes(flow, (*rows, flow.width), dtype)
        else:
            is_of_round = samples is None
            all_rows = math.prod(sizes.samples) if samples is None else samples
            all_rows = sizes.sent(flow, silo, all_rows, of_round=is_of_round)
            each[silo] = _wire_bytes(flow, (0, flow.width), dtype)
            together[silo] = _wire_bytes(flow, (all_rows, flow.width), dtype) - each[silo]
    return Load(flow, tuple(each), tuple(together))


def _wire_bytes(flow: Flow, shape: tuple[int, ...], dtype: str) -> int:
    """The bytes that are sent for samples of this shape."""
    if flow.codec is None:
        return math.prod(shape) * np.dtype(dtype).itemsize
    arrays = flow.codec.layout(shape, dtype).values()
    return sum(math.prod(size) * np.dtype(kind).itemsize for kind, size in arrays)


def is_evaluated(round_index: int, every: int, last: int) -> bool:
    """Whether the global model is evaluated after this round: now and then, and at the end."""
    return round_index % every == 0 or round_index == last


@dataclass(frozen=True)
class Ledger:
    r"""What communication rounds send, by kind of message.

    With :math:`d_j` parameters of s bytes each and :math:`K_j` clients in silo j: a client gets the hub's block and
    returns its own, :math:`s\,d_j` each way; a hub's clients together send the phi of all samples of the round and get
    that of the others, however the rows are split; and every hub sends its phi to each of the N - 1 others. If one silo
    has the labels, the others send phi to its hub only, and each gets slopes back. One silo alone has nothing to
    exchange, so its clients send blocks only. What parties on one machine send each other does not count. Phi counts in
    the round that it is of, however early it is sent. A silo that steps every m rounds exchanges blocks, and gets the
    others' phi, once in m rounds; what comes of its steps counts when its period ends. Of 4 bits, half a byte may be
    left over per client and round, which is not counted. A silo that lacks samples is taken to have its part of every
    minibatch. Clients whose rows belong to many samples send scores, and phi where that is less, once per distinct row.
    If only some clients answer, those exchange blocks, their phi is taken to be of their part of the rows, and hubs
    send that of whole minibatches, zero for the others' rows. A baseline that needs raw data in another place sends it
    before round 0. So do clients the products of their features, where steps are scaled by curvature.

    Evaluations are counted apart, see :meth:`evaluations`: a hub sends every client its block and gets the scores of
    all its samples, and hubs send each other their sums; or to the one with the labels, which returns figures. Those
    that have a certificate send its flows, too.

    >>> from tdcd.core.round import Widths, round_of
    >>> from tdcd.core.variant import Variant
    >>> flows = round_of(Variant(), 2, Widths(1, 1))
    >>> for sent in Ledger.of(flows, Sizes((1, 100), 0, "float32", [10, 20]), [5, 3]).after(1):
    ...     print(*sent)
    block hub_to_client 8 440
    phi client_to_hub 8 800
    phi hub_to_hub 2 800
    received hub_to_client 8 800
    block client_to_hub 8 440
    """

    clients: Sequence[int]
    """The number of clients per silo."""
    training: Sequence[Load]
    evaluation: Sequence[Load]
    colocation: Colocation = "none"
    periods: Sequence[int] | None = None
    """m of each silo, if not all step in every round."""
    answering: Sequence[int] | None = None
    """Per silo, the clients that answer in a round, if not all do."""
    moved: Sequence[Moved] = ()
    """The raw data that is sent before the first round."""
    beginning: Sequence[Load] = ()
    """What all clients send once, before the first round."""
    certificate: Sequence[Load] = ()

    @classmethod
    def of(
        cls,
        flows: Round,
        sizes: Sizes,
        clients: Sequence[int],
        colocation: Colocation = "none",
        periods: Sequence[int] | None = None,
        answering: Sequence[int] | None = None,
        moved: Sequence[Moved] = (),
    ) -> Self:
        """The ledger of a round with messages of these sizes."""
        training = tuple(load_of(flow, sizes) for flow in flows.training)
        evaluation = tuple(load_of(flow, sizes, samples=sizes.scored) for flow in flows.evaluation)
        beginning = tuple(load_of(flow, sizes) for flow in flows.beginning)
        certificate = tuple(load_of(flow, sizes, samples=sizes.trained) for flow in flows.certificate)
        return cls(clients, training, evaluation, colocation, periods, answering, moved, beginning, certificate)

    @property
    def num_silos(self) -> int:
        """N."""
        return len(self.clients)

    def after(self, rounds: int) -> tuple[Sent, ...]:
        """All messages of the first rounds."""
        periods = self.periods or [1] * self.num_silos
        # Of each silo: the updates that began, and those that ended; the last one of a slow silo may not.
        begun, ended = [-(-rounds // period) for period in periods], [rounds // period for period in periods]
        clients = self.answering or self.clients
        # What part of the rows of a round each silo sends phi of.
        parts = [answering / all_clients for answering, all_clients in zip(clients, self.clients, strict=True)]
        counted = _CountedFlow()
        for load in self.beginning:
            if self._counts(load.flow.link):
                senders = self._fans(load.flow) if load.flow.link == "hub_to_hub" else self.clients
                for number, size in zip(senders, load.each, strict=True):
                    counted.add(load.flow, number, number * size)
        for load in self.training:
            flow = load.flow
            if not self._counts(flow.link):
                continue
            if flow.link == "hub_to_hub":
                for silo, fan in enumerate(self._fans(flow)):
                    counted.add(flow, rounds * fan, rounds * fan * load.each[silo])
                continue
            times = begun if flow.when == "begun" else ended
            # Phi of every round goes up, whenever its message is sent.
            rows = [rounds] * self.num_silos if flow.link == "client_to_hub" else ended
            for silo, (number, part) in enumerate(zip(clients, parts, strict=True)):
                if not flow.is_of(silo):
                    continue
                each = (rows if flow.carries in ("samples", "rows") else times)[silo] * number * load.each[silo]
                counted.add(flow, times[silo] * number, each + rows[silo] * part * load.together[silo])
        before = [Sent("rows", link, sum(size > 0 for size in sizes), sum(sizes)) for link, sizes in self.moved]
        return (*before, *counted.sent())

    @property
    def model_bytes(self) -> int:
        """The bytes of all hubs' blocks."""
        return next(sum(load.each) for load in self.training if load.flow.name == "block")

    @property
    def scores_bytes(self) -> int:
        """The bytes of all clients' scores in an evaluation."""
        return sum(sum(load.together) for load in self.evaluation if load.flow.name == "scores")

    def evaluations(self, rounds: int, every: int, last: int, certificates: int = 0) -> tuple[Sent, ...]:
        """All messages of the evaluations until after so many rounds of a run.

        A silo that steps every m rounds asks its clients once in m rounds, since its block stays the same meanwhile.

        Args:
            every: rounds between two evaluations; that after round ``last``, the run's last one, is one more.
            certificates: how many of them had a certificate.
        """
        times, periods = self.num_evaluations(rounds, every, last), self.periods or [1] * self.num_silos
        asked = [_evaluated_periods(rounds, every, last, period) for period in periods]
        counted = _CountedFlow()
        proven = (certificates, [certificates] * self.num_silos)
        each = [*((load, times, asked) for load in self.evaluation), *((load, *proven) for load in self.certificate)]
        for load, exchanged, by_silo in each:
            flow = load.flow
            if not self._counts(flow.link):
                continue
            if flow.link == "hub_to_hub":
                for silo, fan in enumerate(self._fans(flow)):
                    counted.add(flow, exchanged * fan, exchanged * fan * load.each[silo])
                continue
            for silo, number in enumerate(self.clients):
                if not flow.is_of(silo):
                    continue
                size = number * load.each[silo] + load.together[silo]
                counted.add(flow, by_silo[silo] * number, by_silo[silo] * size)
        return counted.sent()

    def num_evaluations(self, rounds: int, every: int, last: int) -> int:
        """How often a run was evaluated until after so many rounds, that before the first one counted in."""
        return rounds // every + 1 + (rounds == last and rounds % every != 0)

    def _counts(self, link: LinkClass) -> bool:
        """Whether what goes over such links leaves a machine."""
        if link == "hub_to_hub":
            return self.colocation != "all" and self.num_silos > 1
        return self.colocation == "none"

    def _fans(self, flow: Flow) -> list[int]:
        """The number of hubs that each silo's hub sends a flow to."""
        silos = range(self.num_silos)
        return [len(flow.route.receivers(silo, self.num_silos)) if flow.is_of(silo) else 0 for silo in silos]

    def bytes_inside(self, name: FlowName, link: LinkClass, silo: int, share: float) -> float:
        """The bytes of a message between a client and its hub; the client holds ``share`` of the silo's rows."""
        return sum(
            load.each[silo] + share * load.together[silo]
            for load in self.training
            if load.flow.link == link and name in (load.flow.name, load.flow.within) and load.flow.is_of(silo)
        )

    def uploads(self) -> list[int]:
        """What the busiest hub uploads of each flow between hubs, which follow one another in a round."""
        by_flow: dict[FlowName, list[int]] = {}
        for load in self.training:
            flow = load.flow
            if flow.link == "hub_to_hub":
                sums = by_flow.setdefault(flow.within or flow.name, [0] * self.num_silos)
                for silo, fan in enumerate(self._fans(flow)):
                    sums[silo] += fan * load.each[silo]
        return [max(sums) for sums in by_flow.values()]

    def traffic(self, rounds: int, count: Count) -> Traffic:
        """The bytes, or the messages, of the first rounds, by link class; without those of evaluations."""
        if self.is_even:
            return self._before[count] + self._per_round[count] * rounds
        return by_link(self.after(rounds), count)

    @cached_property
    def is_even(self) -> bool:
        """Whether every round sends the same."""
        return set(self.periods or [1]) == {1} and self.answering is None

    @cached_property
    def _before(self) -> dict[str, Traffic]:
        return {count: by_link(self.after(0), count) for count in COUNTS}

    @cached_property
    def _per_round(self) -> dict[str, Traffic]:
        per_round = replace(self, moved=(), beginning=()).after(1)
        return {count: by_link(per_round, count) for count in COUNTS}


class _CountedFlow:
    """Messages and bytes by kind and link; what travels within another flow's messages counts as bytes of those."""

    def __init__(self) -> None:
        self._messages: defaultdict[tuple[FlowName, LinkClass], int] = defaultdict(int)
        self._bytes: defaultdict[tuple[FlowName, LinkClass], float] = defaultdict(int)

    def add(self, flow: Flow, messages: int, size: float) -> None:
        """Count messages of a flow, and their bytes."""
        key = flow.within or flow.name, flow.link
        self._messages[key] += 0 if flow.within else messages
        self._bytes[key] += size

    def sent(self) -> tuple[Sent, ...]:
        """All that was counted, in the order of the flows."""
        return tuple(Sent(*key, number, round(self._bytes[key])) for key, number in self._messages.items())


def _evaluated_periods(rounds: int, every: int, last: int, period: int) -> int:
    """In how many of a silo's periods that was."""
    if period > every:
        # Every period has an evaluation in it.
        latest = rounds if is_evaluated(rounds, every, last) else rounds - rounds % every
        return latest // period + 1
    is_apart = rounds // period != rounds // every * every // period
    return rounds // every + 1 + (rounds == last and is_apart)


def by_link(sent: Sequence[Sent], count: Count) -> Traffic:
    """The bytes, or the messages, of each link class.

    >>> by_link([Sent("phi", "hub_to_hub", 2, 800), Sent("slope", "hub_to_hub", 2, 80)], "bytes")
    Traffic(client_to_hub=0, hub_to_client=0, hub_to_hub=880)
    """
    totals = {link.name: 0 for link in fields(Traffic)}
    for item in sent:
        totals[item.link] += getattr(item, count)
    return Traffic(**totals)
