"""What the hubs tell each other: one part per hub in every exchange, kept until nobody can ask for it again.

With its part a hub says what it received in the exchange before, as digests. A hub that told two others different
things, or told one hub two different things, is found out in the next exchange.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from tdcd.runtime.protocol.messages import AnyPart, Gone, Hello, Model, Opening, PhiPart, Published, ScoresPart, Want
from tdcd.runtime.protocol.sample_index import IncompatibleParties
from tdcd.runtime.protocol.structure import Message
from tdcd.runtime.protocol.wire import digest

P = TypeVar("P", PhiPart, ScoresPart, Model)
KEPT_ROUNDS = 3
"""A hub that crashes while it makes a state durable goes back to the one before; if that is damaged, one more."""


class Exchange:
    """What one hub sends its peers, and receives from them."""

    def __init__(self, name: str, hubs: Sequence[str], run: str) -> None:
        """Take the names of this hub and of all hubs, in silo order."""
        self.name, self.hubs, self.run = name, hubs, run
        self.peers = [hub for hub in hubs if hub != name]
        self.digests: dict[str, str] = {}
        """Of what each hub said in the last exchange that is complete."""
        self._outbox: dict[tuple[str, int], Published] = {}
        self._inbox: dict[tuple[str, int], dict[str, AnyPart]] = {}
        self._complete: set[tuple[str, int]] = set()

    def restore(self, outbox: Sequence[Published], digests: dict[str, str]) -> None:
        """Take up what was saved."""
        self._outbox = {(message.kind, message.round): message for message in outbox}
        self.digests = digests

    @property
    def outbox(self) -> tuple[Published, ...]:
        """Everything that a peer may ask for again."""
        return tuple(self._outbox.values())

    def sent(self, kind: str, round_index: int) -> Published | None:
        """What the peers were told."""
        return self._outbox.get((kind, round_index))

    def tell(self, part: AnyPart) -> list[Message]:
        """This hub's part, for every peer."""
        self._outbox[part.kind, part.round] = part
        return [part.to(peer) for peer in self.peers]

    def resend(self, message: Want, round_index: int) -> Message | None:
        """What a peer asks for again, if it was sent; ``gone``, if the hub is too far past it."""
        if message.what in (Hello.tag(), Opening.tag()) or message.round > round_index:
            return None
        known = self.sent(message.what, message.round)
        if known is None and message.round < round_index:
            return Gone(self.name, message.sender, message.round, self.run, what=message.what, now=round_index)
        return known

    def receive(self, message: AnyPart) -> None:
        """A peer's part. A repeat must be the same, byte for byte."""
        parts = self._inbox.setdefault((message.kind, message.round), {})
        known = parts.setdefault(message.sender, message)
        if known is not message and digest(known) != digest(message):
            raise IncompatibleParties(
                f"{message.sender} told {self.name} two different things as '{message.kind}' of round {message.round}"
            )

    def silent(self, kind: type[AnyPart], round_index: int) -> list[str]:
        """The peers whose part is not there."""
        received = self._inbox.get((kind.tag(), round_index), {})
        return [peer for peer in self.peers if peer not in received]

    def received(self, kind: type[P], round_index: int) -> list[P]:
        """The parts that peers have sent, in silo order."""
        received = self._inbox.get((kind.tag(), round_index), {})
        found = [received[peer] for peer in self.peers if peer in received]
        return [part for part in found if isinstance(part, kind)]

    def parts(self, kind: type[P], round_index: int) -> list[P] | None:
        """Every hub's part, in silo order; None until all are there."""
        key = kind.tag(), round_index
        own = self._outbox.get(key)
        if not isinstance(own, kind) or self.silent(kind, round_index):
            return None
        parts = {part.sender: part for part in self.received(kind, round_index)} | {self.name: own}
        if key not in self._complete:
            self._compare(parts)
            self.digests = {hub: digest(parts[hub]) for hub in self.hubs}
            self._complete.add(key)
        return [parts[hub] for hub in self.hubs]

    def _compare(self, parts: Mapping[str, AnyPart]) -> None:
        for peer in self.peers:
            theirs = parts[peer].received
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
