"""Which rounds are evaluated, and which of them wait for other hubs' scores before they become a line of the history.

A hub sends its scores when a round begins, and continues. A line is written when all scores are there: before the steps
of the same round or, where rounds overlap by D, of one that is at most D later. If one silo alone has labels, its hub
gets all scores and sends the others the figures.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from tdcd.core import certificate
from tdcd.core.certificate import Certificate
from tdcd.core.codecs.codec import epsilon_of_blocks, epsilon_until
from tdcd.core.family.scaled import Window
from tdcd.core.ledger import Ledger, Sizes, by_link, is_evaluated
from tdcd.core.losses import metrics
from tdcd.core.objective import Tree
from tdcd.core.round import FlowName
from tdcd.core.shared_rows import SharedCounts
from tdcd.core.trees import named_leaves
from tdcd.federation.missing_rows import Presence, patterns_in, trained_without
from tdcd.prediction.calibration import describe_calibration
from tdcd.prediction.interactions import HeldOut, interactions_of
from tdcd.prediction.subsets import Phis, describe_subsets, is_calibrated, means_by_pattern
from tdcd.records.history import Record
from tdcd.records.outcome import NO_CONTROL, NO_COURSES, Best, Stopping
from tdcd.runtime.compute.hub_compute import HubCompute, absent_in
from tdcd.runtime.job import Job
from tdcd.runtime.machine.exchange import HubExchange, Key
from tdcd.runtime.machine.instructions import Append, HubState
from tdcd.runtime.messages.messages import EndStatus, FiguresFacts, Part, ScoresFacts
from tdcd.runtime.messages.structure import Arrays, EvaluationFigures, Message, arrays_of


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
        self.control = NO_CONTROL if restored is None else restored.control
        """Where steered steps stand."""
        self.is_ready = False
        """Whether the last line may end the run: it does if its certificate agrees."""
        self.ended_at: int | None = None
        """The round whose line ended the run, if that was not the last one."""
        by_round: dict[int, dict[str, Any]] = {}
        for name, array in ({} if restored is None else restored.candidates).items():
            round_index, _, leaf = name.partition("/")
            by_round.setdefault(int(round_index), {})[leaf] = array
        self._blocks: dict[int, Tree] = {number: tree(leaves) for number, leaves in by_round.items()}

    def evaluated(self, round_index: int, block: Tree) -> None:
        """A round's scores were sent: its block stays here until there is a line of it."""
        stopping = self._stopping
        if stopping.patience is not None or stopping.keep == "best" or stopping.steering is not None:
            self._blocks[round_index] = block

    def judge(self, record: Record) -> tuple[Record, bool]:
        """A line with what it is worse than, and whether its model would stay if the run ended with it, or does."""
        stopping, self.is_ready = self._stopping, False
        if stopping.steering is not None:
            self.control, record = stopping.steering.judge(self.control, record)
        if record.diverged:
            return record, False
        self.best = Best.after(self.best, record)
        self.courses, record = self.courses.after(record, self.best)
        is_last = record.round == stopping.rounds
        self.is_ready = stopping.is_spent(self.best, self.control)
        kept = stopping.kept_round(self.best, record.round, self.control)
        needed = {kept} if stopping.steering is None else {kept, self.control.round}
        self._blocks = {
            round_index: block
            for round_index, block in self._blocks.items()
            if round_index in needed or round_index > record.round
        }
        # The next line may be taken back, so that this one stays.
        may_stay = is_last or self.is_ready or stopping.keep == "best" or stopping.steering is not None
        return record, kept == record.round and may_stay

    def settle(self, record: Record) -> None:
        """A line that is ready to end the run is complete, and ends it or does not."""
        self.control = self._stopping.proven(self.control, record)
        if self._stopping.is_spent(self.best, self.control) and record.round != self._stopping.rounds:
            self.ended_at = record.round

    def steered(self, round_index: int) -> tuple[float, Tree | None] | None:
        """If a decision about the steps takes effect in this round: their factor, and the block to go back to."""
        steering, control = self._stopping.steering, self.control
        if steering is None or not control.is_changed or round_index != control.counted + steering.delay:
            return None
        return control.factor, self._blocks[control.round] if control.is_back else None

    def model(self, round_index: int, block: Tree) -> tuple[int, Tree]:
        """The round whose model stays and its block, if the run ends in this round with this block."""
        kept = self._stopping.kept_round(self.best, round_index, self.control)
        return (kept, self._blocks[kept]) if kept in self._blocks else (round_index, block)

    def ending(self, round_index: int) -> tuple[EndStatus, str]:
        """How the run ended in this round: what is wrong with the model, why it is not the last round, what stays."""
        verdict = self.courses.in_words(self._stopping, self.best, round_index, self.control)
        words = "; ".join(filter(None, [verdict, self._stopping.in_words(self.best, round_index, self.control)]))
        return "diverged" if verdict else "finished", words

    def end(self, round_index: int) -> str:
        """What ended a run that finished with this round, in a word."""
        return self._stopping.end(round_index, self.control)

    @property
    def arrays(self) -> Arrays:
        """All blocks, for a checkpoint."""
        return {
            f"{round_index}/{name}": leaf
            for round_index, block in self._blocks.items()
            for name, leaf in named_leaves(block).items()
        }


class Uncertified:
    """Blocks of evaluated rounds, and what a hub remembered then of the rounds before: as long as there may be a
    certificate of them.
    """

    def __init__(self, tree: Callable[[Arrays], Tree], restored: HubState | None) -> None:
        """Take up what was saved; ``tree`` makes a block of its named arrays."""
        by_round: dict[int, dict[str, Any]] = {}
        for name, array in ({} if restored is None else restored.uncertified).items():
            number, _, rest = name.partition("/")
            by_round.setdefault(int(number), {})[rest] = array
        self._known: dict[int, tuple[Tree, Window | None]] = {}
        for round_index, leaves in by_round.items():
            window = [leaves.pop(f"{_WINDOW}{name}", None) for name in Window._fields]
            self._known[round_index] = tree(leaves), None if window[0] is None else Window(*window)

    def add(self, round_index: int, block: Tree, window: Window | None) -> None:
        """A round's scores were sent."""
        self._known[round_index] = block, window

    def take(self, round_index: int) -> tuple[Tree, Window | None]:
        """What a certificate of a round is made of; what was older is no longer needed."""
        known = self._known[round_index]
        self.forget(round_index)
        return known

    def forget(self, round_index: int) -> None:
        """There is a line of a round."""
        self._known = {number: known for number, known in self._known.items() if number > round_index}

    @property
    def arrays(self) -> Arrays:
        """All of it, for a checkpoint."""
        saved: dict[str, NDArray[Any]] = {}
        for round_index, (block, window) in self._known.items():
            saved |= {f"{round_index}/{name}": leaf for name, leaf in named_leaves(block).items()}
            if window is not None:
                saved |= {f"{round_index}/{_WINDOW}{name}": array for name, array in window._asdict().items()}
        return saved


_WINDOW = "window."


class Scores(NamedTuple):
    """Every hub's part of an evaluation, in silo order."""

    arrays: list[Arrays]
    facts: list[ScoresFacts]

    @classmethod
    def of(cls, parts: Sequence[Part]) -> Self:
        """What the parts hold."""
        return cls(
            [arrays_of(part.arrays) for part in parts],
            [part.facts for part in parts if isinstance(part.facts, ScoresFacts)],
        )

    @property
    def penalty(self) -> float:
        """The regulariser of all blocks."""
        return float(sum(facts.penalty for facts in self.facts))


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
    rows: Sequence[tuple[int, int]] = ()
    """Of each silo, its training samples and all its samples, where silos may lack some."""
    shared: Sequence[SharedCounts | None] = ()
    """Of each silo, its clients' distinct rows, where they belong to many samples."""

    @np.errstate(over="ignore", invalid="ignore")
    def from_scores(self, round_index: int, scores: Scores) -> Record | None:
        """The line of a round, from every hub's scores; None if no training sample is in all of them."""
        train, test = self._figures(scores, "train"), self._figures(scores, "test")
        figures = {"train": train, "test": test}
        if train is None:
            return None
        record = self._record(
            round_index,
            train[0],
            {name: reached[1] for name, reached in figures.items() if reached is not None},
            None if test is None else test[0],
        )
        absent = {client: rounds for facts in scores.facts for client, rounds in facts.absent.items()}
        return replace(record, absent=absent, unscored=[client for facts in scores.facts for client in facts.unscored])

    def from_figures(self, round_index: int, facts: FiguresFacts) -> Record | None:
        """The line of a round, from what the hub with the labels found; None if it found none."""
        figures = facts.figures
        if figures is None:
            return None
        record = self._record(round_index, figures.train_loss, figures.metrics, figures.test_loss)
        return replace(record, absent=facts.absent, unscored=facts.unscored)

    def test_scores(self, scores: Scores) -> NDArray[Any]:
        """``[m, C]``: the held-out samples' scores; not a number for those that are not in every part."""
        total = self.compute.links.add_scores([part["test"] for part in scores.arrays])
        known, absent = np.asarray(self.compute.objective.scores(total)), absent_in(scores.arrays, "test_absent")
        return known if absent is None else np.where(absent[:, None], np.nan, known)

    def subsets(self, round_index: int, scores: Scores) -> dict[str, Any]:
        """What ``subsets.json`` says, as far as this hub knows the other silos' scores."""
        present = self.compute.sample_index.present
        if present is None or present.all():
            figures = self._by_subset(round_index, scores)
        else:
            figures = self._by_pattern(round_index, scores, present)
        return figures | self._calibration(scores)

    def _by_subset(self, round_index: int, scores: Scores) -> dict[str, Any]:
        """The figures with every subset of the silos, and interactions of two."""
        compute, silos = self.compute, [silo.name for silo in self.job.config.silos]
        train = self._by_silo("train", round_index, scores.arrays)
        test = self._by_silo("test", round_index, scores.arrays)
        away, test_away = absent_in(scores.arrays, "train_absent"), absent_in(scores.arrays, "test_absent")
        count = len(scores.arrays[0]["test"])
        is_held_out = count > 0 and (test_away is None or not test_away.all())
        kept_train = train if away is None else {group: phi[~away] for group, phi in train.items()}
        known = Phis(silos, kept_train, test if is_held_out else train, "test" if is_held_out else "train")
        each = zip(silos, scores.arrays, strict=True)
        dropped = {name: part["intercept"] for name, part in each if "intercept" in part}
        absent = test_away if is_held_out else away

        def measure(scored: NDArray[Any]) -> tuple[float, dict[str, float | None]]:
            return compute.figures(scored, is_held_out, scores.penalty, absent)

        described = describe_subsets(known, self.job.variant.dropout.rate, dropped, measure, self.job.combine)
        kept, samples = slice(None) if absent is None else ~absent, compute.sample_index
        weights = samples.weights_at(samples.held_out == is_held_out)
        labels = samples.test_labels if is_held_out else samples.train_labels
        rows = HeldOut(labels[kept], None if weights is None else weights[kept], samples.known.label_scale)
        there = known._replace(measured={group: phi[kept] for group, phi in known.measured.items()})
        only_sums = self.job.round.summed_phi is not None
        tested = interactions_of(there, rows, compute.objective, only_sums=only_sums)
        return {**described, "interactions": tested}

    def _calibration(self, scores: Scores) -> dict[str, Any]:
        """The temperature of probabilities, if the model has ensembles."""
        names, objective, samples = self.job.config.block_names, self.compute.objective, self.compute.sample_index
        # The code of another silo's own block is not here.
        ensembles = [self.job.block(silo) for silo, name in enumerate(names) if name == "ensemble"]
        if not is_calibrated(ensembles, objective):
            return {}
        absent = absent_in(scores.arrays, "test_absent")
        is_held_out = len(scores.arrays[0]["test"]) > 0 and (absent is None or not absent.all())
        held_out = self.test_scores(scores) if is_held_out else None
        labels = samples.test_labels if is_held_out else samples.train_labels
        weights = samples.weights_at(samples.held_out == is_held_out)
        return {"calibration": describe_calibration(held_out, labels, weights, objective)}

    def _by_pattern(self, round_index: int, scores: Scores, present: Presence) -> dict[str, Any]:
        """The same where silos lack samples: the figures by the silos that have them."""
        held_out, names = self.compute.sample_index.held_out, self.job.config.silo_names
        what: Literal["train", "test"] = "test" if held_out.any() else "train"
        total = self.compute.links.add_scores([part[what] for part in scores.arrays])
        away, figures = absent_in(scores.arrays, f"{what}_absent"), []
        trained = patterns_in(present[:, ~held_out], names)
        for silos, rows in patterns_in(present[:, held_out == (what == "test")], names).items():
            others = np.ones(len(total), bool)
            others[rows] = False if away is None else away[rows]
            if others.all():
                continue
            loss, reached = self.compute.figures(total, what == "test", scores.penalty, others)
            counts = {"silos": [*silos], "trained": len(trained.get(silos, ())), "samples": int((~others).sum())}
            figures.append({**counts, "loss": loss, "metrics": reached})
        rate, each = self.job.variant.dropout.rate, zip(names, scores.arrays, strict=True)
        left = {name: part["intercept"].tolist() for name, part in each if "intercept" in part}
        empty: dict[str, Any] = {"mean_phi": {}, "stand_in": left, "subsets": []}
        content = {"silos": [*names], "silo_dropout": rate, "samples": what, **empty, "patterns": figures}
        train, absent = self._by_silo("train", round_index, scores.arrays), absent_in(scores.arrays, "train_absent")
        if absent is not None:
            trained = {silos: rows[~absent[rows]] for silos, rows in trained.items()}
        labelled = [silo for silo in range(len(names)) if self.job.has_labels(silo)]
        of_absent = {
            "trained_without": trained_without(
                present[:, ~held_out], names, labelled, drops_silos=self.job.variant.dropout.drops_silos
            ),
            "means": means_by_pattern(train, trained, self.job.combine),
        }
        return content | of_absent

    def _by_silo(
        self, what: Literal["train", "test"], round_index: int, parts: Sequence[Arrays]
    ) -> dict[tuple[str, ...], NDArray[Any]]:
        """The scores of groups of silos, as far as this hub knows them."""
        silos = self.job.config.silos
        by_group = self.compute.links.scores_by_silo(what, round_index, [part[what] for part in parts])
        return {tuple(silos[silo].name for silo in group): scores for group, scores in by_group.items()}

    def _figures(self, scores: Scores, what: Literal["train", "test"]) -> tuple[float, dict[str, float | None]] | None:
        """Loss and metrics over the samples that are in every part; None if there are none."""
        total = self.compute.links.add_scores([part[what] for part in scores.arrays])
        absent = absent_in(scores.arrays, f"{what}_absent")
        if not len(total) or (absent is not None and absent.all()):
            return None
        return self.compute.figures(total, what == "test", scores.penalty, absent)

    def diverged(self, round_index: int, certified: int) -> Record:
        """The line that says that the run diverged in this round, after so many certificates."""
        names = metrics(self.compute.objective.loss, np.full((1, self.compute.num_outputs), np.nan), np.zeros(1))
        return self.with_evaluations(self._record(round_index + 1, math.nan, {"train": names}), certified)

    def with_evaluations(self, record: Record, certified: int) -> Record:
        """A line with what evaluations have sent so far, and so many certificates."""
        every, rounds = self.job.config.evaluate.every, self.job.config.train.rounds
        sent = self.ledger.evaluations(record.round, every, rounds, certified)
        return replace(record, evaluation_bytes=by_link(sent, "bytes"), evaluation_messages=by_link(sent, "messages"))

    @cached_property
    def ledger(self) -> Ledger:
        """What the run's messages are."""
        compute, samples = self.compute, self.compute.sample_index
        scored = samples.num_samples + int(samples.held_out.sum())
        sent, dtype = compute.phi_shape[:2], compute.settings.dtype
        blocks = self.parameters, self.blocks_up, self.memories
        sizes = Sizes(sent, scored, dtype, *blocks, samples.num_samples, self.rows, self.shared)
        silos = range(len(self.job.hubs))
        clients = [len(self.job.clients(silo)) for silo in silos]
        periods = [compute.variant.timing.period(silo) for silo in silos]
        return Ledger.of(compute.round, sizes, clients, periods=periods, answering=compute.variant.answering(clients))

    def _record(
        self,
        round_index: int,
        train_loss: float,
        figures: dict[str, dict[str, float | None]],
        test_loss: float | None = None,
    ) -> Record:
        ledger = self.ledger
        return Record(
            round=round_index,
            iteration=round_index * self.job.settings.local_steps,
            train_loss=train_loss,
            test_loss=test_loss,
            metrics=figures,
            bytes=ledger.traffic(round_index, "bytes"),
            messages=ledger.traffic(round_index, "messages"),
            seconds=0.0,
            epsilon=epsilon_until(
                self.job.variant.exchange,
                round_index,
                self.compute.settings,
                self.job.timing,
                self.job.config.evaluate.every,
                self.job.config.train.rounds,
            ),
            block_epsilon=epsilon_of_blocks(
                self.job.variant.block_exchange, round_index, self.job.timing, self.job.config.train.rounds
            ),
        )


class Evaluations:
    """The rounds whose scores a silo's hub sends."""

    def __init__(self, silo: int, job: Job, compute: HubCompute, restored: HubState | None = None) -> None:
        """Take up what was saved."""
        self.candidates = Candidates(job.stopping, compute.tree, restored)
        self.uncertified = Uncertified(compute.tree, restored)
        self.certified = 0 if restored is None else restored.certified
        """How many lines have had a certificate."""
        self.proven = None if restored is None else restored.proven
        """No model's training loss is below this."""
        self.held: Append | None = None
        """The line that waits for its certificate."""
        self._kind = compute.certificate_kind
        self._spacing = certificate.spacing(compute.settings, compute.sample_index.num_samples)
        self._coverage = certificate.Coverage(job.variant, compute.settings, compute.sample_index.num_samples)
        self._may_end_early = job.stopping.patience is not None or job.stopping.steering is not None
        self._silo, self._timing = silo, job.timing
        self._has_labels = job.has_labels(silo)
        self._sends_figures = job.topology.label_hub == job.hubs[silo]
        between_hubs = [flow for flow in job.topology.round.evaluation if flow.link == "hub_to_hub"]
        self._flows: list[FlowName] = [flow.name for flow in between_hubs if flow.within is None]
        self.figures_in = lru_cache(maxsize=2)(self._figures_in)
        """What every hub has before this round's steps, of lines of the history; asked for with every part."""
        self._every, self._rounds = job.config.evaluate.every, job.config.train.rounds
        self.waiting = [] if restored is None else list(restored.unrecorded)
        """Rounds whose scores were sent and whose lines are not written, in order."""
        self.recorded = 0 if restored is None else restored.recorded
        """The round of the last line; 0 before the first."""

    def of(self, round_index: int) -> list[Key]:
        """What a hub needs of others for a line of the history: scores, or what the hub with the labels made of it."""
        return [(flow, round_index) for flow in self._flows]

    def complete(
        self, exchange: HubExchange, records: Records | None, own_part: Callable[..., Part]
    ) -> Iterator[Message | Append]:
        """The lines whose figures are there, and what to send of them; there are ``records`` when hubs have met.

        It ends with a line that is to have a certificate, which is :attr:`held` until then.

        Args:
            own_part: makes this hub's part of a flow and a round.
        """
        while records is not None and self.waiting and not exchange.lacking(self.of(self.waiting[0])):
            round_index = self.waiting.pop(0)
            scores = Scores.of(exchange.parts("scores", round_index))
            if self._has_labels:
                record = records.from_scores(round_index, scores)
            else:
                facts = exchange.parts("figures", round_index)[0].facts
                assert isinstance(facts, FiguresFacts)
                record = records.from_figures(round_index, facts)
            if self._sends_figures:
                yield from exchange.publish(own_part("figures", round_index, {}, _facts_of(record)))
            if record is not None:
                self.recorded = round_index
                record, stays = self.candidates.judge(record)
                is_held = self._is_certified(record)
                self.certified += is_held
                record = records.with_evaluations(record, self.certified)
                line = Append(record)
                if stays and self._has_labels:
                    line = Append(record, records.test_scores(scores), records.subsets(round_index, scores))
                if is_held:
                    self.held = line
                else:
                    self.uncertified.forget(round_index)
                    if self.candidates.is_ready:
                        self._settle(record)
                    yield line
            if self.held is not None:
                return

    def _is_certified(self, record: Record) -> bool:
        """Whether a line is to have a certificate: only one of all samples."""
        if not self._kind or record.diverged or record.unscored:
            return False
        return (self._is_due(record.round) or self.candidates.is_ready) and self._coverage.is_whole(record.round)

    def _settle(self, record: Record) -> None:
        self.candidates.settle(record)
        if self.candidates.ended_at is not None:
            self.waiting = []

    def _is_due(self, round_index: int) -> bool:
        return certificate.is_due(round_index, self._every, self._spacing, self._rounds)

    def release(self, given: Certificate) -> Append:
        """The line that was held, with its certificate."""
        assert self.held is not None
        line, self.held = self.held, None
        record = line.record.certified(given, [] if self.proven is None else [self.proven])
        if record.gap is not None:
            bound = record.train_loss - record.gap
            self.proven = bound if self.proven is None else max(bound, self.proven)
        if self.candidates.is_ready:
            self._settle(record)
        return replace(line, record=record)

    def _figures_in(self, round_index: int) -> list[Key]:
        first = round_index - self._timing.rounds
        # In the end, of all rounds that are left.
        needed = self._due(first, (round_index if round_index == self._rounds else first) + 1)
        return [key for due in needed for key in self.of(due)]

    def note_sent(self, round_index: int, block: Tree, window: Callable[[], Window | None]) -> None:
        """A round's scores were sent; ``window`` has what the hub remembers of the rounds before."""
        self.candidates.evaluated(round_index, block)
        if self._kind and (self._may_end_early or self._is_due(round_index)):
            self.uncertified.add(round_index, block, window())
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

    def is_waiting(self, round_index: int) -> bool:
        """Whether a line of this round, or of one before it, is still to be written."""
        held = [] if self.held is None else [self.held.record.round]
        return any(waiting <= round_index for waiting in (*self.waiting, *held))


def _facts_of(record: Record | None) -> FiguresFacts:
    """A line of the history as hubs without labels are sent it, or that there is none."""
    if record is None:
        return FiguresFacts(figures=None)
    figures = EvaluationFigures(record.train_loss, record.test_loss, record.metrics)
    return FiguresFacts(figures=figures, absent=record.absent, unscored=record.unscored)
