"""When a run ends before its last round, and which round's model stays.

Both follow from the lines of the history alone: whoever has the same lines decides alike, and needs to ask nobody.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from tdcd.core.choices import KeepModel
from tdcd.records.history import Record


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
        found = cls(record.round, loss if math.isfinite(loss) else math.inf, held_out)
        if before is None or (held_out and not before.held_out):
            return found
        # A line may lack a held-out loss because clients with those samples are away: that is no better one.
        is_better = held_out == before.held_out and found.loss < before.loss
        return found if is_better else before._replace(since=before.since + 1)

    @classmethod
    def of(cls, history: Iterable[Record]) -> Self | None:
        """The best of a history; None if it has no line with a finite loss."""
        best: Self | None = None
        for record in history:
            best = best if record.diverged else cls.after(best, record)
        return best


class Stopping(NamedTuple):
    """What ends a run, and what stays of it."""

    rounds: int
    patience: int | None = None
    """The evaluations without a better loss after which it ends; None for as many as there are."""
    keep: KeepModel = "last"
    """The model of the last round, or of the one with the lowest loss."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """What a configuration, as nested keys, says."""
        train, evaluate = config.get("train", {}), config.get("evaluate", {})
        return cls(train.get("rounds", 0), evaluate.get("patience"), evaluate.get("keep", "last"))

    def is_spent(self, best: Best | None) -> bool:
        """Whether a run is to end here, whatever rounds are left."""
        return self.patience is not None and best is not None and best.since >= self.patience

    def is_complete(self, history: Sequence[Record]) -> bool:
        """Whether a run with this history goes no further."""
        return history[-1].diverged or history[-1].round == self.rounds or self.is_spent(Best.of(history))

    def kept_round(self, best: Best | None, last: int) -> int:
        """The round whose model stays, if ``last`` is the last one."""
        return best.round if self.keep == "best" and best is not None else last

    def kept(self, history: Sequence[Record]) -> Record:
        """The line of the model that stays; the very first when none has a finite loss."""
        finite = [record for record in history if not record.diverged] or [history[0]]
        kept = self.kept_round(Best.of(finite), finite[-1].round)
        return next(record for record in finite if record.round == kept)

    def in_words(self, best: Best | None, last: int) -> str:
        """Why a run ended after round ``last``, if that was early, and which model stays; nothing if it is as usual."""
        if best is None:
            return ""
        loss, kept = "held-out loss" if best.held_out else "training loss", self.kept_round(best, last)
        if self.is_spent(best) and last < self.rounds:
            tries = f"{best.since} evaluation" + ("s" if best.since > 1 else "")
            return f"stopped early after round {last}: no better {loss} in {tries}; the model of round {kept} is kept"
        return f"the model of round {kept}, with the lowest {loss}, is kept" if kept != last else ""
