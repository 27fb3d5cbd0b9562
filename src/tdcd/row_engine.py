"""The engine for linear blocks with one output on an accelerator: only sample ids are shipped."""

import jax
import numpy as np
from numpy.typing import NDArray

from tdcd import row_program
from tdcd.engines import HEAVY, Call, Problem
from tdcd.objective import Tree
from tdcd.schedule import num_exchanged
from tdcd.shipping import Shipping

PLACES_A_CALL = 1 << 19
"""About how many places for rows the pieces of a call have: more take the host longer to draw before the first call."""


class RowEngine:
    """All clients' rows in the order of the minibatch: no padding, and nothing to lay out on the host."""

    def __init__(self, problem: Problem) -> None:
        if problem.on_device is None:
            raise ValueError("a RowEngine needs the features on the device")
        settings, samples, hold = problem.settings, problem.federation.num_samples, problem.devices.hold
        self._problem, self._labels = problem, hold(problem.labels)
        self._silos = []
        for silo, table in zip(problem.federation.silos, problem.on_device, strict=True):
            held = np.array([len(rows) for rows in silo.rows], settings.dtype)
            shares = (held / samples).astype(held.dtype)
            self._silos.append(row_program.RowSilo(table.reshape(samples, -1), hold(shares), hold(held)))
        self._owners = hold(np.stack([silo.owner() for silo in problem.federation.silos]))
        self._program = row_program.RowProgram(
            objective=problem.objective,
            gradient=settings.gradient,
            steps=settings.local_steps,
            num_samples=samples,
        )
        self._shipping = Shipping()
        places = problem.batch_size + row_program.PIECE * max(silo.num_clients for silo in problem.federation.silos)
        batches = num_exchanged(settings.minibatches, settings.local_steps)
        self.rounds_per_call = max(1, PLACES_A_CALL // (batches * places))

    @staticmethod
    def suits(problem: Problem) -> bool:
        """Whether this is the fastest engine for a problem of linear blocks."""
        numbers = problem.batch_size * sum(table[0].size for table in problem.tables)
        accelerated = jax.default_backend() != "cpu" and problem.on_device is not None
        return accelerated and problem.devices.count == 1 and problem.objective.loss != "softmax" and numbers > HEAVY

    def prepare(self, ids: NDArray[np.int32]) -> Call:
        """See :meth:`tdcd.engines.Engine.prepare`."""
        memory, settings = self._shipping.begin(), self._problem.settings
        room = self._shipping.room("ids", (self.rounds_per_call, *ids.shape[1:]), ids.dtype)
        room[: len(ids)] = ids
        # On its way while the device works on the call before.
        shipped = self._problem.devices.hold(room)
        step_size = np.asarray(settings.step_size, settings.dtype)
        return Call(len(ids), memory, (self._silos, self._owners, self._labels, shipped, len(ids), step_size))

    def run(self, hub_blocks: list[Tree], call: Call) -> list[Tree]:
        """See :meth:`tdcd.engines.Engine.run`."""
        weights = [block["weight"] for block in hub_blocks]
        weights = row_program.run_rounds(weights, *call.arguments, program=self._program)
        self._shipping.sent(call.memory, weights)
        return [{"weight": weight} for weight in weights]
