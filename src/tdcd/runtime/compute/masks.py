"""Masks that cancel: each two members of a group draw the same numbers, one adds them and the other takes them away.

The numbers are a key stream of ChaCha20. Its key follows from the secret that the two share, the run and the whole
group; its nonce from what is masked and the round. A member that was restarted draws the same stream again. It then
hides the same numbers, which follow from the same state. :mod:`tdcd.runtime.protocol.client_masks` refuses to use one
stream for others; but a process that was restarted does not know what it sent before.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from tdcd.runtime.certificates.agreement import derive

What = Literal["phi", "train", "test", "prediction", "block"]
_WHAT: dict[What, int] = {"phi": 0, "train": 1, "test": 2, "prediction": 3, "block": 4}
_KEPT = 8

Steps = NDArray[np.uint32]


class Masks:
    """The masks of one member of a group."""

    def __init__(self, own: str, secrets: Mapping[str, bytes], group: Sequence[str], run: str) -> None:
        """Take the secrets that ``own`` shares with each other member, and all members in an order that all know."""
        place = group.index(own)
        self._streams = [
            (derive(secrets[member], "tdcd masks", run, *group), place < other)
            for other, member in enumerate(group)
            if member != own
        ]
        self._mask = lru_cache(maxsize=_KEPT)(self._draw)

    def of(self, what: What, round_index: int, shape: tuple[int, ...]) -> Steps:
        """This member's mask; over all members, masks add up to zero modulo 2^32."""
        return self._mask(what, round_index, shape)

    def _draw(self, what: What, round_index: int, shape: tuple[int, ...]) -> Steps:
        nonce = struct.pack("<IIq", 0, _WHAT[what], round_index)
        zeros, mask = bytes(4 * math.prod(shape)), np.zeros(shape, np.uint32)
        for key, is_added in self._streams:
            stream = Cipher(algorithms.ChaCha20(key, nonce), mode=None).encryptor().update(zeros)
            drawn: Any = np.frombuffer(stream, "<u4").reshape(shape)
            mask = mask + drawn if is_added else mask - drawn
        return mask
