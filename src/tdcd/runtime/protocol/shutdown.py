"""A hub after the end of its run: it tells everybody, and repeats to slower hubs what they still need."""

from dataclasses import dataclass, field
from typing import Any

from tdcd.runtime.protocol.instructions import Status
from tdcd.runtime.protocol.messages import Message


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
    outbox: tuple[Message, ...]
    """What peers may ask for again."""
    unaware: set[str] = field(default_factory=set)

    def joined(self, party: str) -> list[Message]:
        """A party can be reached: a hub that comes back needs the handshake before anything else."""
        again = [
            message.to(party) for message in self.outbox if message.kind in ("hello", "ready") and party in self.peers
        ]
        return [*again, self.stop(party)]

    def remind(self) -> list[Message]:
        """Tell those who have not confirmed."""
        return [self.stop(party) for party in sorted(self.unaware)]

    def receive(self, message: Message) -> list[Message]:
        """Answer a message that came after the end."""
        party = message.sender
        if message.kind == "bye":
            self.unaware.discard(party)
            return []
        if message.kind == "want":
            wanted = (message.note.get("kind"), message.round)
            return [one.to(party) for one in self.outbox if (one.kind, one.round) == wanted]
        if message.kind == "stop":
            self.unaware.discard(party)
            return [Message("bye", self.name, party, message.round, self.run)]
        return [self.stop(party)]

    def stop(self, party: str) -> Message:
        """That the run is over."""
        note: dict[str, Any] = {"status": self.status, "reason": self.reason, "in_block": self.in_block}
        return Message("stop", self.name, party, self.round, self.run, note)
