"""Hosts: the processes that run one simulation together, each with the rows of its own clients and no others.

A client is on one device of the line that the processes' devices form, and its rows are in that device's process. So a
sample's features of one silo may be in another process than those of the next silo; its phi travels.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from tdcd.federation.partition import Rows, aligned_empty
from tdcd.federation.placement import Held

if TYPE_CHECKING:
    from tdcd.federation.silos import Federation, Silo

Made = TypeVar("Made")

ROWS_AT_ONCE = 1 << 20
"""Rows that are here are looked at so many at a time."""
MOST_DIFFERENT = 3


@dataclass(frozen=True)
class Hosts:
    """Which process has which clients, and how processes exchange what all must know."""

    line: tuple[int, ...]
    """The process of each device over which clients are spread."""
    here: int
    """This process."""
    exchange: Callable[[bytes], Sequence[bytes]]
    """Every process's message, in order, for this one's. All call it as often, and in the same order."""
    deliver: Callable[[Sequence[bytes]], Sequence[bytes]] = list
    """Every process's message to this one, in order, for this one's to each. All call it as often."""

    @property
    def count(self) -> int:
        """How many processes there are."""
        return max(self.line) + 1

    def process_of(self, num_clients: int) -> NDArray[np.int64]:
        """``[K]``: the process of each client of a silo."""
        return np.array(self.line)[self.device_of(num_clients)]

    def device_of(self, num_clients: int) -> NDArray[np.int64]:
        """``[K]``: the device of each client of a silo, by its place in the line.

        >>> Hosts((0, 0, 1, 1), 0, lambda message: [message]).device_of(5).tolist()
        [0, 0, 1, 1, 2]
        """
        return np.arange(num_clients) // -(-num_clients // len(self.line))

    def has(self, num_clients: int) -> NDArray[np.bool_]:
        """``[K]``: which clients of a silo are in this process.

        >>> Hosts((0, 0, 1, 1), 1, lambda message: [message]).has(5).tolist()
        [False, False, False, False, True]
        """
        return np.asarray(self.process_of(num_clients) == self.here)

    def gather(self, make: Callable[[], Any]) -> list[Any]:
        """What ``make`` gives in every process, in values that JSON writes exactly.

        An error that one process finds ends all of them: the others would wait for it.
        """
        problem: Exception | None = None
        try:
            own = {"value": make()}
        except (ValueError, OSError) as error:
            problem, own = error, {"error": str(error)}
        gathered = [json.loads(message) for message in self.exchange(json.dumps(own).encode())]
        if problem is not None:
            raise problem
        for process, value in enumerate(gathered):
            if "error" in value:
                raise ValueError(f"process {process}: {value['error']}")
        return [value["value"] for value in gathered]

    def together(self, make: Callable[[], Made]) -> Made:
        """What ``make`` gives here, after it has given something in every process; see :meth:`gather`."""
        made: list[Made] = []
        self.gather(lambda: made.append(make()))
        return made[0]

    def broadcast(self, make: Callable[[], Any]) -> Any:
        """What ``make`` gives in process 0, which alone calls it; see :meth:`gather`."""
        return self.gather(lambda: make() if self.here == 0 else None)[0]


@dataclass(frozen=True, eq=False)
class HostRows:
    """``[M, ...]``: a figure of every sample, such as a silo's features, of which this process has some."""

    rows: NDArray[Any]
    """``[h, ...]``: the rows that are here, at least one; or a mapped file, which is read only where they are."""
    held: Held
    """The samples whose rows are here."""
    total: int
    """M."""

    @classmethod
    def keep(cls, every: Any, held: Held) -> Self:
        """The rows of these samples among all; the others are not touched."""
        if is_mapped(every):
            return cls(every, held, len(every))
        rows = cls.room(every.shape[1:], every.dtype, held)
        np.take(every, held.numbers(), axis=0, out=rows[: len(held)])
        return cls(rows, held, len(every))

    @classmethod
    def room(cls, shape: tuple[int, ...], dtype: Any, held: Held) -> NDArray[Any]:
        """Rows of these samples to fill."""
        rows = aligned_empty((max(1, len(held)), *shape), dtype)
        # Padding reads a row wherever it is.
        rows[len(held) :] = 0
        return rows

    def __len__(self) -> int:
        """M."""
        return self.total

    def __getitem__(self, numbers: NDArray[Any] | slice) -> NDArray[Any]:
        """The rows of these samples, all of which must be here."""
        if isinstance(numbers, slice):
            first, last, _ = numbers.indices(self.total)
            ends = self.held.before(first), self.held.before(last)
            if ends[1] - ends[0] == last - first:
                ranged: NDArray[Any] = self.rows[slice(first, last) if is_mapped(self) else slice(*ends)]
                return ranged
        wanted = np.arange(first, last) if isinstance(numbers, slice) else np.asarray(numbers)
        places = self.held.places(wanted)
        if (places < 0).any():
            raise IndexError(f"sample {wanted[places < 0].flat[0]} is in another process")
        rows: NDArray[Any] = self.rows[wanted if is_mapped(self) else places]
        return rows

    def where(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Where in :attr:`rows` these samples are; anything for one that is in another process."""
        places = self.held.places(numbers)
        return np.where(places < 0, 0, numbers) if is_mapped(self) else places

    def pieces(self) -> Iterator[NDArray[Any]]:
        """The rows that are here, some at a time."""
        for start in range(0, len(self.held), ROWS_AT_ONCE):
            yield self[self.held.numbers(start, start + ROWS_AT_ONCE)]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape with all rows, here or not."""
        return (self.total, *self.rows.shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numbers' type."""
        return self.rows.dtype

    @property
    def nbytes(self) -> int:
        """The bytes of the rows that are here."""
        return len(self.held) * row_bytes(self)

    def map(self, function: Callable[[NDArray[Any]], NDArray[Any]]) -> Self:
        """The same with other rows in the same order."""
        return replace(self, rows=function(self.rows))

    def copied(self) -> Self:
        """The same with the rows that are here, and nothing else, in memory."""
        rows = self.room(self.shape[1:], self.dtype, self.held)
        np.take(self.rows, self.where(self.held.numbers()), axis=0, out=rows[: len(self.held)])
        return replace(self, rows=rows)


@dataclass(frozen=True, eq=False)
class HostLabels(HostRows):
    """``[M]``: labels of which this process has those of its rows, and what all know of the others."""

    different: tuple[float, ...]
    """The smallest labels that there are, at most three."""
    greatest: float

    def min(self) -> float:
        """The smallest label."""
        return self.different[0]

    def max(self) -> float:
        """The greatest label."""
        return self.greatest


def labels_kept_here(federation: "Federation", hosts: Hosts, check: Callable[[NDArray[Any]], None]) -> "Federation":
    """The same federation, with the labels of this process's rows only; it has no others of the features already.

    Args:
        check: refuses labels that training cannot take.
    """
    held = Held.union([silo.features.held for silo in federation.silos])
    kept = HostRows.keep(federation.labels, held)

    def known() -> list[float]:
        smallest, greatest = np.empty(0), -np.inf
        for piece in kept.pieces():
            check(piece)
            smallest = np.unique(np.concatenate([smallest, piece]))[:MOST_DIFFERENT]
            greatest = max(greatest, float(piece.max()))
        return [*smallest.tolist(), greatest]

    facts = hosts.gather(known)
    different = np.unique(np.concatenate([own[:-1] for own in facts]))[:MOST_DIFFERENT]
    labels = HostLabels(kept.rows, held, kept.total, tuple(different.tolist()), max(own[-1] for own in facts))
    return replace(federation, labels=labels)


def is_mapped(features: Any) -> bool:
    """Whether features lie in a mapped file."""
    return isinstance(features.rows if isinstance(features, HostRows) else features, np.memmap)


def mapped_rows(features: Any, function: Callable[[NDArray[Any]], NDArray[Any]]) -> Any:
    """``function`` of the features, which treats every row by itself; in one of several hosts, of the rows there."""
    if not isinstance(features, HostRows):
        return function(features)
    return (features.copied() if is_mapped(features) else features).map(function)


def row_bytes(features: Any) -> int:
    """How many bytes a sample has."""
    return int(np.prod(features.shape[1:], dtype=np.int64)) * int(features.dtype.itemsize)


def kept_here(federation: "Federation", hosts: Hosts | None) -> "Federation":
    """The same federation, with the features of this process's clients only; as it is if there is one process."""
    if hosts is None or isinstance(federation.silos[0].features, HostRows):
        return federation

    def kept(silo: "Silo") -> "Silo":
        has = hosts.has(silo.num_clients)
        features = HostRows.keep(silo.features, held_of(silo.rows, has))
        held_out = None
        if silo.test_features is not None:
            held_out = HostRows.keep(silo.test_features, held_of(silo.test_rows, has))
        return replace(silo, features=features, test_features=held_out)

    return replace(federation, silos=tuple(kept(silo) for silo in federation.silos))


def held_of(rows: Rows, has: NDArray[np.bool_]) -> Held:
    """The samples of these clients."""
    return Held.of([np.empty(0, np.int32), *(own for own, is_here in zip(rows, has, strict=True) if is_here)])
