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
    classifier.

    A member is trained by the loss that there would be if its silo's phi were that member's alone, next to the other
    silos' means: so every member predicts by itself, and phi is still as narrow as the scores. In a local step each
    unit of each member is left out with probability ``dropout``, for all rows of the client alike, and the others count
    for as much more.

    The first layer's inputs are not scaled: its product, the largest by far for wide columns, is then the same for all
    members. Members differ from the start by random signs of its outputs. Weights start as those of :class:`Mlp`.
    """

    has_layers: ClassVar[Literal[True]] = True
    hidden: tuple[int, ...] = (128, 128)
    members: int = 16
    """k."""
    dropout: float = 0.1
    """How likely a unit is left out in a local step."""

    def __post_init__(self) -> None:
        """Refuse an ensemble without members, and one without layers, whose members would not differ."""
        if not self.hidden or self.members < 1:
            raise ValueError(f"an ensemble has hidden layers and members, not {self.hidden} and {self.members}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, not {self.dropout}")

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
        """The mean of all members."""
        rows = self._last_layer(block, features)
        scores: Array = rows.reshape(rows.shape[0], -1) @ block["slice"] / self.members
        return scores

    def phi_of_members(self, block: Tree, features: Array, key: Array) -> Array:
        """``[k, rows, C]``: of each member, without the units that ``key`` leaves out; see
        :data:`tdcd.blocks.base.Members`.
        """
        rows = self._last_layer(block, features, key if self.dropout else None)
        slices = block["slice"].reshape(self.members, rows.shape[-1], -1)
        scores: Array = jax.numpy.einsum("pkd,kdc->kpc", rows, slices)
        return scores

    def _last_layer(self, block: Tree, features: Array, key: Array | None = None) -> Array:
        """All members side by side, ``[rows, k, width]``, so that every layer is one matrix product."""
        rows = features.reshape(features.shape[0], 1, -1)
        for place, layer in enumerate(block["hidden"]):
            inputs = rows * layer["input"] if "input" in layer else rows
            products = (inputs.reshape(-1, inputs.shape[-1]) @ layer["weight"]).reshape(*inputs.shape[:2], -1)
            rows = jax.nn.relu(products * layer["output"] + layer["bias"])
            if key is not None:
                rows = rows * _kept(key, place, layer["bias"], self.dropout)
        return rows


def _kept(key: Array, place: int, like: Array, dropout: float) -> Array:
    """``[k, width]``: 0 for units that are left out, and for the others what makes up for them."""
    drawn = jax.random.fold_in(jax.random.wrap_key_data(key, impl="threefry2x32"), place)
    kept: Array = jax.random.bernoulli(drawn, 1 - dropout, like.shape).astype(like.dtype) / (1 - dropout)
    return kept


@compiled("shape")
def _signs(key: Array, *, shape: tuple[int, int]) -> Array:
    """1 or -1, with the same chance each."""
    return 2.0 * jax.random.bernoulli(jax.random.fold_in(key, SIGNS), 0.5, shape) - 1.0
