"""Evaluation by several hosts: each scores some of the samples, and what they add up is sums.

A sample is scored where its row of the first silo is. Other silos' phi of it comes from where their rows are, and goes
nowhere else; so a host sends and keeps as much as goes with its own rows. Where all silos split the rows alike, nothing
is sent.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdcd.core.codecs.fixed_point import FixedPoint
from tdcd.core.losses import metrics
from tdcd.core.losses.figures import Figures, Tallies
from tdcd.core.objective import Objective
from tdcd.core.randomized import KEPT, Response
from tdcd.federation.hosts import HostRows, Hosts
from tdcd.federation.partition import Rows
from tdcd.federation.placement import Held, Holders
from tdcd.simulation import evaluation

SAMPLES_AT_ONCE = 1 << 15
"""A host scores so many samples at a time: little memory, next to a share of many."""
EXACT = 1 << 22
"""Up to so many samples metrics are worked out from all scores, so that an AUC has no bins."""

PhiOf = Callable[[int, NDArray[Any]], NDArray[Any]]
"""Phi ``[n, C]`` of these samples in a silo, all of which have their rows here."""


class Scored(NamedTuple):
    """Some of the samples that this process scores."""

    numbers: NDArray[np.int32]
    phis: list[NDArray[Any]]
    """Each silo's phi of them, ``[n, C]``."""


@dataclass(frozen=True, eq=False)
class HostScoring:
    """Which process scores which samples, and how they exchange phi for that."""

    tables: Sequence[HostRows]
    rows: Sequence[Rows]
    """Each silo's samples by client."""
    hosts: Hosts

    @property
    def held(self) -> Held:
        """The samples that are scored here."""
        return self.tables[0].held

    @cached_property
    def _holders(self) -> list[Holders]:
        return [Holders.of(own, len(table)) for own, table in zip(self.rows, self.tables, strict=True)]

    @cached_property
    def _is_alike(self) -> list[bool]:
        """Of each silo, whether its rows are where they are scored."""
        first, process_of = self._holders[0], self.hosts.process_of
        homes = process_of(len(self.rows[0]))
        return [
            len(own) == len(self.rows[0]) and first.is_same(holders) and bool((process_of(len(own)) == homes).all())
            for own, holders in zip(self.rows, self._holders, strict=True)
        ]

    @cached_property
    def _bounds(self) -> NDArray[np.int64]:
        """``[P, T + 1]``: at which samples the parts of every process begin, and the last one ends."""
        counts = self.hosts.gather(lambda: len(self.held))
        steps, count = -(-max(counts) // SAMPLES_AT_ONCE), len(self.held)

        def own() -> list[int]:
            firsts = [min(SAMPLES_AT_ONCE * step, count) for step in range(steps)]
            last = int(self.held.numbers(count - 1)[0]) + 1 if count else 0
            return [int(self.held.numbers(at, at + 1)[0]) if at < count else last for at in firsts] + [last]

        return np.array(self.hosts.gather(own), np.int64).reshape(self.hosts.count, -1)

    def parts(self, phi_of: PhiOf) -> Iterator[Scored]:
        """What is scored here, part by part; every process takes as many, some of which may be empty."""
        for step in range(self._bounds.shape[1] - 1):
            numbers = self.held.numbers(SAMPLES_AT_ONCE * step, SAMPLES_AT_ONCE * (step + 1))
            phis = [
                phi_of(silo, numbers) if alike else self._brought(silo, step, numbers, phi_of)
                for silo, alike in enumerate(self._is_alike)
            ]
            yield Scored(numbers, phis)

    def _brought(self, silo: int, step: int, wanted: NDArray[np.int32], phi_of: PhiOf) -> NDArray[Any]:
        """A silo's phi of the samples that are scored here now, from where its rows are; others get theirs."""
        held, homes = self.tables[silo].held, self.hosts.process_of(len(self.rows[0]))
        chosen = []
        for process, bounds in enumerate(self._bounds):
            numbers = held.numbers(held.before(int(bounds[step])), held.before(int(bounds[step + 1])))
            chosen.append(numbers[homes[self._holders[0][numbers]] == process])
        phi = phi_of(silo, np.concatenate(chosen))
        ends = np.cumsum([len(numbers) for numbers in chosen])[:-1]
        messages = [numbers.tobytes() + own.tobytes() for numbers, own in zip(chosen, np.split(phi, ends), strict=True)]
        brought, count = np.zeros((len(wanted), *phi.shape[1:]), phi.dtype), 0
        row = wanted.itemsize + phi.itemsize * phi.shape[1]
        for message in self.hosts.deliver(messages):
            numbers = np.frombuffer(message, np.int32, len(message) // row)
            values = np.frombuffer(message, phi.dtype, offset=numbers.nbytes).reshape(len(numbers), *phi.shape[1:])
            brought[np.searchsorted(wanted, numbers)] = values
            count += len(numbers)
        if count != len(wanted):
            raise RuntimeError(f"phi of {count} samples came for {len(wanted)} that are scored here")
        return brought


class Measured(NamedTuple):
    """The mean loss without the regulariser, and the metrics."""

    loss: float
    figures: Figures
    are_finite: bool


def measured(
    scoring: HostScoring,
    phi_of: PhiOf,
    labels: Any,
    weights: NDArray[Any] | None,
    objective: Objective,
    *,
    label_scale: float,
    label_dtype: Any,
    fixed: FixedPoint | None,
) -> Measured:
    """Loss and metrics of all samples, the same in every process; they differ from those of one process by rounding.

    Args:
        labels: ``[M]``, of which this process must have those of the samples that it scores.
    """
    exact: list[tuple[NDArray[Any], NDArray[Any]]] = []
    is_exact = len(scoring.tables[0]) <= EXACT or getattr(objective.kind, "sums", None) is None
    sums: Tallies = {"loss": np.zeros(2), "infinite": np.zeros(1)}
    for numbers, phis in scoring.parts(phi_of):
        total = np.asarray(sum(phis[1:], start=phis[0]) if fixed is None else fixed.sum(phis))
        own = np.asarray(labels[numbers])
        losses = evaluation.losses(total, own.astype(label_dtype), objective=objective)
        weigh = np.ones(len(numbers)) if weights is None else np.asarray(weights[numbers], np.float64)
        sums["loss"] += [weigh @ np.asarray(losses, np.float64), weigh.sum()]
        scores = np.asarray(objective.scores(total), np.float64)
        sums["infinite"] += np.count_nonzero(~np.isfinite(scores))
        if is_exact:
            exact.append((scores, own))
        else:
            if objective.kind.target == "amount":
                own = own.astype(np.float64)
            for name, value in objective.kind.sums(scores, own).items():
                sums[name] = sums[name] + value if name in sums else value
    added = _added_up(sums, scoring.hosts)
    loss, weight = added.pop("loss")
    are_finite = not added.pop("infinite")[0]
    if is_exact:
        # The order of samples does not matter.
        joined, truth = (_joined([pair[part] for pair in exact], scoring.hosts) for part in range(2))
        figures = metrics(objective.loss, joined, truth, label_scale, objective.label_epsilon)
    elif are_finite:
        classes = max(2, total.shape[1])
        response = KEPT if objective.label_epsilon is None else Response.of(objective.label_epsilon, classes)
        figures = objective.kind.metrics_of_sums(added, label_scale, response)
    else:
        figures = dict.fromkeys(objective.kind.metric_names)
    return Measured(float(loss / weight), figures, are_finite)


def _added_up(sums: Tallies, hosts: Hosts) -> Tallies:
    """The sums of all processes; each adds up a part of them."""
    shapes = {name: value.shape for name, value in sums.items()}
    vector = np.concatenate([value.ravel() for value in sums.values()])
    parts = hosts.deliver([part.tobytes() for part in np.array_split(vector, hosts.count)])
    own = np.sum([np.frombuffer(part) for part in parts], axis=0)
    added = np.concatenate([np.frombuffer(part) for part in hosts.exchange(own.tobytes())])
    ends = np.cumsum([value.size for value in sums.values()])[:-1]
    return {name: part.reshape(shapes[name]) for name, part in zip(shapes, np.split(added, ends), strict=True)}


def _joined(parts: Sequence[NDArray[Any]], hosts: Hosts) -> NDArray[Any]:
    """The figures of samples that all processes have, one process's after the other's."""
    own = np.concatenate(parts)
    messages = hosts.exchange(own.tobytes())
    return np.concatenate([np.frombuffer(message, own.dtype).reshape(-1, *own.shape[1:]) for message in messages])
