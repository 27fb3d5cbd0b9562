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
"""How long a party that is done waits for those that are not, and have no link with it. Those that have need it."""


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
    """Exchange messages until everybody is done.

    A party that comes back is sent everything again, and answered, also by those that are done.
    """
    session = Session(dialogue, Endpoint(transport))
    while not session.is_over:
        if should_stop():
            return RunOutcome("interrupted", "nothing was written")
        session.step(TICK_S)
        unfit = session.endpoint.unfit
        watch([unfit.get(party, party) for party in session.missing()])
    return session.outcome or RunOutcome("finished")


class Session:
    """What was sent and received so far, and who is still there."""

    def __init__(self, dialogue: Dialogue, endpoint: Endpoint) -> None:
        """Begin."""
        self.dialogue, self.endpoint = dialogue, endpoint
        self.outcome: RunOutcome | None = None
        """How it ended for this party, once it has."""
        self._outbox: dict[str, dict[str, Message]] = {partner: {} for partner in dialogue.partners}
        """By receiver and topic: what a party that comes back is sent."""
        self._inbox: set[bytes] = set()
        self._gone: set[str] = set()
        self._quiet_since = 0.0
        self.attempt(dialogue.start)

    @property
    def is_over(self) -> bool:
        """Whether all parties know how it ended, or have had the time to."""
        if self.outcome is None or (self.outcome.status == "finished" and not self.dialogue.done):
            return False
        unaware = {*self.dialogue.partners} - self._gone
        is_late = time.monotonic() - self._quiet_since > LINGER_S
        return not unaware or (is_late and not unaware & self.endpoint.present)

    def missing(self) -> list[str]:
        """Who is being waited for: to be done, and then to end."""
        if self.outcome is not None and self.outcome.status == "refused":
            return []
        return self.dialogue.missing() or [party for party in self.dialogue.partners if party not in self._gone]

    def step(self, timeout: float) -> None:
        """Act on what happens next, if anything does in so many seconds."""
        news = self.endpoint.transport.receive(timeout)
        if isinstance(news, Received):
            self.receive(news)
        elif news is not None:
            self.note_presence(news)
        self.endpoint.look()

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
            if isinstance(message, Bye | Stop):
                self._on_leaving(message)
                return
            self._inbox.add(digest)
            if self.outcome is None or self.outcome.status == "finished":
                self.attempt(lambda: self.dialogue.receive(message))
        except RejectedMessage as refusal:
            self.endpoint.refuse(news.sender, refusal)

    def note_presence(self, news: Joined | Left) -> None:
        """Send everything to a party that has connected or reconnected."""
        self.endpoint.note_presence(news)
        self._quiet_since = time.monotonic()
        if isinstance(news, Joined):
            # It may be another process, which does not know how it ended.
            self._gone.discard(news.party)
            for message in self._outbox[news.party].values():
                self.endpoint.send(message)
                self._note_informed(message)

    def _on_leaving(self, message: Bye | Stop) -> None:
        self._gone.add(message.sender)
        if isinstance(message, Stop) and self.outcome is None:
            self._refuse(f"{message.sender} stopped: {message.reason}")

    def _send_all(self, messages: list[Message]) -> None:
        for message in messages:
            self._keep(message)
            self.endpoint.send(message)

    def _keep(self, message: Message) -> None:
        """Keep a message for those who come back, in place of a former one about the same."""
        self._outbox[message.receiver].pop(message.topic, None)
        self._outbox[message.receiver][message.topic] = message

    def _refuse(self, reason: str) -> None:
        self._end(RunOutcome("refused", reason), Stop(self.dialogue.name, "", status="refused", reason=reason))

    def _end(self, outcome: RunOutcome, last_message: Bye | Stop) -> None:
        self.outcome, self._quiet_since = outcome, time.monotonic()
        for partner in self.dialogue.partners:
            last = last_message.to(partner)
            if isinstance(last, Stop):
                # What came before a refusal is of no use to anybody any more.
                self._outbox[partner].clear()
            self._keep(last)
            self.endpoint.send(last)
            self._note_informed(last)

    def _note_informed(self, message: Message) -> None:
        """A party that was refused needs no answer; one that was not answers when it is done too."""
        if isinstance(message, Stop) and message.receiver in self.endpoint.present:
            self._gone.add(message.receiver)
