r"""Momentum that belongs to a client across rounds.

.. math:: v \leftarrow \beta v + g, \qquad \theta \leftarrow \theta - \eta v

An optimiser's momentum that starts over in every round (``train.optimizer = "momentum"``) has only Q steps to build up.
Here :math:`v_k` of client k continues from round to round. Clients keep nothing: the velocity goes up with a client's
block, stays with its hub, in the checkpoint, and comes down with the block of the next round.
"""

from dataclasses import dataclass

from tdcd.core.lazy import Array
from tdcd.core.objective import Tree
from tdcd.core.trees import map_tree, minus
from tdcd.core.update import UpdateState


@dataclass(frozen=True)
class ClientMomentum:
    """The part ``update`` of a variant: each client's own velocity, which lasts.

    >>> ClientMomentum(1.0)
    Traceback (most recent call last):
    ValueError: decay must be at least 0 and below 1, not 1.0
    """

    decay: float = 0.9
    r""":math:`\beta`."""

    def __post_init__(self) -> None:
        """Refuse what would never forget."""
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay must be at least 0 and below 1, not {self.decay}")

    def memory(self, block: Tree) -> UpdateState:
        """Nothing moves before round 0."""
        return map_tree(lambda leaf: 0 * leaf, block)

    def start(self, block: Tree, iteration: Array) -> UpdateState:
        """The velocity of round 0, which is zero."""
        return self.memory(block)

    def resume(self, block: Tree, iteration: Array, memory: UpdateState) -> UpdateState:
        """The velocity that the last round ended with."""
        return memory

    def step(self, block: Tree, gradient: Tree, state: UpdateState, step_size: Array) -> tuple[Tree, UpdateState]:
        """One step along the velocity."""
        velocity = map_tree(lambda old, new: self.decay * old + new, state, gradient)
        return minus(block, step_size, velocity), velocity

    def carry(self, state: UpdateState) -> UpdateState:
        """The velocity."""
        return state
