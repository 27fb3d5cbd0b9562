"""How blocks move: a client's by gradients within a round, a hub's from one round to the next."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from tdcd.core.lazy import Array
from tdcd.core.objective import Tree
from tdcd.core.trees import minus

if TYPE_CHECKING:
    from tdcd.core.variant import Variant

UpdateState = Any
"""The state of an update, as a tree of arrays; ``()`` for none."""


class Update(Protocol):
    """How a gradient moves a client's block. A client's state lasts one round: it keeps nothing between rounds."""

    def start(self, block: Tree, iteration: Array) -> UpdateState:
        """The state when a round begins with the hub's ``block``; ``iteration`` local steps were taken before it."""
        ...

    def step(self, block: Tree, gradient: Tree, state: UpdateState, step_size: Array) -> tuple[Tree, UpdateState]:
        """The block and the state after one local step."""
        ...


@runtime_checkable
class CarriedUpdate(Update, Protocol):
    """An update with a memory of each client that lasts from round to round.

    Clients keep nothing: the memory goes up with a client's block, and comes down with the block of the next round.
    """

    def memory(self, block: Tree) -> UpdateState:
        """A client's memory before round 0; arrays of the run's dtype."""
        ...

    def resume(self, block: Tree, iteration: Array, memory: UpdateState) -> UpdateState:
        """The state when a round begins, from the memory that the last one left."""
        ...

    def carry(self, state: UpdateState) -> UpdateState:
        """The memory that a round leaves."""
        ...


def excluded_by_memory(variant: "Variant", num_silos: int) -> Iterator[tuple[str, str]]:
    """The parts that memories of clients do not go with, whatever update they are of, each with the reason."""
    if any(variant.timing.period(silo) > 1 for silo in range(num_silos)):
        yield "timing", "memories of clients do not go with periods above 1"
    if variant.summed_blocks is not None:
        yield "block_exchange", "a hub would see each client's memory, and sums of blocks hide it"


class HubUpdate(Protocol):
    """How a hub turns the average of its clients' blocks into its next block. Its state is part of its checkpoint."""

    def start(self, block: Tree) -> UpdateState:
        """The state before round 0."""
        ...

    def step(self, block: Tree, average: Tree, state: UpdateState) -> tuple[Tree, UpdateState]:
        """The hub's next block, from the one that the round began with, and the state that goes with it."""
        ...


@dataclass(frozen=True)
class Sgd:
    r"""Plain gradient steps, :math:`\theta \leftarrow \theta - \eta g`. Paper, Algorithm 1, line 19."""

    is_plain: ClassVar[bool] = True

    def start(self, block: Tree, iteration: Array) -> UpdateState:
        """No state."""
        return ()

    def step(self, block: Tree, gradient: Tree, state: UpdateState, step_size: Array) -> tuple[Tree, UpdateState]:
        """One step against the gradient."""
        return minus(block, step_size, gradient), state


@dataclass(frozen=True)
class Average:
    """The average is the hub's next block. Paper, Algorithm 1, line 5."""

    is_plain: ClassVar[bool] = True
    takes_numpy: ClassVar[bool] = True

    def start(self, block: Tree) -> UpdateState:
        """No state."""
        return ()

    def step(self, block: Tree, average: Tree, state: UpdateState) -> tuple[Tree, UpdateState]:
        """The average."""
        return average, state
