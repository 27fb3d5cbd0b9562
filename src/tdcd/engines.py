"""Engines of the simulation: they lay minibatches out on the host, ship them, and call the compiled rounds.

:class:`ClientEngine` takes any blocks; :class:`LaneEngine`, several times faster, linear ones. On an accelerator
:class:`tdcd.row_engine.RowEngine` is faster still where a block has one output.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jax import Array
from numpy.typing import NDArray

from tdcd import lane_program, program
from tdcd.blocks.activations import numbers_a_row
from tdcd.blocks.base import Block
from tdcd.devices import Devices
from tdcd.federation import Federation
from tdcd.lanes import Lanes
from tdcd.objective import Objective, Tree
from tdcd.placement import Placement, Placer, place_alike, shared
from tdcd.schedule import num_exchanged
from tdcd.settings import Settings
from tdcd.shipping import Shipping

BYTES_A_CALL = 16 << 20
"""About how many bytes one call ships to the device at most; a call of few rounds takes as much room."""
ROUNDS_A_CALL = 64

HEAVY, TINY = 1 << 18, 1 << 14
"""A local step is tiny if all clients' rows of a minibatch take up fewer numbers than the second; heavy if they take up
more than the first, and each client's alone are not tiny. A CPU's caches must also hold what is on the way to phi."""


class Problem(NamedTuple):
    """What an engine works on."""

    federation: Federation
    blocks: tuple[Block, ...]
    objective: Objective
    settings: Settings
    batch_size: int
    tables: list[NDArray[Any]]
    """Each silo's features on the host."""
    labels: NDArray[Any]
    on_device: list[Array] | None
    """The same features there, if they stay there."""
    devices: Devices


class Call(NamedTuple):
    """Some rounds, ready for the device."""

    rounds: int
    memory: int
    """Where its arrays are; see :class:`tdcd.shipping.Shipping`."""
    arguments: Any


class Engine(Protocol):
    """Runs rounds."""

    rounds_per_call: int
    """The most rounds that one compiled call does."""

    def prepare(self, ids: NDArray[np.int32]) -> Call:
        """The call for the first rounds of ``ids`` ``[R, E, B]``; any thread may do this, one call after the other."""
        ...

    def run(self, hub_blocks: list[Tree], call: Call) -> list[Tree]:
        """The hub blocks after the rounds of a call."""
        ...


class ClientEngine:
    """Any blocks: every client's rows in an array of their own, padded to those of the fullest client."""

    def __init__(self, problem: Problem) -> None:
        self._problem, devices = problem, problem.devices
        settings, silos = problem.settings, problem.federation.silos
        self._placers = shared(
            [Placer(silo.owner(), problem.batch_size, devices.even(silo.num_clients)) for silo in silos]
        )
        held = [np.array([len(rows) for rows in silo.rows], settings.dtype) for silo in silos]
        room = [(0, placer.num_clients - len(rows)) for placer, rows in zip(self._placers, held, strict=True)]
        self._held = [devices.hold(np.pad(h, r, constant_values=1), 0) for h, r in zip(held, room, strict=True)]
        samples = problem.federation.num_samples
        self._shares = [
            devices.hold(np.pad(h / samples, r).astype(h.dtype), 0) for h, r in zip(held, room, strict=True)
        ]
        self._labels = None if problem.on_device is None else devices.hold(problem.labels)
        self._shipping = Shipping()
        self.choose_for(jax.default_backend() == "cpu")

    def choose_for(self, cpu: bool) -> None:
        """Choose how to run this federation on a CPU or on an accelerator.

        Where steps are heavy, it is worth compiling them for several numbers of rows, to pad less. On a CPU the clients
        then take turns, since all of them at once would overflow its cache, and each step chooses its number. On an
        accelerator, which a choice would hold up, a round does, and it is a call of its own. Tiny steps cost less than
        the loop around them, so several are compiled into one pass of it.
        """
        problem, placers, settings = self._problem, self._placers, self._problem.settings
        batches = num_exchanged(settings.minibatches, settings.local_steps)
        shapes = [table.shape[1:] for table in problem.tables]
        rows = [numbers_a_row(*one) if cpu else math.prod(one[1]) for one in zip(problem.blocks, shapes, strict=True)]
        each = [p.usual * row for p, row in zip(placers, rows, strict=True)]
        numbers = max(p.num_clients * one for p, one in zip(placers, each, strict=True))
        heavy = numbers > HEAVY and max(each) > TINY
        in_turn = heavy and cpu and max(p.num_clients for p in placers) > 1
        cells = 4 * sum(placer.num_clients * placer.usual for placer in placers)
        shipped = sum(table[0].nbytes for table in problem.tables) * problem.batch_size if self._labels is None else 0
        # Of indices a call ships half as much: a call of few rounds fills its whole room with them.
        self.rounds_per_call = _rounds(batches * (2 * cells + shipped))
        if heavy and not cpu:
            self.rounds_per_call = 1
            for placer in placers:
                placer.padding.tighten(placer.num_clients * batches)
        self.program = program.Program(
            blocks=problem.blocks,
            objective=problem.objective,
            gradient=settings.gradient,
            steps=settings.local_steps,
            prefixes=tuple(p.padding.prefixes() if in_turn else () for p in placers),
            in_turn=in_turn,
            unroll=min(5, settings.local_steps) if numbers < TINY else 1,
            num_samples=problem.federation.num_samples,
            devices=problem.devices,
        )

    def prepare(self, ids: NDArray[np.int32]) -> Call:
        """See :meth:`Engine.prepare`."""
        problem, devices, rounds = self._problem, self._problem.devices, self.rounds_per_call
        memory = self._shipping.begin()
        placements = place_alike(self._placers, ids)
        ids = ids[: len(placements[0].rows)]
        tables, labels = problem.on_device, self._labels
        if tables is None:
            ship = self._shipping
            tables = [
                devices.put(ship.take(silo, table, ids, rounds).reshape(-1, *table.shape[1:]))
                for silo, table in enumerate(problem.tables)
            ]
            labels = devices.put(ship.take("labels", problem.labels, ids, rounds).ravel())
            ids, placements = _renumbered(ids, placements)
        arguments = (
            [program.SiloData(*silo) for silo in zip(tables, self._shares, self._held, strict=True)],
            labels,
            devices.put(_padded(ids, rounds)),
            [self._put(placement) for placement in placements],
            len(ids),
            np.asarray(problem.settings.step_size, problem.settings.dtype),
        )
        return Call(len(ids), memory, arguments)

    def run(self, hub_blocks: list[Tree], call: Call) -> list[Tree]:
        """See :meth:`Engine.run`."""
        advanced: list[Tree] = program.run_rounds(hub_blocks, *call.arguments, program=self.program)
        self._shipping.sent(call.memory, advanced)
        return advanced

    def _put(self, placement: Placement) -> Placement:
        devices = self._problem.devices
        spare = devices.even(placement.rows.shape[2]) - placement.rows.shape[2]
        placement = placement._replace(rows=np.pad(placement.rows, [(0, 0), (0, 0), (0, spare)]))
        parts = [_padded(part, self.rounds_per_call) for part in placement]
        axes = Placement(positions=1, counts=1, rows=2, slots=None)
        return Placement(*(devices.put(part, axis) for part, axis in zip(parts, axes, strict=True)))


class LaneEngine:
    """Linear blocks: many clients' rows in one array, with little padding or none."""

    def __init__(self, problem: Problem) -> None:
        self._problem, devices = problem, problem.devices
        settings, silos, samples = problem.settings, problem.federation.silos, problem.federation.num_samples
        self._lanes = [Lanes(silo.owner(), problem.batch_size, devices.count) for silo in silos]
        self._placers = shared([lanes.placer for lanes in self._lanes])
        self._tables = [table.reshape(samples, -1) for table in problem.tables]
        on_device: Sequence[Array | None] = problem.on_device or [None] * len(silos)
        self._silos = []
        for lanes, silo, table in zip(self._lanes, silos, on_device, strict=True):
            held = np.array([len(rows) for rows in silo.rows], settings.dtype)
            shares = devices.hold(lanes.arrange((held / samples).astype(held.dtype), 0), 0)
            flat = None if table is None else table.reshape(samples, -1)
            self._silos.append(lane_program.LaneSilo(flat, shares, devices.hold(lanes.arrange(held, 1), 0)))
        self._program = lane_program.LaneProgram(
            objective=problem.objective,
            gradient=settings.gradient,
            steps=settings.local_steps,
            num_samples=samples,
            batch_size=problem.batch_size,
            devices=devices,
        )
        self._shipping = Shipping()
        row = [12 + (table[0].nbytes if problem.on_device is None else 4) for table in self._tables]
        rows = [lanes.shape[0] * lanes.placer.usual for lanes in self._lanes]
        batches = num_exchanged(settings.minibatches, settings.local_steps)
        self.rounds_per_call = _rounds(batches * sum(a * b for a, b in zip(row, rows, strict=True)))

    def prepare(self, ids: NDArray[np.int32]) -> Call:
        """See :meth:`Engine.prepare`."""
        settings = self._problem.settings
        memory = self._shipping.begin()
        placements = place_alike(self._placers, ids)
        ids = ids[: len(placements[0].rows)]
        # Silos that split the rows alike, or have one lane each, share all but their features.
        firsts = [next(i for i, first in enumerate(placements) if first is placed) for placed in placements]
        layouts = {first: self._layout(ids, first, placements[first]) for first in set(firsts)}
        arguments = (
            self._silos,
            [self._rows(silo, layouts[first]) for silo, first in enumerate(firsts)],
            len(ids),
            np.asarray(settings.step_size, settings.dtype),
        )
        return Call(len(ids), memory, arguments)

    def run(self, hub_blocks: list[Tree], call: Call) -> list[Tree]:
        """See :meth:`Engine.run`."""
        weights = [block["weight"] for block in hub_blocks]
        weights = lane_program.run_rounds(weights, *call.arguments, program=self._program)
        self._shipping.sent(call.memory, weights)
        return [{"weight": weight} for weight in weights]

    def _layout(self, ids: NDArray[np.int32], silo: int, placement: Placement) -> "_Layout":
        problem, devices, rounds = self._problem, self._problem.devices, self.rounds_per_call
        rows, real, positions, slots = ids[:, :, None], None, None, None
        if placement.positions.shape[1] > 1:
            order, places = _by_lane(placement)
            rows = np.take_along_axis(ids, order.reshape(*ids.shape[:2], -1), axis=2).reshape(order.shape)
            real = np.arange(order.shape[3]) < placement.counts.transpose(0, 2, 1)[..., None]
            positions, slots = devices.put(_padded(order, rounds), 2), devices.put(_padded(places, rounds))
        numbers = rows.astype(np.intp)
        labels = self._shipping.take(("labels", silo), problem.labels, numbers, rounds)
        return _Layout(numbers, real, devices.put(labels, 2), positions, slots)

    def _rows(self, silo: int, layout: "_Layout") -> lane_program.LaneRows:
        devices, rounds, rows, table = self._problem.devices, self.rounds_per_call, layout.rows, self._tables[silo]
        members = devices.put(_padded(self._lanes[silo].members(rows, layout.real), rounds), 2)
        if self._problem.on_device is None:
            features = devices.make(
                (rounds, *rows.shape[1:], *table.shape[1:]),
                lambda index: self._shipping.take((silo, str(index)), table, rows[index[:4]], rounds),
                axis=2,
            )
        else:
            features = devices.put(_padded(rows.astype(np.int32), rounds), 2)
        return lane_program.LaneRows(features, layout.labels, members, layout.positions, layout.slots)


class _Layout(NamedTuple):
    """Minibatches lane by lane, ``[R, E, L, P]``."""

    rows: NDArray[np.intp]
    real: NDArray[np.bool_] | None
    """Which are not padding; all of them if None."""
    labels: Any
    positions: Any
    slots: Any


def _rounds(bytes_a_round: int) -> int:
    return int(np.clip(BYTES_A_CALL // bytes_a_round, 1, ROUNDS_A_CALL))


def _padded(part: NDArray[Any], capacity: int) -> NDArray[Any]:
    """Room for ``capacity`` rounds, so that a shorter call runs the same program."""
    if len(part) == capacity:
        return part
    room = np.zeros((capacity, *part.shape[1:]), part.dtype)
    room[: len(part)] = part
    return room


def _renumbered(ids: NDArray[np.int32], placements: Sequence[Placement]) -> tuple[NDArray[np.int32], list[Placement]]:
    """The same minibatches with samples numbered in the order of ``ids``, in which their rows are shipped."""
    numbers = np.arange(math.prod(ids.shape), dtype=np.int32).reshape(ids.shape)
    renumbered = []
    for placement in placements:
        rows = np.empty_like(ids)
        np.put_along_axis(rows, placement.slots, numbers, axis=2)
        renumbered.append(placement._replace(rows=rows))
    return numbers, renumbered


def _by_lane(placement: Placement) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Positions ``[R, E, L, P]``, and slots ``[R, E, B]`` in the padded lanes one after the other."""
    positions = np.ascontiguousarray(placement.positions.transpose(0, 2, 1, 3))
    counts = placement.counts.transpose(0, 2, 1)
    # Slots count the rows before a sample; in padded lanes, those before its lane are more.
    shift = np.arange(counts.shape[2]) * positions.shape[3] + counts - np.cumsum(counts, axis=2)
    by_row = np.repeat(shift.ravel(), counts.ravel()).reshape(placement.slots.shape)
    slots = placement.slots + np.take_along_axis(by_row, placement.slots, axis=2)
    return positions, slots.astype(np.int32)
