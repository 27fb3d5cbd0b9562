"""Where each sample is: which client of a silo holds it, and in a minibatch at which place among that client's rows.

Who holds which of many samples is kept in as few numbers as say so: ranges of samples take next to none.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tdcd.federation.partition import Rows

ROWS_PER_RANGE = 16
"""Samples that come in ranges of at least so many, on average, are kept as ranges."""
FEW_CLIENTS = 16
"""Of so many clients, rows are counted client by client: each count is one pass over small numbers."""
FEW_SAMPLES = 1 << 24
"""Up to so many samples, clients are looked up in a list: a few times faster than in ranges, in little memory."""


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
            nearest = np.minimum(np.searchsorted(self.starts, numbers), len(self.starts) - 1)
            return np.where(self.starts[nearest] == numbers, nearest, -1)
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
    """The first sample of each range, in order, if every client of many samples holds one."""
    stops: NDArray[np.int64] | None = None
    """The samples after their last ones."""

    @classmethod
    def of(cls, rows: "Rows", total: int) -> Self:
        """From the samples of each client.

        >>> Holders.of((range(2, 4), range(0, 2)), 5)[np.array([0, 3, 4])].tolist()
        [1, 0, -1]
        """
        counts = np.array([len(own) for own in rows], np.int64)
        ranges = [own for own in rows if isinstance(own, range)]
        if total > FEW_SAMPLES and len(ranges) == len(rows):
            bounds = np.array([(own.start, own.stop) for own in ranges], np.int64)
            order = np.argsort(bounds[:, 0], kind="stable")
            return cls(total, counts, order, bounds[order, 0], bounds[order, 1])
        clients = np.full(total, -1, smallest(len(rows)))
        for client, own in enumerate(rows):
            clients[slice(own.start, own.stop) if isinstance(own, range) else own] = client
        return cls(total, counts, clients)

    @classmethod
    def of_each(cls, owner: NDArray[Any]) -> Self:
        """From the client of each sample."""
        counts = np.bincount(owner[owner >= 0]).astype(np.int64)
        # Looked up for every sample of every minibatch: the smaller the numbers, the more of them are in the cache.
        return cls(len(owner), counts, owner.astype(smallest(len(counts))))

    def __len__(self) -> int:
        """M."""
        return self.total

    def __getitem__(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """The client of each of these samples."""
        if self.starts is None or self.stops is None:
            clients: NDArray[Any] = self.clients.take(numbers)
            return clients
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


class Placement(NamedTuple):
    """One silo's view of some minibatches, as rectangular arrays that a compiled program can take.

    NumPy arrays on the host, traced ones inside a compiled program. The first axis, R, is rounds in the simulation.
    """

    positions: Any
    """``[R, K, E, P]``: where in the minibatch each of a client's rows stands; 0 on padding."""
    counts: Any
    """``[R, K, E]``: how many rows each client has."""
    rows: Any
    """``[R, E, B]``: the minibatch's sample ids, one client's after the other's. On several hosts, what
    :meth:`tdcd.simulation.host_tables.HostLayout.rows` gives."""
    slots: Any
    """``[R, E, B]``: where in ``rows`` each sample of the minibatch is; on several hosts, see :func:`padded_slots`."""


def holders(ids: NDArray[np.int32], owner: Holders | NDArray[Any], num_clients: int) -> NDArray[np.int32]:
    """``[R, K, E]``: how many samples of each minibatch ``ids[r, e]`` each client holds."""
    owners = owner[ids]
    if num_clients <= FEW_CLIENTS:
        counts = [np.count_nonzero(owners == client, axis=2) for client in range(num_clients)]
        return np.stack(counts, axis=1).astype(np.int32)
    # The first cell of each minibatch is that of samples that no client holds.
    num_rounds, num_minibatches, _ = ids.shape
    size = 1 + num_clients
    cells = 1 + size * np.arange(num_rounds * num_minibatches, dtype=np.int64).reshape(num_rounds, num_minibatches, 1)
    by_cell = np.bincount((cells + owners).ravel(), minlength=size * num_rounds * num_minibatches)
    by_minibatch = by_cell.reshape(num_rounds, num_minibatches, size)[..., 1:]
    return by_minibatch.transpose(0, 2, 1).astype(np.int32)


def place(ids: NDArray[np.int32], owner: Holders | NDArray[Any], counts: NDArray[np.int32], width: int) -> Placement:
    """Lay the minibatches ``ids`` ``[R, E, B]`` out over the clients, padded to ``width`` P rows each.

    Args:
        owner: ``[M]``, which client holds each sample; -1 for none. Those samples have no place in ``rows``, which ends
            with the number 0 in their stead, and B in ``slots``: the work is that of the rows that the silo has.
        counts: from :func:`holders`; none may exceed ``width``.
    """
    num_rounds, num_clients, num_minibatches = counts.shape
    batch_size, lacks = ids.shape[2], counts.sum() < ids.size
    if num_clients == 1 and width == batch_size and not lacks:
        unmoved = np.broadcast_to(np.arange(batch_size, dtype=np.int32), ids.shape)
        return Placement(unmoved[:, None], counts, ids, unmoved)
    sizes = counts.transpose(0, 2, 1).reshape(-1, num_clients)
    owners, every = owner[ids].reshape(-1, batch_size), np.arange(batch_size)
    starts = batch_size * np.arange(len(sizes))
    # Where the clients' rows are among all samples and in their minibatch, and where ``rows`` has them.
    if lacks:
        held = sizes.sum(axis=1)
        number = _held_places(owners, num_clients)
        order = number - np.repeat(starts, held)
        ranks = np.arange(len(number)) - np.repeat(np.cumsum(held) - held, held)
        rows = np.zeros(ids.shape, ids.dtype)
        rows.reshape(-1, batch_size)[every < held[:, None]] = ids.reshape(-1)[number]
    else:
        # Numbers of 8 and 16 bits sort by radix, several times faster than wider ones.
        order = np.argsort(owners.astype(np.min_scalar_type(num_clients)), axis=1, kind="stable")
        number, ranks = order + starts[:, None], every
        rows = ids.reshape(-1)[number].reshape(ids.shape)
    positions = np.zeros((len(sizes), num_clients, width), np.int32)
    positions[np.arange(width) < sizes[..., None]] = order.reshape(-1)
    slots = np.full(ids.size, batch_size, np.int32)
    slots[number] = ranks
    by_minibatch = positions.reshape(num_rounds, num_minibatches, num_clients, width)
    return Placement(np.ascontiguousarray(by_minibatch.transpose(0, 2, 1, 3)), counts, rows, slots.reshape(ids.shape))


def _held_places(owners: NDArray[np.integer[Any]], num_clients: int) -> NDArray[np.intp]:
    """Where in ``owners`` ``[n, B]`` the samples are that clients hold: minibatch by minibatch, client by client."""
    flat = owners.reshape(-1)
    held = np.flatnonzero(flat >= 0)
    cells = flat[held] + num_clients * (held // owners.shape[1])
    return held[np.argsort(cells.astype(np.min_scalar_type(num_clients * len(owners))), kind="stable")]


def padded_slots(placement: Placement) -> NDArray[np.int32]:
    """``[R, E, B]``: where each sample is among the padded rows of all clients, one client's after the other's."""
    width, counts = placement.positions.shape[3], placement.counts.transpose(0, 2, 1)
    # Slots count the rows before a sample; among padded rows, those before its client's are more.
    shift = np.arange(counts.shape[2]) * width + counts - np.cumsum(counts, axis=2)
    by_row = np.repeat(shift.ravel(), counts.ravel()).reshape(placement.slots.shape)
    return np.asarray(placement.slots + np.take_along_axis(by_row, placement.slots, axis=2), np.int32)


class Padding:
    """How many rows to reserve in a minibatch for a client, so that the number rarely changes.

    The rows that a client has in a minibatch are hypergeometric. The usual padding is 4.5 standard deviations above
    the mean (with the Cornish-Fisher term for the skew), so that one compiled program serves nearly every round.
    """

    def __init__(self, held: int, num_samples: int, batch_size: int) -> None:
        """Take n_k, the rows that the (largest) client holds, M and B."""
        share, left = held / num_samples, (num_samples - batch_size) / max(num_samples - 1, 1)
        self._limit = min(held, batch_size)
        self._mean = batch_size * share
        self._deviation = math.sqrt(batch_size * share * (1 - share) * left)
        self.usual = self._rounded(4.5 * self._deviation + 3.2 * (self._deviation > 0))
        self._sizes: tuple[int, ...] = (self.usual,)

    def tighten(self, together: int) -> None:
        """Pad rounds less than usual if that is enough for ``together`` draws, those of a round.

        There are at most three smaller paddings, so that this takes at most four compiled programs.
        """
        self._sizes = tuple(sorted({*self._often_enough(together, (0.0, 0.7, 1.4)), self.usual}))

    def _rounded(self, above_mean: float) -> int:
        return min(self._limit, 4 * math.ceil((self._mean + above_mean) / 4))

    def prefixes(self) -> tuple[int, ...]:
        """Paddings below the usual one that often suffice for a client."""
        sizes = self._often_enough(1, (-1.4, -0.7, 0.0, 0.7, 1.4, 2.1))
        return tuple(sorted({size for size in sizes if 0 < size < self.usual}))

    def _often_enough(self, together: int, deviations: Sequence[float]) -> list[int]:
        # About the expected largest of that many standard normal numbers, then a little less or more.
        expected = NormalDist().inv_cdf(1 - 0.56 / together)
        return [min(self.usual, self._rounded((expected + more) * self._deviation)) for more in deviations]

    @property
    def _step(self) -> int:
        return max(4, self.usual // 4)

    def levels(self, most: NDArray[Any]) -> NDArray[np.int64]:
        """Which padding rounds need in which a client has at most ``most`` rows of a minibatch; see :meth:`width`."""
        beyond = -(-np.maximum(most - self.usual, 0) // self._step)
        return np.asarray(np.searchsorted(self._sizes, np.minimum(most, self.usual)) + beyond)

    def enough_for(self, most: int) -> int:
        """The padding of rounds in which a client has at most ``most`` rows of a minibatch."""
        is_usual = most <= self.usual and len(self._sizes) == 1
        return self.usual if is_usual else self.width(int(self.levels(np.asarray(most))))

    def width(self, level: int) -> int:
        """The padding of a level; beyond the usual one they grow by a quarter of it."""
        last = len(self._sizes) - 1
        return min(self._limit, self._sizes[min(level, last)] + self._step * max(level - last, 0))


class Placer:
    """Lays minibatches out over one silo's clients, padded for the largest of them."""

    def __init__(self, owner: Holders | NDArray[Any], batch_size: int, num_clients: int = 0) -> None:
        """Take ``[M]`` ``owner``, which client holds each sample, B, and K if the last clients hold nothing."""
        self.owner = owner if isinstance(owner, Holders) else Holders.of_each(owner)
        self.num_clients = max(num_clients, self.owner.num_clients)
        self.padding = Padding(int(self.owner.counts.max()), len(owner), batch_size)

    @property
    def usual(self) -> int:
        """The padding of nearly every round."""
        return self.padding.usual

    def count(self, ids: NDArray[np.int32]) -> NDArray[np.int32]:
        """:func:`holders` of these minibatches."""
        return holders(ids, self.owner, self.num_clients)

    def levels(self, counts: NDArray[np.int32]) -> NDArray[np.int64]:
        """``[R]``: the level of each round's padding, which depends on that round's minibatches alone."""
        return self.padding.levels(counts.max(axis=(1, 2)))

    def place(self, ids: NDArray[np.int32], counts: NDArray[np.int32], width: int) -> Placement:
        """:func:`place` these minibatches."""
        return place(ids, self.owner, counts, width)


def place_alike(placers: Sequence[Sequence[Placer]], ids: NDArray[np.int32]) -> list[list[Placement]]:
    """Every run's placements, silo by silo, of the first rounds of ``ids`` ``[S, R, E, B]``.

    Those are as many rounds as need the same level of padding. Rounds that need another run in a call of their own, so
    how rounds are grouped into calls never shows. All silos of all runs are padded to the level that one of them needs,
    so that there are few combinations to compile.

    Args:
        placers: of each run, one per silo; the same object for silos that split the rows alike.
    """
    counts = [{id(p): p.count(own) for p in each} for each, own in zip(placers, ids, strict=True)]
    every = [
        placer.levels(counted[id(placer)]) for each, counted in zip(placers, counts, strict=True) for placer in each
    ]
    levels = np.max(every, axis=0)
    same = levels == levels[0]
    rounds = len(same) if same.all() else int(np.argmin(same))
    widths = [max(p.padding.width(int(levels[0])) for p in silo) for silo in zip(*placers, strict=True)]
    runs = []
    for each, own, counted in zip(placers, ids, counts, strict=True):
        placed: dict[tuple[int, int], Placement] = {}
        for placer, width in zip(each, widths, strict=True):
            if (id(placer), width) not in placed:
                placed[id(placer), width] = placer.place(own[:rounds], counted[id(placer)][:rounds], width)
        runs.append([placed[id(placer), width] for placer, width in zip(each, widths, strict=True)])
    return runs


def shared(placers: Sequence[Placer]) -> list[Placer]:
    """The same placers, but one and the same for all silos that split the rows alike."""
    firsts: list[Placer] = []
    for placer in placers:
        twins = (first for first in firsts if first.owner.is_same(placer.owner))
        firsts.append(next(twins, placer))
    return firsts
