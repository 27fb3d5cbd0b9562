"""How blocks move: a client's by gradients within a round, a hub's from one round to the next."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from tdcd.core.lazy import Array
from tdcd.core.objective import Tree
from tdcd.core.trees import minus

State = Any
"""The state of an update, as a tree of arrays; ``()`` for none."""


class Update(Protocol):
    """How a gradient moves a client's block. A client's state lasts one round: it keeps nothing between rounds."""

    def start(self, block: Tree, iteration: Array) -> State:
        """The state when a round begins with the hub's ``block``; ``iteration`` local steps were taken before it."""
        ...

    def step(self, block: Tree, gradient: Tree, state: State, step_size: Array) -> tuple[Tree, State]:
        """The block and the state after one local step."""
        ...


@runtime_checkable
class CarriedUpdate(Update, Protocol):
    """An update with a memory of each client that lasts from round to round.

    Clients keep nothing: the memory goes up with a client's block, and comes down with the block of the next round.
    """

    def memory(self, block: Tree) -> State:
        """A client's memory before round 0; arrays of the run's dtype."""
        ...

    def resume(self, block: Tree, iteration: Array, memory: State) -> State:
        """The state when a round begins, from the memory that the last one left."""
        ...

    def carry(self, state: State) -> State:
        """The memory that a round leaves."""
        ...


class HubUpdate(Protocol):
    """How a hub turns the average of its clients' blocks into its next block. Its state is part of its checkpoint."""

    def start(self, block: Tree) -> State:
        """The state before round 0."""
        ...

    def step(self, block: Tree, average: Tree, state: State) -> tuple[Tree, State]:
        """The hub's next block, from the one that the round began with, and the state that goes with it."""
        ...


@dataclass(frozen=True)
class Sgd:
    r"""Plain gradient steps, :math:`\theta \leftarrow \theta - \eta g`. Paper, Algorithm 1, line 19."""

    def start(self, block: Tree, iteration: Array) -> State:
        """No state."""
        return ()

    def step(self, block: Tree, gradient: Tree, state: State, step_size: Array) -> tuple[Tree, State]:
        """One step against the gradient."""
        return minus(block, step_size, gradient), state


def takes_average(update: HubUpdate) -> bool:
    """Whether the average is the hub's next block; a class that inherits from :class:`Average` may do anything."""
    return type(update) is Average


@dataclass(frozen=True)
class Average:
    """The average is the hub's next block. Paper, Algorithm 1, line 5."""

    def start(self, block: Tree) -> State:
        """No state."""
        return ()

    def step(self, block: Tree, average: Tree, state: State) -> tuple[Tree, State]:
        """The average."""
        return average, state
