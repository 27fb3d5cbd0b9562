"""A hub after the end of its run: it tells everybody, and repeats to slower hubs what they still need."""

from dataclasses import dataclass, field
from typing import Any

from tdcd.runtime.protocol.instructions import Status
from tdcd.runtime.protocol.messages import Message


@dataclass
class Farewell:
    """How the run ended, the hub's last words, and who has not said good-bye."""

    name: str
    run: str
    round: int
    status: Status
    reason: str
    in_block: bool
    peers: tuple[str, ...]
    words: tuple[Message, ...]
    """What peers may ask for again."""
    unaware: set[str] = field(default_factory=set)

    def joined(self, party: str) -> list[Message]:
        """A party can be reached: a hub that comes back needs to meet this one before anything else."""
        meeting = [word.to(party) for word in self.words if word.kind in ("hello", "ready") and party in self.peers]
        return [*meeting, self.stop(party)]

    def remind(self) -> list[Message]:
        """Tell those who have not said good-bye."""
        return [self.stop(party) for party in sorted(self.unaware)]

    def receive(self, message: Message) -> list[Message]:
        """Answer a message that came after the end."""
        party = message.sender
        if message.kind == "bye":
            self.unaware.discard(party)
            return []
        if message.kind == "want":
            wanted = (message.note.get("kind"), message.round)
            return [word.to(party) for word in self.words if (word.kind, word.round) == wanted]
        if message.kind == "stop":
            self.unaware.discard(party)
            return [Message("bye", self.name, party, message.round, self.run)]
        return [self.stop(party)]

    def stop(self, party: str) -> Message:
        """The good-bye itself."""
        note: dict[str, Any] = {"status": self.status, "reason": self.reason, "in_block": self.in_block}
        return Message("stop", self.name, party, self.round, self.run, note)
