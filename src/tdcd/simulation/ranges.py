"""Fixed point in a simulation: sums of clients' blocks, what the largest numbers were, and whose were beyond the range.

What is beyond the range makes blocks that are not a number, and the run is stopped before anybody uses them.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from tdcd.core.codecs.fixed_point import BeyondRangeError, FixedBlocks, beyond
from tdcd.core.objective import Tree
from tdcd.core.variant import Variant
from tdcd.federation.silos import Silo


def start_largest(variant: Variant, num_silos: int, dtype: str) -> Any:
    """``[2, N]``: the largest magnitudes of phi, or of slopes if those are encrypted, and of blocks before round 0;
    ``()`` without fixed point.
    """
    is_fixed = variant.summed_phi is not None or variant.summed_blocks is not None or variant.encrypted is not None
    return np.zeros((2, num_silos), dtype) if is_fixed else ()


def magnitudes_of(blocks: Tree) -> Array:
    """``[K]``: the largest magnitude in each client's block; not finite if one is not."""
    each = [jnp.max(jnp.abs(leaf).reshape(len(leaf), -1), axis=1, initial=0) for leaf in jax.tree.leaves(blocks)]
    return jnp.max(jnp.stack(each), axis=0)


def add_parts(exchange: FixedBlocks, blocks: Tree, shares: Array) -> Tree:
    """The sum of what the clients' blocks ``[K, ...]`` add to the average, in steps."""
    parts = jax.vmap(exchange.part)(blocks, shares)
    return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0, dtype=jnp.uint32), parts)


def in_range(summed: list[Tree], magnitudes: Sequence[Any], variant: Variant) -> list[Tree]:
    """Averages from sums of steps; as they are without fixed point, and not a number if a block is beyond the range."""
    exchange = variant.summed_blocks
    if exchange is None:
        return summed
    averages = []
    for total, largest in zip(summed, magnitudes, strict=True):
        fits = jnp.all(largest <= exchange.largest)
        average = exchange.average(total, largest.dtype)
        averages.append(jax.tree.map(lambda leaf, fits=fits: jnp.where(fits, leaf, math.nan), average))
    return averages


def track_largest(before: Any, phis: Sequence[Array], magnitudes: Sequence[Any]) -> Any:
    """The largest magnitudes so far, if they are kept; what is not finite does not count: that diverged."""
    if not jax.tree.leaves(before):
        return before

    def largest(numbers: Any) -> Array:
        return jnp.max(jnp.where(jnp.isfinite(numbers), jnp.abs(numbers), 0), initial=0)

    blocks = [largest(jnp.asarray(magnitude, before.dtype)) for magnitude in magnitudes]
    return jnp.maximum(before, jnp.stack([jnp.stack([largest(phi) for phi in phis]), jnp.stack(blocks)]))


def check_largest(variant: Variant, silos: Sequence[Silo], largest: Any) -> None:
    """Stop a run whose numbers were beyond the range: what followed from that is of no use.

    Args:
        largest: ``[..., 2, N]``, the largest magnitudes of phi and of blocks.
    """
    magnitudes = np.asarray(largest).reshape(-1, 2, len(silos)).max(axis=0)
    if variant.encrypted is not None:
        for silo, number in zip(silos, magnitudes[0], strict=True):
            variant.encrypted.check_slopes(f"silo '{silo.name}'", float(number))
    forms = (("phi", variant.summed_phi), ("a client's block", variant.summed_blocks))
    for (what, form), each in zip(forms, magnitudes, strict=True):
        for silo, number in zip(silos, each, strict=True):
            if form is not None and number > form.largest:
                raise BeyondRangeError(beyond(f"silo '{silo.name}': {what}", float(number), form.largest))


def check_features(variant: Variant, silos: Sequence[Silo], tables: Sequence[NDArray[Any]]) -> None:
    """Refuse features that are too large to be multiplied by encrypted slopes."""
    for index, (silo, table) in enumerate(zip(silos, tables, strict=True)):
        if variant.encrypted is None or variant.knowledge.scored_at(index) == index:
            continue
        variant.encrypted.check_features(f"silo '{silo.name}'", largest_finite(table))


def largest_finite(numbers: NDArray[Any]) -> float:
    """The largest magnitude, of those that are finite."""
    return float(np.max(np.abs(numbers), where=np.isfinite(numbers), initial=0))
