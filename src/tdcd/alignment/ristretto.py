"""The group ristretto255: ids become points, and points are multiplied with a secret scalar.

Its order is prime, and every point has one encoding, so that equal points are equal bytes. libsodium does the
arithmetic, outside Python's lock: threads run in parallel.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha512
from importlib import import_module
from os import cpu_count
from typing import Any, TypeVar

import numpy as np

from tdcd.alignment.messages import ByteRows

POINT_BYTES = 32
_CHUNK = 500
_DOMAIN = b"tdcd alignment 1: ristretto255\0"

Advance = Callable[[int], None]
Item = TypeVar("Item")


def random_scalar() -> bytes:
    """A secret scalar, uniform over 1 .. order - 1. To be used for one alignment and forgotten."""
    scalar: bytes = _rbcl().crypto_core_ristretto255_scalar_random()
    return scalar


def hash_to_points(ids: Sequence[str], *, workers: int | None = None) -> ByteRows:
    """A point for each id, ``[n, 32]``: SHA-512 of a fixed prefix and the id, mapped to the group.

    No party knows how the points of two ids are related, which is what blinding relies on.
    """
    from_hash = _rbcl().crypto_core_ristretto255_from_hash
    return _points(lambda name: from_hash(sha512(_DOMAIN + name.encode()).digest()), ids, workers)


def blind(points: ByteRows, scalar: bytes, *, workers: int | None = None, advance: Advance | None = None) -> ByteRows:
    """Each of ``points`` times ``scalar``, in the same order: ``[n, 32]``.

    Blinding commutes: a (b P) = b (a P). The points must be valid, see :func:`first_invalid`.

    Args:
        workers: threads; by default one a processor.
        advance: called with the number of points, chunk by chunk, as they are done.
    """
    multiply = _rbcl().crypto_scalarmult_ristretto255
    return _points(lambda point: multiply(scalar, point), _encodings(points), workers, advance)


def first_invalid(points: ByteRows) -> int | None:
    """The row of the first that is not the encoding of a group element, or is that of the identity."""
    is_valid = _rbcl().crypto_core_ristretto255_is_valid_point
    identity = bytes(POINT_BYTES)
    return next((row for row, p in enumerate(_encodings(points)) if p == identity or not is_valid(p)), None)


def _encodings(points: ByteRows) -> list[bytes]:
    return [row.tobytes() for row in points]


def _points(
    make: Callable[[Item], bytes], items: Sequence[Item], workers: int | None, advance: Advance | None = None
) -> ByteRows:
    chunks = (items[start : start + _CHUNK] for start in range(0, len(items), _CHUNK))
    points = bytearray()
    with ThreadPoolExecutor(workers or cpu_count()) as pool:
        for made in pool.map(lambda chunk: b"".join(map(make, chunk)), chunks):
            points += made
            if advance is not None:
                advance(len(made) // POINT_BYTES)
    return np.frombuffer(bytes(points), np.uint8).reshape(-1, POINT_BYTES)


def _rbcl() -> Any:
    """Imported at first use: it takes a moment, and most commands do without it."""
    return import_module("rbcl")
