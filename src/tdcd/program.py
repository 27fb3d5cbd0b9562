"""The compiled programs of the simulation: one round for all silos, many rounds in one call, and scores."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from tdcd import algorithm
from tdcd.blocks.activations import numbers_a_row
from tdcd.blocks.base import Block
from tdcd.choices import Gradient
from tdcd.devices import WHOLE, Devices, spec
from tdcd.objective import Objective, Tree
from tdcd.placement import Placement


class SiloData(NamedTuple):
    """What the compiled program needs of one silo; arrays, or how they lie on several devices."""

    features: Any
    """``[M, ...]``, or the rows that a call is about."""
    shares: Any
    """``[K]``: n_k / M."""
    held: Any
    """``[K]``: n_k."""


SILO_AXES = SiloData(WHOLE, spec(0), spec(0))
PLACEMENT_AXES = Placement(positions=spec(1), counts=spec(1), rows=spec(2), slots=WHOLE)
"""How the arguments of :func:`run_rounds` lie on several devices: each has some clients, and some rows for phi."""


@dataclass(frozen=True)
class Program:
    """What is fixed when a round is compiled."""

    blocks: tuple[Block, ...]
    objective: Objective
    gradient: Gradient
    steps: int
    prefixes: tuple[tuple[int, ...], ...]
    """Of each silo: numbers of rows that local steps of clients in turn may work on instead of all P."""
    in_turn: bool
    """Clients one after the other, each in the processor's cache, rather than all at once."""
    unroll: int
    """Local steps in one pass of the compiled loop."""
    num_samples: int
    devices: Devices

    def pace(self, client_steps: Callable[..., Tree], *parts: Array) -> Tree:
        """Run the local steps of all clients of a silo: ``parts`` have the clients first, the last their row counts."""
        if self.in_turn:
            return jax.lax.map(lambda client: client_steps(*client), parts)
        return jax.vmap(client_steps)(*parts)


@partial(jax.jit, static_argnames=("program",))
def run_rounds(
    hub_blocks: list[Tree],
    silos: list[SiloData],
    labels: Array,
    ids: Array,
    placements: list[Placement],
    num_rounds: Array,
    step_size: Array,
    *,
    program: Program,
) -> list[Tree]:
    """Rounds 0 .. ``num_rounds`` - 1 of ``ids`` ``[R, E, B]`` and ``placements``, one after another."""

    def run(
        hub_blocks: list[Tree],
        silos: list[SiloData],
        labels: Array,
        ids: Array,
        placements: list[Placement],
        num_rounds: Array,
        step_size: Array,
    ) -> list[Tree]:
        def body(index: Array, hub_blocks: list[Tree]) -> list[Tree]:
            now = [Placement(*(part[index] for part in placement)) for placement in placements]
            return one_round(hub_blocks, silos, labels, ids[index], now, step_size, program=program)

        if len(ids) == 1:
            # The host waits for a loop of any number of rounds before it can start the next call.
            return body(jnp.zeros((), jnp.int32), hub_blocks)
        advanced: list[Tree] = jax.lax.fori_loop(0, num_rounds, body, hub_blocks)
        return advanced

    axes = (WHOLE, [SILO_AXES] * len(silos), WHOLE, WHOLE, [PLACEMENT_AXES] * len(silos), WHOLE, WHOLE)
    on_devices = program.devices.spread(run, axes)
    advanced: list[Tree] = on_devices(hub_blocks, silos, labels, ids, placements, num_rounds, step_size)
    return advanced


def one_round(
    hub_blocks: list[Tree],
    silos: list[SiloData],
    labels: Array,
    ids: Array,
    placements: list[Placement],
    step_size: Array,
    *,
    program: Program,
) -> list[Tree]:
    """One communication round of Algorithm 1 for all silos, from hub blocks to hub blocks."""
    devices, phis = program.devices, []
    dtype = silos[0].shares.dtype
    for model, block, silo, placement in zip(program.blocks, hub_blocks, silos, placements, strict=True):
        sent = hub_phi(model, block, silo.features[placement.rows].astype(dtype))
        phis.append(algorithm.stack(devices.gather(sent, axis=1), placement.slots))
    averages = []
    for index, (silo, placement) in enumerate(zip(silos, placements, strict=True)):
        # The sample ids of every client's rows, [K, E, P].
        rows = jax.vmap(lambda positions: jnp.take_along_axis(ids, positions, axis=1))(placement.positions)
        weights = partial(
            algorithm.row_weights,
            num_rows=rows.shape[2],
            gradient=program.gradient,
            num_samples=program.num_samples,
            batch_size=ids.shape[1],
        )
        client_steps = partial(
            algorithm.local_steps,
            hub_blocks[index],
            apply=program.blocks[index].phi,
            objective=program.objective,
            step_size=step_size,
            steps=program.steps,
            prefixes=program.prefixes[index],
            unroll=program.unroll,
        )
        client_blocks = program.pace(
            client_steps,
            silo.features[rows].astype(dtype),
            labels[rows],
            jax.vmap(partial(algorithm.project, algorithm.sum_others(phis, index)))(placement.positions),
            jax.vmap(weights)(placement.counts, held=silo.held),
            placement.counts,
        )
        averages.append(algorithm.average(client_blocks, silo.shares))
    summed: list[Tree] = devices.sum(averages)
    return summed


def hub_phi(model: Block, block: Tree, features: Array) -> Array:
    """:func:`tdcd.algorithm.phi`, for as many rows at a time as suit the processor."""
    # An accelerator's memory takes rows by the million; it is a CPU's cache that what is on the way has to fit in.
    numbers = numbers_a_row(model, features.shape[2:]) if jax.default_backend() == "cpu" else None
    return algorithm.phi(block, features, apply=model.phi, numbers_a_row=numbers)


@partial(jax.jit, static_argnames=("rows", "blocks"))
def scores(
    hub_blocks: list[Tree], features: list[Array], begin: Array, *, rows: int, blocks: tuple[Block, ...]
) -> Array:
    """The summed phi of all silos, for ``rows`` samples from ``begin`` on."""
    dtype = jax.tree.leaves(hub_blocks)[0].dtype
    phis = [
        hub_phi(model, block, jax.lax.dynamic_slice_in_dim(part, begin, rows).astype(dtype)[None])[0]
        for model, block, part in zip(blocks, hub_blocks, features, strict=True)
    ]
    return sum(phis[1:], start=phis[0])


@partial(jax.jit, static_argnames=("objective",))
def losses(scores: Array, labels: Array, *, objective: Objective) -> Array:
    """The loss of every sample."""
    return objective.losses(scores, labels)
