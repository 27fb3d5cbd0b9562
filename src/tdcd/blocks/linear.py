"""The linear block."""

from dataclasses import dataclass
from math import prod

import jax.numpy as jnp
from jax import Array

from tdcd.core.objective import Tree


@dataclass(frozen=True)
class Linear:
    r"""A linear model of the silo's columns, started at zero: :math:`\Phi = X \theta`, with theta ``[D_j, C]``."""

    def init(self, key: Array, feature_shape: tuple[int, ...], num_outputs: int) -> Tree:
        """A ``[D_j, C]`` of zeros."""
        return {"weight": jnp.zeros((prod(feature_shape), num_outputs))}

    def phi(self, block: Tree, features: Array) -> Array:
        """X theta; images are flattened."""
        scores: Array = features.reshape(features.shape[0], -1) @ block["weight"]
        return scores
