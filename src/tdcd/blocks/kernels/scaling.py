"""Numbers as float16, one or the sum of two, and powers of two that bring them into its range without rounding."""

import jax
import jax.numpy as jnp
from jax import Array

Halves = tuple[Array, ...]
"""Numbers as float16: 11 bits of each, or two arrays whose sum they are, 22 bits."""
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


def halved(number: Array, halves: int) -> Halves:
    """A float32 as the nearest float16 and, with two halves, another for what that leaves out.

    >>> one, rest = halved(jnp.float32(1 + 2**-12), 2)
    >>> float(one), float(rest) == 2**-12
    (1.0, True)
    """
    if halves == 1:
        return (number.astype(jnp.float16),)
    # Rounded among its bits, since a compiler may take a cast and its way back for nothing.
    bits = jax.lax.bitcast_convert_type(number, jnp.int32)
    nearest = jax.lax.bitcast_convert_type((bits + (1 << 12)) & ~((1 << 13) - 1), jnp.float32)
    return nearest.astype(jnp.float16), (number - nearest).astype(jnp.float16)


def scaled(array: Array, scale: Array, halves: int) -> Halves:
    """As float16, times a scale."""
    return halved(array * scale, halves)


def reshaped(array: Halves, *shape: int) -> Halves:
    """Every half in another shape."""
    return tuple(half.reshape(*shape) for half in array)
