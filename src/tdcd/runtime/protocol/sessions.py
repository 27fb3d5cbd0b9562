"""Which process of a client a hub talks to: clients go, and come back as other processes of the same name."""

from tdcd.runtime.protocol.messages import Enrol, Who
from tdcd.runtime.protocol.wire import RejectedMessage

MOST_CALLS = 2**31


class Sessions:
    """The processes of a silo's clients that a hub talks to, one per client.

    A hub calls a client whenever it joins, by another number each time. Only what answers the last call counts: what a
    former process said, in this run or an earlier one, and however late it arrives, answers another. Of two processes
    that answer the same call, the first stays.
    """

    def __init__(self, hub: str, first_call: int) -> None:
        """Nobody has come; another process of this hub, or a hub of another run, begins with another number."""
        self._hub = hub
        self._last = first_call
        self._calls: dict[str, int] = {}
        self._current: dict[str, str] = {}
        self._answered: set[str] = set()

    def greet(self, client: str, run: str) -> Who:
        """The next call, to a client that has joined for the first time or again."""
        self._last = (self._last + 1) % MOST_CALLS
        self._calls[client] = self._last
        self._answered.discard(client)
        return self.who(client, run)

    def who(self, client: str, run: str) -> Who:
        """The last call once more."""
        return Who(self._hub, client, run=run, call=self._calls.get(client, 0))

    def is_current(self, message: Enrol) -> bool:
        """Whether a client answers the last call; if not, it may be a process that is gone."""
        return message.call == self._calls.get(message.sender)

    def check(self, client: str, session: str) -> None:
        """Refuse a process that introduces itself after another one has answered the call."""
        if client in self._answered and session != self._current[client]:
            raise RejectedMessage("another process of this name answered before")

    def note(self, client: str, session: str) -> None:
        """A process has introduced itself, and is welcome."""
        self._answered.add(client)
        self._current[client] = session

    def current(self, client: str) -> str:
        """The process that the hub talks to."""
        return self._current[client]
