"""Secure aggregation: what hubs add up in fixed point, with masks that cancel in the sum.

Each two members of a group draw the same numbers; one adds them and the other takes them away.
"""

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from tdcd.core.codecs.fixed_point import FixedPoint, beyond
from tdcd.runtime.certificates.agreement import derive
from tdcd.runtime.job import IncompatibleParties

What = Literal["phi", "train", "test", "prediction", "block", "witness", "gradient", "products", "step_products"]
_WHAT: dict[What, int] = {
    "phi": 0,
    "train": 1,
    "test": 2,
    "prediction": 3,
    "block": 4,
    "witness": 5,
    "gradient": 6,
    "products": 7,
    "step_products": 8,
}
_KEPT = 8
FixedSteps = NDArray[np.uint32]


class Masks:
    """The masks of one member of a group."""

    def __init__(self, own: str, secrets: Mapping[str, bytes], group: Sequence[str], run: str) -> None:
        """Take the secrets that ``own`` shares with each other member, and all members in an order that all know."""
        place = group.index(own)
        self._purposes = ("tdcd masks", run, *group)
        self._secrets = [(secrets[member], place < other) for other, member in enumerate(group) if member != own]
        self.past: Callable[[What, int], str] = lambda what, round_index: ""
        """What masks of a round follow from, next to keys: what was sent before, which all members know alike."""
        self._mask = lru_cache(maxsize=_KEPT)(self._draw)

    def of(self, what: What, round_index: int, shape: tuple[int, ...], after: str = "") -> FixedSteps:
        """This member's mask; over all members, masks add up to zero modulo 2^32.

        Args:
            after: a digest of what else was sent before, in the same round.
        """
        return self._mask(what, round_index, shape, self.past(what, round_index) + after)

    def _draw(self, what: What, round_index: int, shape: tuple[int, ...], past: str) -> FixedSteps:
        nonce = struct.pack("<IIq", 0, _WHAT[what], round_index)
        zeros, mask = bytes(4 * math.prod(shape)), np.zeros(shape, np.uint32)
        for secret, is_added in self._secrets:
            key = derive(secret, *self._purposes, *([past] if past else []))
            stream = Cipher(algorithms.ChaCha20(key, nonce), mode=None).encryptor().update(zeros)
            drawn: Any = np.frombuffer(stream, "<u4").reshape(shape)
            mask = mask + drawn if is_added else mask - drawn
        return mask


_NAMES: dict[What, str] = {
    "phi": "phi",
    "train": "a score in an evaluation",
    "test": "a score in an evaluation",
    "prediction": "a score of the new rows",
    "witness": "a score in a certificate",
}


class Sums:
    """One hub's part in sums, and the sums."""

    def __init__(self, fixed: FixedPoint, dtype: str, hub: str, masks: Masks | None = None) -> None:
        """Take the hub's masks; None where nothing is hidden, or where the hub's own part is not sent."""
        self._fixed, self._dtype, self._hub, self._masks = fixed, dtype, hub, masks

    def follow(self, past: Callable[[What, int], str]) -> None:
        """Let the masks follow from the past, too."""
        if self._masks is not None:
            self._masks.past = past

    def _mask(self, what: What, round_index: int, shape: tuple[int, ...], after: str = "") -> Any:
        return np.uint32(0) if self._masks is None else self._masks.of(what, round_index, shape, after)

    def part(self, what: What, round_index: int, numbers: NDArray[Any], after: str = "") -> FixedSteps:
        """This hub's part, as it is sent; numbers beyond the range stop the run."""
        largest = float(np.max(np.abs(numbers), initial=0))
        if not largest <= self._fixed.largest:
            raise IncompatibleParties(beyond(f"{self._hub}: {_NAMES[what]}", largest, self._fixed.largest))
        return self.hidden(what, round_index, self._fixed.steps(numbers), after)

    def hidden(self, what: What, round_index: int, steps: FixedSteps, after: str = "") -> FixedSteps:
        """Whole numbers with the hub's mask, as they are sent."""
        masked: FixedSteps = steps + self._mask(what, round_index, steps.shape, after)
        return masked

    def own(self, what: What, round_index: int, part: FixedSteps) -> NDArray[Any]:
        """This hub's own numbers, from its part."""
        return self._numbers(part - self._mask(what, round_index, part.shape))

    def others(self, what: What, round_index: int, parts: Sequence[FixedSteps]) -> NDArray[Any]:
        """The sum of the other hubs' numbers, from their parts: what is left of their masks is this hub's."""
        return self._numbers(add_steps(parts) + self._mask(what, round_index, parts[0].shape))

    def all(self, parts: Sequence[FixedSteps]) -> NDArray[Any]:
        """The sum of all hubs' numbers, from all parts."""
        return self._numbers(add_steps(parts))

    def exact(self, parts: Sequence[FixedSteps]) -> NDArray[np.float64]:
        """The sum of all hubs' numbers, as exact as fixed point has them."""
        return np.asarray(self._fixed.numbers(add_steps(parts), np.float64))

    def _numbers(self, steps: FixedSteps) -> NDArray[Any]:
        return np.asarray(self._fixed.numbers(steps, self._dtype))


def add_steps(parts: Sequence[FixedSteps]) -> FixedSteps:
    """The sum modulo 2^32."""
    total: FixedSteps = sum(parts[1:], start=parts[0])
    return total
