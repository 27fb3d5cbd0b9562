"""Keyed permutations: which sample is at a place, and at which place a sample is, each without the others."""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

KEYS = 12
"""The keys of a permutation, one per round of its Feistel network: with 8, draws from ten samples are not uniform."""
STEP, FACTORS = np.uint64(0x9E3779B97F4A7C15), (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
HALF = np.uint64(32)


class Permutation(NamedTuple):
    r"""Permutations of ``range(size)``, one per row of keys, in time and memory of the places that are asked for.

    A place is two digits :math:`(l, r)` to the base :math:`a = \lceil\sqrt{M}\rceil`. A round with the key k is

    .. math:: (l, r) \leftarrow (r,\ l + F_k(r) \bmod a)

    with :math:`F_k(r)` number r of SplitMix64 with the seed k, scaled to :math:`[0, a)`. That permutes
    :math:`[0, a^2)`; what is outside of :math:`[0, M)` goes through the rounds again (Black and Rogaway, 2002).

    >>> shuffled = Permutation(10, np.arange(12, dtype=np.uint64)[None])
    >>> samples = shuffled.samples(np.arange(4)[None])
    >>> samples.tolist(), shuffled.places(samples).tolist()
    ([[1, 6, 3, 2]], [[0, 1, 2, 3]])
    """

    size: int
    keys: NDArray[np.uint64]
    """``[R, KEYS]``."""

    def samples(self, places: NDArray[Any]) -> NDArray[np.int64]:
        """``[R, B]``: the samples at these places of each permutation."""
        return self._walk(places, is_inverse=False)

    def places(self, samples: NDArray[Any]) -> NDArray[np.int64]:
        """``[R, B]``: the places of these samples in each permutation."""
        return self._walk(samples, is_inverse=True)

    def _walk(self, numbers: NDArray[Any], *, is_inverse: bool) -> NDArray[np.int64]:
        """Through the network until the numbers are within the size: hardly any leave it."""
        rows = np.broadcast_to(np.arange(len(self.keys))[:, None], numbers.shape)
        walked = self._network(numbers.astype(np.uint64), self.keys[:, None], is_inverse)
        while len(outside := np.flatnonzero(walked >= self.size)):
            walked.flat[outside] = self._network(walked.flat[outside], self.keys[rows.flat[outside]], is_inverse)
        return walked.astype(np.int64)

    def _network(self, numbers: NDArray[np.uint64], keys: NDArray[np.uint64], is_inverse: bool) -> NDArray[np.uint64]:
        base = np.uint64(math.isqrt(self.size - 1) + 1)
        left, right = np.divmod(numbers, base)
        if is_inverse:
            for key in reversed(range(KEYS)):
                left, right = (right + base - _scaled(keys[..., key], left, base)), left
                left -= np.where(left >= base, base, np.uint64(0))
        else:
            for key in range(KEYS):
                left, right = right, left + _scaled(keys[..., key], right, base)
                right -= np.where(right >= base, base, np.uint64(0))
        return left * base + right


def _scaled(key: NDArray[np.uint64], number: NDArray[np.uint64], base: np.uint64) -> NDArray[np.uint64]:
    """A number of SplitMix64 (Steele, Lea and Flood, 2014) with this seed, below ``base``."""
    mixed: NDArray[np.uint64] = key + (number + np.uint64(1)) * STEP
    mixed = (mixed ^ mixed >> np.uint64(30)) * FACTORS[0]
    mixed = (mixed ^ mixed >> np.uint64(27)) * FACTORS[1]
    mixed ^= mixed >> np.uint64(31)
    scaled: NDArray[np.uint64] = ((mixed >> HALF) * base) >> HALF
    return scaled
