"""The protocol that every block follows."""

from typing import Protocol

from jax import Array

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
