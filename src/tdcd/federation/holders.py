"""Who holds which samples, in memory of as few numbers as say so: ranges of samples take next to none."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tdcd.federation.partition import Rows

ROWS_PER_RANGE = 16
"""Samples that come in ranges of at least so many, on average, are kept as ranges."""


@dataclass(frozen=True, eq=False)
class Held:
    """Some of the samples, in order, such as those of one process: each has a place among them."""

    starts: NDArray[np.int64]
    """The first sample of each range; or each sample, if they are no ranges."""
    offsets: NDArray[np.int64] | None
    """``[ranges + 1]``: how many samples are before each range, and in all; None if they are no ranges."""

    @classmethod
    def of(cls, rows: Sequence[NDArray[Any] | range]) -> Self:
        """All of these, which have no sample in common.

        >>> held = Held.of([range(6, 9), range(0, 2), range(9, 10)])
        >>> len(held), held.places(np.array([0, 1, 2, 6, 9])).tolist(), held.numbers(1, 4).tolist()
        (6, [0, 1, -1, 2, 5], [1, 6, 7])
        """
        there = [own for own in rows if len(own)]
        ranges = sorted((own.start, own.stop) for own in there if isinstance(own, range))
        if len(ranges) == len(there):
            bounds = np.array(ranges, np.int64).reshape(-1, 2)
        else:
            numbers = np.sort(np.concatenate([np.asarray(own, np.int32) for own in there]))
            begins = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - 2) != 1)
            if len(begins) * ROWS_PER_RANGE > len(numbers):
                return cls(numbers, None)
            sizes = np.diff(begins, append=len(numbers))
            bounds = np.stack([numbers[begins], numbers[begins] + sizes], axis=1).astype(np.int64)
        return cls(bounds[:, 0].copy(), np.concatenate([[0], np.cumsum(bounds[:, 1] - bounds[:, 0])]))

    @classmethod
    def union(cls, parts: "Sequence[Held]") -> "Held":
        """The samples of any of these."""
        if any(part.offsets is None for part in parts):
            return cls.of([np.unique(np.concatenate([part.numbers() for part in parts]))])
        joined: list[range] = []
        for start, stop in sorted(bounds for part in parts for bounds in part.bounds):
            if joined and start <= joined[-1].stop:
                joined[-1] = range(joined[-1].start, max(stop, joined[-1].stop))
            else:
                joined.append(range(start, stop))
        return cls.of(joined)

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """The first sample of each range, and the one after its last."""
        sizes = np.ones(len(self.starts), np.int64) if self.offsets is None else np.diff(self.offsets)
        return list(zip(self.starts.tolist(), (self.starts + sizes).tolist(), strict=True))

    def __len__(self) -> int:
        """How many there are."""
        return len(self.starts) if self.offsets is None else int(self.offsets[-1])

    def places(self, numbers: NDArray[Any]) -> NDArray[np.int64]:
        """Where each of these samples is among them; -1 if it is not."""
        if not len(self):
            return np.full(np.shape(numbers), -1, np.int64)
        if self.offsets is None:
            found = np.minimum(np.searchsorted(self.starts, numbers), len(self.starts) - 1)
            return np.where(self.starts[found] == numbers, found, -1)
        which = np.maximum(np.searchsorted(self.starts, numbers, "right") - 1, 0)
        within = np.asarray(numbers, np.int64) - self.starts[which]
        is_here = (within >= 0) & (within < np.diff(self.offsets)[which])
        return np.where(is_here, within + self.offsets[which], -1)

    def numbers(self, first: int = 0, last: int | None = None) -> NDArray[np.int32]:
        """The samples at the places from ``first`` to before ``last``; all by default."""
        last = len(self) if last is None else min(last, len(self))
        if self.offsets is None:
            return self.starts[first:last].astype(np.int32, copy=False)
        places = np.arange(first, last)
        which = np.searchsorted(self.offsets, places, "right") - 1
        return (self.starts[which] + places - self.offsets[which]).astype(np.int32)

    def before(self, number: int) -> int:
        """How many of them come before a sample."""
        if self.offsets is None:
            return int(np.searchsorted(self.starts, number))
        which = int(np.searchsorted(self.starts, number, "right")) - 1
        if which < 0:
            return 0
        return int(min(self.offsets[which] + number - self.starts[which], self.offsets[which + 1]))


@dataclass(frozen=True, eq=False)
class Holders:
    """``[M]``: which client of a silo holds each sample; -1 for none."""

    total: int
    counts: NDArray[np.int64]
    """``[K]``: how many samples each client holds."""
    clients: NDArray[Any]
    """``[M]``: the client of each sample; or of each range, if there are any."""
    starts: NDArray[np.int64] | None = None
    """The first sample of each range, in order, if every client holds one."""
    stops: NDArray[np.int64] | None = None
    """The samples after their last ones."""

    @classmethod
    def of(cls, rows: Rows, total: int) -> Self:
        """From the samples of each client.

        >>> Holders.of((range(2, 4), range(0, 2)), 5)[np.array([0, 3, 4])].tolist()
        [1, 0, -1]
        """
        counts = np.array([len(own) for own in rows], np.int64)
        ranges = [own for own in rows if isinstance(own, range)]
        if len(ranges) == len(rows):
            bounds = np.array([(own.start, own.stop) for own in ranges], np.int64)
            order = np.argsort(bounds[:, 0], kind="stable")
            return cls(total, counts, order, bounds[order, 0], bounds[order, 1])
        clients = np.full(total, -1, smallest(len(rows)))
        for client, own in enumerate(rows):
            clients[own] = client
        return cls(total, counts, clients)

    @classmethod
    def of_each(cls, owner: NDArray[Any]) -> Self:
        """From the client of each sample."""
        return cls(len(owner), np.bincount(owner[owner >= 0]).astype(np.int64), owner)

    def __len__(self) -> int:
        """M."""
        return self.total

    def __getitem__(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """The client of each of these samples."""
        if self.starts is None or self.stops is None:
            found: NDArray[Any] = self.clients.take(numbers)
            return found
        which = np.maximum(np.searchsorted(self.starts, numbers, "right") - 1, 0)
        is_held = (numbers >= self.starts[which]) & (numbers < self.stops[which])
        return np.where(is_held, self.clients[which], -1)

    @property
    def num_clients(self) -> int:
        """K, up to the last one that holds any."""
        return len(self.counts)

    def renamed(self, names: NDArray[Any], count: int) -> Self:
        """The same with other numbers for the clients, ``[K]``, up to ``count``; some may have the same."""
        known = np.append(names, -1).astype(smallest(count))
        counts = np.bincount(names, self.counts).astype(np.int64)
        return replace(self, counts=counts, clients=known[self.clients])

    def is_same(self, other: "Holders") -> bool:
        """Whether the same clients hold the same samples."""
        if (self.starts is None) != (other.starts is None) or len(self) != len(other):
            return False
        names = ("clients", "starts", "stops")
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in names)


def smallest(count: int) -> Any:
    """The smallest type of whole numbers that has -1 and so many more from 0 on."""
    return next(kind for kind in (np.int8, np.int16, np.int32) if count <= np.iinfo(kind).max)
