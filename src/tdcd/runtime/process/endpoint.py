"""A party's end of its links: what it sends, receives and refuses, and when it reminds others."""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

from tdcd.core.words import one_line
from tdcd.runtime.certificates.check import EXPIRES_SOON, RENEWAL, when
from tdcd.runtime.messages.messages import Diverged, Stop
from tdcd.runtime.messages.structure import Message
from tdcd.runtime.messages.wire import RejectedMessage, decode, encode
from tdcd.runtime.process.log import event
from tdcd.runtime.storage.failpoints import failpoint
from tdcd.runtime.transport.transport import Joined, Left, Received, Transport

LOOK_S = 0.25
"""How often a party looks at what its transport has to say."""

REPEAT_S = 86400.0
"""How often the log repeats a warning about a certificate."""

_UNSEALED = (
    "it is not of the process that has the link, or comes again: another process has a certificate in this name, or "
    "passes on what goes between the two; see docs/certificates.md"
)

_FADING = 0.9
"""How much of what a stage took at most is remembered in the next one."""


class Endpoint:
    """What is sent and received, who is there, what is refused and why."""

    def __init__(self, transport: Transport, wall_clock: Callable[[], float] = time.time) -> None:
        """Take the party's transport, and the clock by which certificates expire."""
        self.transport, self._wall_clock = transport, wall_clock
        self.unfit: dict[str, str] = {}
        """By party: a sentence on a process of it that has no link with this one."""
        self._num_unfit: Counter[str] = Counter()
        self._num_unsealed: Counter[str] = Counter()
        self._looked_at = -math.inf
        # At the start, a party's own certificate has been reported.
        self._logged_at: dict[str, tuple[bool, float]] = {transport.party: (False, wall_clock())}
        self.present: set[str] = set()
        self.payload: Counter[tuple[str, str]] = Counter()
        """Payload bytes sent, by kind of message and receiver."""
        self.wire_bytes = 0
        self.received: Counter[str] = Counter()
        """Bytes, by sender."""
        self.refused: Counter[str] = Counter()
        self.last_refusal = ""

    def send(self, message: Message) -> None:
        """Send, if the receiver is there; the state machines ask again for what gets lost."""
        if message.receiver in self.present:
            data, kind = encode(message), message.kind
            failpoint("send", kind, "before")
            self.transport.send(message.receiver, data)
            failpoint("send", kind, "after")
            self.payload[kind, message.receiver] += message.payload_bytes
            self.wire_bytes += len(data)

    def read(self, received: Received) -> Message:
        """The message in what was received; a reason in it can be shown to people and repeated to others: it is one
        line, without control characters.
        """
        self.received[received.sender] += len(received.data)
        message = decode(received.data, sender=received.sender, receiver=self.transport.party)
        return message.replace(reason=one_line(message.reason)) if isinstance(message, Stop | Diverged) else message

    def refuse(self, sender: str, why: RejectedMessage, times: int = 1) -> None:
        """Count that something was not acted upon; it is logged more and more rarely, so that the log cannot fill."""
        before = self.refused[sender]
        self.refused[sender] += times
        # The sender's own words may be in it, as many as it likes.
        reason = one_line(str(why), 300)
        self.last_refusal = f"{sender}: {reason}"
        if self.refused[sender].bit_length() > before.bit_length():
            event("refused", logging.WARNING, sender=sender, why=reason, count=self.refused[sender])

    def reasons(self, missing: Collection[str]) -> dict[str, Any]:
        """Why some of the missing will not come by themselves, for the log."""
        revoked = sorted(self.transport.revoked.intersection(missing))
        expired = sorted(party for party in missing if self.days_left().get(party, 0) < 0)
        unfit = {party: why for party, why in self.unfit.items() if party in missing}
        return {name: why for name, why in (("revoked", revoked), ("expired", expired), ("unfit", unfit)) if why}

    def days_left(self) -> dict[str, float]:
        """The days for which the certificates of this party and of its peers are still valid, as far as known."""
        now = self._wall_clock()
        return {party: round((expires - now) / 86400, 3) for party, expires in self.transport.expiries.items()}

    def look(self) -> None:
        """Log what is new about processes without a link, forged messages, and certificates that expire or have."""
        if time.monotonic() - self._looked_at < LOOK_S:
            return
        self._looked_at = time.monotonic()
        before, self.unfit = self.unfit, dict(self.transport.unfit)
        for party, why in self.unfit.items():
            if before.get(party) != why:
                self._num_unfit[party] += 1
                if is_worth_logging(self._num_unfit[party]):
                    event("no link", logging.WARNING, who=party, why=why)
        for party, count in self.transport.unsealed.copy().items():
            if new := count - self._num_unsealed[party]:
                self._num_unsealed[party] = count
                self.refuse(party, RejectedMessage(_UNSEALED), new)
        for party, expires in self.transport.expiries.items():
            self._look_at_certificate(party, expires)

    def _look_at_certificate(self, party: str, expires: int) -> None:
        """Log once a day that a certificate has expired, or that this party's own soon will."""
        now, is_own = self._wall_clock(), party == self.transport.party
        is_over = now >= expires
        if not is_over and not (is_own and expires - now < EXPIRES_SOON.total_seconds()):
            return
        was_over, logged_at = self._logged_at.get(party, (False, -math.inf))
        if is_over == was_over and now - logged_at < REPEAT_S:
            return
        self._logged_at[party] = is_over, now
        if not is_over:
            days = int((expires - now) // 86400)
            why = f"the certificate of {party} expires on {when(expires)}, in {days} days; renew it: {RENEWAL}"
        elif is_own:
            why = f"the certificate of {party} expired on {when(expires)}, so its links are closed; renew it: {RENEWAL}"
        else:
            why = f"the certificate of {party} expired on {when(expires)}, so its link is closed until it has a new one"
        event("certificate", logging.ERROR if is_over else logging.WARNING, who=party, why=why)

    def note_presence(self, news: Joined | Left) -> None:
        """Remember who is there."""
        joined = isinstance(news, Joined)
        (self.present.add if joined else self.present.discard)(news.party)
        event("joined" if joined else "left", who=news.party)


class Backoff:
    """When to remind the others: after a while without progress, then twice as long each time.

    The first wait is twice what a stage of the run has taken lately, and ``first_s`` at least: on a slow link, what is
    asked for again although it is on its way only makes the link slower.
    """

    def __init__(self, first_s: float, longest_s: float, clock: Callable[[], float]) -> None:
        self._first, self._longest, self._clock = first_s, longest_s, clock
        self._usual = 0.0
        self._began: float | None = None
        self._wait, self._since = first_s, clock()

    def restart(self, *, is_next_stage: bool) -> None:
        """There was progress; of the next stage if all have answered, and the next question is asked."""
        now = self._clock()
        if is_next_stage:
            if self._began is not None:
                self._usual = min(max(now - self._began, _FADING * self._usual), self._longest)
            self._began = now
        self._wait, self._since = max(self._first, min(2 * self._usual, self._longest)), now

    def disturb(self) -> None:
        """A party connected or left: how long this stage takes says nothing about the links."""
        self._began = None

    def prolong(self) -> None:
        """A message is being received: the wait restarts."""
        self._since = self._clock()

    def is_over(self) -> bool:
        """Whether it is time for a reminder; the next one then takes longer."""
        now = self._clock()
        if now - self._since < self._wait:
            return False
        self._since, self._wait = now, min(2 * self._wait, self._longest)
        return True


def is_worth_logging(count: int) -> bool:
    """The first time, the second, the fourth, the eighth, ...

    >>> [count for count in range(1, 20) if is_worth_logging(count)]
    [1, 2, 4, 8, 16]
    """
    return count & (count - 1) == 0
