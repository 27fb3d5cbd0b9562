"""Runs of linear blocks in one compiled program: :mod:`tdcd.lane_program`, mapped over runs."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from tdcd.devices import Devices
from tdcd.lane_program import LaneProgram, LaneRows, LaneSilo, one_round
from tdcd.objective import Tree
from tdcd.run import Plan
from tdcd.sweep.together import Together, TracedObjective, with_room


class LaneBatch:
    """Each silo's clients are in one lane, so that no minibatch needs to be sorted or padded."""

    def __init__(self, plans: Sequence[Plan], every: int) -> None:
        """Take what :func:`tdcd.sweep.batch.batch_of` takes."""
        self._runs = runs = Together(plans)
        silos = runs.federation.silos
        self._tables = [silo.features.reshape(len(silo.features), -1) for silo in silos]
        # On a CPU the host gathers rows faster than the compiled program does.
        self._on_host = jax.default_backend() == "cpu"
        self._features = None if self._on_host else [jnp.asarray(table) for table in self._tables]
        bytes_a_row = sum(8 + (table[0].nbytes if self._on_host else 4) for table in self._tables)
        self._rounds = runs.rounds_a_call(every, bytes_a_row)
        self._owners = [
            [plan.federation.silos[silo].owner().astype(np.uint16) for plan in plans] for silo in range(len(silos))
        ]
        held = [runs.held(silo)[:, None] for silo in range(len(silos))]
        samples = runs.federation.num_samples
        self._silos = [LaneSilo(None, jnp.asarray(h / samples, h.dtype), jnp.asarray(h)) for h in held]
        self._program = LaneProgram(
            objective=runs.objective,
            gradient=runs.settings.gradient,
            steps=runs.settings.local_steps,
            num_samples=samples,
            batch_size=runs.batch_size,
            devices=Devices(),
        )

    def advance(self, hub_blocks: list[Tree], first_round: int, num_rounds: int) -> list[Tree]:
        """See :meth:`tdcd.sweep.batch.Batch.advance`."""
        runs, weights = self._runs, [block["weight"] for block in hub_blocks]
        for begin in range(first_round, first_round + num_rounds, self._rounds):
            ids = runs.ids(range(begin, min(first_round + num_rounds, begin + self._rounds)))
            rows = [self._rows(silo, ids) for silo in range(len(weights))]
            weights = _run_rounds(
                weights,
                self._silos,
                rows,
                ids.shape[1],
                runs.step_sizes,
                runs.l2,
                self._features,
                program=self._program,
            )
        return [{"weight": weight} for weight in weights]

    def _rows(self, silo: int, ids: NDArray[np.int32]) -> LaneRows:
        """One silo's rows, ``[S, R, E, 1, B]``."""
        rows = self._tables[silo].take(ids, axis=0, mode="clip") if self._on_host else ids
        members = [owner.take(own, mode="clip") for owner, own in zip(self._owners[silo], ids, strict=True)]

        def lane(part: NDArray[Any]) -> Any:
            return with_room(np.expand_dims(part, 3), self._rounds)

        labels = self._runs.labels.take(ids, mode="clip")
        return LaneRows(lane(rows), lane(labels), lane(np.stack(members)), positions=None, slots=None)


@partial(jax.jit, static_argnames=("program",))
def _run_rounds(
    weights: list[Array],
    silos: list[LaneSilo],
    rows: list[LaneRows],
    num_rounds: Array,
    step_sizes: Array,
    l2: Array,
    features: list[Array] | None,
    *,
    program: LaneProgram,
) -> list[Array]:
    """The hub blocks ``[S, D, C]`` after rounds 0 .. ``num_rounds`` - 1 of ``rows``."""

    def one(weights: list[Array], silos: list[LaneSilo], rows: list[LaneRows], step_size: Array, l2: Array) -> Any:
        own = replace(program, objective=TracedObjective(program.objective.loss, l2))
        if features is not None:
            silos = [silo._replace(features=table) for silo, table in zip(silos, features, strict=True)]

        def body(index: Array, weights: list[Array]) -> list[Array]:
            return one_round(weights, silos, rows, index, step_size, own)

        return jax.lax.fori_loop(0, num_rounds, body, weights)

    advanced: list[Array] = jax.vmap(one)(weights, silos, rows, step_sizes, l2)
    return advanced
