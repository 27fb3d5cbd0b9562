"""Rows that go to the device: gathered on the host while the device works on the call before."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import jax
import numpy as np
from numpy.typing import NDArray

from tdcd.federation.hosts import HostRows
from tdcd.federation.partition import aligned_empty, is_used_in_place

WIDE = 128
"""Columns of rows that a compiled program on a CPU gathers faster than the host does."""
IN_FLIGHT = 2
"""Calls whose rows may be in memory: the one that the device works on, and the next."""

Item = TypeVar("Item")


def prefetch(items: Iterator[Item]) -> Iterator[Item]:
    """The same items, each made by another thread while the one before it is in use.

    A compiled loop keeps the thread that started it busy on a GPU, so only another one can prepare what comes next.

    >>> list(prefetch(iter("abc")))
    ['a', 'b', 'c']
    """
    with ThreadPoolExecutor(1) as maker:
        made = maker.submit(next, items, None)
        while (item := made.result()) is not None:
            made = maker.submit(next, items, None)
            yield item


class StagingBuffers:
    """Memory for the arrays of a few calls, used over and over: fresh memory costs more than filling it.

    JAX may read an array where it is for as long as a call runs, so a call's memory is filled again only when the call
    has finished.
    """

    def __init__(self) -> None:
        self._results: list[Any] = [None] * IN_FLIGHT
        self._memory: list[dict[tuple[Any, ...], NDArray[Any]]] = [{} for _ in range(IN_FLIGHT)]
        self._current = 0

    def begin(self) -> Callable[[Any], None]:
        """Wait until there is room for another call; give what this returns the call's result when it was sent."""
        self._current = (self._current + 1) % IN_FLIGHT
        jax.block_until_ready(self._results[self._current])  # type: ignore[no-untyped-call]
        return partial(self._results.__setitem__, self._current)

    def room(self, name: Any, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """An array to fill; each one of a call has its own ``name``."""
        memory = self._memory[self._current]
        key = (name, shape, np.dtype(dtype))
        if key not in memory:
            memory[key] = aligned_empty(shape, dtype)
        return memory[key]

    def take(self, name: Any, table: Any, rows: NDArray[np.integer[Any]], rounds: int) -> NDArray[Any]:
        """``table[rows]`` for ``rows`` ``[S, R, ...]``, with room for ``rounds``; the spare room is undefined."""
        if isinstance(table, HostRows):
            # Padding may name a row that another process has: that finds any.
            table, rows = table.rows, table.where(rows)
        runs, num_rounds, *shape = rows.shape
        room = self.room(name, (runs, rounds, *shape, *table.shape[1:]), table.dtype)
        if num_rounds == rounds:
            taken: NDArray[Any] = np.take(table, rows, axis=0, out=room, mode="clip")
            return taken
        for own, chosen in zip(room, rows, strict=True):
            np.take(table, chosen, axis=0, out=own[:num_rounds], mode="clip")
        return room


def has_wide_rows(tables: Sequence[NDArray[Any]]) -> bool:
    """Whether a program on a CPU had better gather these tables' rows itself: wide ones, without a copy of the tables.

    Images would be copied to be laid flat, and narrow numbers are gathered as fast by the host.

    >>> [has_wide_rows([aligned_empty((3, columns), np.float32)] * 2) for columns in (21, 1024)]
    [False, True]
    """
    fit = all(table.ndim == 2 and table.dtype.kind == "f" and is_used_in_place(table) for table in tables)
    return fit and sum(table.shape[1] for table in tables) >= WIDE * len(tables)


def on_host(features: Any, dtype: str) -> Any:
    """The features as they stay: whole numbers and mapped files as they are, other arrays in the run's precision."""
    if isinstance(features, HostRows):
        return features.map(lambda rows: on_host(rows, dtype))
    if isinstance(features, np.memmap) or features.dtype.kind != "f" or features.dtype == dtype:
        return features
    converted = aligned_empty(features.shape, dtype)
    converted[...] = features
    return converted
