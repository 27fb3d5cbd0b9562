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

from tdcd.core.codecs.codec import Sending
from tdcd.core.codecs.fixed_point import FixedBlocks
from tdcd.core.objective import Tree
from tdcd.core.round import Round
from tdcd.federation.silos import Silo


def start_largest(flows: Round, dtype: str) -> Any:
    """``[2, N]``: the largest magnitudes of phi, or of slopes if those are encrypted, and of blocks before round 0;
    ``()`` where no form has a range.
    """
    return np.zeros((2, flows.num_silos), dtype) if any(form is not None for form in flows.bounded) else ()


def magnitudes_of(blocks: Tree) -> Array:
    """``[K]``: the largest magnitude in each client's block; not finite if one is not."""
    each = [jnp.max(jnp.abs(leaf).reshape(len(leaf), -1), axis=1, initial=0) for leaf in jax.tree.leaves(blocks)]
    return jnp.max(jnp.stack(each), axis=0)


def add_parts(exchange: FixedBlocks, blocks: Tree, before: Tree, shares: Array, sendings: Sending) -> Tree:
    """The sum of what the clients' blocks ``[K, ...]`` add to the average, in steps.

    Args:
        before: the block that they began with.
        sendings: with the clients' streams ``[K]``.
    """

    def part(block: Tree, share: Array, stream: Array) -> Tree:
        return exchange.contribution(block, before, share, sendings._replace(stream=stream), len(shares))

    parts = jax.vmap(part)(blocks, shares, sendings.stream)
    return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0, dtype=jnp.uint32), parts)


def in_range(summed: Tree, magnitudes: Any, exchange: FixedBlocks | None) -> Tree:
    """The average from a sum of steps, not a number if a block is beyond the range; as it is without fixed point."""
    if exchange is None:
        return summed
    fits = jnp.all(exchange.fits(magnitudes))
    average = exchange.average(summed, magnitudes.dtype)
    return jax.tree.map(lambda leaf: jnp.where(fits, leaf, math.nan), average)


def track_largest(before: Any, phis: Sequence[Array], magnitudes: Sequence[Any]) -> Any:
    """The largest magnitudes so far, if they are kept; what is not finite does not count: that diverged."""
    if not jax.tree.leaves(before):
        return before

    def largest(numbers: Any) -> Array:
        return jnp.max(jnp.where(jnp.isfinite(numbers), jnp.abs(numbers), 0), initial=0)

    blocks = [largest(jnp.asarray(magnitude, before.dtype)) for magnitude in magnitudes]
    return jnp.maximum(before, jnp.stack([jnp.stack([largest(phi) for phi in phis]), jnp.stack(blocks)]))


def check_largest(flows: Round, silos: Sequence[Silo], largest: Any) -> None:
    """Stop a run whose numbers were beyond the range: what followed from that is of no use.

    Args:
        largest: ``[..., 2, N]``, the largest magnitudes of phi and of blocks.
    """
    magnitudes = np.asarray(largest).reshape(-1, 2, len(silos)).max(axis=0)
    for form, each in zip(flows.bounded, magnitudes, strict=True):
        for silo, number in zip(silos, each, strict=True):
            if form is not None:
                form.check(f"silo '{silo.name}'", float(number))


def check_features(flows: Round, silos: Sequence[Silo], tables: Sequence[NDArray[Any]]) -> None:
    """Refuse features that are too large to be multiplied by encrypted slopes."""
    form = flows.encrypted
    for index, (silo, table) in enumerate(zip(silos, tables, strict=True)):
        if form is not None and flows.scored_at(index) != index:
            form.check_features(f"silo '{silo.name}'", largest_finite(table))


def largest_finite(numbers: NDArray[Any]) -> float:
    """The largest magnitude, of those that are finite."""
    return float(np.max(np.abs(numbers), where=np.isfinite(numbers), initial=0))
