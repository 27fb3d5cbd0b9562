"""The compiled rounds of a federation whose blocks are all linear, with the clients of a silo in lanes.

All silos step together, so that a step can also do its minibatch's part of the exchange: the hub's block, which stays
as it was when the round started, goes through the same matrix product as the clients' blocks.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from tdcd import algorithm
from tdcd.devices import WHOLE, Devices, spec
from tdcd.objective import Objective


class LaneSilo(NamedTuple):
    """What the compiled program needs of one silo, with clients in L lanes of G.

    Arrays, or how they lie on several devices; so in :class:`LaneRows`.
    """

    features: Any
    """``[M, D]``, if the device holds them."""
    shares: Any
    """``[L, G]``: n_k / M; 0 where there is no client."""
    held: Any
    """``[L, G]``: n_k; 1 where there is no client."""


class LaneRows(NamedTuple):
    """One silo's rows of some minibatches, lane by lane; the first axis is rounds."""

    rows: Any
    """``[R, E, L, P]`` sample ids; or ``[R, E, L, P, D]``, their features."""
    labels: Any
    """``[R, E, L, P]``."""
    members: Any
    """``[R, E, L, P]``: which client of the lane holds the row; G on padding."""
    positions: Any
    """``[R, E, L, P]``: where in the minibatch each row stands. None if it is the only lane, in that order."""
    slots: Any
    """``[R, E, B]``: where in the lanes, one after the other, each sample of the minibatch is."""


SILO_AXES = LaneSilo(WHOLE, spec(0), spec(0))
ROWS_AXES = LaneRows(spec(2), spec(2), spec(2), spec(2), WHOLE)
"""How the arguments of :func:`run_rounds` lie on several devices: each has some of the lanes."""


@dataclass(frozen=True)
class LaneProgram:
    """What is fixed when a round is compiled."""

    objective: Objective
    gradient: algorithm.Gradient
    steps: int
    num_samples: int
    batch_size: int
    devices: Devices


@partial(jax.jit, static_argnames=("program",))
def run_rounds(
    hub_blocks: list[Array],
    silos: list[LaneSilo],
    rows: list[LaneRows],
    num_rounds: Array,
    step_size: Array,
    *,
    program: LaneProgram,
) -> list[Array]:
    """The hub blocks ``[D, C]`` after rounds 0 .. ``num_rounds`` - 1 of ``rows``."""

    def run(
        hubs: list[Array], silos: list[LaneSilo], rows: list[LaneRows], num_rounds: Array, step_size: Array
    ) -> list[Array]:
        def body(index: Array, hubs: list[Array]) -> list[Array]:
            return one_round(hubs, silos, rows, index, step_size, program)

        advanced: list[Array] = jax.lax.fori_loop(0, num_rounds, body, hubs)
        return advanced

    axes = (WHOLE, [SILO_AXES] * len(silos), [ROWS_AXES] * len(silos), WHOLE, WHOLE)
    advanced: list[Array] = program.devices.spread(run, axes)(hub_blocks, silos, rows, num_rounds, step_size)
    return advanced


def one_round(
    hubs: list[Array], silos: list[LaneSilo], rows: list[LaneRows], index: Array, step_size: Array, program: LaneProgram
) -> list[Array]:
    """One communication round of Algorithm 1, from hub blocks to hub blocks."""
    # Clients' blocks are [L, G, C, D]: rows of one matrix a lane.
    hubs = [hub.T for hub in hubs]
    clients = [jnp.broadcast_to(hub, (*silo.shares.shape, *hub.shape)) for hub, silo in zip(hubs, silos, strict=True)]

    def step(number: Array, clients: list[Array]) -> list[Array]:
        which = number if rows[0].labels.shape[1] == program.steps else 0
        now = [LaneRows(*(None if part is None else part[index, which] for part in silo)) for silo in rows]
        features = [_features(silo, lanes, hub) for silo, lanes, hub in zip(silos, now, hubs, strict=True)]
        scores = [_scores(*silo) for silo in zip(clients, hubs, features, strict=True)]
        phis = [_stacked(score[:, -1], lanes, program) for score, lanes in zip(scores, now, strict=True)]
        stepped = []
        for silo, (block, lanes) in enumerate(zip(clients, now, strict=True)):
            others = _projected(algorithm.sum_others(phis, silo), lanes)
            gradient = _gradients(scores[silo][:, :-1], others, features[silo], lanes, silos[silo].held, program)
            stepped.append(block - step_size * (gradient + jax.grad(program.objective.penalty)(block)))
        return stepped

    clients = jax.lax.fori_loop(0, program.steps, step, clients)
    averages = [jnp.einsum("lg,lgcd->dc", silo.shares, block) for silo, block in zip(silos, clients, strict=True)]
    summed: list[Array] = program.devices.sum(averages)
    return summed


def _features(silo: LaneSilo, lanes: LaneRows, hub: Array) -> Array:
    """``[L, P, D]``."""
    rows: Array = lanes.rows if silo.features is None else silo.features[lanes.rows]
    return rows.astype(hub.dtype)


def _scores(clients: Array, hub: Array, features: Array) -> Array:
    """``[L, G + 1, C, P]``: every row's phi under every client of its lane, and under the hub's block."""
    hubs = jnp.broadcast_to(hub, (clients.shape[0], 1, *hub.shape))
    return jnp.einsum("lgcd,lpd->lgcp", jnp.concatenate([clients, hubs], axis=1), features)


def _stacked(phi: Array, lanes: LaneRows, program: LaneProgram) -> Array:
    """``[1, B, C]`` in minibatch order, from ``[L, C, P]``."""
    by_row = program.devices.gather(phi.swapaxes(1, 2), axis=0).reshape(1, -1, phi.shape[1])
    return by_row if lanes.slots is None else algorithm.stack(by_row, lanes.slots[None])


def _projected(phi_others: Array, lanes: LaneRows) -> Array:
    """``[L, P, C]`` of the lanes' rows, from ``[1, B, C]``."""
    if lanes.positions is None:
        return phi_others
    positions = lanes.positions.reshape(1, -1)
    return algorithm.project(phi_others, positions).reshape(*lanes.positions.shape, -1)


def _gradients(
    scores: Array, others: Array, features: Array, lanes: LaneRows, held: Array, program: LaneProgram
) -> Array:
    """``[L, G, C, D]``: of the data term, for every client.

    Args:
        scores: ``[L, G, C, P]``.
        others: ``[L, P, C]``.
    """
    own = lanes.members[:, None] == jnp.arange(scores.shape[1], dtype=lanes.members.dtype)[:, None]
    phi = jnp.sum(jnp.where(own[:, :, None], scores, 0), axis=1).swapaxes(1, 2)
    slopes = jax.grad(lambda total: jnp.sum(program.objective.losses(total, lanes.labels)))(phi + others)
    weight = algorithm.row_weight(
        jnp.sum(own, axis=2),
        gradient=program.gradient,
        num_samples=program.num_samples,
        batch_size=program.batch_size,
        held=held,
    )
    pulls = jnp.where(own[:, :, None], slopes.swapaxes(1, 2)[:, None] * weight[..., None, None], 0)
    return jnp.einsum("lgcp,lpd->lgcd", pulls, features)
