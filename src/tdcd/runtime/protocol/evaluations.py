"""Which rounds are evaluated, and which of them wait for other hubs' scores before they become a line of the history.

A hub tells its scores when a round begins, and goes on. A line is written when all scores are there: before the steps
of the same round or, where rounds overlap by D, of one that is at most D later.
"""

from collections.abc import Iterator, Sequence

from tdcd.core.timing import Overlap


class Evaluations:
    """The rounds that a silo's hub tells its scores of."""

    def __init__(self, silo: int, timing: Overlap, every: int, rounds: int, waiting: Sequence[int] = ()) -> None:
        """Take ``waiting``, the rounds whose scores were told and whose lines are not written."""
        self._silo, self._timing, self._every, self._rounds = silo, timing, every, rounds
        self.waiting = list(waiting)
        """Rounds whose scores were told and whose lines are not written, in order."""

    def told_in(self, round_index: int) -> list[int]:
        """The rounds whose scores are told in this one: its own, and those in which the block stays the same."""
        if not self._timing.steps_in(self._silo, round_index):
            return []
        return [*self._due(round_index, round_index + self._timing.period(self._silo))]

    def needed_in(self, round_index: int) -> list[int]:
        """The rounds whose scores everybody has before the steps of this one; in the end, of all that are left."""
        first = round_index - self._timing.rounds
        if round_index == self._rounds:
            return [*self._due(first, round_index + 1)]
        return [*self._due(first, first + 1)]

    def _due(self, start: int, stop: int) -> Iterator[int]:
        for round_index in range(max(0, start), min(stop, self._rounds + 1)):
            if round_index % self._every == 0 or round_index == self._rounds:
                yield round_index

    def oldest(self, round_index: int) -> int:
        """The oldest round whose scores may still be needed in this one."""
        return min([*self.waiting, round_index - self._timing.rounds])
