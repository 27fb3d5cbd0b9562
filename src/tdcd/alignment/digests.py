"""Keyed digests of ids, for parties that trust each other."""

import hmac
from collections.abc import Sequence

import numpy as np

from tdcd.alignment.messages import Rows

DIGEST_BYTES = 16


def keyed_digests(ids: Sequence[str], secret: bytes) -> Rows:
    """HMAC-SHA256(secret, id), the first 16 bytes of each: ``[n, 16]``.

    Two of n different ids share a digest with probability about n^2 / 2^129.
    """
    digests = b"".join(hmac.digest(secret, name.encode(), "sha256")[:DIGEST_BYTES] for name in ids)
    return np.frombuffer(digests, np.uint8).reshape(-1, DIGEST_BYTES)
