"""How a client's rows of a round's minibatches are laid out."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class ClientRows(NamedTuple):
    """A client's rows of one round's minibatches."""

    places: NDArray[np.int64]
    """``[n]``: where its rows are among the E * P padded places; ordered by minibatch, then by place in it."""
    features: NDArray[Any]
    """``[E, P, ...]``; any row on padding."""
    labels: NDArray[Any]
    """``[E, P]``."""
    counts: NDArray[np.int32]
    """``[E]``: how many rows are not padding."""
    samples: NDArray[np.int64]
    """``[n]``: which of the round's E * B samples its rows are."""
    weights: NDArray[Any] | None = None
    """``[E, P]``: what each row weighs, if not all weigh the same."""
    kept: NDArray[np.bool_] | None = None
    """``[n]``: those that the silo is not dropped from; None if it always adds something."""
    rule: NDArray[Any] | None = None
    """``[E, P]``: :meth:`.LocalSteps.row_weights` of them; None to work it out when it is needed."""


class Presence(NamedTuple):
    """What is left of one round's minibatches when clients are absent."""

    rows: NDArray[np.bool_]
    """``[n]``: which of the client's rows take part."""
    left: ClientRows
    """Those rows."""
    sizes: NDArray[np.int32]
    """``[E]``: how many samples each minibatch still has, of all clients."""
    num_samples: int
    """How many samples the silo's clients that take part hold."""


def pad(rows: ClientRows, values: NDArray[Any]) -> NDArray[Any]:
    """``[E, P, C]``, from ``[n, C]``; zero on padding."""
    padded = np.zeros((rows.labels.size, values.shape[1]), values.dtype)
    padded[rows.places] = values
    return padded.reshape(*rows.labels.shape, -1)


def places_in(counts: NDArray[np.int32], width: int) -> NDArray[np.int64]:
    """Where rows are among the E * P padded places, if each minibatch's rows are the first of its P places."""
    starts = width * np.arange(len(counts)) - (np.cumsum(counts) - counts)
    found: NDArray[np.int64] = np.arange(counts.sum()) + np.repeat(starts, counts)
    return found


def flat(padded: NDArray[Any]) -> NDArray[Any]:
    """``[E, P, ...]`` as ``[E * P, ...]``."""
    return padded.reshape(-1, *padded.shape[2:])
