"""The protocol that every block follows."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, Protocol, runtime_checkable

from tdcd.core.combine import Combine
from tdcd.core.lazy import Array
from tdcd.core.objective import Tree


class Block(Protocol):
    """A silo's part of the model: its initial parameters, and what its columns add to a sample's scores.

    Any object with these two functions works. Write them in JAX; they are mapped over clients and differentiated.
    Give the object value equality (a frozen dataclass does), so that equal blocks share one compiled program.
    """

    def init(self, key: Array, feature_shape: tuple[int, ...], num_outputs: int) -> Tree:
        """The parameters before training, for samples of ``feature_shape`` and C ``num_outputs``."""
        ...

    def phi(self, block: Tree, features: Array) -> Array:
        """``[rows, *feature_shape]`` features to the ``[rows, C]`` they add to the scores; row by row."""
        ...


@runtime_checkable
class SkipsPadding(Protocol):
    """A block that saves the work of rows that do not count."""

    def phi_of_first(self, block: Tree, features: Array, count: Array | int) -> Array:
        """Phi of the first ``count`` rows; of the others, any finite numbers."""
        ...


@runtime_checkable
class Layered(Block, Hashable, Protocol):
    """A block of layers, whose activations may be larger than its features; its phi can be traced for any rows."""

    has_layers: ClassVar[Literal[True]]


def phi_of_first(model: Block, count: Array | int) -> Callable[[Tree, Array], Array]:
    """A block's phi for rows of which only the first ``count`` matter: the others weigh nothing."""
    return partial(model.phi_of_first, count=count) if isinstance(model, SkipsPadding) else model.phi


@dataclass(frozen=True)
class Extended:
    """A block behind a head whose phi has more numbers than the block gives: functions of these."""

    block: Block
    combine: Combine

    def init(self, key: Array, feature_shape: tuple[int, ...], num_outputs: int) -> Tree:
        """The block's own, for what it has to give."""
        return self.block.init(key, feature_shape, self.combine.block_width(self.combine.num_outputs(num_outputs)))

    def phi(self, block: Tree, features: Array) -> Array:
        """What the block gives, and what the head makes of that."""
        return self.combine.phi(self.block.phi(block, features))

    def phi_of_first(self, block: Tree, features: Array, count: Array | int) -> Array:
        """See :class:`SkipsPadding`; a block that cannot computes all rows."""
        return self.combine.phi(phi_of_first(self.block, count)(block, features))

    def behind(self, combine: Combine) -> Block:
        """It is behind a head already."""
        return with_head(self.block, combine)


@runtime_checkable
class BehindHead(Protocol):
    """A block that says itself what it is behind a head."""

    def behind(self, combine: Combine) -> Block:
        """The block that gives the whole phi of a head."""
        ...


def with_head(block: Block, combine: Combine) -> Block:
    """The block that gives the whole phi of a head: the block itself, unless :attr:`Combine.extends_phi`."""
    if isinstance(block, BehindHead):
        return block.behind(combine)
    return Extended(block, combine) if combine.extends_phi else block


def with_heads(blocks: Sequence[Block], combine: Combine) -> tuple[Block, ...]:
    """:func:`with_head` of every silo's block; equal ones stay the same object, so that they share programs."""
    return tuple(with_head(block, combine) for block in blocks)


def without_head(block: Block) -> Block:
    """The block itself, behind whichever head."""
    return block.block if isinstance(block, Extended) else block
