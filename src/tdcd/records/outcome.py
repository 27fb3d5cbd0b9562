"""The outcome of a run: when it ends, which round's model stays, and whether that model is to be trusted.

All of it follows from the lines of the history alone: parties with the same lines decide alike and need not ask.

The verdict judges the model that stays, by its training loss, which is what training minimises: over all training
samples, so that it does not depend on a minibatch.

- Worse than before training: the loss is above the first one by more than 1 % of that.
- Far above the best: more than half of what an earlier line had gained is lost, if that is more than 5 % of the first
  loss; or the loss is more than ten times the lowest, if the rise is more than 1 % of the gain.

Smaller rises are what minibatches do near an optimum. Only differences count, since corrected losses can be negative.
Held-out losses are not judged: they rise where a model overfits, which is a matter of patience. A line without some
clients' samples is left out, for its loss is that of other samples.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from tdcd.core.choices import KeepModel
from tdcd.core.family.steered import LONGEST
from tdcd.core.settings import AUTO
from tdcd.records.history import Record
from tdcd.records.steering import TOL, Steering, StepControl

if TYPE_CHECKING:
    from tdcd.core.variant import Variant

NO_CONTROL = StepControl()
"""Where steps are not steered, or before the first line."""


class Best(NamedTuple):
    """The lowest loss so far: of the held-out samples, or of the training samples if none are held out."""

    round: int
    loss: float
    held_out: bool
    since: int = 0
    """Evaluations since then."""

    @classmethod
    def after(cls, before: Self | None, record: Record) -> Self:
        """The best with one more line, which is better only if its loss is lower."""
        held_out = record.test_loss is not None
        loss = record.train_loss if record.test_loss is None else record.test_loss
        candidate = cls(record.round, loss if math.isfinite(loss) else math.inf, held_out)
        if before is None or (held_out and not before.held_out):
            return candidate
        if record.taken_back:
            return before
        # A line may lack a held-out loss because clients with those samples are away: that is no better one.
        is_better = held_out == before.held_out and candidate.loss < before.loss
        return candidate if is_better else before._replace(since=before.since + 1)

    @classmethod
    def of(cls, history: Iterable[Record]) -> Self | None:
        """The best of a history; None if it has no line with a finite loss."""
        best: Self | None = None
        for record in history:
            best = best if record.diverged else cls.after(best, record)
        return best


class Stopping(NamedTuple):
    """When a run ends, and which model is kept."""

    rounds: int
    patience: int | None = None
    """The evaluations without a better loss after which it ends; None for as many as there are."""
    keep: KeepModel = "last"
    """The model of the last round, or of the one with the lowest loss."""
    steering: Steering | None = None
    """What decides about the steps, where they are steered."""

    @classmethod
    def of(cls, config: Mapping[str, Any], variant: "Variant | None" = None) -> Self:
        """What a configuration, as nested keys, says.

        Args:
            variant: of a run, which has to know whether and how far its steps are steered; no other decision needs it.
        """
        train, evaluate = config.get("train", {}), config.get("evaluate", {})
        is_steered = train.get("step_size") == AUTO if variant is None else variant.is_steered
        longest = LONGEST if variant is None else variant.longest_factor
        periods = [silo.get("period", 1) for silo in config.get("silos", [])]
        tol, period, overlap = train.get("tol"), math.lcm(1, *periods), train.get("overlap", 0)
        delay, wait = (period * -(-rounds // period) for rounds in (overlap + 1, overlap))
        patience, keep = evaluate.get("patience"), evaluate.get("keep", "last")
        # The steps are halved twice before the patience ends.
        tries = -(-patience // 3) if patience is not None and keep == "best" else 0
        steering = Steering(TOL if tol is None else tol, delay, period, train.get("rounds", 0), wait, longest, tries)
        return cls(train.get("rounds", 0), patience, keep, steering if is_steered else None)

    def is_spent(self, best: Best | None, control: StepControl = NO_CONTROL) -> bool:
        """Whether a run is to end here, whatever rounds are left."""
        is_stuck = self.patience is not None and best is not None and best.since >= self.patience
        return is_stuck or self.has_converged(control)

    def has_converged(self, control: StepControl) -> bool:
        """Whether the training loss no longer changes, of a run that looks at that."""
        return self.steering is not None and self.steering.has_converged(control)

    def proven(self, control: StepControl, record: Record) -> StepControl:
        """The control when there is the certificate of the last line, or none."""
        return control if self.steering is None else self.steering.proven(control, record)

    def ready(self, history: Iterable[Record]) -> list[int]:
        """The rounds of the lines that would have ended the run, had their certificates agreed; the last may have."""
        best: Best | None = None
        control, rounds = NO_CONTROL, []
        for record in history:
            best = best if record.diverged else Best.after(best, record)
            before = control
            if self.steering is not None:
                before, _ = self.steering.judge(control, record)
            if self.is_spent(best, before):
                rounds.append(record.round)
            control = self.proven(before, record)
        return rounds

    def end(self, last: int, control: StepControl) -> Literal["converged", "limit", "early"]:
        """What ended a run after round ``last``; patience ends it early.

        >>> Stopping(200).end(200, NO_CONTROL), Stopping(200, patience=3).end(60, NO_CONTROL)
        ('limit', 'early')
        """
        if self.has_converged(control):
            return "converged"
        return "limit" if last == self.rounds else "early"

    def failure(self, control: StepControl) -> str:
        """What a run that diverged tried, if its steps were steered."""
        return "" if self.steering is None else self.steering.failure(control)

    def control_of(self, history: Sequence[Record]) -> StepControl:
        """Where the steps stand after a history."""
        return NO_CONTROL if self.steering is None else self.steering.of(history)

    def is_complete(self, history: Sequence[Record]) -> bool:
        """Whether a run with this history goes no further."""
        is_over = history[-1].diverged or history[-1].round == self.rounds
        return is_over or self.is_spent(Best.of(history), self.control_of(history))

    def kept_round(self, best: Best | None, last: int, control: StepControl = NO_CONTROL) -> int:
        """The round whose model stays, if ``last`` is the last one.

        Of steered steps it is the last line that was not taken back, unless the last round has none.
        """
        if self.keep == "best" and best is not None:
            return best.round
        is_back = (control.is_back and control.counted == last) or control.lost_in == last
        return control.round if is_back else last

    def kept(self, history: Sequence[Record]) -> Record:
        """The line of the model that stays; the very first when none has a finite loss."""
        finite = [record for record in history if not record.diverged] or [history[0]]
        kept = self.kept_round(Best.of(finite), finite[-1].round, self.control_of(history))
        return next(record for record in finite if record.round == kept)

    def ending(self, history: Sequence[Record]) -> str:
        """Why a run with this history ended, and which model stays, if that is not as usual."""
        return self.in_words(Best.of(history), history[-1].round, self.control_of(history))

    def in_words(self, best: Best | None, last: int, control: StepControl = NO_CONTROL) -> str:
        """Why a run ended after round ``last``, if that was early, and which model stays; nothing if it is as usual."""
        if best is None:
            return ""
        loss, kept = "held-out loss" if best.held_out else "training loss", self.kept_round(best, last, control)
        if self.is_spent(best) and last < self.rounds:
            tries = f"{best.since} evaluation" + ("s" if best.since > 1 else "")
            return f"stopped early after round {last}: no better {loss} in {tries}; the model of round {kept} is kept"
        ended = "" if self.steering is None else self.steering.in_words(control, last)
        why = f", with the lowest {loss}," if self.keep == "best" else ", before the loss rose,"
        return "; ".join(filter(None, [ended, f"the model of round {kept}{why} is kept" if kept != last else ""]))


NOISE = 0.01
"""Of the first loss: by so much the last one may be above it."""
LOST, LOST_AT_LEAST = 0.5, 0.05
"""The part of the gain that may be lost again; what is lost counts if it is so much of the first loss."""
TIMES, TIMES_AT_LEAST = 10.0, 0.01
"""How many times the lowest loss the last one may be; a rise counts if it is so much of the gain."""


class Course(NamedTuple):
    """How the training loss went up to some line: all that a verdict needs."""

    first: float
    lowest: float
    lowest_round: int
    last: float

    @classmethod
    def after(cls, before: Self | None, record: Record) -> Self | None:
        """The course with one more line; one that is not finite, not of all samples or of scores with noise changes
        nothing.
        """
        loss = record.train_loss
        if record.diverged or record.unscored or record.taken_back or record.epsilon is not None:
            return before
        if before is None:
            return cls(loss, loss, record.round, loss)
        if loss < before.lowest:
            return before._replace(lowest=loss, lowest_round=record.round, last=loss)
        return before._replace(last=loss)

    @property
    def worse_than(self) -> Literal["", "start", "best"]:
        """What the last line is worse than; empty if it is not worse by much."""
        rise, gain = self.last - self.lowest, self.first - self.lowest
        if self.last - self.first > NOISE * abs(self.first):
            return "start"
        is_lost = rise > max(LOST * gain, LOST_AT_LEAST * abs(self.first))
        is_far = 0 < self.lowest * TIMES < self.last and rise > TIMES_AT_LEAST * gain
        return "best" if is_lost or is_far else ""

    @property
    def in_words(self) -> str:
        """The verdict; nothing if there is nothing to say.

        >>> Course(0.6931, 0.6931, 0, 139.7).in_words
        'the training loss ended at 139.7, above 0.6931 before training'
        """
        if self.worse_than == "start":
            return f"the training loss ended at {self.last:.4g}, above {self.first:.4g} before training"
        if self.worse_than == "best":
            lowest = f"its lowest, {self.lowest:.4g} after round {self.lowest_round}"
            return f"the training loss ended at {self.last:.4g}, far above {lowest}"
        return ""


class Courses(NamedTuple):
    """How the training loss went: all that a verdict on the model that stays needs, whichever that is."""

    latest: Course | None = None
    """Up to the last line; None if no line counts."""
    best: Course | None = None
    """Up to the best line so far."""

    def after(self, record: Record, best: Best | None) -> tuple[Self, Record]:
        """With one more line, and that line with what it is worse than; ``best`` is the best line, this one counted in.

        >>> from tdcd.core.ledger import Traffic
        >>> Courses().after(Record(0, 0, 0.5, None, {}, Traffic(), Traffic(), 0.0), None)[0].latest
        Course(first=0.5, lowest=0.5, lowest_round=0, last=0.5)
        """
        course = Course.after(self.latest, record)
        is_best = best is not None and best.round == record.round
        courses = type(self)(course, course if is_best else self.best)
        if course is None or record.diverged or record.unscored or record.taken_back:
            return courses, record
        return courses, replace(record, worse_than=course.worse_than)

    @classmethod
    def of(cls, history: Iterable[Record]) -> Self:
        """The courses of a history."""
        courses, best = cls(), None
        for record in history:
            best = best if record.diverged else Best.after(best, record)
            courses, _ = courses.after(record, best)
        return courses

    def in_words(self, stopping: Stopping, best: Best | None, last: int, control: StepControl = NO_CONTROL) -> str:
        """The verdict if the run ends with round ``last``; nothing if training made the model better.

        If the model from before training is the best and stays, the last line is judged.
        """
        kept = stopping.kept_round(best, last, control)
        if stopping.steering is not None and kept < last and stopping.steering.is_stuck(control):
            return f"no step lowered the training loss{stopping.failure(control)}"
        course = self.best if best is not None and 0 < kept == best.round else self.latest
        return "" if course is None else course.in_words


NO_COURSES = Courses()
"""Before the first line."""


def verdict(history: Sequence[Record], stopping: Stopping) -> str:
    """Why the model that stays of such a history is not to be trusted; nothing if training made it better."""
    control = stopping.control_of(history)
    if history[-1].diverged:
        return f"the loss stopped being a finite number by round {history[-1].round}{stopping.failure(control)}"
    return Courses.of(history).in_words(stopping, Best.of(history), history[-1].round, control)
