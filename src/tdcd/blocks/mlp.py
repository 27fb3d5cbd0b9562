"""The multi-layer perceptron block."""

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import ClassVar, Literal

import numpy as np

from tdcd.core.lazy import Array, compiled, jax
from tdcd.core.objective import Tree


@dataclass(frozen=True)
class Mlp:
    r"""Hidden layers on the silo's columns, then its slice of the shared linear classifier.

    .. math:: \Phi = h_L W, \quad h_i = \max(0, h_{i-1} W_i + b_i), \quad h_0 = X_{(j)}

    The slice has no bias: the silos' phi must add up to the scores of one classifier. Weights start normal with
    variance 2 / fan-in (He et al., 2015; 1 / fan-in for the slice), biases at zero.
    """

    has_layers: ClassVar[Literal[True]] = True
    hidden: tuple[int, ...] = (32,)

    def init(self, key: Array, feature_shape: tuple[int, ...], num_outputs: int) -> Tree:
        """Weights drawn from ``key``: a ``weight`` and a ``bias`` per hidden layer, and the ``slice``."""
        widths = [prod(feature_shape), *self.hidden]
        # Two programs, not one: fused, the product would be rounded otherwise.
        drawn = drawn_normals(key, shapes=tuple(pairwise([*widths, num_outputs])))
        *weights, last = scaled_normals(drawn, [(2 / fan_in) ** 0.5 for fan_in in widths[:-1]], widths[-1] ** 0.5)
        layers = [{"weight": weight, "bias": np.zeros(weight.shape[1], np.float32)} for weight in weights]
        return {"hidden": layers, "slice": last}

    def phi(self, block: Tree, features: Array) -> Array:
        """The hidden layers, then the slice; images are flattened."""
        rows = features.reshape(features.shape[0], -1)
        for layer in block["hidden"]:
            rows = jax.nn.relu(rows @ layer["weight"] + layer["bias"])
        scores: Array = rows @ block["slice"]
        return scores


# Of all layers at once, since a program takes longer to load than to run.
@compiled("shapes")
def drawn_normals(key: Array, *, shapes: tuple[tuple[int, int], ...]) -> list[Array]:
    """Numbers of mean 0 and variance 1 in arrays of these shapes."""
    return [
        jax.random.normal(own, shape) for own, shape in zip(jax.random.split(key, len(shapes)), shapes, strict=True)
    ]


@compiled()
def scaled_normals(drawn: list[Array], scales: list[float], divisor: float) -> list[Array]:
    """All but the last times their scale; the last one divided."""
    *weights, last = drawn
    return [*(weight * scale for weight, scale in zip(weights, scales, strict=True)), last / divisor]
