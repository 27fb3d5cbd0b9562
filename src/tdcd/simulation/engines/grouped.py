"""The engine for linear blocks: many clients' rows in one array, with little padding or none.

**Groups.** A linear block of many clients is one matrix. Its product with a group's rows gives every row's score under
every client of the group; that of the row's own client is kept. That does more arithmetic than one product per client,
but it needs less padding, and in a single group none: the number of clients in a group is chosen to weigh the two.

**Stacks.** Small silos of the same shape step as one, since their time is in the number of operations.

**The compiled round.** All silos step together, so that a step can also do its minibatch's part of the exchange: the
hub's block, which stays as it was when the round began, goes through the same matrix product as the clients' blocks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from tdcd.core import algorithm
from tdcd.core.algorithm import Descent
from tdcd.core.choices import Gradient
from tdcd.core.knowledge import Known
from tdcd.core.objective import Objective
from tdcd.core.variant import Variant
from tdcd.federation.hosts import HostRows, is_mapped, mapped_rows, row_bytes
from tdcd.federation.placement import Holders, Padding, Placement, Placer, padded_slots, place_alike, shared
from tdcd.simulation.devices import WHOLE, Devices, spec
from tdcd.simulation.engines.base import Call, Problem, State, TracedObjective, padded
from tdcd.simulation.staging import StagingBuffers

SMALL = 1 << 14
"""A silo whose rows of a minibatch are more numbers than this is not stacked with others."""
SMALL_TABLES = 1 << 25
"""Tables of more bytes than this are not copied to be next to each other."""

Shape = tuple[Any, tuple[int, ...]]
"""The shape of a silo: its groups, and the rows that it has in a minibatch, ``(L, P)``."""


def alike(widths: Sequence[int], shapes: Sequence[Shape]) -> list[tuple[int, ...]]:
    """The silos in stacks: small ones with equal numbers of groups, clients and rows, and similar widths.

    >>> same = ((1, 5), (1, 100))
    >>> alike([21, 20, 200], [same, same, same])
    [(1, 0), (2,)]
    """
    stacks: list[tuple[int, ...]] = []
    for silo in sorted(range(len(widths)), key=lambda silo: widths[silo]):
        last = stacks[-1][0] if stacks else silo
        fits = shapes[last] == shapes[silo] and widths[silo] <= 1.25 * widths[last]
        if stacks and fits and math.prod(shapes[silo][1]) * widths[silo] <= SMALL:
            stacks[-1] += (silo,)
        else:
            stacks.append((silo,))
    return stacks


def stacked(tables: Sequence[Any], shapes: Sequence[Shape]) -> NDArray[Any] | None:
    """``[N, M, D]``: a copy of small tables in the order of the one stack that they are; None if they are not."""
    order, *others = alike([table.shape[1] for table in tables], shapes)
    room = len(order), len(tables[0]), tables[order[-1]].shape[1]
    are_arrays = not any(isinstance(table, HostRows) or is_mapped(table) for table in tables)
    if others or not are_arrays or len({table.dtype for table in tables}) > 1:
        return None
    if math.prod(room) * tables[0].dtype.itemsize > SMALL_TABLES:
        return None
    copied = np.zeros(room, tables[0].dtype)
    for silo, table in zip(order, copied, strict=True):
        table[:, : tables[silo].shape[1]] = tables[silo]
    return copied


ROW_COST, ROW_COST_ON_CPU = 256, 32
"""What moving a row costs, in products of it with one client's block."""


class ClientGroups:
    """A silo's clients in groups of G slots; the last slots of a group may be empty.

    Attributes:
        shape: ``(L, G)``, groups and slots.
        group: ``[K]``, the group of each client.
        slot: ``[K]``, the client's slot there.
    """

    def __init__(
        self,
        owner: Holders | NDArray[Any],
        batch_size: int,
        devices: int = 1,
        shape: tuple[int, int] | None = None,
        stay: bool = False,
    ) -> None:
        """Choose the number of groups, a multiple of ``devices``.

        Args:
            owner: ``[M]``, which client holds each sample.
            batch_size: B.
            shape: these groups instead of the best ones.
            stay: every client stays on its device, where its rows are, as :class:`tdcd.federation.hosts.Hosts` says.
        """
        owner = owner if isinstance(owner, Holders) else Holders.of_each(owner)
        held = owner.counts
        sizes = sorted({1 << power for power in range(len(held).bit_length())} | {len(held)})
        shapes = [shape] if shape is not None else [_even(len(held), size, devices) for size in sizes]
        apart = devices if stay else 1
        self.shape = min(shapes, key=lambda s: _cost(held, batch_size, s, apart))
        self.group, self.slot = _deal(held, self.shape, apart)
        self._slot_of = owner.renamed(self.slot, self.shape[1])
        self.placer = Placer(owner.renamed(self.group, self.shape[0]), batch_size, self.shape[0])

    def slots(self, rows: NDArray[np.integer[Any]], real: NDArray[np.bool_] | None) -> NDArray[Any]:
        """The slot of each of ``rows`` in its group of the client that holds it; G where it is padding."""
        slots = self._slot_of[rows]
        if real is not None:
            # A slot number that no client has marks padding.
            slots[~real] = self.shape[1]
        return slots

    def arrange(self, per_client: NDArray[Any], empty: float) -> NDArray[Any]:
        """``[L, G]`` numbers from ``[K]``, with ``empty`` in the slots where there is no client."""
        arranged = np.full(self.shape, empty, per_client.dtype)
        arranged[self.group, self.slot] = per_client
        return arranged


def _even(num_clients: int, size: int, devices: int) -> tuple[int, int]:
    """Groups of about ``size`` clients, equally many on each device."""
    groups = -(-num_clients // size)
    groups = -(-groups // devices) * devices
    return groups, -(-num_clients // groups)


def _deal(held: NDArray[Any], shape: tuple[int, int], apart: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Clients by the rows they hold, the largest first, back and forth over the groups, which evens out their rows.

    Args:
        apart: this many equal runs of clients, one after the other, each over as many groups of its own.
    """
    groups, size = shape[0] // apart, shape[1]
    if apart > 1:
        each = -(-len(held) // apart)
        dealt = [_deal(held[start : start + each], (groups, size), 1) for start in range(0, len(held), each)]
        group = np.concatenate([own + number * groups for number, (own, _) in enumerate(dealt)])
        return group, np.concatenate([own for _, own in dealt])
    order = np.argsort(-held, kind="stable")
    seats = np.arange(groups * size).reshape(size, groups)
    seats[1::2] = seats[1::2, ::-1]
    seats = seats.ravel()[: len(held)]
    group, slot = np.empty_like(order), np.empty_like(order)
    group[order], slot[order] = seats % groups, seats // groups
    return group, slot


def _cost(held: NDArray[Any], batch_size: int, shape: tuple[int, int], apart: int) -> int:
    group, _ = _deal(held, shape, apart)
    fullest = int(np.bincount(group, held).max())
    row_cost = ROW_COST_ON_CPU if jax.default_backend() == "cpu" else ROW_COST
    return shape[0] * Padding(fullest, int(held.sum()), batch_size).usual * (row_cost + shape[1])


class GroupedSilo(NamedTuple):
    """One silo's clients in L groups of G slots; arrays, or how they are spread over several devices."""

    shares: Any
    """``[L, G]``: n_k / M; 0 where there is no client."""
    held: Any
    """``[L, G]``: n_k; 1 where there is no client."""


class GroupedRows(NamedTuple):
    """One silo's rows of the minibatches of R rounds, group by group."""

    rows: Any
    """``[R, E, L, P]`` sample ids, or places in the device's table; or ``[R, E, L, P, D]``, features. One silo of a
    stack may have those of all, in the stack's order; then the others have None."""
    labels: Any
    """``[R, E, L, P]``."""
    slots: Any
    """``[R, E, L, P]``: the slot of the client that holds the row; G on padding."""
    positions: Any
    """``[R, E, L, P]``: where in the minibatch each row stands. None if it is the only group, in that order."""
    places: Any
    """``[R, E, B]``: where in the groups, one after the other, each sample of the minibatch is; None likewise."""


class GroupedCall(NamedTuple):
    """What is a run's own in a call."""

    silos: Any
    rows: Any
    step_size: Any
    l2: Any
    """None if it is compiled in."""


@dataclass(frozen=True)
class GroupedProgram:
    """What is fixed when rounds are compiled; see :class:`tdcd.simulation.engines.base.Program`.

    What all runs share are the silos' features ``[M, D]``, if the device holds them; one of several hosts those of its
    own clients.
    """

    objective: Objective
    variant: Variant
    gradient: Gradient
    steps: int
    num_silos: int
    num_samples: int
    batch_size: int
    runs: int
    devices: Devices

    def axes(self) -> tuple[Any, GroupedCall]:
        """Each device has some of the groups."""
        silo = GroupedSilo(spec(0), spec(0))
        rows = GroupedRows(spec(2), spec(2), spec(2), spec(2), WHOLE)
        return self.devices.tables, GroupedCall([silo] * self.num_silos, [rows] * self.num_silos, WHOLE, WHOLE)

    def lay_out(self, shared: Any, own: GroupedCall) -> GroupedCall:
        """Nothing to do in advance."""
        return own

    def one_round(self, index: Array, state: State, *, shared: list[Array] | None, own: GroupedCall) -> State:
        """See :meth:`tdcd.simulation.engines.base.Program.one_round`."""
        hubs, silos, rows = [block["weight"] for block in state.blocks], own.silos, own.rows
        shapes = [(silo.shares.shape, groups.labels.shape[2:]) for silo, groups in zip(silos, rows, strict=True)]
        stacks = [_stack(members, hubs, silos) for members in alike([len(hub) for hub in hubs], shapes)]
        clients = [jnp.broadcast_to(stack.hubs, (*stack.held.shape, *stack.hubs.shape[2:])) for stack in stacks]
        objective = TracedObjective.of(self.objective, own.l2)
        # Silos of a stack step as one; Algorithm 1's loss is the same for all.
        losses = partial(self.variant.knowledge.losses, 0, objective=objective)
        descent = Descent(losses, objective.l2, self.variant.update, own.step_size)

        def step(number: Array, clients: list[Array]) -> list[Array]:
            which = number if rows[0].labels.shape[1] == self.steps else 0
            now = [GroupedRows(*(None if part is None else part[index, which] for part in silo)) for silo in rows]
            return self._step(clients, stacks, hubs, now, shared, descent)

        clients = jax.lax.fori_loop(0, self.steps, step, clients)
        averages: dict[int, Array] = {}
        for stack, blocks in zip(stacks, clients, strict=True):
            for silo, block in zip(stack.silos, jnp.split(blocks, len(stack.silos)), strict=True):
                # algorithm.average over both axes of clients, in place: called on the groups one after the other, it
                # would add in another order, and histories would differ in their last bits.
                averages[silo] = jnp.einsum(
                    "lg,lgcd->dc", silos[silo].shares, block, precision=jax.lax.Precision.HIGHEST
                )[: len(hubs[silo])]
        summed: list[Array] = self.devices.sum([averages[silo] for silo in range(len(silos))])
        return state._replace(blocks=[{"weight": weight} for weight in summed])

    def _step(
        self,
        clients: list[Array],
        stacks: list["_Stack"],
        hubs: list[Array],
        now: list[GroupedRows],
        shared: list[Array] | None,
        descent: Descent,
    ) -> list[Array]:
        """One local step of all clients, with its minibatch's part of the exchange."""
        tables: list[Any] = [None] * len(now) if shared is None else shared
        features = [
            _in_a_row([_features(tables[i], now[i], hubs[i]) for i in stack.silos if now[i].rows is not None])
            for stack in stacks
        ]
        scores = [
            _scores(block, stack.hubs, rows) for block, stack, rows in zip(clients, stacks, features, strict=True)
        ]
        phis = {}
        for stack, score in zip(stacks, scores, strict=True):
            for silo, phi in zip(stack.silos, jnp.split(score[:, -1], len(stack.silos)), strict=True):
                phis[silo] = self._stacked(phi, now[silo])
        in_order = [phis[silo] for silo in range(len(now))]
        stepped = []
        for stack, block, score, rows in zip(stacks, clients, scores, features, strict=True):
            others = [_projected(algorithm.sum_others(in_order, silo), now[silo]) for silo in stack.silos]
            labels = _in_a_row([now[silo].labels for silo in stack.silos])
            if now[stack.silos[0]].positions is None:
                # In single groups rows are in the minibatch's order, and labels the same for all silos.
                labels = jnp.broadcast_to(now[stack.silos[0]].labels, labels.shape)
            slots = _in_a_row([now[silo].slots for silo in stack.silos])
            own = slots[:, None] == jnp.arange(stack.held.shape[1], dtype=slots.dtype)[:, None]
            phi = jnp.sum(jnp.where(own[:, :, None], score[:, :-1], 0), axis=1).swapaxes(1, 2)
            weighted_sum = partial(self._weighted_sum, features=rows, own=own, held=stack.held)
            moved, _ = algorithm.linear_step(
                (block, ()), phi, Known(labels, _in_a_row(others)), weighted_sum, descent=descent
            )
            stepped.append(moved)
        return stepped

    def _stacked(self, phi: Array, groups: GroupedRows) -> Array:
        """``[1, B, C]`` in minibatch order, from ``[L, C, P]``."""
        by_row = self.devices.gather(phi.swapaxes(1, 2), axis=0).reshape(1, -1, phi.shape[1])
        return by_row if groups.places is None else algorithm.stack(by_row, groups.places[None])

    def _weighted_sum(self, dloss: Array, *, features: Array, own: Array, held: Array) -> Array:
        """``[L, G, C, D]``: the gradient of the data term, for every client.

        Args:
            dloss: ``[L, P, C]``.
            own: ``[L, G, P]``, which rows are the client's.
            held: ``[L, G]``.
        """
        weight = algorithm.row_weight(
            jnp.sum(own, axis=2),
            gradient=self.gradient,
            num_samples=self.num_samples,
            batch_size=self.batch_size,
            held=held,
        )
        weighted = jnp.where(own[:, :, None], dloss.swapaxes(1, 2)[:, None] * weight[..., None, None], 0)
        groups, size, outputs, rows = weighted.shape
        gradients = jnp.einsum("lbp,lpd->lbd", weighted.reshape(groups, size * outputs, rows), features)
        return gradients.reshape(groups, size, outputs, -1)


class _Stack(NamedTuple):
    """Silos whose groups are computed as if they were groups of one."""

    silos: tuple[int, ...]
    hubs: Array
    """``[L, 1, C, D]``: for every group the block of its hub."""
    held: Array
    """``[L, G]``."""


def _stack(members: tuple[int, ...], hubs: list[Array], silos: list[GroupedSilo]) -> _Stack:
    groups = len(silos[members[0]].held)
    blocks = _in_a_row([jnp.broadcast_to(hubs[i].T, (groups, 1, *hubs[i].T.shape)) for i in members])
    return _Stack(members, blocks, _in_a_row([silos[i].held for i in members]))


def _in_a_row(parts: list[Array]) -> Array:
    """The silos' groups in one array, with zeros where a silo has fewer features than another."""
    width = max(part.shape[-1] for part in parts)
    room = [[(0, 0)] * (part.ndim - 1) + [(0, width - part.shape[-1])] for part in parts]
    return jnp.concatenate([jnp.pad(part, spare) for part, spare in zip(parts, room, strict=True)])


def _features(table: Array | None, groups: GroupedRows, hub: Array) -> Array:
    """``[L, P, D]``."""
    rows: Array = groups.rows if table is None else table[groups.rows]
    return rows.astype(hub.dtype)


def _scores(clients: Array, hubs: Array, features: Array) -> Array:
    """``[L, G + 1, C, P]``: every row's phi under every client of its group, and under the hub's block."""
    blocks = jnp.concatenate([clients, hubs], axis=1)
    groups, size, outputs, width = blocks.shape
    # One axis for all blocks of a group: with more of them the features would be copied into another order.
    scores = jnp.einsum("lbd,lpd->lbp", blocks.reshape(groups, size * outputs, width), features)
    return scores.reshape(groups, size, outputs, -1)


def _projected(phi_others: Array, groups: GroupedRows) -> Array:
    """``[L, P, C]`` of the groups' rows, from ``[1, B, C]``."""
    if groups.positions is None:
        return phi_others
    positions = groups.positions.reshape(1, -1)
    return algorithm.project(phi_others, positions).reshape(*groups.positions.shape, -1)


class GroupedEngine:
    """Several times faster than one client after another, and in a batch of runs as well."""

    name = "grouped"

    def __init__(self, problem: Problem) -> None:
        """Put the clients into groups."""
        self._problem, devices = problem, problem.devices
        samples = problem.federation.num_samples
        self._by_host = devices.hosts is not None
        self._groups = [self._dealt([run.federation.silos[i].holders for run in problem.runs]) for i in self._silos]
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
        if not problem.federation.is_complete:
            return "it runs samples that every silo has"
        return None if problem.weights is None else "it gives all samples the same weight, and these have their own"

    @classmethod
    def suits(cls, problem: Problem) -> bool:
        """Always, where there is nothing better."""
        return True

    def _dealt(self, owners: Sequence[Holders]) -> list[ClientGroups]:
        """A silo's groups in every run; of several runs they must be of one shape, and one group needs no padding."""
        problem = self._problem
        shape = None if len(owners) == 1 else (1, owners[0].num_clients)
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

    def _layout(self, ids: NDArray[np.int32], silo: int, placement: Placement | None) -> "_RowLayout":
        rows, real, positions, places = ids[:, :, :, None], None, None, None
        if placement is not None and placement.positions.shape[1] > 1:
            # Only a single run has several groups.
            order = np.ascontiguousarray(placement.positions.transpose(0, 2, 1, 3))
            rows = np.take_along_axis(ids[0], order.reshape(*ids.shape[1:3], -1), axis=2).reshape(order.shape)[None]
            real = (np.arange(order.shape[3]) < placement.counts.transpose(0, 2, 1)[..., None])[None]
            positions, places = self._put(order[None], 2), self._put(padded_slots(placement)[None])
        numbers = rows.astype(np.intp)
        labels = self._buffers.take(("labels", silo), self._problem.labels, numbers, self.rounds_per_call)
        return _RowLayout(numbers, real, self._put(labels, 2), positions, places)

    def _put(self, part: NDArray[Any], axis: int | None = None) -> Any:
        """``[S, R, ...]`` on the devices; ``axis`` is one of ``[R, ...]``."""
        problem = self._problem
        return problem.devices.put(problem.over_runs(padded(part, self.rounds_per_call)), axis)

    def _rows(self, silo: int, layout: "_RowLayout") -> GroupedRows:
        rows = layout.rows
        real: Any = [None] * len(rows) if layout.real is None else layout.real
        slots = [g.slots(own, which) for g, own, which in zip(self._groups[silo], rows, real, strict=True)]
        by_run = slots[0][None] if len(slots) == 1 else np.stack(slots)
        return GroupedRows(
            self._features_of(silo, rows), layout.labels, self._put(by_run, 2), layout.positions, layout.places
        )

    def _features_of(self, silo: int, rows: NDArray[np.intp]) -> Any:
        """See :attr:`tdcd.simulation.engines.grouped.GroupedRows.rows`."""
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
        places: NDArray[np.int32] = self._problem.on_device[silo].places(rows)
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


class _RowLayout(NamedTuple):
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
