"""Short dialogues between parties, outside training; a :class:`Dialogue` defines who sends what to which party."""

import hashlib
import time
from collections.abc import Callable
from typing import Protocol

from tdcd.runtime.job import IncompatibleParties
from tdcd.runtime.machine.instructions import RunOutcome
from tdcd.runtime.messages.messages import Bye, Stop
from tdcd.runtime.messages.structure import Message
from tdcd.runtime.messages.wire import RejectedMessage
from tdcd.runtime.process.driver import TICK_S
from tdcd.runtime.process.endpoint import Endpoint
from tdcd.runtime.transport.transport import Joined, Left, Received, Transport

LINGER_S = 20.0
"""How long a party that is done waits for those that are not."""


class Dialogue(Protocol):
    """One party's side of a dialogue: messages in, messages out."""

    name: str
    partners: tuple[str, ...]

    @property
    def done(self) -> bool:
        """Whether this party has received all that it needs."""

    def start(self) -> list[Message]:
        """What to send first."""

    def receive(self, message: Message) -> list[Message]:
        """What to send in answer; raises IncompatibleParties if the parties do not fit together."""

    def missing(self) -> list[str]:
        """Who is being waited for."""


class Waiting(Protocol):
    """Whoever watches a dialogue, and may end it."""

    def show(self, missing: list[str]) -> None:
        """Say who is being waited for."""

    def progress(self, done: float) -> None:
        """Show which fraction of this party's own work is done."""

    def should_stop(self) -> bool:
        """Whether to end it."""


def converse(
    dialogue: Dialogue, transport: Transport, watch: Callable[[list[str]], None], should_stop: Callable[[], bool]
) -> RunOutcome:
    """Exchange messages until everybody is done. A party that comes back is sent everything again."""
    session = _Session(dialogue, Endpoint(transport))
    session.attempt(dialogue.start)
    while not session.is_over:
        if should_stop():
            return RunOutcome("interrupted", "nothing was written")
        news = transport.receive(TICK_S)
        if isinstance(news, Received):
            session.receive(news)
        elif news is not None:
            session.note_presence(news)
        session.endpoint.look()
        unfit = session.endpoint.unfit
        watch([unfit.get(party, party) for party in dialogue.missing()])
    return session.outcome or RunOutcome("finished")


class _Session:
    """What was sent and received so far, and who is still there."""

    def __init__(self, dialogue: Dialogue, endpoint: Endpoint) -> None:
        self.dialogue, self.endpoint = dialogue, endpoint
        self.outcome: RunOutcome | None = None
        """How it ended for this party, once it has."""
        self._outbox: dict[str, list[Message]] = {partner: [] for partner in dialogue.partners}
        self._inbox: set[bytes] = set()
        self._gone: set[str] = set()
        self._ended_at = 0.0

    @property
    def is_over(self) -> bool:
        """Whether all parties know how it ended, or have had the time to."""
        if self.outcome is None:
            return False
        return self._gone >= set(self.dialogue.partners) or time.monotonic() - self._ended_at > LINGER_S

    def attempt(self, speak: Callable[[], list[Message]]) -> None:
        """Say what follows; if the parties do not fit together, say that instead."""
        try:
            self._send_all(speak())
        except (IncompatibleParties, ValueError) as error:
            self._refuse(str(error))
        else:
            if self.dialogue.done and self.outcome is None:
                self._end(RunOutcome("finished"), Bye(self.dialogue.name, ""))

    def receive(self, news: Received) -> None:
        """Take in a message, once."""
        digest = hashlib.blake2b(news.sender.encode() + news.data, digest_size=16).digest()
        if digest in self._inbox:
            return
        try:
            message = self.endpoint.read(news)
            self._inbox.add(digest)
            if isinstance(message, Bye | Stop):
                self._on_leaving(message)
            elif self.outcome is None:
                self.attempt(lambda: self.dialogue.receive(message))
        except RejectedMessage as refusal:
            self.endpoint.refuse(news.sender, refusal)

    def note_presence(self, news: Joined | Left) -> None:
        """Send everything to a party that has connected or reconnected."""
        self.endpoint.note_presence(news)
        if isinstance(news, Joined):
            for message in self._outbox[news.party]:
                self.endpoint.send(message)
                self._note_informed(message)

    def _on_leaving(self, message: Bye | Stop) -> None:
        self._gone.add(message.sender)
        if isinstance(message, Stop) and self.outcome is None:
            self._refuse(f"{message.sender} stopped: {message.reason}")

    def _send_all(self, messages: list[Message]) -> None:
        for message in messages:
            self._outbox[message.receiver].append(message)
            self.endpoint.send(message)

    def _refuse(self, reason: str) -> None:
        self._end(RunOutcome("refused", reason), Stop(self.dialogue.name, "", status="refused", reason=reason))

    def _end(self, outcome: RunOutcome, last_message: Bye | Stop) -> None:
        self.outcome, self._ended_at = outcome, time.monotonic()
        for partner in self.dialogue.partners:
            last = last_message.to(partner)
            # What came before a refusal is of no use to anybody any more.
            self._outbox[partner] = [*self._outbox[partner], last] if isinstance(last, Bye) else [last]
            self.endpoint.send(last)
            self._note_informed(last)

    def _note_informed(self, message: Message) -> None:
        """A party that was refused needs no answer; one that was not answers when it is done too."""
        if isinstance(message, Stop) and message.receiver in self.endpoint.present:
            self._gone.add(message.receiver)
