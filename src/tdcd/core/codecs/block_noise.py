r"""Gaussian noise on what clients' blocks changed, of which a hub sees only the sum.

Clients' blocks are added up in fixed point, under masks. What a client's steps changed of the sum, its change times its
part of the rows, is scaled down to norm :math:`c / K` if it is longer, K the clients of the silo, and each client adds
noise of deviation :math:`\sigma c / (K \sqrt{K - 1})` to each of its numbers. So the sum is the plain mean of clipped
changes plus noise of variance :math:`\frac{K}{K - 1} (\sigma c / K)^2`; and a client that takes its own noise off the
sum, alone or together with the hub, still has that of K - 1 others before it, of variance :math:`(\sigma c / K)^2`.

**What is counted.** Another change in a client's place moves the sum by 2c / K at most, whatever its part of the rows,
so that the sum of a round is a Gaussian mechanism of noise multiplier :math:`\sigma / 2`, as a message of
:class:`~tdcd.core.codecs.noise.GaussianNoise` is, and n rounds are one of :math:`\sigma / (2 \sqrt n)`. The number is
for a client's changes by given blocks that it started from; what its rows say otherwise is not counted.

Everything is in whole steps of fixed point: the change is the difference of two whole numbers, a longer one is cut
towards zero, and noise is the sum of four normal numbers, each rounded to a whole step. Noise follows from a secret of
the client and from what it hides: a client that comes back sends the same bytes for the same change, and another change
of the same round gets other noise.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from tdcd.core.codecs.codec import Sending
from tdcd.core.codecs.fixed_point import FixedBlocks, FixedPoint
from tdcd.core.codecs.noise import GaussianNoise
from tdcd.core.lazy import Array, jax, jnp
from tdcd.core.objective import Tree
from tdcd.core.trees import leaves_of, like, map_tree

_DRAWS = 4
"""Normal numbers that are added up."""
_IN_DEVIATION = 64
"""Steps of fixed point in a deviation of a client's noise, at least."""
_IN_RANGE = 16
"""Deviations of the noise of the sum for which there is room, at least."""
_BITS, _CHUNK = 14, 2**16


@dataclass(frozen=True)
class NoisyBlocks(FixedBlocks):
    """Clients' blocks as they are added up, with clipped changes and noise; ``block_exchange`` of a variant."""

    noise: GaussianNoise = GaussianNoise(1.0, 0.0)  # noqa: RUF009  (frozen)
    """c, sigma and delta."""
    takes_numpy: ClassVar[bool] = False
    covered_as: ClassVar[tuple[str, ...]] = ()

    @cached_property
    def fixed(self) -> FixedPoint:
        """With room for noise: as much as for the block."""
        return FixedPoint(self.largest, terms=2)

    def epsilon(self, messages: int) -> float | None:
        """What so many blocks of a client have spent of its changes; None if there is no noise."""
        return self.noise.epsilon(messages)

    def check_room(self, num_clients: int) -> None:
        """Refuse noise that is finer than a step, or that sums have no room for.

        >>> NoisyBlocks(256.0, GaussianNoise(1e-4, 1.0)).check_room(3)
        Traceback (most recent call last):
        ValueError: a deviation of a client's noise is 49.4 steps of fixed point, and at least 64 are needed: lower \
exchange.mask_range
        """
        deviation = self._deviation(num_clients)
        if 0 < deviation < _IN_DEVIATION:
            raise ValueError(
                f"a deviation of a client's noise is {deviation:.3g} steps of fixed point, and at least "
                f"{_IN_DEVIATION} are needed: lower exchange.mask_range"
            )
        of_sum = self.noise.deviation / math.sqrt(num_clients * (num_clients - 1))
        if _IN_RANGE * of_sum > self.largest:
            raise ValueError(
                f"the deviation of the noise of a sum is {of_sum:.3g}, and exchange.mask_range = {self.largest:g} has "
                f"room for {self.largest / _IN_RANGE:g}: take a larger epsilon, fewer rounds or a smaller clip"
            )

    def _deviation(self, num_clients: int) -> float:
        """The standard deviation of a client's noise, in steps."""
        return self.noise.deviation * 2.0**self.fixed.bits / (num_clients * math.sqrt(num_clients - 1))

    def contribution(self, block: Tree, before: Tree, share: Any, sending: Sending, num_clients: int) -> Tree:
        """What a client adds to the sum, in JAX: see :meth:`FixedBlocks.contribution`."""
        most = self.largest
        base = map_tree(lambda leaf: self.fixed.steps(jnp.clip(leaf, -most, most) * share), before)
        changes = [
            (part - start).astype(jnp.int32)
            for part, start in zip(leaves_of(self.part(block, share)), leaves_of(base), strict=True)
        ]
        limit = math.floor(self.noise.clip / num_clients * 2.0**self.fixed.bits)
        clipped = _clipped(changes, limit)
        deviation = self._deviation(num_clients)
        if deviation:
            flat = jnp.concatenate([leaf.ravel() for leaf in clipped])
            drawn = jax.random.normal(sending.private_key(flat), (_DRAWS, len(flat)), jnp.float32)
            added = jnp.round(drawn * np.float32(deviation / math.sqrt(_DRAWS))).astype(jnp.int32).sum(axis=0)
            ends = np.cumsum([leaf.size for leaf in clipped])[:-1]
            parts = jnp.split(flat + added, ends)
            clipped = [part.reshape(leaf.shape) for part, leaf in zip(parts, clipped, strict=True)]
        return map_tree(lambda start, change: start + change.astype(jnp.uint32), base, like(base, clipped))


def _clipped(changes: Sequence[Array], limit: int) -> list[Array]:
    """Whole numbers that are scaled down, towards zero, to a norm of at most ``limit``; the same in any order."""
    norm = _norm(changes)
    factor = jnp.minimum(np.float32(1), np.float32(limit) / jnp.maximum(norm, np.float32(1)))
    shorter = [jnp.trunc(change.astype(jnp.float32) * factor).astype(jnp.int32) for change in changes]
    return [jnp.where(norm > np.float32(limit), short, change) for short, change in zip(shorter, changes, strict=True)]


def _norm(changes: Sequence[Array]) -> Array:
    """The norm of whole numbers or a little more: sums of floats would depend on their order, and so on the program.

    Numbers are rounded up to 14 bits, and their squares are added up as whole numbers, in parts that fit into 32 bits.
    """
    flat = jnp.concatenate([jnp.abs(change).astype(jnp.uint32).ravel() for change in changes])
    largest = jnp.max(flat)
    shift = sum((largest >> place > 0).astype(jnp.uint32) for place in range(_BITS, 32))
    step = jnp.left_shift(jnp.uint32(1), shift)
    squares = ((flat + (step - 1)) >> shift) ** 2
    total = jnp.float32(0)
    for place in (0, 16):
        part = (squares >> place) & 0xFFFF
        chunks = jnp.pad(part, (0, -len(part) % _CHUNK)).reshape(-1, _CHUNK).sum(axis=1, dtype=jnp.uint32)
        low, high = (chunks & 0xFFFF).sum(dtype=jnp.uint32), (chunks >> 16).sum(dtype=jnp.uint32)
        total += low.astype(jnp.float32) * 2.0**place + high.astype(jnp.float32) * 2.0 ** (place + 16)
    norm: Array = jnp.sqrt(total) * step.astype(jnp.float32)
    return norm


def noisy_blocks(exchange: Any) -> NoisyBlocks | None:
    """The noise on blocks of an exchange, if it adds any."""
    return exchange if isinstance(exchange, NoisyBlocks) else None
