"""What happens before round 0, and when a party comes back.

Clients say which samples they have; hubs compare protocol, settings, samples and labels; clients get their places and
the silo's preparation; hubs send each other the sizes of their silos. A mismatch names both sides and what differs.
"""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.blocks.absent import Absent
from tdcd.blocks.base import without_head
from tdcd.blocks.linear import is_linear
from tdcd.blocks.start import FormerBlock
from tdcd.config import ConfigError
from tdcd.config.losses import named_loss
from tdcd.core.family.scaled import products_shape
from tdcd.core.words import counted
from tdcd.runtime.certificates.agreement import Keys
from tdcd.runtime.compute.hub_compute import HubCompute
from tdcd.runtime.compute.sample_index import (
    MOST_CLASSES,
    Enrolment,
    Labelled,
    SampleIndex,
    build_index,
    with_labels,
)
from tdcd.runtime.compute.secure_sums import Masks
from tdcd.runtime.job import WAY_ON, IncompatibleParties, Job, Lost, block_beyond, compare_settings, scores_beyond
from tdcd.runtime.machine.instructions import HubState
from tdcd.runtime.machine.masks import MaskAgreement, is_other_key, refuse_few_blocks, refuse_few_rows
from tdcd.runtime.machine.parts import preparation_text
from tdcd.runtime.messages.messages import (
    ColumnSummary,
    Enrol,
    Hello,
    Opening,
    Prepare,
    PublishedKind,
    Ready,
    SharedSizes,
    Want,
    Welcome,
    Who,
)
from tdcd.runtime.messages.structure import Array, Message, named
from tdcd.runtime.messages.validation import are_finite, take, take_all, take_json
from tdcd.runtime.messages.wire import PROTOCOL, RejectedMessage
from tdcd.tables.preparation import Preparation
from tdcd.tables.sample_list import SampleList
from tdcd.tables.summary import Summary

OTHER_LIST = (
    "the list of samples is not the one that the run began with: give the hub that one, or start over everywhere"
)
MOST_CALLS = 2**31


class Sessions:
    """The processes of a silo's clients that a hub talks to, one per client.

    A hub calls a client whenever it joins, by another number each time. Only what answers the last call counts: what a
    former process sent, in this run or an earlier one, and however late it arrives, answers another. Of two processes
    that answer the same call, the first stays.
    """

    def __init__(self, hub: str, first_call: int) -> None:
        """No peer is connected; another process of this hub, or a hub of another run, begins with another number."""
        self._hub = hub
        self._last = first_call
        self._calls: dict[str, int] = {}
        self._current: dict[str, str] = {}
        self._answered: set[str] = set()

    def greet(self, client: str, run: str) -> Who:
        """The next call, to a client that has joined for the first time or again."""
        self._last = (self._last + 1) % MOST_CALLS
        self._calls[client] = self._last
        self._answered.discard(client)
        return self.who(client, run)

    def who(self, client: str, run: str) -> Who:
        """The last call once more."""
        return Who(self._hub, client, run=run, call=self._calls.get(client, 0))

    def is_current(self, message: Enrol) -> bool:
        """Whether a client answers the last call; if not, it may be a process that is gone."""
        return message.call == self._calls.get(message.sender)

    def check(self, client: str, session: str) -> None:
        """Refuse a process that introduces itself after another one has answered the call."""
        if client in self._answered and session != self._current[client]:
            raise RejectedMessage("another process of this name answered before")

    def note(self, client: str, session: str) -> None:
        """A process has introduced itself, and is welcome."""
        self._answered.add(client)
        self._current[client] = session

    def current(self, client: str) -> str:
        """The process that the hub talks to."""
        return self._current[client]


def difference(ours: Hello, theirs: Hello) -> str:
    """What keeps two hubs from training together; nothing if they can."""
    left, right = ours.sender, theirs.sender
    if ours.protocol != theirs.protocol:
        return f"{left} speaks protocol {ours.protocol} and {right} {theirs.protocol}: upgrade the older one"
    if ours.secret != theirs.secret:
        return f"{left} and {right} have different secrets: give both the same federation.secret"
    if ours.samples != theirs.samples:
        counts = f"{left} has {counted(ours.samples, 'sample')} and {right} has {theirs.samples}"
        return f"{counts}: align their ids first (tdcd align)"
    name, other = (hub.removeprefix("hub.") for hub in (left, right))
    if ours.shared.get(other) != theirs.shared.get(name):
        return f"{left} and {right} have different samples in common: align their ids again (tdcd align)"
    if ours.ids != theirs.ids:
        count = f"both have {counted(ours.samples, 'sample')}"
        advice = "align their ids first (tdcd align), and write them alike: '001' is not '1'"
        return f"{left} and {right} have different sample ids, though {count}: {advice}"
    differ = {
        f"{left} and {right} have different labels for the same samples": ours.labels != theirs.labels,
        f"{left} and {right} hold out different samples: give all clients the same kind of file": (
            ours.held_out != theirs.held_out
        ),
    }
    return next((sentence for sentence, is_so in differ.items() if is_so), "")


def check_outputs(theirs: Hello, job: Job, is_label_hub: bool) -> None:
    """Raise unless the hub with the labels, and no other, says what they ask of blocks, and that is possible."""
    outputs, chosen = theirs.outputs, job.config.model.loss
    if not is_label_hub and outputs is not None:
        raise IncompatibleParties(f"{theirs.sender} says what labels it has, and federation.labels names another silo")
    if not is_label_hub:
        return
    if outputs is None:
        raise IncompatibleParties(f"{theirs.sender} does not say what its labels ask for: upgrade the older one")
    if chosen not in (None, outputs.loss):
        raise IncompatibleParties(f"{theirs.sender} trains with {outputs.loss!r}, and model.loss is {chosen!r}")
    try:
        loss = named_loss(job.config.model, outputs.loss)
    except ConfigError as error:
        raise IncompatibleParties(error.problems[0]) from None
    least, most = (2, MOST_CLASSES) if loss.target == "classes" else (1, 1)
    if not least <= outputs.count <= most:
        raise IncompatibleParties(
            f"{theirs.sender} asks for {counted(outputs.count, 'output')}, which does not fit {outputs.loss!r}"
        )


class Handshake:
    """The phases before the first round, as a state machine."""

    def __init__(
        self,
        job: Job,
        silo: int,
        secret: bytes,
        nonce: str,
        restored: HubState | None = None,
        keys: Keys | None = None,
        first_call: int = 0,
        noise_key: bytes = b"",
        listed: SampleList | None = None,
        former: FormerBlock | None = None,
    ) -> None:
        """Take the silo's index, the federation's secret and a nonce of this run.

        Args:
            former: the silo's block of a former run, which it starts from.
            listed: the silo's part of the list of samples, where silos may lack some.
            restored: what the hub continues from, if the run has begun already.
            keys: for masks; by default made of the secret, which hides nothing from those who have it.
            first_call: see :class:`.Sessions`.
            noise_key: the secret of the hub's noise, if its variant has any.
        """
        self.job, self.silo, self.name = job, silo, job.hubs[silo]
        self.clients, self.peers = job.clients(silo), job.peers(silo)
        self.listed = listed
        self.phase = "gathering"
        self.run = ""
        self.sample_index: SampleIndex | None = None
        self.compute: HubCompute | None = None
        self.preparation: Preparation | None = None
        self.ready: dict[str, tuple[int, ...]] = {}
        """The clients whose features are ready, and a sample's shape there."""
        self.openings: dict[str, Opening] = {}
        """What each hub, this one too, says about its silo."""
        self.published: dict[str, Hello | Opening] = {}
        """What this hub has sent its peers, by kind."""
        self.renewals = 0
        """How often a client came back with another key for masks."""
        self.secret, self._nonce, self._label_hub = secret, nonce, job.topology.label_hub
        self._agreement = MaskAgreement(job, silo, keys or Keys.of_secret(self.name, secret), nonce)
        self._masks: Masks | None = None
        self._noise_key, self._former = noise_key, former
        known = () if restored is None else restored.rows
        if listed is not None and known and known[len(self.clients) :] != (listed.digest,):
            raise ConfigError([f"{self.name}: {OTHER_LIST}"])
        self._rows = dict(zip(self.clients, known, strict=False))
        self._continues = "" if restored is None else restored.run
        self._hubs = {} if restored is None else restored.hubs
        self._enrolments: dict[str, Enrolment] = {}
        self._peer_hellos: dict[str, Hello] = {}
        self._summaries: dict[str, Summary] = {}
        self._products: dict[str, NDArray[Any]] = {}
        self.sessions = Sessions(self.name, first_call)

    @property
    def has_labels(self) -> bool:
        """Whether this silo has labels."""
        return self.job.has_labels(self.silo)

    def missing(self) -> list[str]:
        """The parties that this phase waits for."""
        waiting: dict[str, tuple[Sequence[str], Collection[str]]] = {
            "gathering": (self.clients, self._enrolments),
            "comparing": (self.peers, self._peer_hellos),
            "preparing": (self.clients, self.ready),
            "opening": (self.peers, self.openings),
        }
        parties, present = waiting.get(self.phase, ((), ()))
        return [party for party in parties if party not in present]

    def rows(self) -> tuple[str, ...]:
        """A digest of each client's rows, in client order; known once all have enrolled."""
        return tuple(self._enrolments[client].rows for client in self.clients)

    def held(self) -> tuple[str, ...]:
        """What a run is continued with only if it is the same: the clients' rows, and the list of samples if any."""
        return (*self.rows(), *([] if self.listed is None else [self.listed.digest]))

    # What clients say.

    def client_enrol(self, message: Enrol) -> list[Message]:
        """A client introduces itself, at first or again."""
        client = message.sender
        if message.protocol != PROTOCOL:
            raise IncompatibleParties(
                f"{client} speaks protocol {message.protocol} and {self.name} speaks {PROTOCOL}: upgrade the older one"
            )
        if not self.sessions.is_current(message):
            return [self.sessions.who(client, self.run)]
        self.sessions.check(client, message.session)
        is_keyed = self.job.config.silos[self.silo].key is not None
        enrolment = Enrolment.read(message, has_labels=self.has_labels, is_keyed=is_keyed)
        compare_settings(client, message.config, self.name, self.job)
        self.sessions.note(client, message.session)
        before = self._enrolments.get(client)
        is_other = before is not None and self.sample_index is not None and not before.is_same(enrolment)
        if is_other or self._rows.get(client, enrolment.rows) != enrolment.rows:
            raise IncompatibleParties(f"{client} came back with other rows than it had when the run began")
        self._enrolments[client] = enrolment
        self.ready.pop(client, None)
        if before is not None and self.run and is_other_key(before, enrolment):
            # Its certificate is a new one. All clients make their masks anew, each with the keys of all.
            self.ready.clear()
            self.renewals += 1
            return [self._welcome(known) for known in self.clients if known in self._enrolments]
        return [self._welcome(client)] if self.run else []

    def client_summary(self, message: ColumnSummary) -> list[Message]:
        """A client's sums and counts, for the silo's preparation."""
        try:
            self._summaries[message.sender] = Summary.from_json(take_json(message.summary, "summary"))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise RejectedMessage(f"'summary' is damaged: {error}") from None
        return [self._prepare(message.sender)] if self.preparation is not None else []

    def client_ready(self, message: Ready) -> list[Message]:
        """A client's features are ready."""
        shape = message.feature_shape
        outputs = 1 if not self.run or self.sample_index is None else self.sample_index.outputs(self.job.config).count
        absent = Absent()
        if self.preparation is not None and self.preparation.absent:
            absent, width = self.preparation.absent, len(self.preparation.columns) + self.job.has_bias(self.silo)
            if [*shape] != [width]:
                raise RejectedMessage(f"'feature_shape' is {[*shape]}, and rows with their stand-ins are [{width}]")
        if beyond := block_beyond(self.job, self.silo, shape, outputs, absent):
            raise RejectedMessage(f"'feature_shape': {beyond}")
        other, known = next(iter(self.ready.items()), ("", shape))
        if known != shape:
            shapes = f"{[*shape]} at {message.sender} and {[*known]} at {other}"
            raise IncompatibleParties(f"a sample has shape {shapes}")
        self._products[message.sender] = self._read_products(message, shape)
        self.ready[message.sender] = shape
        return []

    def _read_products(self, message: Ready, shape: tuple[int, ...]) -> NDArray[Any]:
        """The products of a client's features; nothing where the hub's steps do not need them."""
        flow = self.job.round.flow("products", "client_to_hub")
        if flow is None:
            if message.products is not None:
                raise RejectedMessage("it has 'products', which were not requested")
            return np.zeros(0)
        if message.products is None:
            raise RejectedMessage("it has no array 'products'")
        kind = flow.dtype or self.job.settings.dtype
        products = take(message.products, "products", np.dtype(kind), products_shape(self._num_weights(shape)))
        if not are_finite([products]):
            raise RejectedMessage("'products' are not finite")
        return products

    def _num_weights(self, shape: tuple[int, ...]) -> int:
        """The weights of the silo's linear block by output, for samples of this shape."""
        absent = Absent() if self.preparation is None else self.preparation.absent
        block = without_head(self.job.block(self.silo, absent))
        assert is_linear(block)
        return block.num_weights(shape)

    # What peers say.

    def peer_hello(self, message: Hello) -> list[Message]:
        """Another hub introduces itself, at first or again."""
        before = self._peer_hellos.get(message.sender)
        known = _identity(before) if before is not None and self.run else self._hubs.get(message.sender)
        if known is not None and known != _identity(message):
            is_same_run = known.partition(" ")[0] == message.nonce
            what = "came with another key for masks" if is_same_run else "has begun another run"
            raise IncompatibleParties(f"{message.sender} {what}: start over everywhere, or restore its run folder")
        self._peer_hellos[message.sender] = message
        return []

    def is_in_run(self, peer: str) -> bool:
        """Whether a peer has introduced itself as one of this hub's run, as far as this hub knows."""
        return not self._hubs or peer in self._peer_hellos

    def hubs(self) -> dict[str, str]:
        """By which nonce and key for masks each hub is in this run; known once all have introduced themselves."""
        mine = self.published[Hello.tag()]
        assert isinstance(mine, Hello)
        return {hub: _identity(hello) for hub, hello in {**self._peer_hellos, self.name: mine}.items()}

    def peer_opening(self, message: Opening) -> list[Message]:
        """Another hub says how large its silo is."""
        key = self.job.round.flow("key", "hub_to_hub", self.job.hubs.index(message.sender))
        take_all(message.key, {} if key is None else key.codec.key_layout)
        self.openings[message.sender] = message
        return []

    # What follows.

    def advance(self) -> list[Message]:
        """Go through every phase that is complete; what to send."""
        out: list[Message] = []
        while self.phase != "done" and not self.missing():
            out += {
                "gathering": self._compare,
                "comparing": self._welcome_all,
                "preparing": self._open,
                "opening": self._close,
            }[self.phase]()
        if self.phase == "preparing" and self.preparation is None and len(self._summaries) == len(self.clients):
            out += self._fit()
        return out

    def _publish(self, message: Hello | Opening) -> list[Message]:
        self.published[message.kind] = message
        return [message.to(peer) for peer in self.peers]

    def _compare(self) -> list[Message]:
        enrolments = {client: self._enrolments[client] for client in self.clients}
        index = build_index(enrolments, self.job.config, self.listed)
        # If one silo alone has labels, no other gets a digest by which it could test a guess.
        is_shared = self._label_hub is None
        is_labelled_by_all = self.listed is not None and is_shared
        if not is_labelled_by_all:
            self._check_samples(index)
        outputs = index.outputs(self.job.config) if self.has_labels and not is_labelled_by_all else None
        self.sample_index = index
        self.phase, digests = "comparing", index.digests(self.secret)
        hello = Hello(
            self.name,
            "",
            run=self._continues,
            protocol=PROTOCOL,
            nonce=self._nonce,
            samples=len(index.ids),
            config=self.job.shared,
            secret=digests.secret,
            ids=digests.ids,
            held_out=digests.held_out,
            labels=digests.labels if is_shared else None,
            outputs=None if is_shared else outputs,
            shared={}
            if self.listed is None
            else self.listed.digests(self.job.config.silos[self.silo].name, self.secret),
            labelled=index.own.message() if is_labelled_by_all and index.own is not None else None,
            card=self._agreement.card(self.held()),
        )
        return self._publish(hello)

    def _check_samples(self, index: SampleIndex) -> None:
        """Refuse more than messages may have, and minibatches of more samples than there are."""
        settings, samples = self.job.settings, index.num_samples
        if settings.minibatches != "full" and not settings.limits_batch and settings.batch_size > samples:
            raise IncompatibleParties(
                f"train.batch_size = {settings.batch_size}: there are only {counted(samples, 'training sample')}"
            )
        outputs = 1 if index.meaning is None else index.outputs(self.job.config).count
        if beyond := scores_beyond(self.job, self.silo, len(index.ids), outputs):
            raise IncompatibleParties(beyond)

    def _with_all_labels(self, index: SampleIndex) -> SampleIndex:
        """The index with the labels of all samples, where every silo has those of its own."""
        others = {}
        for peer in self.peers:
            labelled = self._peer_hellos[peer].labelled
            if labelled is None:
                raise IncompatibleParties(f"{peer} does not say the labels of its samples: upgrade the older one")
            try:
                others[peer] = Labelled.read(labelled, len(index.ids))
            except RejectedMessage as problem:
                raise IncompatibleParties(f"the labels of {peer}: {problem}") from None
        index = with_labels(index, others, self.job.config)
        self._check_samples(index)
        return index

    def _welcome_all(self) -> list[Message]:
        """All hubs are there: compare them, and name the run after all of their nonces and keys for masks."""
        mine = self.published[Hello.tag()]
        assert isinstance(mine, Hello)
        for peer in self.peers:
            theirs = self._peer_hellos[peer]
            if theirs.protocol == PROTOCOL:
                compare_settings(peer, theirs.config, self.name, self.job)
            if different := difference(mine, theirs):
                raise IncompatibleParties(different)
            check_outputs(theirs, self.job, peer == self._label_hub)
            if peer == self._label_hub and self.sample_index is not None:
                self.sample_index = replace(self.sample_index, received_outputs=theirs.outputs)
                count = 1 if theirs.outputs is None else theirs.outputs.count
                if beyond := scores_beyond(self.job, self.silo, len(self.sample_index.ids), count):
                    raise IncompatibleParties(f"{peer}: {beyond}")
        if mine.labelled is not None and self.sample_index is not None:
            self.sample_index = self._with_all_labels(self.sample_index)
        hellos = {**self._peer_hellos, self.name: mine}
        nonces = [hellos[hub].nonce for hub in self.job.hubs]
        keys = [card.public.hex() for card in (hellos[hub].card for hub in self.job.hubs) if card is not None]
        self.run = hashlib.sha256("\n".join([self.job.digest, *nonces, *keys]).encode()).hexdigest()[:32]
        for peer in self.peers:
            if hellos[peer].run not in ("", self.run) and not self._continues:
                raise Lost(f"{peer} continues run {hellos[peer].run}, of which {self.name} has no state. {WAY_ON}")
        self._masks = self._agreement.masks(hellos, self.run)
        self.phase = "preparing"
        return [self._welcome(client) for client in self.clients]

    def _welcome(self, client: str) -> Message:
        samples, index = self.sample_index, self.clients.index(client)
        assert samples is not None
        train, test = samples.places(index)
        outputs, meaning = samples.outputs(self.job.config), samples.meaning
        return Welcome(
            self.name,
            client,
            run=self.run,
            session=self.sessions.current(client),
            num_samples=samples.num_samples,
            num_rows=0 if self.listed is None else samples.num_rows,
            num_outputs=outputs.count,
            loss=outputs.loss,
            train=Array.of(train),
            test=Array.of(test),
            labels=None if meaning is None else Array.of(meaning.labels[samples.rows[index]]),
            weights=Array.maybe(samples.weights_at(samples.rows[index])),
            cards={
                other: enrolment.card for other, enrolment in self._enrolments.items() if enrolment.card is not None
            },
        )

    def _fit(self) -> list[Message]:
        summaries = {client: self._summaries[client] for client in self.clients}
        try:
            preparation = Preparation.of_clients(summaries, self.job.config)
            self.preparation = replace(preparation, absent=self._absent()[0])
        except (ValueError, TypeError, ArithmeticError) as error:
            raise IncompatibleParties(str(error)) from None
        return [self._prepare(client) for client in self.clients]

    def _prepare(self, client: str) -> Message:
        assert self.preparation is not None
        assert self.sample_index is not None
        text, (absent, marks) = preparation_text(self.preparation), self._absent()
        rows = self.sample_index.rows[self.clients.index(client)]
        return Prepare(
            self.name,
            client,
            run=self.run,
            preparation=text,
            bias=self.job.has_bias(self.silo),
            absent=Array.of(marks[rows].astype(np.uint8)) if absent.silos else None,
        )

    def _absent(self) -> tuple[Absent, NDArray[np.bool_]]:
        """What stands in for silos that lack samples of this one, and where that is needed."""
        assert self.sample_index is not None
        return self.sample_index.absent(self.job.config, self.silo, self.job.block(self.silo))

    def _open(self) -> list[Message]:
        assert self.sample_index is not None
        shape = next(iter(self.ready.values()))
        outputs, (absent, _) = self.sample_index.outputs(self.job.config), self._absent()
        if beyond := block_beyond(self.job, self.silo, shape, outputs.count, absent):
            raise IncompatibleParties(beyond)
        products = (
            [self._products[client] for client in self.clients]
            if self.job.round.flow("products", "client_to_hub")
            else []
        )
        own = (self._masks, self._noise_key, products, self.run, absent, self._former)
        try:
            if self._former is not None and self.preparation is not None:
                self._former.check(self.preparation.columns)
            self.compute = HubCompute(self.job, self.silo, self.sample_index, shape, *own)
        except ValueError as error:
            if self._former is None:
                raise
            raise IncompatibleParties(str(error)) from None
        rows = [self.compute.rows_of(index, held_out=False) for index in range(len(self.clients))]
        refuse_few_blocks(self.job, self.name, rows)
        refuse_few_rows(self.job, self.name, rows)
        opening = Opening(
            self.name,
            "",
            run=self.run,
            parameters=self.compute.num_parameters,
            block_up=self.compute.bytes_up,
            memory=self.compute.memory_bytes,
            feature_shape=shape,
            clients=rows,
            key={} if self.compute.encrypted is None else named(self.compute.encrypted.public()),
            held_out=sum(self.compute.rows_of(index, held_out=True) for index in range(len(self.clients))),
            shared=None if self.compute.shared is None else SharedSizes(*self.compute.shared),
        )
        self.openings[self.name] = opening
        self.phase = "opening"
        # What a peer sent before this hub knew the run could not be understood.
        return [*self._publish(opening), *self.remind()]

    def _close(self) -> list[Message]:
        self.phase = "done"
        return []

    def remind(self) -> list[Message]:
        """Ask again for what this phase waits for."""
        if self.phase in ("comparing", "opening"):
            what: PublishedKind = "hello" if self.phase == "comparing" else "opening"
            return [Want(self.name, peer, run=self.run, what=what) for peer in self.missing()]
        return [self.call(client) for client in self.clients if client not in self.ready]

    def call(self, client: str) -> Message:
        """What to say to a client that is not ready."""
        if client in self._summaries and self.preparation is not None:
            return self._prepare(client)
        if client in self._enrolments and self.run:
            return self._welcome(client)
        return self.sessions.who(client, self.run)


def _identity(hello: Hello) -> str:
    """By which nonce, and by which key for masks if there is one, a hub is in a run."""
    return hello.nonce if hello.card is None else f"{hello.nonce} {hello.card.public.hex()}"
