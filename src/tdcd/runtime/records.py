"""The lines that a hub adds to the history."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.history import Record
from tdcd.ledger import by_link, round_messages
from tdcd.metrics import metrics
from tdcd.runtime.job import Job
from tdcd.runtime.silo import HubCompute


@dataclass(frozen=True)
class Records:
    """What the hubs' scores say about the global model, and what it cost to get there."""

    job: Job
    compute: HubCompute
    parameters: Sequence[int]
    """Of each silo's block."""

    def evaluated(
        self,
        round_index: int,
        train: Sequence[NDArray[Any]],
        test: Sequence[NDArray[Any]],
        penalties: Sequence[NDArray[Any]],
    ) -> Record:
        """The line of a round, from every silo's scores and penalty in silo order."""
        penalty = float(sum(float(one[0]) for one in penalties))
        train_loss, figures = self.compute.figures(_sum(train), False, penalty)
        if not self.compute.roll.held_out.any():
            return self._record(round_index, train_loss, {"train": figures})
        test_loss, test_figures = self.compute.figures(_sum(test), True, penalty)
        return self._record(round_index, train_loss, {"train": figures, "test": test_figures}, test_loss)

    def diverged(self, round_index: int) -> Record:
        """The line that says that the run diverged in this round."""
        names = metrics(self.compute.objective.loss, np.full((1, self.compute.num_outputs), np.nan), np.zeros(1))
        return self._record(round_index + 1, math.nan, {"train": names})

    def _record(
        self,
        round_index: int,
        train_loss: float,
        figures: dict[str, dict[str, float | None]],
        test_loss: float | None = None,
    ) -> Record:
        compute, counts = self.compute, [len(self.job.clients(index)) for index in range(len(self.job.hubs))]
        sent = round_messages(
            self.parameters,
            counts,
            samples=compute.num_exchanged * compute.batch_size,
            outputs=compute.num_outputs,
            itemsize=np.dtype(self.job.settings.dtype).itemsize,
        )
        return Record(
            round=round_index,
            iteration=round_index * self.job.settings.local_steps,
            train_loss=train_loss,
            test_loss=test_loss,
            metrics=figures,
            bytes=by_link(sent, "bytes") * round_index,
            messages=by_link(sent, "messages") * round_index,
            seconds=0.0,
        )


def _sum(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """In silo order, whatever the order of arrival."""
    return np.asarray(sum(parts[1:], start=parts[0]))
