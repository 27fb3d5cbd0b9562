"""The hub: it leads its clients and works with the other hubs. Events in, instructions out; no I/O, no clock.

First the :class:`.Handshake`, then the :class:`.Rounds`, then the :class:`.Shutdown`. A party may go and come back at
any time: it introduces itself again, and is sent again what it needs.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from tdcd.blocks.start import FormerBlock
from tdcd.config import ConfigError
from tdcd.runtime.certificates.agreement import Keys
from tdcd.runtime.job import WAY_ON, IncompatibleParties, Job, Lost, UnfitLabels
from tdcd.runtime.machine.handshake import Handshake
from tdcd.runtime.machine.instructions import Absence, Append, End, HubState, Instruction, TurnedAway
from tdcd.runtime.machine.rounds import Rounds
from tdcd.runtime.messages.messages import (
    Bye,
    ColumnSummary,
    EndStatus,
    Enrol,
    Gone,
    Hello,
    Opening,
    Part,
    Published,
    Ready,
    Stop,
    Want,
)
from tdcd.runtime.messages.structure import Message
from tdcd.runtime.messages.wire import RejectedMessage
from tdcd.tables.sample_list import SampleList


@dataclass
class Shutdown:
    """How the run ended, what peers may still ask for, and who has not confirmed the end."""

    name: str
    run: str
    round: int
    status: EndStatus
    reason: str
    in_block: bool
    peers: tuple[str, ...]
    outbox: tuple[Published, ...]
    """What peers may ask for again."""
    unaware: set[str] = field(default_factory=set)
    public_reason: str | None = None
    """The reason for other hubs, if it is not the same; None of a run that was saved."""

    def joined(self, party: str) -> list[Message]:
        """A party can be reached: a hub that comes back needs the handshake before anything else."""
        again = [sent.to(party) for sent in self.outbox if isinstance(sent, Hello | Opening) and party in self.peers]
        return [*again, self.stop(party)]

    def remind(self) -> list[Message]:
        """Send it to those that have not confirmed."""
        return [self.stop(party) for party in sorted(self.unaware)]

    def receive(self, message: Message) -> list[Message]:
        """Answer a message that came after the end."""
        party = message.sender
        if isinstance(message, Bye):
            self.unaware.discard(party)
            return []
        if isinstance(message, Want):
            return [sent.to(party) for sent in self.outbox if (sent.kind, sent.round) == (message.what, message.round)]
        if isinstance(message, Stop):
            self.unaware.discard(party)
            return [Bye(self.name, party, message.round, self.run)]
        return [self.stop(party)]

    def stop(self, party: str) -> Stop:
        """Announce that the run is over."""
        stop = Stop(self.name, party, self.round, self.run, status=self.status)
        reason = self.public_reason if self.public_reason is not None and party in self.peers else self.reason
        return stop.replace(reason=reason, in_block=self.in_block)


UNFIT = "the labels do not fit; its log says why"
"""The reason that hubs without labels get."""


LISTED = (
    "data.samples = 'all': a hub needs the list of its samples, which tdcd align writes for it; give it with "
    "--samples FILE"
)
UNLISTED = "data.samples = 'common': a hub takes no --samples; leave it out, or set data.samples = 'all' in the file"
NOISE_BYTES = 16
"""Of the secret that noise is drawn from."""


class Hub:
    """One silo's hub, as a state machine."""

    def __init__(
        self,
        job: Job,
        silo: int,
        *,
        secret: bytes,
        nonce: str,
        restored: HubState | Shutdown | None = None,
        absences: Sequence[Absence] = (),
        keys: Keys | None = None,
        first_call: int = 0,
        noise_key: bytes = b"",
        listed: SampleList | None = None,
        former: FormerBlock | None = None,
    ) -> None:
        """Take the silo's index and what was saved of it, if this is not its first start.

        Args:
            secret: known to the parties of the federation only.
            nonce: drawn once for this run of the silo, and kept.
            absences: all that were made durable.
            keys: for masks; see :class:`.Handshake`.
            first_call: drawn for this process, so that no answer to another process of the hub fits.
            noise_key: 16 bytes that only this hub knows, drawn once for this run of the silo, and kept; for a variant
                that adds noise to what hubs send, or encrypts it.
            listed: the silo's part of the list of samples, where silos may lack some.
            former: the silo's block of a former run, which it starts from, if ``train.start`` names one.
        """
        if job.may_lack_samples != (listed is not None):
            raise ConfigError([LISTED if listed is None else UNLISTED])
        is_over = isinstance(restored, Shutdown)
        if job.variant.needs_secret and not is_over and len(noise_key) != NOISE_BYTES:
            raise ValueError(f"{job.hubs[silo]}: what it sends needs a secret of {NOISE_BYTES} bytes")
        self.job, self.name = job, job.hubs[silo]
        self.clients, self.peers = job.clients(silo), job.peers(silo)
        self._own_clients = frozenset(self.clients)
        self._silo, self._restored = silo, restored if isinstance(restored, HubState) else None
        self._nonce = nonce
        self.handshake = Handshake(
            job, silo, secret, nonce, self._restored, keys, first_call, noise_key, listed, former
        )
        self.rounds: Rounds | None = None
        self.sends_phi = job.variant.knowledge.sends_phi(silo)
        self.shutdown = restored if isinstance(restored, Shutdown) else None
        """The end of the run, when it has come."""
        self._absences = absences
        self._verdict: Stop | None = None
        """The end of a peer whose client diverged."""

    # Facts for those who watch.

    @property
    def status(self) -> EndStatus | None:
        """How the run ended."""
        return None if self.shutdown is None else self.shutdown.status

    @property
    def reason(self) -> str:
        """Why the run ended, if not with its last round."""
        return "" if self.shutdown is None else self.shutdown.reason

    @property
    def phase(self) -> str:
        """What the hub is doing."""
        if self.shutdown is not None:
            return "ending"
        return self.rounds.phase if self.rounds is not None and self.rounds.phase else self.handshake.phase

    @property
    def round(self) -> int:
        """The round that the hub stands at."""
        if self.shutdown is not None:
            return self.shutdown.round
        return self.rounds.round if self.rounds is not None else 0

    @property
    def is_over(self) -> bool:
        """Whether the run has ended and everybody knows."""
        return self.shutdown is not None and not self.shutdown.unaware

    @property
    def _is_training(self) -> bool:
        return self.rounds is not None and self.handshake.phase == "done"

    def missing(self) -> Collection[str]:
        """The parties that are being waited for; asked for with every message, so it is seldom a new list."""
        if self.shutdown is not None:
            return sorted(self.shutdown.unaware)
        if self.rounds is None or not self.rounds.phase:
            return self.handshake.missing()
        if len(self.handshake.ready) == len(self.clients):
            return self.rounds.missing()
        present = {*self.handshake.ready, *self.left_out()}
        away = [client for client in self.clients if client not in present]
        return list(dict.fromkeys([*away, *self.rounds.missing()]))

    def left_out(self) -> list[str]:
        """The clients that are left out of this round."""
        if self.rounds is None:
            return []
        return [self.clients[index] for index in self.rounds.questions.absences.out(self.round)]

    def open_questions(self) -> list[Message]:
        """The open questions to clients that the hub may leave out, or has left out."""
        if self.rounds is None or self.shutdown is not None:
            return []
        return self.rounds.questions.open(self.round)

    # Events.

    def joined(self, party: str) -> list[Instruction]:
        """A party can be reached, for the first time or again."""
        if self.shutdown is not None:
            return [*self.shutdown.joined(party)]
        if party in self.clients:
            return [self.handshake.sessions.greet(party, self.handshake.run)]
        wants = [] if self.rounds is None else self.rounds.wants(party)
        return [*(message.to(party) for message in self.handshake.published.values()), *wants]

    def remind(self) -> list[Instruction]:
        """Ask again for everything that is being waited for."""
        if self.shutdown is not None:
            return [*self.shutdown.remind()]
        if self.rounds is None or not self.rounds.phase:
            return [*self.handshake.remind()]
        away = [client for client in self.clients if client not in self.handshake.ready]
        again = [message for message in self.rounds.remind() if message.receiver not in away]
        return [*(self.handshake.call(client) for client in away), *again]

    def overdue(self, question: Message) -> list[Instruction]:
        """A question of :meth:`open_questions` was open for the whole grace period."""
        if self.rounds is None or self.shutdown is not None:
            return []
        try:
            return self.rounds.questions.overdue(question, self.round) + self._advance()
        except IncompatibleParties as mismatch:
            return self._end("refused", str(mismatch))

    def receive(self, message: Message) -> list[Instruction]:
        """Act on a message; everything that follows from it, in order."""
        try:
            handled = self._handle(message)
        except IncompatibleParties as mismatch:
            if isinstance(message, Enrol | Hello) and (self._is_training or self._is_back_with(message.sender)):
                return self._turn_away(message, str(mismatch))
            return self._end_by(mismatch)
        try:
            return handled + self._advance()
        except IncompatibleParties as mismatch:
            return self._end_by(mismatch)

    def _is_back_with(self, party: str) -> bool:
        """Whether this hub continues a run that the party took part in."""
        return self._restored is not None and party in (*self.clients, *self._restored.hubs)

    def _turn_away(self, message: Enrol | Hello, reason: str) -> list[Instruction]:
        """A process that comes back with other data or settings must leave; those who train do not."""
        party, session = message.sender, message.session if isinstance(message, Enrol) else message.nonce
        stop = Stop(self.name, party, self.round, self.handshake.run, status="refused", reason=reason, session=session)
        return [TurnedAway(party, reason), stop]

    def _end_by(self, mismatch: IncompatibleParties) -> list[Instruction]:
        if isinstance(mismatch, Lost):
            return self._end("refused", str(mismatch), notify=())
        return self._end("refused", str(mismatch), is_secret=isinstance(mismatch, UnfitLabels))

    def _handle(self, message: Message) -> list[Instruction]:
        from_client = message.sender in self._own_clients
        if not from_client and message.sender not in self.peers:
            raise RejectedMessage("its sender has no business here")
        if type(message) is Want and message.sender not in self.job.topology.receivers(message.what, self.name):
            raise RejectedMessage(f"it is not sent '{message.what}'")
        if self.shutdown is not None:
            return [*self.shutdown.receive(message)]
        if type(message) is Want:
            return [*self._resend(message)]
        if type(message) is Stop and not from_client:
            return self._on_stop(message)
        if type(message) is Enrol and from_client:
            renewals = self.handshake.renewals
            welcomes = self.handshake.client_enrol(message)
            if self.rounds is not None and self.handshake.renewals > renewals:
                self.rounds.questions.renew_masks()
            return [*welcomes]
        if type(message) is Hello and not from_client:
            return [*self.handshake.peer_hello(message)]
        if message.run != self.handshake.run:
            raise RejectedMessage(f"it belongs to run {message.run!r}, not to {self.handshake.run!r}")
        return [*(self._of_client(message) if from_client else self._of_peer(message))]

    def _of_client(self, message: Message) -> list[Message]:
        if type(message) is ColumnSummary:
            return self.handshake.client_summary(message)
        if type(message) is Ready:
            ready = self.handshake.client_ready(message)
            if self.rounds is None:
                return ready
            return ready + self.rounds.back(message.sender)
        if self.rounds is None:
            raise RejectedMessage(f"'{message.kind}' was not requested")
        self.rounds.questions.receive(message)
        return []

    def _of_peer(self, message: Message) -> list[Message]:
        if isinstance(message, Opening):
            return self.handshake.peer_opening(message)
        if self.rounds is None:
            raise RejectedMessage(f"'{message.kind}' cannot be used yet")
        if isinstance(message, Gone):
            self.rounds.peer_forgot(message)
        elif isinstance(message, Part):
            self.rounds.peer_part(message)
        else:
            raise RejectedMessage(f"a hub was not to send '{message.kind}'")
        return []

    def _resend(self, message: Want) -> list[Message]:
        """What a peer lacks, if it was to be had already."""
        known: Message | None = self.handshake.published.get(message.what)
        if known is None and self.rounds is not None and message.run == self.handshake.run:
            known = self.rounds.exchange.resend(message, self.round)
        return [] if known is None else [known.to(message.sender)]

    def _advance(self) -> list[Instruction]:
        if self.shutdown is not None:
            return []
        handshake = self.handshake
        was_done = handshake.phase == "done"
        out: list[Instruction] = [] if was_done else [*handshake.advance()]
        if self.rounds is None and handshake.compute is not None:
            restored = self._restored
            if restored is not None and restored.run != handshake.run:
                runs = f"{self.name} was left in run {restored.run}, but the others are in run {handshake.run}"
                raise Lost(f"{runs}. {WAY_ON}")
            compute, preparation = handshake.compute, handshake.preparation
            self.rounds = Rounds(self.job, self._silo, compute, handshake.run, restored, preparation, self._absences)
        if self.rounds is None or handshake.phase != "done":
            return out
        if not was_done:
            openings = [handshake.openings[hub] for hub in self.job.hubs]
            out += self.rounds.begin(openings, handshake.held(), handshake.hubs())
        for instruction in self.rounds.advance():
            if isinstance(instruction, End):
                out += self._end(instruction.status, instruction.reason, instruction.in_block, instruction.round)
            else:
                out.append(instruction)
        if self._verdict is not None and self.shutdown is None:
            out += self._obey(self.rounds, self._verdict)
        return out

    # The end.

    def _on_stop(self, message: Stop) -> list[Instruction]:
        """A peer has ended the run. If it finished, or its loss is not finite, we shall find the same by ourselves."""
        if message.session:
            if message.session != self._nonce:
                raise RejectedMessage(f"it turns another process of {self.name} away")
            # Its clients stay, and wait for the hub that they began with.
            return self._end("refused", f"{message.sender} stopped: {message.reason}", notify=())
        if self._is_training and message.run != self.handshake.run:
            raise RejectedMessage(f"it ends run {message.run!r}, and this is {self.handshake.run!r}")
        if not self.handshake.is_in_run(message.sender):
            raise RejectedMessage("its sender is not in the run that this hub continues")
        if message.status == "refused":
            return self._end("refused", f"{message.sender} stopped: {message.reason}")
        if message.status == "diverged" and message.in_block:
            self._verdict = message
        return []

    def _obey(self, rounds: Rounds, verdict: Stop) -> list[Instruction]:
        """End where a peer's client diverged, once this hub has come as far as that."""
        if not rounds.has_reached(verdict.round):
            return []
        reason = f"{verdict.sender} stopped: {verdict.reason}"
        return [Append(rounds.divergence(verdict.round)), *self._end("diverged", reason, True, verdict.round)]

    def _end(
        self,
        status: EndStatus,
        reason: str,
        in_block: bool = False,
        failed_in: int | None = None,
        notify: Iterable[str] | None = None,
        is_secret: bool = False,
    ) -> list[Instruction]:
        """End the run for all parties, or for this hub and the parties in ``notify``.

        A reason that is secret is not for hubs without labels.
        """
        parts = () if self.rounds is None else self.rounds.exchange.outbox.values()
        outbox: tuple[Published, ...] = (*self.handshake.published.values(), *parts)
        unaware = {*self.clients, *self.peers} if notify is None else {*notify}
        at = self.round if failed_in is None else failed_in
        public_reason = UNFIT if is_secret and self.job.topology.label_hub == self.name else reason
        self.shutdown = Shutdown(
            self.name, self.handshake.run, at, status, reason, in_block, self.peers, outbox, unaware, public_reason
        )
        return [End(status, reason, in_block), *self.shutdown.remind()]
