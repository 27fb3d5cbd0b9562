"""Powers of two that bring numbers into the range of float16, where scaling by them rounds nothing."""

import jax
import jax.numpy as jnp
from jax import Array

TOP, MOST = 15, 60
"""Scaled numbers stay below 2 ** ``TOP``; no scale is beyond 2 ** ``MOST``, so that two of them can be multiplied."""


def scale_for(bound: Array) -> Array:
    """The power of two that brings numbers up to ``bound`` below 2 ** TOP, which float16 still has.

    >>> scale_for(jnp.float32(3.0)), scale_for(jnp.float32(0.0)) == 2.0**MOST
    (Array(8192., dtype=float32), Array(True, dtype=bool))
    """
    # A float32's exponent is in its bits; one of b says that the number is below 2 ** (b - 126).
    exponent = jax.lax.bitcast_convert_type(bound.astype(jnp.float32), jnp.int32) >> 23
    return jax.lax.bitcast_convert_type(jnp.clip(127 + TOP + 126 - exponent, 1, 127 + MOST) << 23, jnp.float32)


def largest(array: Array) -> Array:
    """The largest magnitude."""
    return jnp.max(jnp.abs(array))


def scaled(array: Array, scale: Array) -> Array:
    """As float16, times a scale."""
    return (array * scale).astype(jnp.float16)
