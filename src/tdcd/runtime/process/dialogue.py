"""Short conversations between parties, beside training: who says what to whom is the matter of a :class:`Talk`."""

import hashlib
import time
from collections.abc import Callable
from typing import Protocol

from tdcd.runtime.process.driver import TICK_S, Outcome
from tdcd.runtime.process.endpoint import Desk
from tdcd.runtime.protocol.messages import Message, Refused
from tdcd.runtime.protocol.sample_index import Mismatch
from tdcd.runtime.transport.transport import Joined, Left, Received, Transport

LINGER_S = 20.0
"""How long a party that is done waits for those that are not."""


class Talk(Protocol):
    """One party's side of a conversation: messages in, messages out."""

    name: str
    partners: tuple[str, ...]

    @property
    def done(self) -> bool:
        """Whether this party has heard all that it needs."""

    def start(self) -> list[Message]:
        """What to say at first."""

    def receive(self, message: Message) -> list[Message]:
        """What to say to that; raises Mismatch if the parties do not fit together."""

    def missing(self) -> list[str]:
        """Who is being waited for."""


class Waiting(Protocol):
    """Whoever watches a conversation, and may end it."""

    def show(self, missing: list[str]) -> None:
        """Say who is being waited for."""

    def progress(self, done: float) -> None:
        """Show which fraction of this party's own work is done."""

    def should_stop(self) -> bool:
        """Whether to end it."""


def converse(
    talk: Talk, transport: Transport, watch: Callable[[list[str]], None], should_stop: Callable[[], bool]
) -> Outcome:
    """Talk until everybody is done. Who comes back is told everything again; who hears it again does not mind."""
    table = _Table(talk, Desk(transport))
    table.attempt(talk.start)
    while not table.is_empty:
        if should_stop():
            return Outcome("interrupted", "nothing was written")
        news = transport.receive(TICK_S)
        if isinstance(news, Received):
            table.hear(news)
        elif news is not None:
            table.note_presence(news)
        watch(talk.missing())
    return table.outcome or Outcome("finished")


class _Table:
    """Who has said what so far, and who still sits there."""

    def __init__(self, talk: Talk, desk: Desk) -> None:
        self.talk, self.desk = talk, desk
        self.outcome: Outcome | None = None
        """How it ended for this party, once it has."""
        self._said: dict[str, list[Message]] = {partner: [] for partner in talk.partners}
        self._heard: set[bytes] = set()
        self._gone: set[str] = set()
        self._ended_at = 0.0

    @property
    def is_empty(self) -> bool:
        """Whether everybody knows how it ended, or has had the time to hear of it."""
        if self.outcome is None:
            return False
        return self._gone >= set(self.talk.partners) or time.monotonic() - self._ended_at > LINGER_S

    def attempt(self, speak: Callable[[], list[Message]]) -> None:
        """Say what follows; if the parties do not fit together, say that instead."""
        try:
            self._say(speak())
        except (Mismatch, ValueError) as error:
            self._end(Outcome("refused", str(error)), "stop", {"reason": str(error)})
        else:
            if self.talk.done and self.outcome is None:
                self._end(Outcome("finished"), "bye", {})

    def hear(self, news: Received) -> None:
        """Take in a message, once."""
        digest = hashlib.blake2b(news.sender.encode() + news.data, digest_size=16).digest()
        if digest in self._heard:
            return
        try:
            message = self.desk.read(news)
            self._heard.add(digest)
            if message.kind in ("bye", "stop"):
                self._on_leaving(message)
            elif self.outcome is None:
                self.attempt(lambda: self.talk.receive(message))
        except Refused as refusal:
            self.desk.refuse(news.sender, refusal)

    def note_presence(self, news: Joined | Left) -> None:
        """Tell a party that has come, or come back, everything."""
        self.desk.note_presence(news)
        if isinstance(news, Joined):
            for message in self._said[news.party]:
                self.desk.send(message)
                self._note_told(message)

    def _on_leaving(self, message: Message) -> None:
        self._gone.add(message.sender)
        if message.kind == "stop" and self.outcome is None:
            reason = f"{message.sender} stopped: {message.note.get('reason')}"
            self._end(Outcome("refused", reason), "stop", {"reason": reason})

    def _say(self, messages: list[Message]) -> None:
        for message in messages:
            self._said[message.receiver].append(message)
            self.desk.send(message)

    def _end(self, outcome: Outcome, kind: str, note: dict[str, str]) -> None:
        self.outcome, self._ended_at = outcome, time.monotonic()
        for partner in self.talk.partners:
            farewell = Message(kind, self.talk.name, partner, note=note)
            # What came before a refusal is of no use to anybody any more.
            self._said[partner] = [*self._said[partner], farewell] if kind == "bye" else [farewell]
            self.desk.send(farewell)
            self._note_told(farewell)

    def _note_told(self, message: Message) -> None:
        """Who was told that it is off needs no answer; who was wished well answers when it is done too."""
        if message.kind == "stop" and message.receiver in self.desk.present:
            self._gone.add(message.receiver)
