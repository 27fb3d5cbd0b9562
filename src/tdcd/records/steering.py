"""Steps that are steered, and runs that end when they have converged: what ``train.step_size = "auto"`` does.

Both follow from the lines of the history alone, so that all hubs decide alike without a message, and a run can be
repeated bit for bit. A line counts if it is at least :data:`LEAST_ROUNDS` rounds after the last one that counted, or if
it is the last of all.

- The training loss fell, or stayed: the steps continue from there. After three such lines in a row they grow by half,
  up to what the update allows: scaled steps, which grow by themselves, to no more than they were.
- It rose: the blocks go back to those of the last line before, and the steps become half as long.
- It more than doubled, or is not finite: the same, and every further time in a row the steps become shorter by one
  more half, to 1/2, 1/8, 1/64 of what they were. A line that is not finite counts at once. After :data:`MOST_LOST`
  in a row, the last of them not finite, the run has diverged.
- It changed by less than ``tol`` per ten rounds, in three such lines in a row: the run has converged, unless the
  certificate of that line leaves room for a loss that is lower by more than 10 times ``tol``. Then the run
  continues, and the next line that may end it is one after half as many rounds again, or the last one. From then on
  100 times ``tol`` are enough: some certificates are not close, however near the model is.

A run that stops early and keeps its best model is judged by the held-out loss instead, where a single line says
little. So only after :attr:`Steering.tries` lines in a row above the lowest one the blocks go back to those of the
lowest, and the steps become half as long. They never grow. Networks are trained by that: long steps first, for as long
as they help on samples that the model has not seen, then shorter ones from the best model so far.

A decision needs the scores of all silos. It takes effect ``delay`` rounds after its line: the next round, or as many
more as rounds overlap. Blocks that went back then wait for as many rounds as rounds overlap, in which phi of the blocks
that were given up still arrives.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from tdcd.core.certificate import rounded_up
from tdcd.core.family.steered import LONGEST
from tdcd.core.words import counted
from tdcd.records.history import Record

TOL = 1e-4
"""The default of ``train.tol``."""
LEAST_ROUNDS = 3
"""Between two lines that count: the loss of fewer rounds is mostly chance."""
SHRINK, GROW, IN_A_ROW = 0.5, 1.5, 3
MOST_LOST = 10
"""After so many in a row the last steps were 2^-45 of the first ones."""
ROUNDING = 1e-7
"""Of a loss: a rise by so much is none."""
PROVEN, PROVEN_LATER = 10, 100
"""A gap of so many times ``tol``, as a part of the loss, agrees with a loss that is flat: at first, and when half as
many rounds again have not made it smaller."""
AGAIN = 1.5
"""After so many times the rounds a run that was not proven to have converged may end."""
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
    lost: int = 0
    """Lines in a row that were taken back with more than twice the loss before, or none that is finite."""
    lost_in: int = -1
    """The round of the last line that was not finite, whether it counted or not."""
    waited: int = 0
    """Lines in a row above the lowest held-out loss, none of which was taken back."""
    doubted: int = 0
    """The round of the last line whose loss was flat and whose gap was large."""
    gap: float = math.inf
    """That gap."""

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
    wait: int = 0
    """For how many rounds blocks that went back stand still: until no phi is left of those that were given up."""
    longest: float = LONGEST
    """The largest factor."""
    tries: int = 0
    """How many lines in a row may be above the lowest held-out loss; 0 where steps are judged by the training loss."""

    def loss(self, record: Record) -> float:
        """What a line is judged by."""
        return record.test_loss if self.tries and record.test_loss is not None else record.train_loss

    def judge(self, control: StepControl, record: Record) -> tuple[StepControl, Record]:
        """The control with one more line that has no certificate yet, and the line with what follows from it."""
        after = self._moved(control, record)
        is_back = after.is_back and after.counted == record.round
        # Of a path that was given up, or is about to be.
        is_lost = after.lost_in == record.round
        return after, replace(
            record, step=control.factor, taken_back=(is_back or is_lost) and not self.has_failed(after)
        )

    def after(self, control: StepControl, record: Record) -> StepControl:
        """The control with one more line of a history, and with what its certificate says.

        >>> from tdcd.core.ledger import Traffic
        >>> def line(round_, loss): return Record(round_, 0, loss, None, {}, Traffic(), Traffic(), 0.0)
        >>> control = Steering(1e-4).after(Steering(1e-4).after(StepControl(), line(0, 2.0)), line(5, 3.0))
        >>> control.factor, control.round, control.is_back
        (0.5, 0, True)
        """
        return self.proven(self._moved(control, record), record)

    def proven(self, control: StepControl, record: Record) -> StepControl:
        """The control when there is the certificate of the last line, or none; a run may not end because of it."""
        if self.tries or control.counted != record.round or not self.has_converged(control):
            return control
        if record.gap is None:
            # The proof of an earlier line still holds.
            return control._replace(doubted=record.round) if control.doubted else control
        most = PROVEN_LATER if control.doubted else PROVEN
        is_large = record.gap > most * self.tol * abs(record.train_loss)
        return control._replace(doubted=record.round, gap=record.gap) if is_large else control

    def _moved(self, control: StepControl, record: Record) -> StepControl:
        if record.round == 0 or math.isinf(control.loss):
            is_finite = math.isfinite(record.train_loss)
            return control._replace(round=record.round, loss=self.loss(record)) if is_finite else control
        if not math.isfinite(record.train_loss):
            control = control._replace(lost_in=record.round)
            is_due = record.round % self.period == 0 and record.round > self._begun(control)
            return self._back(control, record) if is_due or record.round == self.rounds else control
        if not self.counts(control, record):
            return control
        rounds, loss = max(1, record.round - self._begun(control)), self.loss(record)
        rate = (control.loss - loss) / max(abs(control.loss), 1e-300) * PER / rounds
        flat = control.flat + 1 if abs(rate) < self.tol else 0
        if loss > control.loss + ROUNDING * abs(control.loss):
            if control.waited + 1 < self.tries and self._is_mild(control, record):
                waited, falling = control.waited + 1, control.falling + 1
                return control._replace(counted=record.round, is_back=False, falling=falling, waited=waited)
            return self._back(control, record)._replace(flat=flat, rate=0.0 if flat else control.rate)
        grown = control.falling + 1 == IN_A_ROW and not self.tries
        factor = min(control.factor * GROW, max(self.longest, control.factor)) if grown else control.factor
        falling = 0 if grown else control.falling + 1
        return StepControl(
            factor,
            record.round,
            loss,
            record.round,
            False,
            falling,
            flat,
            rate,
            doubted=control.doubted,
            gap=control.gap,
        )

    def _back(self, control: StepControl, record: Record) -> StepControl:
        """The control after a line that is taken back."""
        lost = 0 if self._is_mild(control, record) else control.lost + 1
        factor = control.factor * SHRINK ** max(1, lost)
        return control._replace(
            factor=factor, counted=record.round, is_back=True, falling=0, flat=0, lost=lost, waited=0
        )

    def _is_mild(self, control: StepControl, record: Record) -> bool:
        """Whether the loss is at most twice what it was."""
        return self.loss(record) <= control.loss + abs(control.loss)

    def _begun(self, control: StepControl) -> int:
        """The round from which on blocks move that the next decision is about."""
        return control.counted + (self.delay + self.wait if control.is_back else 0)

    def counts(self, control: StepControl, record: Record) -> bool:
        """Whether a line is one to decide by: not of some samples only, not of scores with noise, and not of a path
        that was given up.
        """
        is_due = record.round % self.period == 0 and record.round >= self._begun(control) + LEAST_ROUNDS
        is_exact = not record.unscored and record.epsilon is None
        return is_exact and (is_due or record.round == self.rounds)

    def has_converged(self, control: StepControl) -> bool:
        """Whether the loss no longer changes, and no certificate contradicts it."""
        is_late = control.counted >= AGAIN * control.doubted or control.counted == self.rounds > control.doubted
        return self._is_flat(control) and is_late

    def _is_flat(self, control: StepControl) -> bool:
        return self.tol > 0 and control.flat >= IN_A_ROW

    def has_failed(self, control: StepControl) -> bool:
        """Whether the loss is not finite and shorter steps did not help: a run that does not continue from there.

        Nor does one whose last line is not finite if no line before it was better than the first.
        """
        is_lost, is_last = control.lost_in == control.counted, control.counted == self.rounds
        return is_lost and (control.lost >= MOST_LOST or (is_last and control.round == 0))

    def is_stuck(self, control: StepControl) -> bool:
        """Whether no line was better than the first, and several were worse."""
        is_worse = control.is_back and control.factor <= SHRINK**IN_A_ROW
        return control.round == 0 and is_worse and not self.has_converged(control)

    def of(self, history: Iterable[Record]) -> StepControl:
        """The control after all lines of a history."""
        control = StepControl()
        for record in history:
            control = self.after(control, record)
        return control

    def failure(self, control: StepControl) -> str:
        """The shortest steps that a run that diverged took.

        >>> Steering(1e-4).failure(StepControl(factor=2.0**-6, lost=3))
        ', and steps 8 times shorter did not help'
        """
        shortest = control.factor / SHRINK ** max(1, control.lost)
        return f", and steps {1 / shortest:.3g} times shorter did not help" if shortest < 1 else ""

    def in_words(self, control: StepControl, last: int) -> str:
        """How far a run that ended with round ``last`` has come.

        >>> Steering(1e-4).in_words(StepControl(flat=3, rate=2e-5), 45)
        'converged after round 45: the training loss changes by less than 0.01 % in 10 rounds'
        >>> Steering(1e-4).in_words(StepControl(rate=0.004), 200)
        'limit of 200 rounds reached, the training loss still falls by 0.4 % in 10 rounds'
        >>> Steering(1e-4).in_words(StepControl(flat=3, rate=2e-5, doubted=200, gap=0.0312), 200).split(", ")[-1]
        'but is not proven to be near the best possible one: at most 0.032 above it'
        """
        flat = f"the {self._judged} loss changes by less than {100 * self.tol:g} % in {PER} rounds"
        if self.has_converged(control):
            return f"converged after round {last}: {flat}"
        limit = f"limit of {counted(last, 'round')} reached"
        if control.doubted and self._is_flat(control):
            most = rounded_up(control.gap)
            return f"{limit}, {flat}, but is not proven to be near the best possible one: at most {most} above it"
        if math.isinf(control.rate):
            return limit
        return f"{limit}, the {self._judged} loss still falls by {100 * max(control.rate, 0.0):.2g} % in {PER} rounds"

    @property
    def _judged(self) -> str:
        return "held-out" if self.tries else "training"
