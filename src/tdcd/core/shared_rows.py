"""Rows that belong to many samples, such as the weather of an hour: their phi is computed and sent once.

A client has distinct rows, and an index that says which of them each of its samples has. Its hub has the same index: it
gathers the phi of samples from that of rows, and sums what goes back for samples by rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from tdcd.core.combine import Combine
from tdcd.core.settings import Settings

Index = NDArray[np.int64]
"""``[n]``: which of a client's distinct rows each of its samples has."""


def distinct(rows: NDArray[Any], marks: NDArray[Any] | None = None) -> Index:
    """Rows by number and marks, numbered from 0: samples with the same row need different ones if their marks differ.

    Args:
        rows: ``[n]``.
        marks: ``[n, S]``.

    >>> distinct(np.array([7, 2, 7, 2]), np.array([[0], [0], [1], [0]])).tolist()
    [1, 0, 2, 0]
    """
    index = rows
    for mark in [0, *([] if marks is None else marks.T)]:
        _, index = np.unique(2 * index + mark, return_inverse=True)
    return index.reshape(-1).astype(np.int64)


@dataclass(frozen=True, eq=False)
class SharedRows:
    """The distinct rows of some of a client's samples."""

    chosen: NDArray[np.int64]
    """``[R]``: which of all its distinct rows they are."""
    index: Index
    """``[n]``: which of those each sample has."""

    @classmethod
    def of(cls, index: Index) -> Self:
        """Those that some samples have.

        >>> SharedRows.of(np.array([4, 1, 4])).index.tolist()
        [1, 0, 1]
        """
        chosen, own = np.unique(index, return_inverse=True)
        return cls(chosen, own.reshape(-1).astype(np.int64))

    def __len__(self) -> int:
        """R."""
        return len(self.chosen)

    def summed(self, values: NDArray[Any]) -> NDArray[Any]:
        """``[R, C]``: what is for samples, ``[n, C]``, summed by rows."""
        total = np.zeros((len(self.chosen), *values.shape[1:]), values.dtype)
        np.add.at(total, self.index, values)
        return total


def is_sent_whole(rows: int, samples: int, num_samples: int, drawn: int) -> bool:
    """Whether a client sends phi of all its distinct rows in a round: if it expects more samples of its own there.

    Args:
        rows: its distinct rows.
        samples: its training samples, of ``num_samples`` in all.
        drawn: the samples of a round, E * B.
    """
    return rows * num_samples < drawn * samples


def is_one_step(settings: Settings, combine: Combine, *, are_linear: bool) -> bool:
    """Whether a round is one step of linear blocks whose sums are the scores: slopes of samples can be summed."""
    return settings.local_steps == 1 and are_linear and combine.is_additive


class SharedCounts(NamedTuple):
    """How many distinct rows the clients of a silo have, all together."""

    trained: int
    """Of training samples."""
    scored: int
    """The same and those of held-out samples."""
    sent: int
    """Those that are sent whole in every round, see :func:`is_sent_whole`."""
    drawn: int
    """The training samples of the clients that send phi of the samples of a round."""

    @classmethod
    def of(cls, train: Sequence[Index], test: Sequence[Index], num_samples: int, drawn: int) -> Self:
        """Those of clients with these indices."""
        rows = [len(np.unique(index)) for index in train]
        held_out = [len(np.unique(index)) for index in test]
        whole = [is_sent_whole(own, len(index), num_samples, drawn) for own, index in zip(rows, train, strict=True)]
        sent = sum(own for own, is_whole in zip(rows, whole, strict=True) if is_whole)
        rest = sum(len(index) for index, is_whole in zip(train, whole, strict=True) if not is_whole)
        return cls(sum(rows), sum(rows) + sum(held_out), sent, rest)
