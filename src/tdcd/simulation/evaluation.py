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
from tdcd.core.objective import Objective, Tree


@partial(jax.jit, static_argnames=("rows", "blocks", "several"))
def scores(
    hub_blocks: list[Tree], features: list[Array], begin: Array, *, rows: int, blocks: tuple[Block, ...], several: bool
) -> Array:
    """The summed phi of all silos, for ``rows`` samples from ``begin`` on; ``[S, rows, C]`` of ``several`` runs."""
    dtype = jax.tree.leaves(hub_blocks)[0].dtype
    parts = [jax.lax.dynamic_slice_in_dim(part, begin, rows).astype(dtype)[None] for part in features]

    def one(hub_blocks: list[Tree]) -> Array:
        phis = [
            algorithm.phi(block, part, apply=phi_in_portions(model))[0]
            for model, block, part in zip(blocks, hub_blocks, parts, strict=True)
        ]
        return sum(phis[1:], start=phis[0])

    return jax.vmap(one)(hub_blocks) if several else one(hub_blocks)


@partial(jax.jit, static_argnames=("objective",))
def losses(scores: Array, labels: Array, *, objective: Objective) -> Array:
    """The loss of every sample, of every run."""
    return objective.losses(scores, jnp.broadcast_to(labels, scores.shape[:-1]))


def penalties(hub_blocks: list[Tree], objectives: Sequence[Objective]) -> list[float]:
    """The regulariser of every run's model, from its hub blocks."""
    if len(objectives) == 1:
        return [sum(float(objectives[0].penalty(block)) for block in hub_blocks)]
    l2 = np.array([objective.l2 for objective in objectives])
    halves: Any = l2 * np.asarray(_half_squares(hub_blocks), np.float64)
    return [float(half) for half in halves]


@jax.jit
def _half_squares(hub_blocks: list[Tree]) -> Array:
    """``[S]``: half the sum of a run's squared parameters."""
    return jax.vmap(lambda blocks: Objective(l2=1.0).penalty(blocks))(hub_blocks)
