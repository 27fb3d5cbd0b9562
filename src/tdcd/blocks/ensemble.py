"""The block of several networks that share their weights."""

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import ClassVar, Literal

import numpy as np

from tdcd.blocks.mlp import drawn_normals, scaled_normals
from tdcd.core.lazy import Array, compiled, jax
from tdcd.core.objective import Tree

SIGNS = 1
"""Of the key: the draw of the members' signs, apart from that of the weights."""


@dataclass(frozen=True)
class Ensemble:
    r"""k networks on the silo's columns that share their weights, and differ by scalings of layers' inputs and outputs.

    .. math:: \Phi = \frac1k \sum_{m=1}^k h_L^m W^m, \quad
              h_1^m = \max(0, s_1^m \circ X_{(j)} W_1 + b_1^m), \quad
              h_i^m = \max(0, s_i^m \circ ((r_i^m \circ h_{i-1}^m) W_i) + b_i^m)

    as in BatchEnsemble (Wen et al., 2020) and TabM (Gorishniy et al., 2025). Each member has its own slice of the
    classifier. The loss is that of the members' mean, so phi is as narrow as the scores.

    The first layer's inputs are not scaled: its product, the largest by far for wide columns, is then the same for all
    members. Members differ from the start by random signs of its outputs. Weights start as those of :class:`Mlp`.
    """

    has_layers: ClassVar[Literal[True]] = True
    hidden: tuple[int, ...] = (128, 128)
    members: int = 8
    """k."""

    def __post_init__(self) -> None:
        """Refuse an ensemble without members, and one without layers, whose members would not differ."""
        if not self.hidden or self.members < 1:
            raise ValueError(f"an ensemble has hidden layers and members, not {self.hidden} and {self.members}")

    def init(self, key: Array, feature_shape: tuple[int, ...], num_outputs: int) -> Tree:
        """Weights drawn from ``key``: per hidden layer a ``weight``, and per member ``input``, ``output`` and ``bias``;
        the members' slices, one below the other, as ``slice``.
        """
        widths, members = [prod(feature_shape), *self.hidden], self.members
        shapes = (*pairwise(widths), (members * widths[-1], num_outputs))
        normals = drawn_normals(key, shapes=shapes)
        *weights, last = scaled_normals(normals, [(2 / fan_in) ** 0.5 for fan_in in widths[:-1]], widths[-1] ** 0.5)

        layers: list[Tree] = []
        for weight, (fan_in, width) in zip(weights, pairwise(widths), strict=True):
            inputs, outputs = (np.ones((members, size), np.float32) for size in (fan_in, width))
            layers.append({"weight": weight, "input": inputs, "output": outputs, "bias": 0 * outputs})
        del layers[0]["input"]
        layers[0]["output"] = _signs(key, shape=(members, widths[1]))
        return {"hidden": layers, "slice": last}

    def phi(self, block: Tree, features: Array) -> Array:
        """All members side by side, ``[rows, k, width]``, so that every layer is one matrix product."""
        rows = features.reshape(features.shape[0], 1, -1)
        for layer in block["hidden"]:
            inputs = rows * layer["input"] if "input" in layer else rows
            products = (inputs.reshape(-1, inputs.shape[-1]) @ layer["weight"]).reshape(*inputs.shape[:2], -1)
            rows = jax.nn.relu(products * layer["output"] + layer["bias"])
        scores: Array = rows.reshape(rows.shape[0], -1) @ block["slice"] / self.members
        return scores


@compiled("shape")
def _signs(key: Array, *, shape: tuple[int, int]) -> Array:
    """1 or -1, with the same chance each."""
    return 2.0 * jax.random.bernoulli(jax.random.fold_in(key, SIGNS), 0.5, shape) - 1.0
