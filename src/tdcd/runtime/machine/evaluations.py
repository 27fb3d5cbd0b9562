"""Which rounds are evaluated, and which of them wait for other hubs' scores before they become a line of the history.

A hub sends its scores when a round begins, and continues. A line is written when all scores are there: before the steps
of the same round or, where rounds overlap by D, of one that is at most D later. If one silo alone has labels, its hub
gets all scores and sends the others the figures.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tdcd.core.ledger import Ledger, Sizes, by_link, is_evaluated
from tdcd.core.objective import Tree
from tdcd.core.trees import named_leaves
from tdcd.prediction.subsets import Phis, describe_subsets
from tdcd.records.history import Record
from tdcd.records.metrics import metrics
from tdcd.records.patience import Best, Stopping
from tdcd.records.verdict import NO_COURSES
from tdcd.runtime.compute.hub_compute import HubCompute
from tdcd.runtime.job import Job
from tdcd.runtime.machine.exchange import HubExchange, Key, figures_of
from tdcd.runtime.machine.instructions import Append, HubState
from tdcd.runtime.machine.parts import Header, figures_part, union
from tdcd.runtime.messages.messages import EndStatus, FiguresPart, ScoresPart
from tdcd.runtime.messages.structure import Array, Arrays, Message


class Candidates:
    """A silo's blocks of some rounds, each for as long as its hub may have to end with it.

    Where rounds overlap, a line of the history comes when the block has moved on.
    """

    def __init__(self, stopping: Stopping, tree: Callable[[Arrays], Tree], restored: HubState | None) -> None:
        """Take up what was saved; ``tree`` makes a block of its named arrays."""
        self._stopping = stopping
        self.best: Best | None = None if restored is None else restored.best
        self.courses = NO_COURSES if restored is None else restored.courses
        """How the training loss went."""
        self.ended_at: int | None = None
        """The round whose line ended the run, if that was not the last one."""
        by_round: dict[int, dict[str, Any]] = {}
        for name, array in ({} if restored is None else restored.candidates).items():
            round_index, _, leaf = name.partition("/")
            by_round.setdefault(int(round_index), {})[leaf] = array
        self._blocks: dict[int, Tree] = {one: tree(leaves) for one, leaves in by_round.items()}

    def evaluated(self, round_index: int, block: Tree) -> None:
        """A round's scores were sent: its block stays here until there is a line of it."""
        if self._stopping.patience is not None or self._stopping.keep == "best":
            self._blocks[round_index] = block

    def judge(self, record: Record) -> tuple[Record, bool]:
        """A line with what it is worse than, and whether its model would stay if the run ended with it, or does."""
        if record.diverged:
            return record, False
        stopping, self.best = self._stopping, Best.after(self.best, record)
        self.courses, record = self.courses.after(record, self.best)
        is_last = record.round == stopping.rounds
        if stopping.is_spent(self.best) and not is_last:
            self.ended_at = record.round
        kept = stopping.kept_round(self.best, record.round)
        self._blocks = {one: block for one, block in self._blocks.items() if one == kept or one > record.round}
        return record, kept == record.round and (is_last or self.ended_at is not None or stopping.keep == "best")

    def model(self, round_index: int, block: Tree) -> tuple[int, Tree]:
        """The round whose model stays and its block, if the run ends in this round with this block."""
        kept = self._stopping.kept_round(self.best, round_index)
        return (kept, self._blocks[kept]) if kept in self._blocks else (round_index, block)

    def ending(self, round_index: int) -> tuple[EndStatus, str]:
        """How the run ended in this round: what is wrong with the model, why it is not the last round, what stays."""
        verdict = self.courses.in_words(self._stopping, self.best, round_index)
        words = "; ".join(filter(None, [verdict, self._stopping.in_words(self.best, round_index)]))
        return "diverged" if verdict else "finished", words

    @property
    def arrays(self) -> Arrays:
        """All blocks, for a checkpoint."""
        return {
            f"{one}/{name}": leaf for one, block in self._blocks.items() for name, leaf in named_leaves(block).items()
        }


@dataclass(frozen=True)
class Records:
    """What the hubs' scores say about the global model, and what it cost to get there."""

    job: Job
    compute: HubCompute
    parameters: Sequence[int]
    """Of each silo's block."""
    blocks_up: Sequence[int]
    """Of each silo, the bytes of a block that a client sends."""
    memories: Sequence[int] = ()
    """Of each silo, the bytes of a client's memory."""

    @np.errstate(over="ignore", invalid="ignore")
    def from_scores(self, round_index: int, parts: Sequence[ScoresPart]) -> Record | None:
        """The line of a round, from every hub's scores in silo order; None if no training sample is in all of them."""
        penalty = float(sum(part.penalty for part in parts))
        train = self._figures([(part.train, part.train_absent) for part in parts], False, penalty)
        test = self._figures([(part.test, part.test_absent) for part in parts], True, penalty)
        figures = {"train": train, "test": test}
        if train is None:
            return None
        record = self._record(
            round_index,
            train[0],
            {name: found[1] for name, found in figures.items() if found is not None},
            None if test is None else test[0],
        )
        absent = {client: rounds for part in parts for client, rounds in part.absent.items()}
        return replace(record, absent=absent, unscored=[one for part in parts for one in part.unscored])

    def from_figures(self, part: FiguresPart) -> Record | None:
        """The line of a round, from what the hub with the labels found; None if it found none."""
        found = part.figures
        if found is None:
            return None
        record = self._record(part.round, found.train_loss, found.metrics, found.test_loss)
        return replace(record, absent=part.absent, unscored=part.unscored)

    def test_scores(self, parts: Sequence[ScoresPart]) -> NDArray[Any]:
        """``[m, C]``: the held-out samples' scores; not a number for those that are not in every part."""
        total = self.compute.links.add_scores([part.test.values for part in parts])
        scores = np.asarray(self.compute.objective.scores(total))
        absent = union(part.test_absent for part in parts)
        return scores if absent is None else np.where(absent[:, None], np.nan, scores)

    def subsets(self, round_index: int, parts: Sequence[ScoresPart]) -> dict[str, Any]:
        """What ``subsets.json`` says, as far as this hub knows the other silos' scores."""
        compute, penalty = self.compute, float(sum(part.penalty for part in parts))
        silos = [silo.name for silo in self.job.config.silos]
        train = self._by_silo("train", round_index, [part.train for part in parts])
        test = self._by_silo("test", round_index, [part.test for part in parts])
        away, test_away = (union(getattr(part, f"{split}_absent") for part in parts) for split in ("train", "test"))
        count = len(parts[0].test.values)
        is_held_out = count > 0 and (test_away is None or not test_away.all())
        present = train if away is None else {group: scores[~away] for group, scores in train.items()}
        known = Phis(silos, present, test if is_held_out else train, "test" if is_held_out else "train")
        dropped = {
            name: part.intercept.values for name, part in zip(silos, parts, strict=True) if part.intercept is not None
        }
        absent = test_away if is_held_out else away

        def measure(scores: NDArray[Any]) -> tuple[float, dict[str, float | None]]:
            return compute.figures(scores, is_held_out, penalty, absent)

        return describe_subsets(known, self.job.variant.dropout.rate, dropped, measure)

    def _by_silo(
        self, what: Literal["train", "test"], round_index: int, parts: Sequence[Array]
    ) -> dict[tuple[str, ...], NDArray[Any]]:
        """The scores of groups of silos, as far as this hub knows them."""
        silos = self.job.config.silos
        found = self.compute.links.scores_by_silo(what, round_index, [part.values for part in parts])
        return {tuple(silos[silo].name for silo in group): scores for group, scores in found.items()}

    def _figures(
        self, parts: Sequence[tuple[Array, Array | None]], held_out: bool, penalty: float
    ) -> tuple[float, dict[str, float | None]] | None:
        """Loss and metrics over the samples that are in every part; None if there are none."""
        scores = self.compute.links.add_scores([scores.values for scores, _ in parts])
        absent = union(mask for _, mask in parts)
        if not len(scores) or (absent is not None and absent.all()):
            return None
        return self.compute.figures(scores, held_out, penalty, absent)

    def diverged(self, round_index: int) -> Record:
        """The line that says that the run diverged in this round."""
        names = metrics(self.compute.objective.loss, np.full((1, self.compute.num_outputs), np.nan), np.zeros(1))
        return self._record(round_index + 1, math.nan, {"train": names})

    @cached_property
    def ledger(self) -> Ledger:
        """What the run's messages are."""
        compute, samples = self.compute, self.compute.sample_index
        scored = samples.num_samples + int(samples.held_out.sum())
        sent, dtype = compute.phi_shape[:2], compute.settings.dtype
        sizes = Sizes(sent, scored, dtype, self.parameters, self.blocks_up, self.memories)
        silos = range(len(self.job.hubs))
        clients = [len(self.job.clients(silo)) for silo in silos]
        return Ledger.of(compute.round, sizes, clients, periods=[compute.variant.timing.period(silo) for silo in silos])

    def _record(
        self,
        round_index: int,
        train_loss: float,
        figures: dict[str, dict[str, float | None]],
        test_loss: float | None = None,
    ) -> Record:
        ledger = self.ledger
        evaluations = ledger.evaluations(round_index, self.job.config.evaluate.every, self.job.config.train.rounds)
        return Record(
            round=round_index,
            iteration=round_index * self.job.settings.local_steps,
            train_loss=train_loss,
            test_loss=test_loss,
            metrics=figures,
            bytes=ledger.traffic(round_index, "bytes"),
            messages=ledger.traffic(round_index, "messages"),
            seconds=0.0,
            evaluation_bytes=by_link(evaluations, "bytes"),
            evaluation_messages=by_link(evaluations, "messages"),
        )


class Evaluations:
    """The rounds whose scores a silo's hub sends."""

    def __init__(self, silo: int, job: Job, compute: HubCompute, restored: HubState | None = None) -> None:
        """Take up what was saved."""
        self.candidates = Candidates(job.stopping, compute.tree, restored)
        self._silo, self._timing = silo, job.timing
        self._has_labels = job.has_labels(silo)
        self._sends_figures = job.topology.label_hub == job.hubs[silo]
        self.figures_in = lru_cache(maxsize=2)(self._figures_in)
        """What every hub has before this round's steps, of lines of the history; asked for with every part."""
        self._every, self._rounds = job.config.evaluate.every, job.config.train.rounds
        self.waiting = [] if restored is None else list(restored.unrecorded)
        """Rounds whose scores were sent and whose lines are not written, in order."""
        self.recorded = 0 if restored is None else restored.recorded
        """The round of the last line; 0 before the first."""

    @property
    def has_news(self) -> bool:
        """Whether a line may be written, or was the last one; asked for with every message."""
        return bool(self.waiting) or self.candidates.ended_at is not None

    def complete(
        self, exchange: HubExchange, records: Records | None, header: Callable[[int], Header]
    ) -> Iterator[Message | Append]:
        """The lines whose figures are there, and what to send of them; there are ``records`` when hubs have met.

        Args:
            header: of a part about a round.
        """
        while records is not None and self.waiting and not exchange.lacking(figures_of(self.waiting[0])):
            round_index = self.waiting.pop(0)
            scores = exchange.parts(ScoresPart, round_index)
            if self._has_labels:
                record = records.from_scores(round_index, scores)
            else:
                record = records.from_figures(exchange.received(FiguresPart, round_index)[0])
            if self._sends_figures:
                yield from exchange.publish(figures_part(header(round_index), record))
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

    def note_sent(self, round_index: int, block: Tree) -> None:
        """A round's scores were sent."""
        self.candidates.evaluated(round_index, block)
        if round_index not in self.waiting:
            self.waiting.append(round_index)

    def scored_in(self, round_index: int) -> list[int]:
        """The rounds whose scores are sent in this one: its own, and those in which the block stays the same."""
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
