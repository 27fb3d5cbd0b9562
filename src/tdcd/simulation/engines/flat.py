"""The engine for linear blocks with one output on an accelerator: minibatches are drawn there, or ids sent to it."""

import math

import jax
import numpy as np
from jax import Array
from numpy.typing import NDArray

from tdcd.core.schedule import LARGE, is_small
from tdcd.simulation.drawing import PLACES_AT_ONCE, draw_ids
from tdcd.simulation.engines.base import HEAVY, Call, Problem
from tdcd.simulation.engines.flat_program import SEGMENT, FlatCall, FlatData, FlatProgram, FlatSilo
from tdcd.simulation.engines.grouped import GroupedEngine
from tdcd.simulation.staging import StagingBuffers

PLACES_PER_CALL = 1 << 22
"""About how many places for rows the segments of a call have: more take the host longer to draw before the first call.
"""


class FlatEngine:
    """All clients' rows in the order of the minibatch: no padding, and nothing to lay out on the host."""

    name = "flat"

    def __init__(self, problem: Problem) -> None:
        """Put what stays on the device."""
        assert problem.on_device is not None
        settings, federation, hold = problem.settings, problem.federation, problem.devices.hold
        samples = federation.num_samples
        silos = []
        for silo, table in zip(federation.silos, problem.on_device, strict=True):
            silos.append(FlatSilo(table.reshape(samples, -1), hold(problem.shares(silo)), hold(problem.held(silo))))
        owners = hold(np.stack([silo.owner() for silo in federation.silos]))
        self._problem, self._shared = problem, FlatData(silos, owners, hold(problem.labels))
        self.program = FlatProgram(
            objective=problem.runs[0].objective,
            variant=problem.variant,
            gradient=settings.gradient,
            steps=settings.local_steps,
            num_samples=samples,
            devices=problem.devices,
        )
        self._buffers = StagingBuffers()
        # Small minibatches take the host less time than a program takes to start.
        self._draws_there = (
            settings.minibatches != "full"
            and problem.batch_size >= LARGE
            and is_small(problem.batch_size, samples)
            and problem.batches * samples <= PLACES_AT_ONCE
        )
        places = problem.batch_size + SEGMENT * max(silo.num_clients for silo in federation.silos)
        self.rounds_per_call = max(1, PLACES_PER_CALL // (problem.batches * places))

    @classmethod
    def supports(cls, problem: Problem) -> str | None:
        """What the grouped engine does, for one output, one run and one device that holds the data."""
        if (reason := GroupedEngine.supports(problem)) is not None:
            return reason
        if problem.phi_width > 1:
            return f"it runs blocks of one output, and there are {problem.phi_width}"
        if len(problem.runs) > 1:
            return "it does not batch runs"
        if problem.on_device is None or problem.devices.count > 1:
            return "it needs all features on one device (data.keep = 'device')"
        return None

    @classmethod
    def suits(cls, problem: Problem) -> bool:
        """On an accelerator, where a minibatch has many numbers."""
        numbers = problem.batch_size * sum(math.prod(table.shape[1:]) for table in problem.tables)
        return jax.default_backend() != "cpu" and numbers > HEAVY

    def prepare(self, wanted: range) -> Call:
        """See :meth:`tdcd.simulation.engines.base.Engine.prepare`."""
        sent, rounds = self._buffers.begin(), len(wanted)
        # Both happen while the device works on the call before.
        ids = self._drawn_there(wanted.start) if self._draws_there else None
        if ids is None:
            ids = self._sent(self._problem.draw(wanted)[0])
        return Call(rounds, (self._shared, FlatCall(ids, self._problem.numbers()[0]), rounds), sent)

    def _drawn_there(self, first_round: int) -> Array | None:
        """The minibatches of as many rounds as a call has room for, drawn on the device."""
        problem = self._problem
        return draw_ids(
            problem.settings.seed,
            first_round,
            rounds=self.rounds_per_call,
            count=problem.batches,
            size=problem.batch_size,
            num_samples=problem.federation.num_samples,
        )

    def _sent(self, ids: NDArray[np.int32]) -> Array:
        """Minibatches from the host, with room for as many rounds."""
        room = self._buffers.room("ids", (self.rounds_per_call, *ids.shape[1:]), ids.dtype)
        room[: len(ids)] = ids
        return self._problem.devices.hold(room)
