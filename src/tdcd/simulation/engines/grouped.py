"""The engine for linear blocks: many clients' rows in one array, with little padding or none."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdcd.federation.hosts import HostRows, mapped_rows, row_bytes
from tdcd.federation.placement import Placement, padded_slots, place_alike, shared
from tdcd.simulation.engines.base import Call, Problem, padded
from tdcd.simulation.engines.grouped_program import GroupedCall, GroupedProgram, GroupedRows, GroupedSilo
from tdcd.simulation.engines.groups import ClientGroups
from tdcd.simulation.engines.stacks import stacked
from tdcd.simulation.staging import StagingBuffers


class GroupedEngine:
    """Several times faster than one client after another, and in a batch of runs as well."""

    name = "grouped"

    def __init__(self, problem: Problem) -> None:
        """Put the clients into groups."""
        self._problem, devices = problem, problem.devices
        samples = problem.federation.num_samples
        self._by_host = devices.hosts is not None
        self._groups = [self._dealt([run.federation.silos[i].owner() for run in problem.runs]) for i in self._silos]
        self._placers = [shared([groups.placer for groups in run]) for run in zip(*self._groups, strict=True)]
        self._tables = [_flat(table) for table in problem.tables]
        self._features = None
        if problem.on_device is not None:
            held = [table.features if self._by_host else table for table in problem.on_device]
            self._features = [table.reshape(len(table), -1) for table in held]
        self._stack = self._stack_of_all()
        self._clients = [self._clients_of(silo) for silo in self._silos]
        self.program = GroupedProgram(
            objective=problem.runs[0].objective,
            variant=problem.variant,
            gradient=problem.settings.gradient,
            steps=problem.settings.local_steps,
            num_silos=problem.federation.num_silos,
            num_samples=samples,
            batch_size=problem.batch_size,
            runs=len(problem.runs),
            devices=devices,
        )
        self._buffers = StagingBuffers()
        row = [12 + (row_bytes(table) if problem.on_device is None else 4) for table in self._tables]
        rows = [groups[0].shape[0] * groups[0].placer.usual for groups in self._groups]
        per_round = problem.batches * sum(a * b for a, b in zip(row, rows, strict=True))
        self.rounds_per_call = problem.rounds_per_call(per_round)

    @property
    def _silos(self) -> range:
        return range(self._problem.federation.num_silos)

    @classmethod
    def supports(cls, problem: Problem) -> str | None:
        """Linear blocks, and Algorithm 1 itself."""
        if not problem.is_linear:
            return "it runs linear blocks only"
        if not problem.variant.is_plain:
            return f"it runs Algorithm 1 as it is, and {', '.join(problem.variant.changed)} differs"
        return None if problem.weights is None else "it gives all samples the same weight, and these have their own"

    @classmethod
    def suits(cls, problem: Problem) -> bool:
        """Always, where there is nothing better."""
        return True

    def _dealt(self, owners: Sequence[NDArray[np.int32]]) -> list[ClientGroups]:
        """A silo's groups in every run; of several runs they must be of one shape, and one group needs no padding."""
        problem = self._problem
        shape = None if len(owners) == 1 else (1, int(owners[0].max()) + 1)
        return [
            ClientGroups(owner, problem.batch_size, problem.devices.count, shape, self._by_host) for owner in owners
        ]

    def _clients_of(self, silo: int) -> GroupedSilo:
        problem, hold = self._problem, self._problem.devices.hold
        dealt = [
            (groups, run.federation.silos[silo]) for groups, run in zip(self._groups[silo], problem.runs, strict=True)
        ]
        shares = [groups.arrange(problem.shares(own), 0) for groups, own in dealt]
        counts = [groups.arrange(problem.held(own), 1) for groups, own in dealt]
        return GroupedSilo(hold(problem.over_runs(shares), 0), hold(problem.over_runs(counts), 0))

    def _stack_of_all(self) -> NDArray[Any] | None:
        """``[N, M, D]``, if the host gathers rows, all in the minibatch's order, and all silos are one stack."""
        shapes = [(groups[0].shape, (1, self._problem.batch_size)) for groups in self._groups]
        gathers = self._features is None and self._problem.devices.count == 1
        if not gathers or any(num_groups > 1 for (num_groups, _), _ in shapes):
            return None
        return stacked(self._tables, shapes)

    def prepare(self, wanted: range) -> Call:
        """See :meth:`tdcd.simulation.engines.base.Engine.prepare`."""
        ids = self._problem.draw(wanted)
        sent = self._buffers.begin()
        # Single groups have their rows in the minibatch's order: there is nothing to place.
        is_placed = any(placer.num_clients > 1 for placer in self._placers[0])
        placed = place_alike(self._placers, ids)[0] if is_placed else [None] * len(self._silos)
        num_rounds = ids.shape[1] if placed[0] is None else len(placed[0].rows)
        ids = ids[:, :num_rounds]
        # Silos with the same row split, or with one group each, share everything except their features.
        firsts = [next(i for i, first in enumerate(placed) if first is placement) for placement in placed]
        layouts = {first: self._layout(ids, first, placed[first]) for first in set(firsts)}
        rows = [self._rows(silo, layouts[first]) for silo, first in enumerate(firsts)]
        own = GroupedCall(self._clients, rows, *self._problem.numbers())
        return Call(num_rounds, (self._features, own, num_rounds), sent)

    def _layout(self, ids: NDArray[np.int32], silo: int, placement: Placement | None) -> "_Layout":
        rows, real, positions, places = ids[:, :, :, None], None, None, None
        if placement is not None and placement.positions.shape[1] > 1:
            # Only a single run has several groups.
            order = np.ascontiguousarray(placement.positions.transpose(0, 2, 1, 3))
            rows = np.take_along_axis(ids[0], order.reshape(*ids.shape[1:3], -1), axis=2).reshape(order.shape)[None]
            real = (np.arange(order.shape[3]) < placement.counts.transpose(0, 2, 1)[..., None])[None]
            positions, places = self._put(order[None], 2), self._put(padded_slots(placement)[None])
        numbers = rows.astype(np.intp)
        labels = self._buffers.take(("labels", silo), self._problem.labels, numbers, self.rounds_per_call)
        return _Layout(numbers, real, self._put(labels, 2), positions, places)

    def _put(self, part: NDArray[Any], axis: int | None = None) -> Any:
        """``[S, R, ...]`` on the devices; ``axis`` is one of ``[R, ...]``."""
        problem = self._problem
        return problem.devices.put(problem.over_runs(padded(part, self.rounds_per_call)), axis)

    def _rows(self, silo: int, layout: "_Layout") -> GroupedRows:
        rows = layout.rows
        real: Any = [None] * len(rows) if layout.real is None else layout.real
        slots = [g.slots(own, which) for g, own, which in zip(self._groups[silo], rows, real, strict=True)]
        by_run = slots[0][None] if len(slots) == 1 else np.stack(slots)
        return GroupedRows(
            self._found(silo, rows), layout.labels, self._put(by_run, 2), layout.positions, layout.places
        )

    def _found(self, silo: int, rows: NDArray[np.intp]) -> Any:
        """See :attr:`tdcd.simulation.engines.grouped_program.GroupedRows.rows`."""
        if self._features is not None:
            return self._put(self._places(silo, rows), 2)
        if self._stack is None:
            return self._gathered(silo, rows)
        return None if silo else self._gathered_for_all(rows)

    def _places(self, silo: int, rows: NDArray[np.intp]) -> NDArray[np.int32]:
        """Where in the table of their device these rows are."""
        if not self._by_host:
            return rows.astype(np.int32)
        assert self._problem.on_device is not None
        places: NDArray[np.int32] = self._problem.on_device[silo].places[rows]
        return places

    def _gathered(self, silo: int, rows: NDArray[np.intp]) -> Any:
        """The features of these rows; each device's part is gathered by itself."""
        table, rounds, take = self._tables[silo], self.rounds_per_call, self._buffers.take
        if len(rows) > 1:
            return take((silo, ""), table, rows, rounds)

        def part(index: Any) -> NDArray[Any]:
            gathered: NDArray[Any] = take((silo, str(index)), table, rows[0][index[:4]][None], rounds)[0]
            return gathered

        return self._problem.devices.make((rounds, *rows.shape[2:], *table.shape[1:]), part, axis=2)

    def _gathered_for_all(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        """The features of these rows in all silos of the stack."""
        assert self._stack is not None
        silos, samples, width = self._stack.shape
        in_each = rows + samples * np.arange(silos)[:, None]
        gathered = self._buffers.take("stack", self._stack.reshape(-1, width), in_each, self.rounds_per_call)
        return gathered if len(rows) > 1 else gathered[0]


class _Layout(NamedTuple):
    """Minibatches group by group, ``[S, R, E, L, P]``."""

    rows: NDArray[np.intp]
    real: NDArray[np.bool_] | None
    """Which are not padding; all of them if None."""
    labels: Any
    positions: Any
    places: Any


def _flat(table: Any) -> Any:
    """The table with one axis of features; a mapped file stays one."""

    def flat(rows: Any) -> Any:
        return rows.reshape(len(rows), -1)

    return table.map(flat) if isinstance(table, HostRows) else mapped_rows(table, flat)
