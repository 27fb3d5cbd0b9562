"""The compiled evaluation of global models: scores, losses and regularisers, of one run or of several at once."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tdcd.blocks.activations import phi_in_portions
from tdcd.blocks.base import Block
from tdcd.core import algorithm
from tdcd.core.codecs.fixed_point import FixedPoint
from tdcd.core.objective import Objective, Tree


@partial(jax.jit, static_argnames=("rows", "blocks", "is_batch", "fixed"))
def scores(
    hub_blocks: list[Tree],
    features: list[Array],
    begin: Array,
    *,
    rows: int,
    blocks: tuple[Block, ...],
    is_batch: bool,
    fixed: FixedPoint | None = None,
) -> Array:
    """The summed phi of all silos, for ``rows`` samples from ``begin`` on; ``[S, rows, C]`` of ``several`` runs.

    Hubs that add phi up in ``fixed`` point do so here too.
    """
    dtype = jax.tree.leaves(hub_blocks)[0].dtype
    parts = [jax.lax.dynamic_slice_in_dim(part, begin, rows).astype(dtype)[None] for part in features]

    def of_run(hub_blocks: list[Tree]) -> Array:
        phis = [
            algorithm.phi(block, part, apply=phi_in_portions(model))[0]
            for model, block, part in zip(blocks, hub_blocks, parts, strict=True)
        ]
        return sum(phis[1:], start=phis[0]) if fixed is None else fixed.sum(phis)

    return jax.vmap(of_run)(hub_blocks) if is_batch else of_run(hub_blocks)


@partial(jax.jit, static_argnames=("objective",))
def losses(scores: Array, labels: Array, *, objective: Objective) -> Array:
    """The loss of every sample, of every run."""
    return objective.losses(scores, jnp.broadcast_to(labels, scores.shape[:-1]))


def penalties(hub_blocks: list[Tree], objectives: Sequence[Objective]) -> list[float]:
    """The regulariser of every run's model, from its hub blocks."""
    if len(objectives) == 1:
        return [sum(_penalties(hub_blocks, objectives[0].l2))]
    l2 = np.array([objective.l2 for objective in objectives])
    halves: Any = l2 * np.asarray(_half_squares(hub_blocks), np.float64)
    return [float(half) for half in halves]


def _penalties(hub_blocks: list[Tree], l2: float) -> list[float]:
    """The penalty of each block, to the last bit what :meth:`Objective.penalty` gives outside of a compiled program."""
    # Compiled as one, a square and a sum would be rounded once only.
    sums = np.asarray(_sums(_squares(hub_blocks)))
    zero, half, rest = sums.dtype.type(0), sums.dtype.type(l2 / 2), iter(sums)
    # A run that diverges is reported as such, not by warnings.
    with np.errstate(all="ignore"):
        totals = [sum((next(rest) for _ in jax.tree.leaves(block)), zero) for block in hub_blocks]
        return [float(half * total) for total in totals]


@jax.jit
def _squares(hub_blocks: list[Tree]) -> list[Array]:
    return [leaf**2 for leaf in jax.tree.leaves(hub_blocks)]


@jax.jit
def _sums(squares: list[Array]) -> Array:
    return jnp.stack([jnp.sum(leaf) for leaf in squares])


@jax.jit
def _half_squares(hub_blocks: list[Tree]) -> Array:
    """``[S]``: half the sum of a run's squared parameters."""
    return jax.vmap(lambda blocks: Objective(l2=1.0).penalty(blocks))(hub_blocks)
