"""How long a hub waits for a client before it goes on without it."""

from collections.abc import Callable, Iterable

from tdcd.runtime.protocol.structure import Message


class Grace:
    """Finds the questions that have been open for longer than the grace period."""

    def __init__(self, seconds: float, pace_s: float, clock: Callable[[], float]) -> None:
        """Take the grace period, and how often :meth:`over` will be called."""
        self._seconds, self._pace, self._clock = seconds, pace_s, clock
        self._since: dict[Message, float] = {}
        self._looked_at = clock()

    def is_due(self) -> bool:
        """Whether :meth:`over` was last called some time ago."""
        return self._clock() - self._looked_at > 2 * self._pace

    def restart(self) -> None:
        """Give every question its whole time again."""
        self._since = {}

    def over(self, questions: Iterable[Message]) -> list[Message]:
        """Of the open ``questions``, those whose time is over; it then begins anew for them."""
        now = self._clock()
        # A hub that slept cannot tell who was late: all get their time again.
        known = self._since if now - self._looked_at <= self._seconds + 2 * self._pace else {}
        self._looked_at = now
        self._since = {question: known.get(question, now) for question in questions}
        late = [question for question, since in self._since.items() if now - since > self._seconds]
        self._since |= dict.fromkeys(late, now)
        return late
