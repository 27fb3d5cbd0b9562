"""The compiled round of linear blocks with the clients of a silo in groups.

All silos step together, so that a step can also do its minibatch's part of the exchange: the hub's block, which stays
as it was when the round began, goes through the same matrix product as the clients' blocks. Silos that are alike are
stacked (:mod:`tdcd.simulation.engines.stacks`).
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from tdcd.core import algorithm
from tdcd.core.algorithm import Descent
from tdcd.core.choices import Gradient
from tdcd.core.knowledge import Known
from tdcd.core.objective import Objective
from tdcd.core.variant import Variant
from tdcd.simulation.devices import WHOLE, Devices, spec
from tdcd.simulation.engines.base import State, TracedObjective
from tdcd.simulation.engines.stacks import alike


class GroupedSilo(NamedTuple):
    """One silo's clients in L groups of G slots; arrays, or how they are spread over several devices."""

    shares: Any
    """``[L, G]``: n_k / M; 0 where there is no client."""
    held: Any
    """``[L, G]``: n_k; 1 where there is no client."""


class GroupedRows(NamedTuple):
    """One silo's rows of the minibatches of R rounds, group by group."""

    rows: Any
    """``[R, E, L, P]`` sample ids, or places in the device's table; or ``[R, E, L, P, D]``, features. One silo of a
    stack may have those of all, in the stack's order; then the others have None."""
    labels: Any
    """``[R, E, L, P]``."""
    slots: Any
    """``[R, E, L, P]``: the slot of the client that holds the row; G on padding."""
    positions: Any
    """``[R, E, L, P]``: where in the minibatch each row stands. None if it is the only group, in that order."""
    places: Any
    """``[R, E, B]``: where in the groups, one after the other, each sample of the minibatch is; None likewise."""


class GroupedCall(NamedTuple):
    """What is a run's own in a call."""

    silos: Any
    rows: Any
    step_size: Any
    l2: Any
    """None if it is compiled in."""


@dataclass(frozen=True)
class GroupedProgram:
    """What is fixed when rounds are compiled; see :class:`tdcd.simulation.engines.base.Program`.

    What all runs share are the silos' features ``[M, D]``, if the device holds them; one of several hosts those of its
    own clients.
    """

    objective: Objective
    variant: Variant
    gradient: Gradient
    steps: int
    num_silos: int
    num_samples: int
    batch_size: int
    runs: int
    devices: Devices

    def axes(self) -> tuple[Any, GroupedCall]:
        """Each device has some of the groups."""
        silo = GroupedSilo(spec(0), spec(0))
        rows = GroupedRows(spec(2), spec(2), spec(2), spec(2), WHOLE)
        return self.devices.tables, GroupedCall([silo] * self.num_silos, [rows] * self.num_silos, WHOLE, WHOLE)

    def lay_out(self, shared: Any, own: GroupedCall) -> GroupedCall:
        """Nothing to do in advance."""
        return own

    def one_round(self, index: Array, state: State, *, shared: list[Array] | None, own: GroupedCall) -> State:
        """See :meth:`tdcd.simulation.engines.base.Program.one_round`."""
        hubs, silos, rows = [block["weight"] for block in state.blocks], own.silos, own.rows
        shapes = [(silo.shares.shape, groups.labels.shape[2:]) for silo, groups in zip(silos, rows, strict=True)]
        stacks = [_stack(members, hubs, silos) for members in alike([len(hub) for hub in hubs], shapes)]
        clients = [jnp.broadcast_to(stack.hubs, (*stack.held.shape, *stack.hubs.shape[2:])) for stack in stacks]
        objective = TracedObjective.of(self.objective, own.l2)
        # Silos of a stack step as one; Algorithm 1's loss is the same for all.
        losses = partial(self.variant.knowledge.losses, 0, objective=objective)
        descent = Descent(losses, objective.l2, self.variant.update, own.step_size)

        def step(number: Array, clients: list[Array]) -> list[Array]:
            which = number if rows[0].labels.shape[1] == self.steps else 0
            now = [GroupedRows(*(None if part is None else part[index, which] for part in silo)) for silo in rows]
            return self._step(clients, stacks, hubs, now, shared, descent)

        clients = jax.lax.fori_loop(0, self.steps, step, clients)
        averages: dict[int, Array] = {}
        for stack, blocks in zip(stacks, clients, strict=True):
            for silo, block in zip(stack.silos, jnp.split(blocks, len(stack.silos)), strict=True):
                # algorithm.average over both axes of clients, in place: called on the groups one after the other, it
                # would add in another order, and histories would differ in their last bits.
                averages[silo] = jnp.einsum(
                    "lg,lgcd->dc", silos[silo].shares, block, precision=jax.lax.Precision.HIGHEST
                )[: len(hubs[silo])]
        summed: list[Array] = self.devices.sum([averages[silo] for silo in range(len(silos))])
        return state._replace(blocks=[{"weight": weight} for weight in summed])

    def _step(
        self,
        clients: list[Array],
        stacks: list["_Stack"],
        hubs: list[Array],
        now: list[GroupedRows],
        shared: list[Array] | None,
        descent: Descent,
    ) -> list[Array]:
        """One local step of all clients, with its minibatch's part of the exchange."""
        tables: list[Any] = [None] * len(now) if shared is None else shared
        features = [
            _in_a_row([_features(tables[i], now[i], hubs[i]) for i in one.silos if now[i].rows is not None])
            for one in stacks
        ]
        scores = [_scores(block, one.hubs, rows) for block, one, rows in zip(clients, stacks, features, strict=True)]
        phis = {}
        for one, score in zip(stacks, scores, strict=True):
            for silo, phi in zip(one.silos, jnp.split(score[:, -1], len(one.silos)), strict=True):
                phis[silo] = self._stacked(phi, now[silo])
        in_order = [phis[silo] for silo in range(len(now))]
        stepped = []
        for one, block, score, rows in zip(stacks, clients, scores, features, strict=True):
            others = [_projected(algorithm.sum_others(in_order, silo), now[silo]) for silo in one.silos]
            labels = _in_a_row([now[silo].labels for silo in one.silos])
            if now[one.silos[0]].positions is None:
                # In single groups rows are in the minibatch's order, and labels the same for all silos.
                labels = jnp.broadcast_to(now[one.silos[0]].labels, labels.shape)
            slots = _in_a_row([now[silo].slots for silo in one.silos])
            own = slots[:, None] == jnp.arange(one.held.shape[1], dtype=slots.dtype)[:, None]
            phi = jnp.sum(jnp.where(own[:, :, None], score[:, :-1], 0), axis=1).swapaxes(1, 2)
            weighted_sum = partial(self._weighted_sum, features=rows, own=own, held=one.held)
            moved, _ = algorithm.linear_step(
                (block, ()), phi, Known(labels, _in_a_row(others)), weighted_sum, descent=descent
            )
            stepped.append(moved)
        return stepped

    def _stacked(self, phi: Array, groups: GroupedRows) -> Array:
        """``[1, B, C]`` in minibatch order, from ``[L, C, P]``."""
        by_row = self.devices.gather(phi.swapaxes(1, 2), axis=0).reshape(1, -1, phi.shape[1])
        return by_row if groups.places is None else algorithm.stack(by_row, groups.places[None])

    def _weighted_sum(self, dloss: Array, *, features: Array, own: Array, held: Array) -> Array:
        """``[L, G, C, D]``: the gradient of the data term, for every client.

        Args:
            dloss: ``[L, P, C]``.
            own: ``[L, G, P]``, which rows are the client's.
            held: ``[L, G]``.
        """
        weight = algorithm.row_weight(
            jnp.sum(own, axis=2),
            gradient=self.gradient,
            num_samples=self.num_samples,
            batch_size=self.batch_size,
            held=held,
        )
        weighted = jnp.where(own[:, :, None], dloss.swapaxes(1, 2)[:, None] * weight[..., None, None], 0)
        groups, size, outputs, rows = weighted.shape
        gradients = jnp.einsum("lbp,lpd->lbd", weighted.reshape(groups, size * outputs, rows), features)
        return gradients.reshape(groups, size, outputs, -1)


class _Stack(NamedTuple):
    """Silos whose groups are computed as if they were groups of one."""

    silos: tuple[int, ...]
    hubs: Array
    """``[L, 1, C, D]``: for every group the block of its hub."""
    held: Array
    """``[L, G]``."""


def _stack(members: tuple[int, ...], hubs: list[Array], silos: list[GroupedSilo]) -> _Stack:
    groups = len(silos[members[0]].held)
    blocks = _in_a_row([jnp.broadcast_to(hubs[i].T, (groups, 1, *hubs[i].T.shape)) for i in members])
    return _Stack(members, blocks, _in_a_row([silos[i].held for i in members]))


def _in_a_row(parts: list[Array]) -> Array:
    """The silos' groups in one array, with zeros where a silo has fewer features than another."""
    width = max(part.shape[-1] for part in parts)
    room = [[(0, 0)] * (part.ndim - 1) + [(0, width - part.shape[-1])] for part in parts]
    return jnp.concatenate([jnp.pad(part, spare) for part, spare in zip(parts, room, strict=True)])


def _features(table: Array | None, groups: GroupedRows, hub: Array) -> Array:
    """``[L, P, D]``."""
    rows: Array = groups.rows if table is None else table[groups.rows]
    return rows.astype(hub.dtype)


def _scores(clients: Array, hubs: Array, features: Array) -> Array:
    """``[L, G + 1, C, P]``: every row's phi under every client of its group, and under the hub's block."""
    blocks = jnp.concatenate([clients, hubs], axis=1)
    groups, size, outputs, width = blocks.shape
    # One axis for all blocks of a group: with more of them the features would be copied into another order.
    scores = jnp.einsum("lbd,lpd->lbp", blocks.reshape(groups, size * outputs, width), features)
    return scores.reshape(groups, size, outputs, -1)


def _projected(phi_others: Array, groups: GroupedRows) -> Array:
    """``[L, P, C]`` of the groups' rows, from ``[1, B, C]``."""
    if groups.positions is None:
        return phi_others
    positions = groups.positions.reshape(1, -1)
    return algorithm.project(phi_others, positions).reshape(*groups.positions.shape, -1)
