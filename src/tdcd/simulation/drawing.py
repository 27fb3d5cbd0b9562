"""Minibatches drawn on the device: the ids of :mod:`tdcd.core.schedule`, bit for bit, where they are needed.

The host needs longer to draw a large minibatch than an accelerator needs to step on it.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tdcd.core.schedule import draws_for

PLACES_AT_ONCE = 1 << 26
"""About the most numbers that are in memory at a time to find out where each sample was drawn first."""
MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
KEY_STEPS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
HALF = np.uint64(32)
LOW = np.uint64(0xFFFFFFFF)


def draw_ids(seed: int, first_round: int, *, rounds: int, count: int, size: int, num_samples: int) -> Array | None:
    """``[rounds, count, size]``: what :func:`tdcd.core.schedule.batch_ids` gives for rounds from ``first_round`` on.

    It takes minibatches of at most a quarter of the samples.

    Returns:
        None if a round's draws fell short, which hardly ever happens: the host draws such rounds from more.
    """
    with jax.enable_x64(True):
        ids, enough = _draw(
            np.uint64(seed), np.uint64(first_round), rounds=rounds, count=count, size=size, num_samples=num_samples
        )
        return ids if bool(enough) else None


@partial(jax.jit, static_argnames=("rounds", "count", "size", "num_samples"))
def _draw(
    seed: Array, first_round: Array, *, rounds: int, count: int, size: int, num_samples: int
) -> tuple[Array, Array]:
    """The ids, and whether there were enough draws for all of them."""

    def one_round(index: Array) -> tuple[Array, Array]:
        raw = philox(seed, index, count * draws_for(size))
        draws = (raw % np.uint64(num_samples)).astype(np.int32).reshape(count, -1)
        return jax.vmap(partial(first_distinct, size=size, num_samples=num_samples))(draws)

    at_once = max(1, PLACES_AT_ONCE // (count * num_samples))
    ids, distinct = jax.lax.map(one_round, first_round + jnp.arange(rounds, dtype=np.uint64), batch_size=at_once)
    return ids, (distinct >= size).all()


def philox(seed: Array, stream: Array, size: int) -> Array:
    """The first ``size`` raw draws of NumPy's ``Philox(key=[seed, stream])``: Philox 4x64 with ten rounds.

    Salmon, Moraes, Dror and Shaw, *Parallel random numbers: as easy as 1, 2, 3* (2011).
    """
    # NumPy counts up before it uses the counter.
    counter = jnp.arange(1, -(-size // 4) + 1, dtype=np.uint64)
    words, keys = [counter, *[jnp.zeros_like(counter)] * 3], [seed, stream]
    for _ in range(10):
        (high0, low0), (high1, low1) = _product(MULTIPLIERS[0], words[0]), _product(MULTIPLIERS[1], words[2])
        words = [high1 ^ words[1] ^ keys[0], low1, high0 ^ words[3] ^ keys[1], low0]
        keys = [key + np.uint64(step) for key, step in zip(keys, KEY_STEPS, strict=True)]
    return jnp.stack(words, axis=1).reshape(-1)[:size]


def _product(factor: int, number: Array) -> tuple[Array, Array]:
    """The upper and the lower 64 bits of a product of two numbers of 64 bits."""
    high, low = np.uint64(factor >> 32), np.uint64(factor) & LOW
    upper, lower = number >> HALF, number & LOW
    inner, outer = high * lower, low * upper
    carried = ((low * lower) >> HALF) + (inner & LOW) + (outer & LOW)
    return high * upper + (inner >> HALF) + (outer >> HALF) + (carried >> HALF), np.uint64(factor) * number


def first_distinct(draws: Array, *, size: int, num_samples: int) -> tuple[Array, Array]:
    """The first ``size`` distinct values of ``draws`` ``[W]``, and how many distinct ones there are."""
    order = jnp.arange(len(draws), dtype=np.int32)
    first = jnp.full(num_samples, len(draws), np.int32).at[draws].min(order)
    # A draw is new if it is where its value was drawn first.
    is_new = first[draws] == order
    rank = jnp.cumsum(is_new, dtype=np.int32)
    place = jnp.where(is_new, rank - 1, size)
    return jnp.zeros(size, np.int32).at[place].set(draws, mode="drop"), rank[-1]
