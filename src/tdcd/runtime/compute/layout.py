"""Where a round's samples are: at which client, and who lacks them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Layout(NamedTuple):
    """Which client holds which samples of a round's E minibatches, seen as one run of E * B samples."""

    places: list[NDArray[np.int64]]
    """Of each client: where its samples are."""
    slots: NDArray[np.int64]
    """``[1, E * B]``: where each sample is if the clients' rows follow one another."""


class Left(NamedTuple):
    """What is left of a round's minibatches for one client, if clients are absent."""

    absent: NDArray[np.uint8]
    """``[n]``: 1 for those of the client's rows that take no part."""
    present: NDArray[np.int32]
    """``[E]``: how many samples each minibatch still has."""
    rows: int
    """How many samples the silo's clients that take part hold."""


def mask_of(size: int, is_absent: Sequence[bool], places: Sequence[NDArray[np.int64]]) -> NDArray[np.uint8]:
    """1 for the samples of clients without an answer."""
    absent = np.zeros(size, np.uint8)
    for is_missing, place in zip(is_absent, places, strict=True):
        if is_missing:
            absent[place] = 1
    return absent
