"""The range of fixed point in a simulation: what the largest numbers were, and whose were beyond it."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from tdcd.core.fixed_point import BeyondRangeError, FixedPoint, beyond
from tdcd.core.variant import Variant
from tdcd.federation.silos import Silo


def fixed_point_of(variant: Variant) -> FixedPoint | None:
    """How hubs add phi up, if that is in fixed point."""
    return variant.exchange if isinstance(variant.exchange, FixedPoint) else None


def track_largest(before: Any, phis: Sequence[Array]) -> Any:
    """``[N]``: the largest magnitudes so far, if they are kept; what is not finite does not count: that diverged."""
    if not jax.tree.leaves(before):
        return before
    now = [jnp.max(jnp.where(jnp.isfinite(phi), jnp.abs(phi), 0), initial=0) for phi in phis]
    return jnp.maximum(before, jnp.stack(now))


def check_largest(fixed: FixedPoint, silos: Sequence[Silo], largest: Any) -> None:
    """Stop a run whose phi was beyond the range: what followed from that is of no use.

    Args:
        largest: ``[..., N]``, the largest magnitudes.
    """
    for silo, found in zip(silos, np.asarray(largest).reshape(-1, len(silos)).max(axis=0), strict=True):
        if found > fixed.largest:
            raise BeyondRangeError(beyond(f"silo '{silo.name}': phi", float(found), fixed.largest))


def largest_finite(numbers: NDArray[Any]) -> float:
    """The largest magnitude, of those that are finite."""
    return float(np.max(np.abs(numbers), where=np.isfinite(numbers), initial=0))
