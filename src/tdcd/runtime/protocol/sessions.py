"""Which process of a client a hub talks to: clients go, and come back as other processes of the same name."""

from collections import Counter

from tdcd.runtime.protocol.messages import Enrol, Who
from tdcd.runtime.protocol.wire import RejectedMessage


class Sessions:
    """The processes of a silo's clients, in the order in which they came.

    A hub calls a client whenever it joins, and numbers its calls. Only what answers the last call counts: what a former
    process said, however late it arrives, answers an earlier one. Two processes at once hear the same call, and of
    them the one that came later stays.
    """

    def __init__(self, hub: str) -> None:
        """Nobody has come."""
        self._hub = hub
        self._calls: Counter[str] = Counter()
        self._known: dict[str, list[str]] = {}

    def greet(self, client: str, run: str) -> Who:
        """The next call, to a client that has joined for the first time or again."""
        self._calls[client] += 1
        return self.who(client, run)

    def who(self, client: str, run: str) -> Who:
        """The last call once more."""
        return Who(self._hub, client, run=run, call=self._calls[client])

    def is_current(self, message: Enrol) -> bool:
        """Whether a client answers the last call; if not, it may be a process that is gone."""
        return message.call == self._calls[message.sender]

    def note(self, client: str, session: str) -> None:
        """A process introduces itself; refused if another one has taken its place."""
        known = self._known.setdefault(client, [])
        if session in known[:-1]:
            raise RejectedMessage("another process has taken its place")
        if session not in known:
            known.append(session)

    def current(self, client: str) -> str:
        """The process that came last."""
        return self._known[client][-1]
