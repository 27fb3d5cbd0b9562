"""Whether training made the model better: a verdict that follows from the lines of the history alone.

It judges the model that stays, by its training loss, which is what training minimises: over all training samples, so
that it does not depend on a minibatch.

- Worse than before training: the loss is above the first one by more than 1 % of that.
- Far above the best: more than half of what an earlier line had gained is lost, if that is more than 5 % of the first
  loss; or the loss is more than ten times the lowest, if the rise is more than 1 % of the gain.

Smaller rises are what minibatches do near an optimum. Only differences count, since corrected losses can be negative.
Held-out losses are not judged: they rise where a model overfits, which is a matter of patience. A line without some
clients' samples is left out, for its loss is that of other samples.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, Self

from tdcd.records.history import Record
from tdcd.records.patience import Best, Stopping

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
        """The course with one more line; one that is not finite, or not of all samples, changes nothing."""
        loss = record.train_loss
        if record.diverged or record.unscored:
            return before
        if before is None:
            return cls(loss, loss, record.round, loss)
        if loss < before.lowest:
            return before._replace(lowest=loss, lowest_round=record.round, last=loss)
        return before._replace(last=loss)

    @property
    def worse_than(self) -> Literal["", "start", "best"]:
        """What the last line is worse than, if that is to be said."""
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
        if course is None or record.diverged or record.unscored:
            return courses, record
        return courses, replace(record, worse_than=course.worse_than)

    @classmethod
    def of(cls, history: Iterable[Record]) -> Self:
        """Those of a history."""
        courses, best = cls(), None
        for record in history:
            best = best if record.diverged else Best.after(best, record)
            courses, _ = courses.after(record, best)
        return courses

    def in_words(self, stopping: Stopping, best: Best | None, last: int) -> str:
        """The verdict if the run ends with round ``last``; nothing if training made the model better.

        If the model from before training is the best and stays, the last line is judged.
        """
        kept = stopping.kept_round(best, last)
        course = self.best if best is not None and 0 < kept == best.round else self.latest
        return "" if course is None else course.in_words


NO_COURSES = Courses()
"""Before the first line."""


def verdict(history: Sequence[Record], stopping: Stopping) -> str:
    """Why the model that stays of such a history is not to be trusted; nothing if training made it better."""
    if history[-1].diverged:
        return f"the loss stopped being a finite number by round {history[-1].round}"
    return Courses.of(history).in_words(stopping, Best.of(history), history[-1].round)
