"""The linear block."""

from dataclasses import dataclass
from math import prod

import numpy as np

from tdcd.core.lazy import Array
from tdcd.core.objective import Tree


@dataclass(frozen=True)
class Linear:
    r"""A linear model of the silo's columns, started at zero: :math:`\Phi = X \theta`, with theta ``[D_j, C]``."""

    def init(self, key: Array, feature_shape: tuple[int, ...], num_outputs: int) -> Tree:
        """A ``[D_j, C]`` of zeros."""
        return {"weight": np.zeros((prod(feature_shape), num_outputs), np.float32)}

    def phi(self, block: Tree, features: Array) -> Array:
        """X theta; images are flattened."""
        return _product(_flat(features), block["weight"])

    def weighted_sum(self, features: Array, slopes: Array) -> Tree:
        r"""The gradient of rows' losses, :math:`X^\top S`, from S, their slopes by phi, ``[rows, C]``."""
        return {"weight": _product(_flat(features).T, slopes)}


def _product(left: Array, right: Array) -> Array:
    # NumPy's products may warn of finite numbers as well; what is not finite is found where it matters.
    with np.errstate(all="ignore"):
        product: Array = left @ right
    return product


def _flat(features: Array) -> Array:
    return features.reshape(features.shape[0], -1)
