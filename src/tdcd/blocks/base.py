"""The protocol that every block follows."""

from collections.abc import Callable
from functools import partial
from typing import Protocol, runtime_checkable

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


def phi_of_first(model: Block, count: Array) -> Callable[[Tree, Array], Array]:
    """A block's phi for rows of which only the first ``count`` matter: the others weigh nothing."""
    return partial(model.phi_of_first, count=count) if isinstance(model, SkipsPadding) else model.phi
