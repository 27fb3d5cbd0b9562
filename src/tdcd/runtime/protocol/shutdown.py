"""A hub after the end of its run: it tells everybody, and repeats to slower hubs what they still need."""

from dataclasses import dataclass, field

from tdcd.runtime.protocol.messages import Bye, Hello, Opening, Published, Status, Stop, Want
from tdcd.runtime.protocol.structure import Message


@dataclass
class Shutdown:
    """How the run ended, what peers may still ask for, and who has not confirmed the end."""

    name: str
    run: str
    round: int
    status: Status
    reason: str
    in_block: bool
    peers: tuple[str, ...]
    outbox: tuple[Published, ...]
    """What peers may ask for again."""
    unaware: set[str] = field(default_factory=set)
    told: str | None = None
    """The reason as other hubs are told it; None of a run that was saved, which is as it is."""

    def joined(self, party: str) -> list[Message]:
        """A party can be reached: a hub that comes back needs the handshake before anything else."""
        again = [one.to(party) for one in self.outbox if isinstance(one, Hello | Opening) and party in self.peers]
        return [*again, self.stop(party)]

    def remind(self) -> list[Message]:
        """Tell those who have not confirmed."""
        return [self.stop(party) for party in sorted(self.unaware)]

    def receive(self, message: Message) -> list[Message]:
        """Answer a message that came after the end."""
        party = message.sender
        if isinstance(message, Bye):
            self.unaware.discard(party)
            return []
        if isinstance(message, Want):
            return [one.to(party) for one in self.outbox if (one.kind, one.round) == (message.what, message.round)]
        if isinstance(message, Stop):
            self.unaware.discard(party)
            return [Bye(self.name, party, message.round, self.run)]
        return [self.stop(party)]

    def stop(self, party: str) -> Stop:
        """That the run is over."""
        stop = Stop(self.name, party, self.round, self.run, status=self.status)
        reason = self.told if self.told is not None and party in self.peers else self.reason
        return stop.replace(reason=reason, in_block=self.in_block)
