"""Steps that are steered, and runs that end when they have converged: what ``train.step_size = "auto"`` does.

Both follow from the lines of the history alone, so that all hubs decide alike without a message, and a run can be
repeated bit for bit. A line counts if it is at least :data:`LEAST_ROUNDS` rounds after the last one that counted, or if
it is the last of all.

- The training loss fell, or stayed: the steps continue from there. After three such lines in a row they grow by half.
- It rose: the blocks go back to those of the last line before, and the steps become half as long.
- It changed by less than ``tol`` per ten rounds, in three such lines in a row: the run has converged.

A decision needs the scores of all silos. It takes effect ``delay`` rounds after its line: the next round, or as many
more as rounds overlap.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from tdcd.core.words import counted
from tdcd.records.history import Record

TOL = 1e-4
"""The default of ``train.tol``."""
LEAST_ROUNDS = 3
"""Between two lines that count: the loss of fewer rounds is mostly chance."""
SHRINK, GROW, IN_A_ROW = 0.5, 1.5, 3
LONGEST = 8.0
"""The largest factor."""
ROUNDING = 1e-7
"""Of a loss: a rise by so much is none."""
PER = 10
"""The rounds that ``tol`` and figures for people are about."""


class StepControl(NamedTuple):
    """Where the steps stand after some line of the history."""

    factor: float = 1.0
    """What the hubs' steps are multiplied by."""
    round: int = 0
    """The round of the line whose blocks the steps continue from."""
    loss: float = math.inf
    """Its training loss."""
    counted: int = 0
    """The round of the last line that counted."""
    is_back: bool = False
    """Whether that line was taken back."""
    falling: int = 0
    """Lines in a row that were not taken back, since the factor changed."""
    flat: int = 0
    """Lines in a row that changed the loss by less than ``tol``."""
    rate: float = math.inf
    """By which part the loss fell per ten rounds, up to the last line that counted."""

    @property
    def is_changed(self) -> bool:
        """Whether the last line that counted changed something: it was taken back, or the steps grew."""
        return self.counted > 0 and self.falling == 0


class Steering(NamedTuple):
    """What the decisions need to know besides the lines."""

    tol: float
    delay: int = 1
    """After how many rounds a decision takes effect."""
    period: int = 1
    """Lines count where all silos' blocks are of one round: every so many rounds."""
    rounds: int = 0
    """The last round, whose line counts in any case: the model that stays is never above one before it."""

    def judge(self, control: StepControl, record: Record) -> tuple[StepControl, Record]:
        """The control with one more line, and the line with what follows from it."""
        after = self.after(control, record)
        is_back = after.is_back and after.counted == record.round
        return after, replace(record, step=control.factor, taken_back=is_back)

    def after(self, control: StepControl, record: Record) -> StepControl:
        """The control with one more line.

        >>> from tdcd.core.ledger import Traffic
        >>> def line(round_, loss): return Record(round_, 0, loss, None, {}, Traffic(), Traffic(), 0.0)
        >>> control = Steering(1e-4).after(Steering(1e-4).after(StepControl(), line(0, 2.0)), line(5, 3.0))
        >>> control.factor, control.round, control.is_back
        (0.5, 0, True)
        """
        if record.round == 0 or math.isinf(control.loss):
            return control if record.diverged else control._replace(round=record.round, loss=record.train_loss)
        if not self.counts(control, record):
            return control
        rounds = max(1, record.round - (control.counted + self.delay if control.is_back else control.counted))
        rate = (control.loss - record.train_loss) / max(abs(control.loss), 1e-300) * PER / rounds
        flat = control.flat + 1 if abs(rate) < self.tol else 0
        if record.diverged or record.train_loss > control.loss + ROUNDING * abs(control.loss):
            back = control._replace(counted=record.round, is_back=True, falling=0, flat=flat)
            return back._replace(factor=control.factor * SHRINK, rate=0.0 if flat else control.rate)
        grown = control.falling + 1 == IN_A_ROW
        factor = min(control.factor * GROW, max(LONGEST, control.factor)) if grown else control.factor
        falling = 0 if grown else control.falling + 1
        return StepControl(factor, record.round, record.train_loss, record.round, False, falling, flat, rate)

    def counts(self, control: StepControl, record: Record) -> bool:
        """Whether a line is one to decide by: not of some samples only, and not of a path that was given up."""
        begun = control.counted + (self.delay if control.is_back else 0)
        is_due = record.round % self.period == 0 and record.round >= begun + LEAST_ROUNDS
        return not record.unscored and (is_due or record.round == self.rounds)

    def has_converged(self, control: StepControl) -> bool:
        """Whether the loss no longer changes."""
        return self.tol > 0 and control.flat >= IN_A_ROW

    def of(self, history: Iterable[Record]) -> StepControl:
        """The control after all lines of a history."""
        control = StepControl()
        for record in history:
            control = self.after(control, record)
        return control

    def in_words(self, control: StepControl, last: int) -> str:
        """How far a run that ended with round ``last`` has come.

        >>> Steering(1e-4).in_words(StepControl(flat=3, rate=2e-5), 45)
        'converged after round 45: the training loss changes by less than 0.01 % in 10 rounds'
        >>> Steering(1e-4).in_words(StepControl(rate=0.004), 200)
        'limit of 200 rounds reached, the training loss still falls by 0.4 % in 10 rounds'
        """
        if self.has_converged(control):
            return (
                f"converged after round {last}: the training loss changes by less than {100 * self.tol:g} % in "
                f"{PER} rounds"
            )
        limit = f"limit of {counted(last, 'round')} reached"
        if math.isinf(control.rate):
            return limit
        return f"{limit}, the training loss still falls by {100 * max(control.rate, 0.0):.2g} % in {PER} rounds"
