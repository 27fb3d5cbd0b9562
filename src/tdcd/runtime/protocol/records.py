"""The lines that a hub adds to the history."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tdcd.core.ledger import Ledger, by_link, item_bytes, phi_bytes, scores_bytes, told_bytes
from tdcd.prediction.subsets import Phis, describe_subsets
from tdcd.records.history import Record
from tdcd.records.metrics import metrics
from tdcd.runtime.compute.hub_compute import HubCompute
from tdcd.runtime.protocol.absence import union
from tdcd.runtime.protocol.job import Job
from tdcd.runtime.protocol.label_messages import FiguresPart
from tdcd.runtime.protocol.messages import ScoresPart
from tdcd.runtime.protocol.structure import Array


@dataclass(frozen=True)
class Records:
    """What the hubs' scores say about the global model, and what it cost to get there."""

    job: Job
    compute: HubCompute
    parameters: Sequence[int]
    """Of each silo's block."""
    blocks_up: Sequence[int]
    """Of each silo, the bytes of a block that a client sends."""

    @np.errstate(over="ignore", invalid="ignore")
    def evaluated(self, round_index: int, parts: Sequence[ScoresPart]) -> Record | None:
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

    def told(self, part: FiguresPart) -> Record | None:
        """The line of a round, from what the hub with the labels found; None if it found none."""
        found = part.figures
        if found is None:
            return None
        record = self._record(part.round, found.train_loss, found.metrics, found.test_loss)
        return replace(record, absent=part.absent, unscored=part.unscored)

    def test_scores(self, parts: Sequence[ScoresPart]) -> NDArray[Any]:
        """``[m, C]``: the held-out samples' scores; not a number for those that are not in every part."""
        scores = self.compute.links.add_scores([part.test.values for part in parts])
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

    def _record(
        self,
        round_index: int,
        train_loss: float,
        figures: dict[str, dict[str, float | None]],
        test_loss: float | None = None,
    ) -> Record:
        compute, counts = self.compute, [len(self.job.clients(index)) for index in range(len(self.job.hubs))]
        settings, variant, samples = self.job.settings, compute.variant, compute.sample_index
        scored = samples.num_samples + int(samples.held_out.sum())
        ledger = Ledger(
            self.parameters,
            counts,
            phi_bytes(settings, samples.num_samples, compute.num_outputs, variant),
            item_bytes(settings),
            blocks_up=self.blocks_up,
            periods=[variant.timing.period(silo) for silo in range(len(counts))],
            told=told_bytes(settings, compute.sample_index.num_samples, compute.num_told, variant),
            scores=scores_bytes(settings, scored, compute.num_outputs, variant, len(counts)),
        )
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
