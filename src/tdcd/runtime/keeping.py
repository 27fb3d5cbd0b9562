"""Making states durable beside the work: a disk is slow, and a hub need not wait for it.

What a hub computes follows from its state, the absences that it wrote down and what its peers said, to the last bit. So
a state may become durable while the next round is under way: a crash in between sends the hub back by one round, which
it plays again alike.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

Write = Callable[[], None]


class Keeper:
    """Does one write at a time, in a thread of its own."""

    def __init__(self) -> None:
        self._worker = ThreadPoolExecutor(1, "keeper")
        self._under_way: Future[None] | None = None

    def begin(self, write: Write) -> None:
        """Begin a write; :meth:`settle` first."""
        self._under_way = self._worker.submit(write)

    def settle(self) -> None:
        """Wait until the last write is done, and raise what went wrong with it."""
        last, self._under_way = self._under_way, None
        if last is not None:
            last.result()
