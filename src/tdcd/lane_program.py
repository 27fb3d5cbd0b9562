"""The compiled rounds of a federation whose blocks are all linear, with the clients of a silo in lanes.

All silos step together, so that a step can also do its minibatch's part of the exchange: the hub's block, which stays
as it was when the round started, goes through the same matrix product as the clients' blocks. Small silos that are
alike make a team: what takes time is then the number of operations, not their size.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from tdcd import algorithm
from tdcd.choices import Gradient
from tdcd.devices import WHOLE, Devices, spec
from tdcd.objective import Objective

SMALL = 1 << 14
"""A silo whose rows of a minibatch are more numbers than this is in no team."""


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
    gradient: Gradient
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
    teams = [_team(members, hubs, silos) for members in _alike(hubs, silos, rows)]
    clients = [jnp.broadcast_to(team.hubs, (*team.held.shape, *team.hubs.shape[2:])) for team in teams]

    def step(number: Array, clients: list[Array]) -> list[Array]:
        which = number if rows[0].labels.shape[1] == program.steps else 0
        now = [LaneRows(*(None if part is None else part[index, which] for part in silo)) for silo in rows]
        features = [_one_after_another([_features(silos[i], now[i], hubs[i]) for i in team.silos]) for team in teams]
        scores = [_scores(block, team.hubs, one) for block, team, one in zip(clients, teams, features, strict=True)]
        phis = {}
        for team, score in zip(teams, scores, strict=True):
            for silo, phi in zip(team.silos, jnp.split(score[:, -1], len(team.silos)), strict=True):
                phis[silo] = _stacked(phi, now[silo], program)
        in_order = [phis[silo] for silo in range(len(silos))]
        stepped = []
        for team, block, score, of_team in zip(teams, clients, scores, features, strict=True):
            others = [_projected(algorithm.sum_others(in_order, silo), now[silo]) for silo in team.silos]
            labels = _one_after_another([now[silo].labels for silo in team.silos])
            if now[team.silos[0]].positions is None:
                # In single lanes rows are in the minibatch's order, and labels the same for all silos.
                labels = jnp.broadcast_to(now[team.silos[0]].labels, labels.shape)
            members = _one_after_another([now[silo].members for silo in team.silos])
            gradient = _gradients(
                score[:, :-1], _one_after_another(others), of_team, labels, members, team.held, program
            )
            stepped.append(block - step_size * (gradient + jax.grad(program.objective.penalty)(block)))
        return stepped

    clients = jax.lax.fori_loop(0, program.steps, step, clients)
    averages: dict[int, Array] = {}
    for team, blocks in zip(teams, clients, strict=True):
        for silo, block in zip(team.silos, jnp.split(blocks, len(team.silos)), strict=True):
            averages[silo] = jnp.einsum("lg,lgcd->dc", silos[silo].shares, block)[: len(hubs[silo])]
    summed: list[Array] = program.devices.sum([averages[silo] for silo in range(len(silos))])
    return summed


class _Team(NamedTuple):
    """Silos whose lanes are computed as if they were lanes of one."""

    silos: tuple[int, ...]
    hubs: Array
    """``[L, 1, C, D]``: for every lane the block of its hub."""
    held: Array
    """``[L, G]``."""


def _alike(hubs: list[Array], silos: list[LaneSilo], rows: list[LaneRows]) -> list[tuple[int, ...]]:
    """The silos in teams: small ones with as many lanes, clients and rows, and about as many features."""
    teams: list[tuple[int, ...]] = []
    shapes = [(silo.shares.shape, lanes.labels.shape[2:]) for silo, lanes in zip(silos, rows, strict=True)]
    for silo in sorted(range(len(silos)), key=lambda silo: len(hubs[silo])):
        last = teams[-1][0] if teams else silo
        fits = shapes[last] == shapes[silo] and len(hubs[silo]) <= 1.25 * len(hubs[last])
        if teams and fits and math.prod(shapes[silo][1]) * len(hubs[silo]) <= SMALL:
            teams[-1] += (silo,)
        else:
            teams.append((silo,))
    return teams


def _team(members: tuple[int, ...], hubs: list[Array], silos: list[LaneSilo]) -> _Team:
    lanes = len(silos[members[0]].held)
    blocks = _one_after_another([jnp.broadcast_to(hubs[i].T, (lanes, 1, *hubs[i].T.shape)) for i in members])
    return _Team(members, blocks, _one_after_another([silos[i].held for i in members]))


def _one_after_another(parts: list[Array]) -> Array:
    """The silos' lanes in one array, with zeros where a silo has fewer features than another."""
    width = max(part.shape[-1] for part in parts)
    room = [[(0, 0)] * (part.ndim - 1) + [(0, width - part.shape[-1])] for part in parts]
    return jnp.concatenate([jnp.pad(part, spare) for part, spare in zip(parts, room, strict=True)])


def _features(silo: LaneSilo, lanes: LaneRows, hub: Array) -> Array:
    """``[L, P, D]``."""
    rows: Array = lanes.rows if silo.features is None else silo.features[lanes.rows]
    return rows.astype(hub.dtype)


def _scores(clients: Array, hubs: Array, features: Array) -> Array:
    """``[L, G + 1, C, P]``: every row's phi under every client of its lane, and under the hub's block."""
    blocks = jnp.concatenate([clients, hubs], axis=1)
    lanes, size, outputs, width = blocks.shape
    # One axis for all blocks of a lane: with more of them the features would be copied into another order.
    scores = jnp.einsum("lbd,lpd->lbp", blocks.reshape(lanes, size * outputs, width), features)
    return scores.reshape(lanes, size, outputs, -1)


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
    scores: Array,
    others: Array,
    features: Array,
    labels: Array,
    members: Array,
    held: Array,
    program: LaneProgram,
) -> Array:
    """``[L, G, C, D]``: of the data term, for every client.

    Args:
        scores: ``[L, G, C, P]``.
        others: ``[L, P, C]``.
        labels: ``[L, P]``.
        members: ``[L, P]``, see :class:`LaneRows`.
        held: ``[L, G]``.
    """
    own = members[:, None] == jnp.arange(scores.shape[1], dtype=members.dtype)[:, None]
    phi = jnp.sum(jnp.where(own[:, :, None], scores, 0), axis=1).swapaxes(1, 2)
    slopes = jax.grad(lambda total: jnp.sum(program.objective.losses(total, labels)))(phi + others)
    weight = algorithm.row_weight(
        jnp.sum(own, axis=2),
        gradient=program.gradient,
        num_samples=program.num_samples,
        batch_size=program.batch_size,
        held=held,
    )
    pulls = jnp.where(own[:, :, None], slopes.swapaxes(1, 2)[:, None] * weight[..., None, None], 0)
    lanes, size, outputs, rows = pulls.shape
    gradients = jnp.einsum("lbp,lpd->lbd", pulls.reshape(lanes, size * outputs, rows), features)
    return gradients.reshape(lanes, size, outputs, -1)
