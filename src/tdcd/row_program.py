"""The compiled rounds of linear blocks with one output, for an accelerator that holds the data.

Bound by memory, so every row is read twice a step and never copied: once for its scores under the hub's block and its
client's, in the order of the minibatch, and once for the gradients. For those each client's rows are cut into pieces.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from tdcd import algorithm
from tdcd.choices import Gradient
from tdcd.objective import Objective

PIECE = 16
"""Rows in a piece. The last one of a client may be partly empty."""


class RowSilo(NamedTuple):
    """What the compiled program needs of one silo."""

    features: Array
    """``[M, D]``."""
    shares: Array
    """``[K]``: n_k / M."""
    held: Array
    """``[K]``: n_k."""


class Pieces(NamedTuple):
    """One silo's rows of a minibatch, client by client in H pieces; so many that any minibatch fits."""

    counts: Array
    """``[K]``: how many rows each client has."""
    positions: Array
    """``[H, PIECE]``: where in the minibatch each row stands; 0 at empty places."""
    real: Array
    """``[H, PIECE]``: which places are not empty."""
    clients: Array
    """``[H]``: who holds the piece; K if it is left over."""


@dataclass(frozen=True)
class RowProgram:
    """What is fixed when a round is compiled."""

    objective: Objective
    gradient: Gradient
    steps: int
    num_samples: int


def cut(owner: Array, num_clients: int) -> Pieces:
    """The pieces of a minibatch whose samples have these owners ``[B]``."""
    counts = jnp.sum(owner == jnp.arange(num_clients)[:, None], axis=1)
    pieces = -(-counts // PIECE)
    last = jnp.cumsum(pieces)
    number = jnp.arange((len(owner) + num_clients * (PIECE - 1)) // PIECE)
    client = jnp.sum(last <= number[:, None], axis=1)
    # Numbers of client K are out of range, and read as the last client's.
    place = (number - (last - pieces)[client])[:, None] * PIECE + jnp.arange(PIECE)
    real = (place < counts[client][:, None]) & (client < num_clients)[:, None]
    in_order = jnp.argsort(owner, stable=True)[(jnp.cumsum(counts) - counts)[client][:, None] + place]
    return Pieces(counts, jnp.where(real, in_order, 0), real, client)


@partial(jax.jit, static_argnames=("program",))
def run_rounds(
    hub_blocks: list[Array],
    silos: list[RowSilo],
    owners: Array,
    labels: Array,
    ids: Array,
    num_rounds: Array,
    step_size: Array,
    *,
    program: RowProgram,
) -> list[Array]:
    """The hub blocks ``[D, 1]`` after rounds 0 .. ``num_rounds`` - 1 of ``ids`` ``[R, E, B]``.

    Args:
        owners: ``[N, M]``, which client of each silo holds each sample.
        labels: ``[M]``.
    """
    owned = owners[:, ids]
    most = max(len(silo.held) for silo in silos)
    # For all rounds at once this takes a fraction of the time that it takes round by round.
    pieces = jax.vmap(jax.vmap(jax.vmap(partial(cut, num_clients=most))))(owned)

    def body(index: Array, hubs: list[Array]) -> list[Array]:
        now = Pieces(*(part[:, index] for part in pieces))
        return one_round(hubs, silos, owned[:, index], now, labels, ids[index], step_size, program)

    advanced: list[Array] = jax.lax.fori_loop(0, num_rounds, body, hub_blocks)
    return advanced


def one_round(
    hubs: list[Array],
    silos: list[RowSilo],
    owners: Array,
    pieces: Pieces,
    labels: Array,
    ids: Array,
    step_size: Array,
    program: RowProgram,
) -> list[Array]:
    """One communication round of Algorithm 1, from hub blocks to hub blocks.

    Args:
        owners: ``[N, E, B]``, which client of each silo holds each sample of the minibatches ``ids`` ``[E, B]``.
        pieces: of each silo and minibatch.
    """
    starts = [hub[:, 0] for hub in hubs]

    def step(number: Array, clients: list[Array]) -> list[Array]:
        which = number if len(ids) == program.steps else 0
        batch = ids[which]
        # XLA reads the rows where they are: as operands of these sums, they are not copied.
        rows = [silo.features[batch].astype(hub.dtype) for silo, hub in zip(silos, starts, strict=True)]
        phis = [jnp.sum(x * hub, axis=1)[:, None] for x, hub in zip(rows, starts, strict=True)]
        stepped = []
        for index, (silo, block) in enumerate(zip(silos, clients, strict=True)):
            own = jnp.sum(rows[index] * block[owners[index, which]], axis=1)[:, None]
            total = own + algorithm.sum_others(phis, index)
            slopes = jax.grad(lambda total: jnp.sum(program.objective.losses(total, labels[batch])))(total)[:, 0]
            now = Pieces(*(part[index, which] for part in pieces))
            gradient = _gradients(slopes, batch, silo, now, program)
            stepped.append(block - step_size * (gradient + jax.grad(program.objective.penalty)(block)))
        return stepped

    clients = [jnp.broadcast_to(hub, (len(silo.held), *hub.shape)) for hub, silo in zip(starts, silos, strict=True)]
    clients = jax.lax.fori_loop(0, program.steps, step, clients)
    return [algorithm.average(block, silo.shares)[:, None] for silo, block in zip(silos, clients, strict=True)]


def _gradients(slopes: Array, batch: Array, silo: RowSilo, pieces: Pieces, program: RowProgram) -> Array:
    """``[K, D]``: of the data term, for every client; a piece's sum first, then the pieces of a client."""
    weight = algorithm.row_weight(
        pieces.counts[: len(silo.held)],
        gradient=program.gradient,
        num_samples=program.num_samples,
        batch_size=len(batch),
        held=silo.held,
    )
    pulls = jnp.where(pieces.real, slopes[pieces.positions], 0)
    rows = silo.features[batch[pieces.positions]].astype(slopes.dtype)
    by_piece = jnp.sum(pulls[..., None] * rows, axis=1)
    own = pieces.clients == jnp.arange(len(silo.held))[:, None]
    summed: Array = weight[:, None] * (own.astype(slopes.dtype) @ by_piece)
    return summed
