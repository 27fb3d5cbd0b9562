"""The compiled round of linear blocks with one output, for an accelerator that holds the data.

It is bound by memory, so every row is read twice per step and never copied: once for its scores under the hub's block
and its client's, in the order of the minibatch, and once for the gradients. For those each client's rows are cut into
segments.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from tdcd.core import algorithm
from tdcd.core.algorithm import Descent
from tdcd.core.choices import Gradient
from tdcd.core.knowledge import Known
from tdcd.core.objective import Objective
from tdcd.core.variant import Variant
from tdcd.simulation.devices import WHOLE, Devices
from tdcd.simulation.engines.base import State

SEGMENT = 16
"""Rows in a segment. The last one of a client may be partly empty."""


class FlatSilo(NamedTuple):
    """What the compiled program needs of one silo."""

    features: Array
    """``[M, D]``."""
    shares: Array
    """``[K]``: n_k / M."""
    held: Array
    """``[K]``: n_k."""


class FlatData(NamedTuple):
    """The samples on the device, for all calls."""

    silos: list[FlatSilo]
    owners: Array
    """``[N, M]``: which client of each silo holds each sample."""
    labels: Array
    """``[M]``."""


class FlatCall(NamedTuple):
    """The minibatches of a call of R rounds."""

    ids: Array
    """``[R, E, B]``."""
    step_size: Array


class Segments(NamedTuple):
    """One silo's rows of a minibatch, client by client in H segments; enough for any minibatch."""

    counts: Array
    """``[K]``: how many rows each client has."""
    positions: Array
    """``[H, SEGMENT]``: where in the minibatch each row stands; 0 at empty places."""
    real: Array
    """``[H, SEGMENT]``: which places are not empty."""
    clients: Array
    """``[H]``: who holds the segment; K if it is left over."""


class FlatRounds(NamedTuple):
    """A call with its minibatches cut into segments."""

    own: FlatCall
    owners: Array
    """``[N, R, E, B]``: which client of each silo holds each sample of the minibatches."""
    segments: Segments
    """The segments of each silo, round and minibatch."""


@dataclass(frozen=True)
class FlatProgram:
    """What is fixed when rounds are compiled; see :class:`tdcd.simulation.engines.base.Program`."""

    objective: Objective
    variant: Variant
    gradient: Gradient
    steps: int
    num_samples: int
    devices: Devices
    runs: int = 1

    def axes(self) -> tuple[object, object]:
        """There is one device."""
        return WHOLE, WHOLE

    def lay_out(self, shared: FlatData, own: FlatCall) -> FlatRounds:
        """Cut all rounds at once: this takes a fraction of the time that it takes round by round."""
        owners = shared.owners[:, own.ids]
        most = max(len(silo.held) for silo in shared.silos)
        segments = jax.vmap(jax.vmap(jax.vmap(partial(cut, num_clients=most))))(owners)
        return FlatRounds(own, owners, segments)

    def one_round(self, index: Array, state: State, *, shared: FlatData, own: FlatRounds) -> State:
        """See :meth:`tdcd.simulation.engines.base.Program.one_round`."""
        starts = [block["weight"][:, 0] for block in state.blocks]
        ids, owners, segments = own.own.ids[index], own.owners[:, index], [part[:, index] for part in own.segments]
        losses = partial(self.variant.knowledge.losses, 0, objective=self.objective)
        descent = Descent(losses, self.objective.l2, self.variant.update, own.own.step_size)

        def step(number: Array, clients: list[Array]) -> list[Array]:
            which = number if len(ids) == self.steps else 0
            batch = ids[which]
            # XLA reads the rows where they are: as operands of these sums, they are not copied.
            rows = [silo.features[batch].astype(hub.dtype) for silo, hub in zip(shared.silos, starts, strict=True)]
            phis = [jnp.sum(x * hub, axis=1)[:, None] for x, hub in zip(rows, starts, strict=True)]
            stepped = []
            for number_of, (silo, block) in enumerate(zip(shared.silos, clients, strict=True)):
                phi = jnp.sum(rows[number_of] * block[owners[number_of, which]], axis=1)[:, None]
                known = Known(shared.labels[batch], algorithm.sum_others(phis, number_of))
                now = Segments(*(part[number_of, which] for part in segments))
                weighted_sum = partial(self._weighted_sum, batch=batch, silo=silo, segments=now)
                moved, _ = algorithm.linear_step((block, ()), phi, known, weighted_sum, descent=descent)
                stepped.append(moved)
            return stepped

        clients = [
            jnp.broadcast_to(h, (len(silo.held), *h.shape)) for h, silo in zip(starts, shared.silos, strict=True)
        ]
        clients = jax.lax.fori_loop(0, self.steps, step, clients)
        averages = [algorithm.average(block, silo.shares) for silo, block in zip(shared.silos, clients, strict=True)]
        return state._replace(blocks=[{"weight": weight[:, None]} for weight in averages])

    def _weighted_sum(self, dloss: Array, *, batch: Array, silo: FlatSilo, segments: Segments) -> Array:
        """``[K, D]``: the gradient of the data term, for every client: a segment's sum first, then a client's."""
        weight = algorithm.row_weight(
            segments.counts[: len(silo.held)],
            gradient=self.gradient,
            num_samples=self.num_samples,
            batch_size=len(batch),
            held=silo.held,
        )
        weighted = jnp.where(segments.real, dloss[:, 0][segments.positions], 0)
        rows = silo.features[batch[segments.positions]].astype(dloss.dtype)
        by_segment = jnp.sum(weighted[..., None] * rows, axis=1)
        own = segments.clients == jnp.arange(len(silo.held))[:, None]
        summed: Array = weight[:, None] * (own.astype(dloss.dtype) @ by_segment)
        return summed


def cut(owner: Array, num_clients: int) -> Segments:
    """The segments of a minibatch whose samples have these owners ``[B]``."""
    counts = jnp.sum(owner == jnp.arange(num_clients)[:, None], axis=1)
    segments = -(-counts // SEGMENT)
    last = jnp.cumsum(segments)
    number = jnp.arange((len(owner) + num_clients * (SEGMENT - 1)) // SEGMENT)
    client = jnp.sum(last <= number[:, None], axis=1)
    # Numbers of client K are out of range, and read as the last client's.
    place = (number - (last - segments)[client])[:, None] * SEGMENT + jnp.arange(SEGMENT)
    real = (place < counts[client][:, None]) & (client < num_clients)[:, None]
    in_order = jnp.argsort(owner, stable=True)[(jnp.cumsum(counts) - counts)[client][:, None] + place]
    return Segments(counts, jnp.where(real, in_order, 0), real, client)
