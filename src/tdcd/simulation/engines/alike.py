"""Silos that are alike: the same model on rows of the same shape, so that their clients can step as one batch."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tdcd.blocks.base import Block
from tdcd.core.objective import Tree
from tdcd.core.variant import Variant
from tdcd.simulation.engines.clients_layout import Own, Shared


def alike(models: Sequence[Block], variant: Variant, shared: Shared, own: Own) -> list[tuple[int, ...]]:
    """The silos in batches: those of one have equal models, periods and numbers of clients, rows and features."""
    batches: dict[Any, tuple[int, ...]] = {}
    tables = shared.features or [placement.rows for placement in own.placements]
    for silo, (model, features, placement) in enumerate(zip(models, tables, own.placements, strict=True)):
        # A client's loss depends on the silo where only one has labels.
        apart = None if variant.knowledge.are_labels_everywhere else silo
        period = variant.timing.period(silo)
        shape = (features.shape[1:], features.dtype, placement.positions.shape)
        key = (model, shape, period, apart)
        batches[key] = (*batches.get(key, ()), silo)
    return list(batches.values())


def in_one_batch(steps: Callable[..., Tree], ready: Sequence[tuple[Any, ...]]) -> list[Tree]:
    """What ``steps`` makes of each silo's arguments, computed for all of them at once."""
    if len(ready) == 1:
        return [steps(*ready[0])]
    stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *ready)
    stepped = jax.vmap(steps)(*stacked)
    return [jax.tree.map(lambda leaf, silo=silo: leaf[silo], stepped) for silo in range(len(ready))]
