"""What the hubs send each other: one part per hub and flow, kept until no hub can ask for it again.

With its part a hub says what it received in the exchange of the round before, as digests. With labels everywhere, a hub
that sent two others different things is found when the next parts are used. If one silo alone has labels, only its hub
sends several others the same, and digests are of that: of no silo's phi. This finds a mistake of that hub, not a lie:
it alone carries digests between the others. A hub that sent one hub two different things is found at once.

Masks follow from all that hubs were sent before, as a chain of these digests (:meth:`HubExchange.past`). A hub that
goes back, and is sent other numbers than before, masks what it computes of them with another stream: no two contents
have the same mask. Nor do the masks of a hub cancel that was sent other numbers than the rest.
"""

import hashlib
from collections.abc import Mapping, Sequence

from tdcd.core.timing import HubTiming
from tdcd.runtime.compute.secure_sums import What
from tdcd.runtime.job import WAY_ON, IncompatibleParties, Lost, Topology
from tdcd.runtime.messages.former_parts import is_former
from tdcd.runtime.messages.messages import Gone, Part, PublishedKind, Want
from tdcd.runtime.messages.structure import Message
from tdcd.runtime.messages.wire import digest

KEPT_PERIODS = 3
"""A hub that crashes while it makes a state durable goes back to the one before; if that is damaged, one more. The
others may be a period ahead of it."""
Key = tuple[PublishedKind, int]
"""A flow, and the round that a part is of."""


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
        return [("phi", sent) if sent < last else ("scores", last)]
    sent = min(sent, last - 1)
    return [("phi", sent)] if sent >= round_index else []


def lost(hub: str, round_index: int, gone: Gone) -> Lost:
    """What a hub that was restored to a round ends with, if a peer no longer has what it needs."""
    restored, lacked = f"{hub} was restored to round {round_index}", f"'{gone.what}' of round {gone.round}"
    return Lost(f"{restored}, and {gone.sender} is at round {gone.now} and no longer has {lacked}. {WAY_ON}")


class HubExchange:
    """What one hub sends its peers, and receives from them."""

    def __init__(self, name: str, topology: Topology, run: str, timing: HubTiming) -> None:
        """Take this hub's name, and who is sent what."""
        self.name, self.hubs, self.run, self._timing = name, topology.hubs, run, timing
        self.peers = [hub for hub in self.hubs if hub != name]
        flows = topology.round
        names: list[PublishedKind] = [
            flow.name for flow in (*flows.between_hubs(), *flows.ending) if flow.within is None
        ]
        self.receivers: dict[PublishedKind, dict[str, list[str]]] = {
            flow: {hub: topology.receivers(flow, hub) for hub in self.hubs} for flow in names
        }
        """By flow and hub: the hubs that it sends its part to."""
        self.senders = {
            flow: [peer for peer in self.peers if name in receivers[peer]] for flow, receivers in self.receivers.items()
        }
        """By flow: the peers that send this hub theirs."""
        self._broadcasters = topology.broadcasters
        self.digests: dict[int, dict[str, str]] = {}
        """By round: the digest of what each hub sent several others in the exchange that the round waited for."""
        self.chain: dict[int, str] = {}
        """By round: a digest of the digests of that exchange and of all before."""
        self.most_ahead = 2 * timing.rounds + 2 * timing.longest_period - 1
        """By how many rounds a part that a hub sends can be ahead of another hub's round."""
        self._kept, self._oldest, self._former_until = kept_rounds(timing), 0, -1
        self.outbox: dict[Key, Part] = {}
        """Everything that a peer may ask for again."""
        self._inbox: dict[Key, dict[str, Part]] = {}

    def restore(
        self,
        outbox: Sequence[Part],
        digests: Mapping[int, Mapping[str, str]],
        chain: Mapping[int, str],
        round_index: int,
    ) -> None:
        """Take up what was saved at the start of a round."""
        self.outbox = {(part.flow, part.round): part for part in outbox}
        self.digests = {stage: dict(by_hub) for stage, by_hub in digests.items()}
        self.chain = {**chain}
        former = [stage for stage, by_hub in digests.items() if any(map(is_former, by_hub.values()))]
        # Peers that were upgraded with this hub may have been this far.
        self._former_until = max(former) + self.most_ahead if former else -1
        self.forget(round_index, round_index)

    def publish(self, part: Part) -> list[Message]:
        """This hub's part, for every peer that is sent it; once, and afterwards only for those who ask again."""
        if (part.flow, part.round) in self.outbox:
            return []
        self.outbox[part.flow, part.round] = part
        return [part.to(peer) for peer in self.receivers[part.flow][self.name]]

    def resend(self, message: Want, round_index: int) -> Message | None:
        """What a peer asks for again, if it was sent; ``gone``, if the hub is too far past it."""
        if message.what not in self.receivers:
            return None
        known = self.outbox.get((message.what, message.round))
        if known is None and message.round < self._oldest:
            return Gone(self.name, message.sender, message.round, self.run, what=message.what, now=round_index)
        return known

    def receive(self, part: Part) -> None:
        """A peer's part. A repeat must be the same, byte for byte."""
        known = self._inbox.setdefault((part.flow, part.round), {}).setdefault(part.sender, part)
        if known is not part and digest(known) != digest(part):
            raise IncompatibleParties(
                f"{part.sender} sent {self.name} two different things as '{part.flow}' of round {part.round}"
            )

    def lacking(self, keys: Sequence[Key]) -> dict[str, list[Key]]:
        """What is missing, by peer in silo order."""
        lacking: dict[str, list[Key]] = {}
        for key in keys:
            received = self._inbox.get(key, {})
            for peer in self.senders.get(key[0], ()):
                if peer not in received:
                    lacking.setdefault(peer, []).append(key)
        return {peer: lacking[peer] for peer in self.peers if peer in lacking} if lacking else lacking

    def wants(self, peer: str, keys: Sequence[Key]) -> list[Want]:
        """What to ask a peer for, of all that is needed."""
        lacking = self.lacking(keys).get(peer, [])
        return [Want(self.name, peer, round_index, self.run, what=flow) for flow, round_index in lacking]

    def parts(self, flow: PublishedKind, round_index: int) -> list[Part]:
        """The parts of this hub and of its peers, as far as they are there, in silo order."""
        received, own = self._inbox.get((flow, round_index), {}), self.outbox.get((flow, round_index))
        known = [own if hub == self.name else received.get(hub) for hub in self.hubs]
        return [part for part in known if part is not None]

    def settle(self, stage: int, keys: Sequence[Key]) -> None:
        """A round has all parts that it waits for: find out whether all hubs were sent the same before, and note what
        they sent now.
        """
        parts = [part for key in keys for part in self.parts(*key)]
        for part in parts:
            if part.sender != self.name:
                self._compare(part, self.hubs.index(part.sender))
        sent = [part for part in parts if self.receivers[part.flow][part.sender]]
        self.digests[stage] = {
            hub: " ".join(f"{part.flow}:{digest(part)}" for part in sent if part.sender == hub)
            for hub in self._broadcasters
        }
        links = [self.chain.get(stage - 1, ""), *self.digests[stage].values()]
        self.chain[stage] = hashlib.sha256("\n".join(links).encode()).hexdigest()

    def past(self, what: What, round_index: int) -> str:
        """What the masks of ``what`` of a round follow from, next to keys: all that hubs had been sent when the first
        of them sent its part. A slow silo sends several rounds' at once, and phi is sent ahead where rounds overlap.
        """
        silos = range(len(self.hubs))
        if what == "phi":
            first = min(self._timing.sent_in(silo, round_index) for silo in silos)
        else:
            first = min(round_index - round_index % self._timing.period(silo) for silo in silos)
        return self.chain.get(first - 1, "")

    def _compare(self, part: Part, silo: int) -> None:
        """What a peer received in the round before it sent this part is what this hub received in that round."""
        sent_in = part.round - part.round % self._timing.period(silo)
        if part.flow == "phi":
            sent_in = self._timing.sent_in(silo, part.round)
        elif part.flow == "model":
            # It is shared when the last scores have been compared.
            sent_in = part.round + 1
        stage = sent_in - 1
        own = self.digests.get(stage, {})
        if part.digests == own:
            return
        for hub in self.hubs:
            theirs, ours = part.digests.get(hub), own.get(hub)
            # Digests of two forms cannot be compared; there are both only just after an upgrade.
            if theirs == ours or (stage <= self._former_until and is_former(theirs) != is_former(ours)):
                continue
            what = f"in the exchange before '{part.flow}' of round {part.round}"
            raise IncompatibleParties(
                f"{hub} sent {part.sender} and {self.name} different things {what}: one of them is wrong"
            )

    def forget(self, round_index: int, oldest_wanted: int) -> None:
        """A round begins: drop what no party needs from now on; parts of earlier rounds may still be wanted here."""
        self._oldest = oldest = round_index - self._kept
        for key, part in [*self.outbox.items()]:
            if key[1] < (oldest if self.receivers[part.flow][self.name] else oldest_wanted):
                del self.outbox[key]
        for key in [*self._inbox]:
            if key[1] < oldest_wanted:
                del self._inbox[key]
        for stage in [*self.digests]:
            if stage < oldest:
                del self.digests[stage]
        # The masks of the oldest part that may be wanted here follow from what was sent before it.
        earliest = min(oldest, oldest_wanted) - self._timing.rounds - self._timing.longest_period - 1
        for stage in [*self.chain]:
            if stage < earliest:
                del self.chain[stage]
