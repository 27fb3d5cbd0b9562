"""Which rounds are evaluated, and which of them wait for other hubs' scores before they become a line of the history.

A hub tells its scores when a round begins, and goes on. A line is written when all scores are there: before the steps
of the same round or, where rounds overlap by D, of one that is at most D later. If one silo alone has labels, its hub
gets all scores and tells the others what it found.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache

from tdcd.core.ledger import is_evaluated
from tdcd.core.objective import Tree
from tdcd.runtime.compute.hub_compute import HubCompute
from tdcd.runtime.protocol.candidates import Candidates
from tdcd.runtime.protocol.exchange import Exchange, Key, figures_of
from tdcd.runtime.protocol.instructions import Append, State
from tdcd.runtime.protocol.job import Job, timing_of
from tdcd.runtime.protocol.label_messages import FiguresPart
from tdcd.runtime.protocol.making import Header, figures_part
from tdcd.runtime.protocol.messages import ScoresPart
from tdcd.runtime.protocol.records import Records
from tdcd.runtime.protocol.structure import Message


class Evaluations:
    """The rounds that a silo's hub tells its scores of."""

    def __init__(self, silo: int, job: Job, compute: HubCompute, restored: State | None = None) -> None:
        """Take up what was saved."""
        self.candidates = Candidates(job.stopping, compute.tree, restored)
        self._silo, self._timing = silo, timing_of(job.variant)
        self._has_labels = job.has_labels(silo)
        self._tells = job.audience.label_hub == job.hubs[silo]
        self.figures_in = lru_cache(maxsize=2)(self._figures_in)
        """What every hub has before this round's steps, of lines of the history; asked for with every part."""
        self._every, self._rounds = job.config.evaluate.every, job.config.train.rounds
        self.waiting = [] if restored is None else list(restored.unrecorded)
        """Rounds whose scores were told and whose lines are not written, in order."""
        self.recorded = 0 if restored is None else restored.recorded
        """The round of the last line; 0 before the first."""

    @property
    def has_news(self) -> bool:
        """Whether a line may be written, or was the last one; asked for with every message."""
        return bool(self.waiting) or self.candidates.ended_at is not None

    def complete(
        self, exchange: Exchange, records: Records | None, header: Callable[[int], Header]
    ) -> Iterator[Message | Append]:
        """The lines whose figures are to be had, and what to tell of them; there are ``records`` when hubs have met.

        Args:
            header: of a part about a round.
        """
        while records is not None and self.waiting and not exchange.lacking(figures_of(self.waiting[0])):
            round_index = self.waiting.pop(0)
            scores = exchange.parts(ScoresPart, round_index)
            if self._has_labels:
                record = records.evaluated(round_index, scores)
            else:
                record = records.told(exchange.received(FiguresPart, round_index)[0])
            if self._tells:
                yield from exchange.tell(figures_part(header(round_index), record))
            if record is not None:
                self.recorded = round_index
                record, stays = self.candidates.judge(record)
                if not stays or not self._has_labels:
                    yield Append(record)
                else:
                    yield Append(record, records.test_scores(scores), records.subsets(round_index, scores))
            if self.candidates.ended_at is not None:
                self.waiting = []

    def _figures_in(self, round_index: int) -> list[Key]:
        first = round_index - self._timing.rounds
        # In the end, of all rounds that are left.
        needed = self._due(first, (round_index if round_index == self._rounds else first) + 1)
        return [key for one in needed for key in figures_of(one)]

    def told(self, round_index: int, block: Tree) -> None:
        """A round's scores were told."""
        self.candidates.evaluated(round_index, block)
        if round_index not in self.waiting:
            self.waiting.append(round_index)

    def told_in(self, round_index: int) -> list[int]:
        """The rounds whose scores are told in this one: its own, and those in which the block stays the same."""
        if not self._timing.steps_in(self._silo, round_index):
            return []
        return [*self._due(round_index, round_index + self._timing.period(self._silo))]

    def _due(self, start: int, stop: int) -> Iterator[int]:
        for round_index in range(max(0, start), min(stop, self._rounds + 1)):
            if is_evaluated(round_index, self._every, self._rounds):
                yield round_index

    def oldest(self, round_index: int) -> int:
        """The oldest round whose scores may still be needed in this one."""
        return min([*self.waiting, round_index - self._timing.rounds])
