"""What the hubs tell each other: one part a hub in every exchange, kept until nobody can ask for it again.

With its part a hub says what it heard in the exchange before, as digests. A hub that told two others different things,
or told one hub two different things, is found out in the next exchange.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from tdcd.runtime.protocol.instructions import Arrays
from tdcd.runtime.protocol.messages import Message, RejectedMessage
from tdcd.runtime.protocol.sample_index import IncompatibleParties

KEPT_ROUNDS = 3
"""A hub that crashes while it makes a state durable goes back to the one before; if that is damaged, one more."""
KINDS = ("scores", "phi", "model")
"""What hubs tell each other once the rounds have begun."""


class Exchange:
    """What one hub sends its peers, and receives from them."""

    def __init__(self, name: str, hubs: Sequence[str], run: str) -> None:
        """Take the names of this hub and of all hubs, in silo order."""
        self.name, self.hubs, self.run = name, hubs, run
        self.peers = [hub for hub in hubs if hub != name]
        self.digests: dict[str, str] = {}
        """Of what each hub said in the last exchange that is complete."""
        self._outbox: dict[tuple[str, int], Message] = {}
        self._inbox: dict[tuple[str, int], dict[str, Message]] = {}
        self._complete: set[tuple[str, int]] = set()

    def restore(self, outbox: Sequence[Message], digests: dict[str, str]) -> None:
        """Take up what was saved."""
        self._outbox = {(message.kind, message.round): message for message in outbox}
        self.digests = digests

    @property
    def outbox(self) -> tuple[Message, ...]:
        """Everything that a peer may ask for again."""
        return tuple(self._outbox.values())

    def sent(self, kind: str, round_index: int) -> Message | None:
        """What the peers were told."""
        return self._outbox.get((kind, round_index))

    def tell(self, kind: str, round_index: int, arrays: Arrays, claims: Mapping[str, Any]) -> list[Message]:
        """This hub's part, for every peer; ``claims`` are about its clients."""
        note = {"heard": self.digests, **claims}
        message = self._outbox[kind, round_index] = Message(kind, self.name, "", round_index, self.run, note, arrays)
        return [message.to(peer) for peer in self.peers]

    def resend(self, message: Message, round_index: int) -> Message | None:
        """What a peer asks for again, if it was sent; ``gone``, if the hub is too far past it."""
        kind, wanted = str(message.note.get("kind")), message.round
        if kind not in KINDS or wanted > round_index:
            return None
        known = self.sent(kind, wanted)
        if known is None and wanted < round_index:
            note = {"kind": kind, "round": round_index}
            return Message("gone", self.name, message.sender, wanted, self.run, note)
        return known

    def receive(self, message: Message) -> None:
        """A peer's part. A repeat must be the same, byte for byte."""
        if not isinstance(message.note.get("heard"), dict):
            raise RejectedMessage("'heard' must say what each hub said before")
        parts = self._inbox.setdefault((message.kind, message.round), {})
        known = parts.setdefault(message.sender, message)
        if known is not message and digest(known) != digest(message):
            raise IncompatibleParties(
                f"{message.sender} told {self.name} two different things as '{message.kind}' of round {message.round}"
            )

    def silent(self, kind: str, round_index: int) -> list[str]:
        """The peers whose part is not there."""
        received = self._inbox.get((kind, round_index), {})
        return [peer for peer in self.peers if peer not in received]

    def part_of(self, peer: str, kind: str, round_index: int) -> Message | None:
        """What a peer said."""
        return self._inbox.get((kind, round_index), {}).get(peer)

    def parts(self, kind: str, round_index: int) -> list[Message] | None:
        """Every hub's part, in silo order; None until all are there."""
        key = kind, round_index
        if key not in self._outbox or self.silent(*key):
            return None
        parts = {**self._inbox.get(key, {}), self.name: self._outbox[key]}
        if key not in self._complete:
            self._compare(parts)
            self.digests = {hub: digest(parts[hub]) for hub in self.hubs}
            self._complete.add(key)
        return [parts[hub] for hub in self.hubs]

    def _compare(self, parts: dict[str, Message]) -> None:
        for peer in self.peers:
            theirs = parts[peer].note["heard"]
            for hub in self.hubs:
                if theirs.get(hub) != self.digests.get(hub):
                    what = f"in the exchange before '{parts[peer].kind}' of round {parts[peer].round}"
                    raise IncompatibleParties(
                        f"{hub} told {peer} and {self.name} different things {what}: one of them is wrong"
                    )

    def forget(self, round_index: int) -> None:
        """A round begins: drop what nobody needs from now on."""
        oldest = round_index - KEPT_ROUNDS
        self._outbox = {key: message for key, message in self._outbox.items() if key[1] >= oldest}
        self._inbox = {key: parts for key, parts in self._inbox.items() if key[1] >= round_index}
        self._complete = {key for key in self._complete if key[1] >= round_index}


def digest(message: Message) -> str:
    """Of everything a message says, whoever it is sent to."""
    return hashlib.blake2b(message.to("").encoded, digest_size=16).hexdigest()
