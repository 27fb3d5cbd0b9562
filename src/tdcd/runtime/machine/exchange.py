"""What the hubs send each other: one part per hub in every exchange, kept until no hub can ask for it again.

With its part a hub says what it received in the exchange of the round before, as digests. With labels everywhere, a hub
that sent two others different things is found when the next parts are used. If one silo alone has labels, only its hub
sends several others the same, and digests are of that: of no silo's phi. This finds a mistake of that hub, not a lie:
it alone carries digests between the others. A hub that sent one hub two different things is found at once.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar, get_args

from tdcd.core.timing import HubTiming
from tdcd.runtime.job import WAY_ON, IncompatibleParties, Lost, Topology
from tdcd.runtime.messages.messages import (
    AnyPart,
    FiguresPart,
    Gone,
    Hello,
    Opening,
    PhiPart,
    Published,
    ScoresPart,
    SlopePart,
    Want,
)
from tdcd.runtime.messages.structure import Message
from tdcd.runtime.messages.wire import RejectedMessage, digest

P = TypeVar("P", bound=AnyPart)
KEPT_PERIODS = 3
"""A hub that crashes while it makes a state durable goes back to the one before; if that is damaged, one more. The
others may be a period ahead of it."""
_KINDS = [kind.tag() for kind in get_args(AnyPart)]
Key = tuple[type[AnyPart], int]
"""A kind of part, and the round that it is of."""


def figures_of(round_index: int) -> list[Key]:
    """What a hub needs of others for a line of the history: scores, or what the hub with the labels made of them."""
    return [(ScoresPart, round_index), (FiguresPart, round_index)]


def exchange_of(round_index: int) -> list[Key]:
    """What a hub needs of others before its clients step: phi, or what the hub with the labels made of it."""
    return [(PhiPart, round_index), (SlopePart, round_index)]


def kept_rounds(timing: HubTiming) -> int:
    """For how many rounds a hub keeps what it sent its peers: those who go back may also lack what is D rounds older,
    and be D rounds behind.
    """
    return KEPT_PERIODS * timing.longest_period + 2 * timing.rounds


def most_unsaved(timing: HubTiming) -> int:
    """By how many rounds a hub may be past the state that it would go back to, and still be sent what it needs.

    A peer is at most ``rounds + longest_period`` ahead of a hub, which may want parts that are ``rounds`` older than
    its state: what :func:`kept_rounds` leaves of both.
    """
    return kept_rounds(timing) - timing.longest_period - 2 * timing.rounds


def begun(failed_in: int, round_index: int, timing: HubTiming, last: int) -> list[Key]:
    """What shows that a peer began a round in which something failed: if all peers did, nothing failed before.

    A hub that has left that round received it then, but for what peers sent ahead.
    """
    sent = failed_in + timing.rounds
    if failed_in == round_index:
        return [(PhiPart, sent) if sent < last else (ScoresPart, last)]
    sent = min(sent, last - 1)
    return [(PhiPart, sent)] if sent >= round_index else []


def lost(hub: str, round_index: int, gone: Gone) -> Lost:
    """What a hub that was restored to a round ends with, if a peer no longer has what it needs."""
    restored, lacked = f"{hub} was restored to round {round_index}", f"'{gone.what}' of round {gone.round}"
    return Lost(f"{restored}, and {gone.sender} is at round {gone.now} and no longer has {lacked}. {WAY_ON}")


class HubExchange:
    """What one hub sends its peers, and receives from them."""

    def __init__(self, name: str, topology: Topology, run: str, timing: HubTiming) -> None:
        """Take this hub's name, and who is sent what."""
        self.name, self.hubs, self.topology, self.run, self._timing = name, topology.hubs, topology, run, timing
        self.peers = [hub for hub in self.hubs if hub != name]
        # By kind of part: who sends it to this hub, and to whom a hub sends it.
        self._senders = {kind: [peer for peer in self.peers if topology.is_sent(kind, peer, name)] for kind in _KINDS}
        self._receivers = {(kind, hub): topology.receivers(kind, hub) for kind in _KINDS for hub in self.hubs}
        self.digests: dict[int, dict[str, str]] = {}
        """By round: the digest of what each hub sent several others in the exchange that the round waited for."""
        self.most_ahead = 2 * timing.rounds + 2 * timing.longest_period - 1
        """By how many rounds a part that a hub sends can be ahead of another hub's round."""
        self._kept, self._oldest = kept_rounds(timing), 0
        self._outbox: dict[tuple[str, int], Published] = {}
        self._inbox: dict[tuple[str, int], dict[str, AnyPart]] = {}

    def restore(self, outbox: Sequence[Published], digests: Mapping[int, Mapping[str, str]], round_index: int) -> None:
        """Take up what was saved at the start of a round."""
        self._outbox = {(message.kind, message.round): message for message in outbox}
        self.digests = {stage: dict(found) for stage, found in digests.items()}
        self.forget(round_index, round_index)

    @property
    def outbox(self) -> tuple[Published, ...]:
        """Everything that a peer may ask for again."""
        return tuple(self._outbox.values())

    def sent(self, kind: str, round_index: int) -> Published | None:
        """The part that the peers were sent, if it was."""
        return self._outbox.get((kind, round_index))

    def publish(self, part: AnyPart) -> list[Message]:
        """This hub's part, for every peer that is sent it; once, and afterwards only for those who ask again."""
        if self.sent(part.kind, part.round) is not None:
            return []
        self._outbox[part.kind, part.round] = part
        return [part.to(peer) for peer in self._receivers[part.kind, self.name]]

    def resend(self, message: Want, round_index: int) -> Message | None:
        """What a peer asks for again, if it was sent; ``gone``, if the hub is too far past it."""
        if message.what in (Hello.tag(), Opening.tag()):
            return None
        known = self.sent(message.what, message.round)
        if known is None and message.round < self._oldest:
            return Gone(self.name, message.sender, message.round, self.run, what=message.what, now=round_index)
        return known

    def receive(self, message: AnyPart) -> None:
        """A peer's part. A repeat must be the same, byte for byte."""
        if message.sender not in self._senders[message.kind]:
            raise RejectedMessage(f"a hub was not to send '{message.kind}'")
        parts = self._inbox.setdefault((message.kind, message.round), {})
        known = parts.setdefault(message.sender, message)
        if known is not message and digest(known) != digest(message):
            raise IncompatibleParties(
                f"{message.sender} told {self.name} two different things as '{message.kind}' of round {message.round}"
            )

    def silent(self, kind: type[AnyPart], round_index: int) -> list[str]:
        """The peers whose part is not there."""
        tag = kind.tag()
        senders, received = self._senders[tag], self._inbox.get((tag, round_index), ())
        return [peer for peer in senders if peer not in received] if senders else senders

    def lacking(self, keys: Sequence[Key]) -> list[str]:
        """The peers of whom something is not there."""
        silent = {peer for key in keys for peer in self.silent(*key)}
        return [peer for peer in self.peers if peer in silent] if silent else []

    def wants(self, peer: str, keys: Sequence[Key]) -> list[Want]:
        """What to ask a peer for, of all that is needed."""
        return [
            Want(self.name, peer, round_index, self.run, what=kind.tag())  # type: ignore[arg-type]
            for kind, round_index in keys
            if peer in self.silent(kind, round_index)
        ]

    def received(self, kind: type[P], round_index: int) -> list[P]:
        """The parts that peers have sent, in silo order."""
        received = self._inbox.get((kind.tag(), round_index), {})
        found = [received[peer] for peer in self.peers if peer in received]
        return [part for part in found if isinstance(part, kind)]

    def parts(self, kind: type[P], round_index: int) -> list[P]:
        """The parts of this hub and of all that send it theirs, in silo order; all of them are there."""
        key = kind.tag(), round_index
        own, received = self._outbox.get(key), self._inbox.get(key, {})
        found = [own if hub == self.name else received.get(hub) for hub in self.hubs]
        return [part for part in found if isinstance(part, kind)]

    def settle(self, stage: int, keys: Sequence[Key]) -> None:
        """A round has all parts that it waits for: find out whether all hubs were sent the same before, and note what
        they sent now.
        """
        parts = [part for key in keys for part in self.parts(*key)]
        for part in parts:
            self._compare(part, self.hubs.index(part.sender))
        self.digests[stage] = {
            hub: "".join(digest(part) for part in parts if part.sender == hub and self._has_receivers(part))
            for hub in self.topology.broadcasters
        }

    def _has_receivers(self, part: Published) -> bool:
        """Whether anybody but its sender has a part."""
        return bool(self._receivers[part.kind, part.sender])

    def _compare(self, part: AnyPart, silo: int) -> None:
        """What a peer received in the round before it sent this part is what this hub received in that round."""
        own = self.digests.get(self._sent_in(part, silo) - 1, {})
        if part.sender == self.name or part.received == own:
            return
        for hub in self.hubs:
            if part.received.get(hub) != own.get(hub):
                what = f"in the exchange before '{part.kind}' of round {part.round}"
                raise IncompatibleParties(
                    f"{hub} told {part.sender} and {self.name} different things {what}: one of them is wrong"
                )

    def _sent_in(self, part: AnyPart, silo: int) -> int:
        """The round that a silo's hub was in when it sent a part."""
        if isinstance(part, PhiPart):
            return self._timing.sent_in(silo, part.round)
        if isinstance(part, ScoresPart | SlopePart | FiguresPart):
            return part.round - part.round % self._timing.period(silo)
        # The model is shared when the last scores have been compared.
        return part.round + 1

    def forget(self, round_index: int, oldest_wanted: int) -> None:
        """A round begins: drop what nobody needs from now on; parts of earlier rounds may still be wanted here."""
        self._oldest = oldest = round_index - self._kept
        for key, message in [*self._outbox.items()]:
            if key[1] < (oldest if self._has_receivers(message) else oldest_wanted):
                del self._outbox[key]
        for key in [*self._inbox]:
            if key[1] < oldest_wanted:
                del self._inbox[key]
        for stage in [*self.digests]:
            if stage < oldest:
                del self.digests[stage]
