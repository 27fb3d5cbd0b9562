"""The processes of a party: what each of them says that it does, and which one another process is linked with.

A process says what it is in the key of its liveliness token, for as long as it is there. Of several processes of one
party, the first that fits is chosen and stays until it goes: one that comes later, or does something else, can neither
take its place nor speak for it, and waits. A link is up when each end has chosen the other.
"""

import re
from datetime import UTC, datetime
from typing import Literal, NamedTuple, Self

from tdcd.runtime.transport.transport import Event, Joined, Left

Activity = Literal["train", "align", "predict", "audit", "stand"]
DOING = {
    "train": "training",
    "align": "aligning ids",
    "predict": "predicting",
    "audit": "auditing",
    "stand": "standing by",
}
"""What a command does, in words."""

MOST_PROCESSES = 1024
"""The most processes of one party that are remembered."""

TITLE_BYTES = 60

CHOSEN, TAKEN, REFUSED = b"chosen", b"taken", b"refused"
"""What a process is sent before anything else: that it is chosen; that another one is, and which; or why none is."""

_NONCE = r"[0-9a-f]{16,64}"
# A later version may add something at the end, and has another protocol.
_WORD = re.compile(
    rf"(?P<nonce>{_NONCE})"
    r"\.(?P<protocol>[0-9]{1,9})\.(?P<work>[a-z]{1,16})\.(?P<since>[0-9]{1,11})"
    r"\.(?P<expires>[0-9]{1,11})\.(?P<title>([0-9a-f]{2}){0,60})(\..{0,200})?"
)


def is_nonce(text: str) -> bool:
    """Whether a process may have this nonce.

    >>> is_nonce("0123456789abcdef"), is_nonce("**")
    (True, False)
    """
    return re.fullmatch(_NONCE, text) is not None


class Process(NamedTuple):
    """A process of a party, as it describes itself."""

    work: str = "train"
    title: str = ""
    """The title of the run."""
    protocol: int = 0
    since: int = 0
    """When it began, in seconds since 1970."""
    expires: int = 0
    """When its certificate does; 0 without one."""
    nonce: str = ""
    """Drawn by the process: messages are sent by one nonce to another."""

    @classmethod
    def read(cls, word: str) -> Self:
        """What :attr:`word` says; a process without a nonce if it is not readable."""
        match = _WORD.fullmatch(word)
        if match is None:
            return cls(work="")
        numbers = {name: int(match[name]) for name in ("protocol", "since", "expires")}
        title = bytes.fromhex(match["title"]).decode(errors="replace")
        shown = "".join(letter if letter.isprintable() else "?" for letter in title)
        return cls(work=match["work"], title=shown, nonce=match["nonce"], **numbers)

    @property
    def word(self) -> str:
        """The process as one part of a key.

        >>> Process("train", "m2", 6, 1794895440, 0, "0123456789abcdef").word
        '0123456789abcdef.6.train.1794895440.0.6d32'
        """
        title = self.title.encode(errors="replace")[:TITLE_BYTES].hex()
        return f"{self.nonce}.{self.protocol}.{self.work}.{self.since}.{self.expires}.{title}"

    def in_words(self) -> str:
        """What it does, and since when.

        >>> Process("train", "m2", since=1794895440).in_words()
        'is training run m2 since 2026-11-17 06:04 UTC'
        """
        doing = DOING.get(self.work, f"busy with '{self.work}'")
        run = f" run {self.title}" if self.title and self.work == "train" else ""
        return f"is {doing}{run} since {datetime.fromtimestamp(self.since, UTC):%Y-%m-%d %H:%M} UTC"


class PeerProcesses:
    """The processes of one peer, and which of them this process is linked with."""

    def __init__(self, own: Process, party: str, peer: str) -> None:
        """No peer is connected; ``own`` is this process, of ``party``."""
        self._own, self._party, self._peer = own, party, peer
        self.chosen: Process | None = None
        self.is_up = False
        """Whether the two have chosen each other, and know it."""
        self.unsent: dict[str, tuple[bytes, bytes]] = {}
        """By nonce: what a process is yet to be sent, and what belongs to it."""
        self.unfit = ""
        """Why some process of the peer has no link with this one; nothing if all that are there have."""
        self._there: dict[str, Process] = {}
        self._answered: set[str] = set()
        self._is_announced = False
        """Whether the process that was chosen has been informed."""
        self._choices: dict[str, Process | str | None] = {}
        """By nonce: which process of this party another one has chosen, or why none; None if that is this one."""
        self._doubts: dict[str, str] = {}
        """By nonce: why a process that has chosen this one has not proved who it is."""

    def came(self, word: str) -> list[Event]:
        """A process shows its token: it is there, or is there again."""
        events, process = self.went(word), Process.read(word)
        known = {process.nonce for process in self._there.values() if process.nonce}
        if len(self._there) < MOST_PROCESSES and process.nonce not in known:
            self._there[word] = process
        return [*events, *self._settle()]

    def went(self, word: str) -> list[Event]:
        """The token is gone, and so is the process, or the connection to it."""
        process = self._there.pop(word, None)
        if process is None:
            return []
        self.unsent.pop(process.nonce, None)
        self._choices.pop(process.nonce, None)
        self._doubts.pop(process.nonce, None)
        self._answered.discard(process.nonce)
        events: list[Event] = []
        if self.chosen is process:
            events, self.chosen = self._down(), None
        return [*events, *self._settle()]

    def received_choice(self, nonce: str, what: bytes, word: str) -> list[Event]:
        """A process says that it has chosen this one, or which other one."""
        events: list[Event] = []
        if self.accepts(nonce):
            # It has seen the connection break, and this one has not: both begin again.
            events = self._down()
            self._answered.discard(nonce)
        # This may come before the token does. Of those that never show one, the oldest are forgotten.
        self._choices.pop(nonce, None)
        while len(self._choices) >= MOST_PROCESSES:
            del self._choices[next(iter(self._choices))]
        refusal = f"{self._peer} has no link with this process of {self._party}: {word}"
        self._choices[nonce] = {CHOSEN: None, REFUSED: refusal, TAKEN: Process.read(word)}[what]
        self._doubts.pop(nonce, None)
        return [*events, *self._settle()]

    def doubted(self, nonce: str, why: str) -> list[Event]:
        """A process says that it has chosen this one, and does not prove that it is the peer's."""
        self._doubts.pop(nonce, None)
        while len(self._doubts) >= MOST_PROCESSES:
            oldest = next(iter(self._doubts))
            del self._doubts[oldest]
            self.unsent.pop(oldest, None)
        self._doubts[nonce] = why
        self._choices.pop(nonce, None)
        events: list[Event] = []
        if self.chosen is not None and self.chosen.nonce == nonce:
            events, self.chosen = self._down(), None
        self.unsent[nonce] = REFUSED, why.encode()
        return [*events, *self._settle()]

    def announced(self, nonce: str) -> list[Event]:
        """The process with this nonce has been informed that it is chosen: what is sent to it now comes after that."""
        self._is_announced |= self.chosen is not None and self.chosen.nonce == nonce
        return self._settle()

    def received_message(self, nonce: str) -> list[Event]:
        """A message of a process came: if the two have chosen each other, that one was informed.

        Its first message may be here before the thread that informed it is back to say so.
        """
        if self.chosen is None or self.chosen.nonce != nonce or self.is_up or not self._is_mutual():
            return []
        return self.announced(nonce)

    def accepts(self, nonce: str) -> bool:
        """Whether messages of the process with this nonce are received."""
        return self.is_up and self.chosen is not None and self.chosen.nonce == nonce

    def _down(self) -> list[Event]:
        was_up, self.is_up, self._is_announced = self.is_up, False, False
        return [Left(self._peer)] if was_up else []

    def _settle(self) -> list[Event]:
        """Choose a process, if none is chosen, and check whether the link is up; returns what is new."""
        fitting = [process for process in self._there.values() if self._fits(process)]
        if self.chosen is None and fitting:
            self.chosen = fitting[0]
            self._answered.clear()
        for process in fitting:
            if process.nonce not in self._answered and self.chosen is not None:
                self._answered.add(process.nonce)
                # The nonce of another process is none of its business.
                instead = self.chosen._replace(nonce="0" * 16).word.encode()
                self.unsent[process.nonce] = (CHOSEN, b"") if process is self.chosen else (TAKEN, instead)
        events: list[Event] = []
        if self._is_announced and not self.is_up and self._is_mutual():
            self.is_up = True
            events = [Joined(self._peer)]
        self.unfit = self._why(fitting)
        return events

    def _is_mutual(self) -> bool:
        nonce = "" if self.chosen is None else self.chosen.nonce
        return nonce in self._choices and self._choices[nonce] is None

    def _fits(self, process: Process) -> bool:
        own = self._own
        is_known = bool(process.nonce) and process.nonce not in self._doubts
        return is_known and (process.protocol, process.work) == (own.protocol, own.work)

    def _why(self, fitting: list[Process]) -> str:
        other = None if self.chosen is None else self._choices.get(self.chosen.nonce)
        if isinstance(other, str):
            return other
        if other is not None:
            return (
                f"{self._peer} has a link with another process of {self._party}, which {other.in_words()}: "
                "this one waits until that one is gone"
            )
        if unfit := [why for process in self._there.values() if (why := self._why_not(process))]:
            return unfit[0]
        if self.chosen is not None and len(fitting) > 1:
            return (
                f"{self._peer} {self.chosen.in_words()}; another process of {self._peer} waits until that one is gone"
            )
        return ""

    def _why_not(self, process: Process) -> str:
        """Why a process of the peer cannot have a link with this one."""
        own, party, peer = self._own, self._party, self._peer
        if not process.nonce:
            return f"{peer} does not say which protocol it speaks, and {party} speaks {own.protocol}: upgrade it"
        if process.protocol != own.protocol:
            return f"{peer} speaks protocol {process.protocol} and {party} {own.protocol}: upgrade the older one"
        if process.work != own.work:
            doing = DOING.get(own.work, own.work)
            return f"{peer} {process.in_words()}; {party} is {doing}, and has no link with that process"
        return self._doubts.get(process.nonce, "")
