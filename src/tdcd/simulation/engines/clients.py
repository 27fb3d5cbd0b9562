"""The general engine: any blocks and any variant, on any device."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from tdcd.blocks.activations import activation_size_per_row
from tdcd.core.codecs.codec import seed_words
from tdcd.federation.hosts import row_bytes
from tdcd.federation.placement import Placement, Placer, padded_slots, place_alike, shared
from tdcd.federation.silos import Silo
from tdcd.simulation.engines.base import HEAVY, Call, Problem, padded
from tdcd.simulation.engines.clients_program import ClientsCall, ClientsData, ClientsProgram
from tdcd.simulation.host_tables import HostLayout
from tdcd.simulation.staging import StagingBuffers

TINY = 1 << 14
"""A local step is tiny if all clients' rows of a minibatch have fewer numbers than this; heavy if they have more than
``HEAVY``, and each client's alone are not tiny. A CPU's caches must also hold the activations."""


class ClientsEngine:
    """Every client's rows in an array of their own, padded to those of the fullest client."""

    name = "clients"

    def __init__(self, problem: Problem) -> None:
        """Choose how to run this federation here; see :meth:`choose_for`."""
        self._problem, devices = problem, problem.devices
        self._placers = [
            shared(
                [
                    Placer(silo.owner(), problem.batch_size, devices.even(silo.num_clients))
                    for silo in run.federation.silos
                ]
            )
            for run in problem.runs
        ]
        self._held = self._for_all(problem.held, 1)
        self._numbers = self._for_all(lambda silo: np.arange(silo.num_clients, dtype=np.int32), 0)
        self._shares = self._for_all(problem.shares, 0)
        self._labels = None if problem.on_device is None else devices.hold(problem.labels)
        self._row_weights = None if problem.weights is None else devices.hold(problem.weights)
        self._buffers = StagingBuffers()
        self.choose_for(jax.default_backend() == "cpu")

    def _for_all(self, figures: Callable[[Silo], NDArray[Any]], empty: float) -> list[Any]:
        """A figure of every client, silo by silo, where it stays; see :meth:`_per_client`."""
        problem = self._problem
        return [
            problem.devices.hold(
                problem.over_runs([self._per_client(figures, run, silo, empty) for run in range(len(problem.runs))]), 0
            )
            for silo in range(problem.federation.num_silos)
        ]

    def _per_client(self, figures: Callable[[Silo], NDArray[Any]], run: int, silo: int, empty: float) -> NDArray[Any]:
        """``[K]``: a figure of each client, and ``empty`` where devices have room for one more."""
        values = figures(self._problem.runs[run].federation.silos[silo])
        room = self._placers[run][silo].num_clients - len(values)
        return np.pad(values, (0, room), constant_values=empty)

    @classmethod
    def supports(cls, problem: Problem) -> str | None:
        """It runs everything."""
        return None

    @classmethod
    def suits(cls, problem: Problem) -> bool:
        """It is the last choice."""
        return True

    def choose_for(self, cpu: bool) -> None:
        """Choose how to run this federation on a CPU or on an accelerator.

        Where steps are heavy, it is worth compiling them for several numbers of rows, to pad less. On a CPU the clients
        then take turns, since all of them at once would overflow its cache, and each step chooses its number. On an
        accelerator, which a choice would hold up, a round does, and it is a call of its own. Tiny steps cost less than
        the loop around them, so several are compiled into one pass of it.
        """
        problem, placers, settings = self._problem, self._placers[0], self._problem.settings
        is_batch = len(problem.runs) > 1
        shapes = [table.shape[1:] for table in problem.tables]
        per_row = [
            activation_size_per_row(block, shape) if cpu else math.prod(shape)
            for block, shape in zip(problem.blocks, shapes, strict=True)
        ]
        each = [p.usual * row for p, row in zip(placers, per_row, strict=True)]
        numbers = max(p.num_clients * size for p, size in zip(placers, each, strict=True))
        # Mapped over runs, every run would work on all numbers of rows rather than on one.
        heavy = numbers > HEAVY and max(each) > TINY and not is_batch
        in_turn = heavy and cpu and max(p.num_clients for p in placers) > 1
        cells = 4 * sum(placer.num_clients * placer.usual for placer in placers)
        shipped = sum(row_bytes(table) for table in problem.tables) * problem.batch_size if self._labels is None else 0
        # A call sends half as many bytes of indices: a call of few rounds fills its whole room with them.
        self.rounds_per_call = problem.rounds_per_call(problem.batches * (2 * cells + shipped))
        if heavy and not cpu:
            self.rounds_per_call = 1
            for placer in placers:
                placer.padding.tighten(placer.num_clients * problem.batches)
        self.program = ClientsProgram(
            blocks=problem.blocks,
            objective=problem.runs[0].objective,
            variant=problem.variant,
            gradient=settings.gradient,
            steps=settings.local_steps,
            prefixes=tuple(p.padding.prefixes() if in_turn else () for p in placers),
            in_turn=in_turn,
            together=not cpu,
            unroll=min(5, settings.local_steps) if numbers < TINY and not is_batch else 1,
            num_samples=problem.federation.num_samples,
            runs=len(problem.runs),
            devices=problem.devices,
        )

    def prepare(self, wanted: range) -> Call:
        """See :meth:`tdcd.simulation.engines.base.Engine.prepare`."""
        problem, devices, rounds = self._problem, self._problem.devices, self.rounds_per_call
        first_round, ids = wanted.start, problem.draw(wanted)
        sent = self._buffers.begin()
        placed = place_alike(self._placers, ids)
        num_rounds = len(placed[0][0].rows)
        ids = ids[:, :num_rounds]
        own = self._absent(first_round, ids)
        tables, labels, weights = problem.on_device, self._labels, self._row_weights
        by_host = devices.hosts is not None
        if by_host:
            rows = self._rows_by_client(placed[0], ids[0])
            tables = None if tables is None else [table.features for table in tables]
        elif tables is None:
            tables = [
                devices.put(self._buffers.take(silo, table, ids, rounds).reshape(-1, *table.shape[1:]))
                for silo, table in enumerate(problem.tables)
            ]
        if labels is None:
            labels = devices.put(self._buffers.take("labels", problem.labels, ids, rounds).ravel())
            if problem.weights is not None:
                weights = devices.put(self._buffers.take("weights", problem.weights, ids, rounds).ravel())
            ids = _renumbered(ids, rounds)
            if not by_host:
                placed = [
                    [_with_rows(placement, numbers) for placement in run]
                    for run, numbers in zip(placed, ids, strict=True)
                ]
        step_size, l2 = problem.numbers()
        own = own._replace(
            ids=devices.put(problem.over_runs(padded(ids, rounds))),
            placements=self._put_by_host(placed[0], rows)
            if by_host
            else [self._put(silo) for silo in zip(*placed, strict=True)],
            held=self._held,
            numbers=self._numbers,
            rounds=problem.over_runs([np.arange(first_round, first_round + rounds, dtype=np.int32)] * len(ids)),
            seed=problem.over_runs([seed_words(run.settings.seed) for run in problem.runs]),
            step_size=step_size,
            l2=l2,
        )
        return Call(num_rounds, (ClientsData(tables, labels, weights), own, num_rounds), sent)

    def _absent(self, first_round: int, ids: NDArray[np.int32]) -> ClientsCall:
        """Who answers in these rounds, in terms of shares and samples; only those parts are filled in."""
        problem, rounds = self._problem, range(first_round, first_round + ids.shape[1])
        own = ClientsCall(*[None] * len(ClientsCall._fields))._replace(shares=self._shares)
        if problem.variant.all_answer:
            return own
        present = np.ones(ids.shape, bool)
        shares: list[list[Any]] = [[] for _ in problem.blocks]
        remaining: list[list[Any]] = [[] for _ in problem.blocks]
        for number, run in enumerate(problem.runs):
            for index, silo in enumerate(run.federation.silos):
                who = [
                    problem.variant.participation.answering(run.settings.seed, r, index, silo.num_clients)
                    for r in rounds
                ]
                answering = np.pad(
                    np.stack(who), [(0, 0), (0, self._placers[number][index].num_clients - silo.num_clients)]
                )
                owner = self._placers[number][index].owner[ids[number]]
                present[number] &= np.take_along_axis(answering[:, None], owner, axis=2)
                held = answering * self._per_client(problem.held, number, index, 0)
                left = held.sum(axis=1, dtype=held.dtype)
                shares[index].append(held / left[:, None])
                remaining[index].append(left)
        return own._replace(
            present=problem.devices.put(problem.over_runs(padded(present, self.rounds_per_call))),
            shares=[self._by_round(silo, 1) for silo in shares],
            remaining=[self._by_round(silo) for silo in remaining],
        )

    def _by_round(self, per_run: Sequence[Any], axis: int | None = None) -> Any:
        """``[R, ...]`` of each run, with room for all rounds of a call."""
        room = padded(per_run[0][None] if len(per_run) == 1 else np.stack(per_run), self.rounds_per_call)
        return self._problem.devices.put(self._problem.over_runs(room), axis)

    def _rows_by_client(self, placements: Sequence[Placement], ids: NDArray[np.int32]) -> list[Any]:
        """On several hosts, every client's rows where the client is."""
        problem = self._problem
        layout = HostLayout(problem.devices, self._buffers, self.rounds_per_call)
        held = problem.on_device or [None] * len(placements)
        return [
            layout.rows(silo, placement, ids, problem.tables[silo], held[silo])
            for silo, placement in enumerate(placements)
        ]

    def _put_by_host(self, placements: Sequence[Placement], rows: Sequence[Any]) -> list[Placement]:
        """The only run's placements on the devices of several hosts, silo by silo."""
        return [
            Placement(
                self._by_round([placement.positions], 1),
                self._by_round([placement.counts], 1),
                own,
                self._by_round([padded_slots(placement)]),
            )
            for placement, own in zip(placements, rows, strict=True)
        ]

    def _put(self, placements: Sequence[Placement]) -> Placement:
        """One silo's placements of all runs, on the devices."""
        devices = self._problem.devices
        spare = devices.even(placements[0].rows.shape[2]) - placements[0].rows.shape[2]
        even = [p._replace(rows=np.pad(p.rows, [(0, 0), (0, 0), (0, spare)])) for p in placements]
        axes = Placement(positions=1, counts=1, rows=2, slots=None)
        parts = [self._by_round(part, axis) for part, axis in zip(zip(*even, strict=True), axes, strict=True)]
        return Placement(*parts)


def _renumbered(ids: NDArray[np.int32], rounds: int) -> NDArray[np.int32]:
    """The minibatches with samples numbered in the order in which their rows are sent: run by run, and in each
    those of ``ids`` with room for ``rounds``.
    """
    room = (len(ids), rounds, *ids.shape[2:])
    return np.arange(math.prod(room), dtype=np.int32).reshape(room)[:, : ids.shape[1]]


def _with_rows(placement: Placement, ids: NDArray[np.int32]) -> Placement:
    """The placement of minibatches in which samples have other numbers."""
    rows = np.empty_like(ids)
    np.put_along_axis(rows, placement.slots, ids, axis=2)
    return placement._replace(rows=rows)
