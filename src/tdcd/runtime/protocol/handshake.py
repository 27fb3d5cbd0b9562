"""What happens before round 0, and when a party comes back.

Clients say which samples they have; hubs compare protocol, settings, samples and labels; clients get their places and
the silo's preparation; hubs tell each other how large their silos are. A mismatch names both sides and what differs.
"""

import hashlib
import math
from collections.abc import Sequence
from typing import Any

from tdcd.config.resolve import has_bias
from tdcd.runtime.compute.hub_compute import HubCompute
from tdcd.runtime.protocol.job import Job
from tdcd.runtime.protocol.messages import PROTOCOL, Message, RejectedMessage, pack, unpack
from tdcd.runtime.protocol.sample_index import Enrolment, IncompatibleParties, SampleIndex, build_index
from tdcd.tables.preparation import Preparation, Summary, merge_summaries

_COMPARED = ("protocol", "secret", "samples", "ids", "labels")


class Handshake:
    """The phases before the first round, as a state machine."""

    def __init__(self, job: Job, silo: int, secret: bytes, nonce: str, rows: Sequence[str] = ()) -> None:
        """Take the silo's index, the federation's secret and a nonce of this run.

        Args:
            rows: a digest of each client's rows, if the run has begun already.
        """
        self.job, self.silo, self.name = job, silo, job.hubs[silo]
        self.clients, self.peers = job.clients(silo), job.peers(silo)
        self.phase = "gathering"
        self.run = ""
        self.sample_index: SampleIndex | None = None
        self.compute: HubCompute | None = None
        self.preparation: Preparation | None = None
        self.ready: dict[str, tuple[int, ...]] = {}
        """The clients whose features are ready, and a sample's shape there."""
        self.openings: dict[str, dict[str, Any]] = {}
        """What each hub, this one too, says about its silo."""
        self.published: dict[str, Message] = {}
        """What this hub tells its peers."""
        self._secret, self._nonce = secret, nonce
        self._rows = dict(zip(self.clients, rows, strict=False))
        self._enrolments: dict[str, Enrolment] = {}
        self._peer_hellos: dict[str, Message] = {}
        self._summaries: dict[str, Summary] = {}
        self._sessions: dict[str, list[str]] = {}

    @property
    def has_bias(self) -> bool:
        """Whether this silo's features end with a column of ones."""
        return self.silo == 0 and has_bias(self.job.config)

    def missing(self) -> list[str]:
        """The parties that this phase waits for."""
        waiting = {
            "gathering": [client for client in self.clients if client not in self._enrolments],
            "comparing": [peer for peer in self.peers if peer not in self._peer_hellos],
            "preparing": [client for client in self.clients if client not in self.ready],
            "opening": [peer for peer in self.peers if peer not in self.openings],
        }
        return waiting.get(self.phase, [])

    def rows(self) -> tuple[str, ...]:
        """A digest of each client's rows, in client order; known once all have enrolled."""
        return tuple(self._enrolments[client].rows for client in self.clients)

    # What clients say.

    def client_hello(self, message: Message) -> list[Message]:
        """A client introduces itself, at first or again."""
        client = message.sender
        if message.note.get("protocol") != PROTOCOL:
            theirs = message.note.get("protocol")
            raise IncompatibleParties(
                f"{client} speaks protocol {theirs} and {self.name} speaks {PROTOCOL}: upgrade the older one"
            )
        try:
            enrolment = Enrolment.read(message)
        except TypeError as error:
            raise RejectedMessage(f"its content is of the wrong kind: {error}") from None
        compare_settings(client, enrolment.shared, self.name, self.job)
        self._note_session(client, str(message.note.get("session")))
        before = self._enrolments.get(client)
        is_other = before is not None and self.sample_index is not None and not _same_rows(before, enrolment)
        if is_other or self._rows.get(client, enrolment.rows) != enrolment.rows:
            raise IncompatibleParties(f"{client} came back with other rows than it had when the run began")
        self._enrolments[client] = enrolment
        self.ready.pop(client, None)
        return [self._welcome(client)] if self.run else []

    def _note_session(self, client: str, session: str) -> None:
        """Of two processes that say that they are the same client, the one that came later is."""
        known = self._sessions.setdefault(client, [])
        if session in known[:-1]:
            raise RejectedMessage("another process has taken its place")
        if session not in known:
            known.append(session)

    def client_summary(self, message: Message) -> list[Message]:
        """A client's sums and counts, for the silo's preparation."""
        try:
            self._summaries[message.sender] = Summary.from_json(unpack(message, "summary"))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise RejectedMessage(f"'summary' is damaged: {error}") from None
        return [self._prepare(message.sender)] if self.preparation is not None else []

    def client_ready(self, message: Message) -> list[Message]:
        """A client's features are ready."""
        shape = message.note.get("feature_shape")
        if not isinstance(shape, list) or not all(isinstance(size, int) and size > 0 for size in shape):
            raise RejectedMessage("'feature_shape' must be a list of sizes")
        if math.prod(shape) > self.job.config.runtime.max_message_mb * 2**20:
            raise RejectedMessage(f"'feature_shape' is {shape}: no message could carry a block for so many features")
        for other, known in self.ready.items():
            if known != tuple(shape):
                raise IncompatibleParties(f"a sample has shape {shape} at {message.sender} and {[*known]} at {other}")
        self.ready[message.sender] = tuple(shape)
        return []

    # What peers say.

    def peer_hello(self, message: Message) -> list[Message]:
        """Another hub introduces itself, at first or again."""
        nonce = message.note.get("nonce")
        if not isinstance(nonce, str) or not nonce.isascii():
            raise RejectedMessage("'nonce' must be a text")
        if not isinstance(unpack(message, "config"), dict):
            raise RejectedMessage("'config' must be a table")
        before = self._peer_hellos.get(message.sender)
        if before is not None and self.run and nonce != before.note["nonce"]:
            raise IncompatibleParties(
                f"{message.sender} has begun another run: begin anew everywhere, or restore its run folder"
            )
        self._peer_hellos[message.sender] = message
        return []

    def peer_ready(self, message: Message) -> list[Message]:
        """Another hub says how large its silo is."""
        note = message.note
        clients, parameters = note.get("clients"), note.get("parameters")
        if not isinstance(clients, list) or not all(isinstance(rows, int) for rows in clients):
            raise RejectedMessage("'clients' must be the rows of each client")
        if not isinstance(parameters, int) or not isinstance(note.get("feature_shape"), list):
            raise RejectedMessage("'parameters' must be a number and 'feature_shape' a list")
        self.openings[message.sender] = dict(note)
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

    def _publish(self, kind: str, **content: Any) -> list[Message]:
        self.published[kind] = Message(kind, self.name, "", run=self.run, **content)
        return [self.published[kind].to(peer) for peer in self.peers]

    def _compare(self) -> list[Message]:
        self.sample_index = build_index({client: self._enrolments[client] for client in self.clients}, self.job.config)
        batch, samples = self.job.settings.batch_size, self.sample_index.num_samples
        if self.job.settings.minibatches != "full" and batch > samples:
            raise IncompatibleParties(f"train.batch_size = {batch}: there are only {samples} training samples")
        self.sample_index.loss(self.job.config)
        self.phase = "comparing"
        note = {"protocol": PROTOCOL, "nonce": self._nonce, "samples": len(self.sample_index.ids)}
        note |= self.sample_index.digests(self._secret)
        return self._publish("hello", note=note, arrays={"config": pack(self.job.shared)})

    def _welcome_all(self) -> list[Message]:
        """All hubs are there: compare them, and name the run after all of their numbers."""
        mine, notes = self.published["hello"].note, {}
        for peer in self.peers:
            message = self._peer_hellos[peer]
            notes[peer] = message.note
            shared = unpack(message, "config")
            if message.note.get("protocol") == PROTOCOL:
                compare_settings(peer, shared, self.name, self.job)
            for item in _COMPARED:
                if message.note.get(item) != mine[item]:
                    raise IncompatibleParties(_difference(item, self.name, mine, peer, message.note))
        nonces = [self._nonce if hub == self.name else str(notes[hub]["nonce"]) for hub in self.job.hubs]
        self.run = hashlib.sha256("\n".join([self.job.digest, *nonces]).encode()).hexdigest()[:32]
        self.phase = "preparing"
        return [self._welcome(client) for client in self.clients]

    def _welcome(self, client: str) -> Message:
        sample_index, index = self.sample_index, self.clients.index(client)
        assert sample_index is not None
        train, test = sample_index.places(index)
        loss = sample_index.loss(self.job.config)
        note = {
            "num_samples": sample_index.num_samples,
            "num_outputs": int(sample_index.labels.max()) + 1 if loss == "softmax" else 1,
            "loss": loss,
            "session": self._sessions[client][-1],
        }
        arrays = {"train": train, "test": test, "labels": sample_index.labels[sample_index.rows[index]]}
        return Message("welcome", self.name, client, run=self.run, note=note, arrays=arrays)

    def _fit(self) -> list[Message]:
        data = self.job.config.data
        try:
            merged = merge_summaries({client: self._summaries[client] for client in self.clients})
            self.preparation = Preparation.fit(merged, standardize=data.standardize, rare=data.rare)
        except ValueError as error:
            raise IncompatibleParties(str(error)) from None
        return [self._prepare(client) for client in self.clients]

    def _prepare(self, client: str) -> Message:
        assert self.preparation is not None
        note = {"bias": self.has_bias}
        arrays = {"preparation": pack(self.preparation.to_json())}
        return Message("prepare", self.name, client, run=self.run, note=note, arrays=arrays)

    def _open(self) -> list[Message]:
        assert self.sample_index is not None
        shape = next(iter(self.ready.values()))
        self.compute = HubCompute(self.job, self.silo, self.sample_index, shape)
        rows = [self.compute.rows_of(index, held_out=False) for index in range(len(self.clients))]
        note = {"parameters": self.compute.num_parameters, "feature_shape": list(shape), "clients": rows}
        self.openings[self.name] = note
        self.phase = "opening"
        # What a peer said before this hub knew the run could not be understood.
        return [*self._publish("ready", note=note), *self.remind()]

    def _close(self) -> list[Message]:
        self.phase = "done"
        return []

    def remind(self) -> list[Message]:
        """Ask again for what this phase waits for."""
        if self.phase in ("comparing", "opening"):
            kind = "hello" if self.phase == "comparing" else "ready"
            return [Message("want", self.name, peer, run=self.run, note={"kind": kind}) for peer in self.missing()]
        return [self.call(client) for client in self.clients if client not in self.ready]

    def call(self, client: str) -> Message:
        """What to say to a client that is not ready."""
        if client in self._summaries and self.preparation is not None:
            return self._prepare(client)
        if client in self._enrolments and self.run:
            return self._welcome(client)
        return Message("who", self.name, client, run=self.run)


def compare_settings(party: str, theirs: Any, own: str, job: Job) -> None:
    """Raise unless two parties have the same shared settings; the error names the first key that differs.

    A key that one of them does not know, since its version is older, counts unless the other has set it.
    """
    if not isinstance(theirs, dict):
        raise RejectedMessage("'config' must be a table")
    ours = job.shared
    for key in sorted({*(theirs.keys() & ours.keys()), *(job.chosen.keys() - theirs.keys())}):
        if key not in theirs or theirs[key] != ours[key]:
            values = f"{theirs.get(key)!r} at {party} and {ours[key]!r} at {own}"
            raise IncompatibleParties(f"the shared files differ: {key} is {values}")
    known = {_setting(key) for key in ours}
    for key in sorted(theirs.keys() - ours.keys()):
        if _setting(key) in known:
            raise IncompatibleParties(
                f"the shared files differ: {key} is {theirs[key]!r} at {party} and absent at {own}"
            )


def _setting(key: str) -> str:
    """The setting that a dotted key is a part of."""
    section, _, rest = key.partition(".")
    return section if section == "silos" else f"{section}.{rest.partition('.')[0]}"


def _difference(item: str, left: str, ours: Any, right: str, theirs: Any) -> str:
    if item == "protocol":
        return f"{left} speaks protocol {ours[item]} and {right} {theirs.get(item)}: upgrade the older one"
    if item == "samples":
        return f"{left} has {ours[item]} samples and {right} has {theirs.get(item)}: align their ids first (tdcd align)"
    if item == "ids":
        count = f"both have {ours['samples']} samples"
        advice = "align their ids first (tdcd align), and write them alike: '001' is not '1'"
        return f"{left} and {right} have different sample ids, though {count}: {advice}"
    if item == "secret":
        return f"{left} and {right} have different secrets: give both the same federation.secret"
    return f"{left} and {right} have different labels for the same samples"


def _same_rows(left: Enrolment, right: Enrolment) -> bool:
    return left.rows == right.rows and left.ids == right.ids and list(left.labels) == list(right.labels)
