"""The models that may stay: that of the best line so far, and those of evaluated rounds that have no line yet."""

from collections.abc import Callable
from typing import Any

from tdcd.core.objective import Tree
from tdcd.core.trees import named_leaves
from tdcd.records.history import Record
from tdcd.records.patience import Best, Stopping
from tdcd.records.verdict import NO_COURSES
from tdcd.runtime.protocol.instructions import State
from tdcd.runtime.protocol.messages import Status
from tdcd.runtime.protocol.structure import Arrays


class Candidates:
    """A silo's blocks of some rounds, each for as long as its hub may have to end with it.

    Where rounds overlap, a line of the history comes when the block has moved on.
    """

    def __init__(self, stopping: Stopping, tree: Callable[[Arrays], Tree], restored: State | None) -> None:
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
        """A round's scores were told: its block stays here until there is a line of it."""
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

    def ending(self, round_index: int) -> tuple[Status, str]:
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
