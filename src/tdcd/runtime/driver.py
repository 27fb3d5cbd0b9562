"""Running a state machine for real: messages over a transport, instructions into a folder, patience by the clock."""

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from tdcd.runtime.client import Client
from tdcd.runtime.hub import Hub
from tdcd.runtime.hub_folder import HubFolder
from tdcd.runtime.log import event
from tdcd.runtime.messages import Message, Refused, decode, encode
from tdcd.runtime.rounds import Append, End, Instruction, Save
from tdcd.runtime.transport import Joined, Left, Received, Transport

LONGEST_WAIT_S = 30.0
"""Reminders come less and less often, but at least so often."""
LINGER_S = 20.0
"""How long a hub that is done waits for parties that have not heard of it."""
TICK_S = 0.25
"""How often a waiting party looks whether it should stop or show something."""

Ending = Literal["finished", "diverged", "refused", "interrupted"]
Watch = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Outcome:
    """How a party's run ended."""

    status: Ending
    reason: str = ""


class Desk:
    """A party's correspondence: what is sent and received, who is there, what is refused and why."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.present: set[str] = set()
        self.payload: Counter[tuple[str, str]] = Counter()
        """Payload bytes sent, by kind of message and receiver."""
        self.wire_bytes = 0
        self.refused: Counter[str] = Counter()
        self.last_refusal = ""

    def send(self, message: Message) -> None:
        """Send, if the receiver is there; the state machines ask again for what gets lost."""
        if message.receiver in self.present:
            data = encode(message)
            self.transport.send(message.receiver, data)
            self.payload[message.kind, message.receiver] += message.payload_bytes
            self.wire_bytes += len(data)

    def read(self, received: Received) -> Message:
        """The message in what was received."""
        return decode(received.data, sender=received.sender, receiver=self.transport.party)

    def refuse(self, sender: str, why: Refused) -> None:
        """Note that something was not acted upon."""
        self.refused[sender] += 1
        self.last_refusal = f"{sender}: {why}"
        event("refused", logging.WARNING, sender=sender, why=str(why))

    def note_presence(self, news: Joined | Left) -> None:
        """Remember who is there."""
        joined = isinstance(news, Joined)
        (self.present.add if joined else self.present.discard)(news.party)
        event("joined" if joined else "left", who=news.party)


class Patience:
    """When to remind the others: after a while without progress, then twice as long each time."""

    def __init__(self, first_s: float) -> None:
        self._first = first_s
        self.reset()

    def reset(self) -> None:
        """Something arrived."""
        self._wait, self._since = self._first, time.monotonic()

    def is_over(self) -> bool:
        """Whether it is time for a reminder; the next one then takes longer."""
        if time.monotonic() - self._since < self._wait:
            return False
        self._since, self._wait = time.monotonic(), min(2 * self._wait, LONGEST_WAIT_S)
        return True


class HubDriver:
    """A hub at work."""

    def __init__(self, hub: Hub, transport: Transport, folder: HubFolder, resend_s: float, watch: Watch) -> None:
        self.hub, self.folder, self.desk = hub, folder, Desk(transport)
        self._patience, self._watch = Patience(resend_s), watch
        self._began = time.monotonic()
        self._last: Append | None = None
        self._described = False
        self._ended_at: float | None = None
        self._shown_at = 0.0

    def run(self, should_stop: Callable[[], bool]) -> Outcome:
        """Until the run is over and everybody knows, or until ``should_stop``."""
        while not self.hub.is_over:
            if should_stop():
                return self._leave()
            if self._ended_at is not None and time.monotonic() - self._ended_at > LINGER_S:
                event("left without good-bye", logging.WARNING, parties=self.hub.missing())
                break
            self._step()
            if time.monotonic() - self._shown_at > TICK_S:
                self._show()
        self._show()
        assert self.hub.status is not None
        return Outcome(self.hub.status, self.hub.reason)

    def _step(self) -> None:
        news = self.desk.transport.receive(TICK_S)
        if isinstance(news, Received):
            try:
                instructions = self.hub.receive(self.desk.read(news))
            except Refused as refusal:
                self.desk.refuse(news.sender, refusal)
                return
            self._patience.reset()
            self._perform(instructions)
        elif news is not None:
            self.desk.note_presence(news)
            if isinstance(news, Joined):
                self._perform(self.hub.joined(news.party))
        if self._patience.is_over():
            self._perform(self.hub.remind())

    def _perform(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Message):
                self.desk.send(instruction)
            elif isinstance(instruction, Append):
                self._append(instruction)
            elif isinstance(instruction, Save):
                self.folder.save(instruction.state)
            else:
                self._finish(instruction)
        if self.hub.rounds is not None:
            self.hub.rounds.rest()

    def _append(self, line: Append) -> None:
        if not self._described:
            self.folder.describe(self.hub.meeting)
            self._described = True
        self.folder.append(line.record, time.monotonic() - self._began)
        self._last = line
        event("evaluated", round=line.record.round, train_loss=line.record.train_loss, test_loss=line.record.test_loss)
        self._show()

    def _finish(self, end: End) -> None:
        self._ended_at = time.monotonic()
        rounds = self.hub.rounds
        level = logging.INFO if end.status == "finished" else logging.ERROR
        event("ended", level, status=end.status, reason=end.reason)
        if rounds is not None and self._last is not None:
            blocks = {hub.removeprefix("hub."): block for hub, block in rounds.models().items()}
            self.folder.finish(end.status, blocks, rounds.round)

    def _leave(self) -> Outcome:
        """Asked to stop: the last checkpoint stays, and the same command goes on from there."""
        event("interrupted", round=self.hub.round)
        self._show()
        return Outcome("interrupted", f"in round {self.hub.round}; the same command goes on from here")

    def _show(self) -> None:
        self._shown_at = time.monotonic()
        record = None if self._last is None else self._last.record
        status = {
            "party": self.hub.name,
            "phase": self.hub.phase,
            "round": self.hub.round,
            "rounds": self.hub.job.config.train.rounds,
            "train_loss": None if record is None else record.train_loss,
            "test_loss": None if record is None else record.test_loss,
            "metrics": None if record is None else record.metrics,
            "connected": sorted(self.desk.present),
            "missing": self.hub.missing(),
            "bytes_sent": self.desk.wire_bytes,
            "payload_bytes_sent": sum(self.desk.payload.values()),
            "refused": dict(self.desk.refused),
            "last_error": self.hub.reason or self.desk.last_refusal,
            "status": self.hub.status,
        }
        self.folder.write_status(status)
        self._watch(status)


class ClientDriver:
    """A client at work."""

    def __init__(self, client: Client, transport: Transport, watch: Watch) -> None:
        self.client, self.desk, self._watch = client, Desk(transport), watch

    def run(self, should_stop: Callable[[], bool]) -> Outcome:
        """Until the hub says that the run is over, or until ``should_stop``."""
        while self.client.ending is None:
            if should_stop():
                return Outcome("interrupted", "the hub waits; the same command goes on from here")
            news = self.desk.transport.receive(TICK_S)
            if isinstance(news, Received):
                self._answer(news)
            elif news is not None:
                self.desk.note_presence(news)
            self._watch(
                {
                    "party": self.client.name,
                    "round": self.client.round,
                    "connected": sorted(self.desk.present),
                    "bytes_sent": self.desk.wire_bytes,
                }
            )
        ending: Any = self.client.ending
        return Outcome(ending["status"], ending["reason"])

    def _answer(self, news: Received) -> None:
        try:
            answers = self.client.receive(self.desk.read(news))
        except Refused as refusal:
            self.desk.refuse(news.sender, refusal)
            return
        for answer in answers:
            self.desk.send(answer)
        self.client.rest()
