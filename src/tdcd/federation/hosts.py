"""Hosts: the processes that run one simulation together, each with the rows of its own clients and no others.

A client is on one device of the line that the processes' devices form, and its rows are in that device's process. So a
sample's features of one silo may be in another process than those of the next silo; its phi travels.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from tdcd.federation.partition import aligned_empty

if TYPE_CHECKING:
    from tdcd.federation.silos import Federation, Silo

Made = TypeVar("Made")


@dataclass(frozen=True)
class Hosts:
    """Which process has which clients, and how processes exchange what all must know."""

    line: tuple[int, ...]
    """The process of each device over which clients are spread."""
    here: int
    """This process."""
    exchange: Callable[[bytes], Sequence[bytes]]
    """Every process's message, in order, for this one's. All call it as often, and in the same order."""

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
        return np.asarray(np.array(self.line)[self.device_of(num_clients)] == self.here)

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
    """``[M, ...]``: a silo's features, of which this process has some rows."""

    rows: NDArray[Any]
    """``[h, ...]``: the rows that are here, at least one; or a mapped file, which is read only where they are."""
    places: NDArray[np.int32]
    """``[M]``: where in ``rows`` each sample is; -1 if it is in another process."""

    @classmethod
    def keep(cls, features: Any, numbers: NDArray[Any]) -> Self:
        """The rows of these samples among all features; the others are not touched."""
        places = np.full(len(features), -1, np.int32)
        places[numbers] = numbers
        here = cls(features, places)
        return here if is_mapped(features) else here.copied()

    @classmethod
    def room(
        cls, total: int, shape: tuple[int, ...], dtype: Any, numbers: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[np.int32]]:
        """Rows to fill, and the places of these samples there, which are in the samples' order."""
        is_here = np.zeros(total, np.bool_)
        is_here[numbers] = True
        places = np.where(is_here, np.cumsum(is_here, dtype=np.int32) - 1, -1).astype(np.int32, copy=False)
        rows = aligned_empty((max(1, len(numbers)), *shape), dtype)
        # Padding reads a row wherever it is.
        rows[len(numbers) :] = 0
        return rows, places

    def __len__(self) -> int:
        """M."""
        return len(self.places)

    def __getitem__(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """The rows of these samples, all of which must be here."""
        places = self.places[numbers]
        if (places < 0).any():
            raise IndexError(f"sample {np.asarray(numbers)[places < 0].flat[0]} is in another process")
        rows: NDArray[Any] = self.rows[places]
        return rows

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape with all rows, here or not."""
        return (len(self.places), *self.rows.shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numbers' type."""
        return self.rows.dtype

    @property
    def nbytes(self) -> int:
        """The bytes of the rows that are here."""
        return self.rows.nbytes

    @property
    def here(self) -> NDArray[np.int32]:
        """``[h]``: the samples whose rows are here, in order."""
        return np.flatnonzero(self.places >= 0).astype(np.int32)

    def copied(self) -> Self:
        """The same with the rows that are here, and nothing else, in memory."""
        numbers = self.here
        rows, places = self.room(len(self), self.shape[1:], self.dtype, numbers)
        np.take(self.rows, self.places[numbers], axis=0, out=rows[: len(numbers)])
        return type(self)(rows, places)

    def map(self, function: Callable[[NDArray[Any]], NDArray[Any]]) -> Self:
        """The same with other rows in the same order."""
        return replace(self, rows=function(self.rows))


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
        features = HostRows.keep(silo.features, _of(silo.rows, has))
        held_out = None
        if silo.test_features is not None:
            held_out = HostRows.keep(silo.test_features, _of(silo.test_rows, has))
        return replace(silo, features=features, test_features=held_out)

    return replace(federation, silos=tuple(kept(silo) for silo in federation.silos))


def _of(rows: Sequence[NDArray[Any]], has: NDArray[np.bool_]) -> NDArray[Any]:
    """The rows of these clients."""
    return np.concatenate([np.empty(0, np.int64), *(own for own, is_here in zip(rows, has, strict=True) if is_here)])
