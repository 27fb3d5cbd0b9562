"""The linear block."""

from dataclasses import dataclass
from math import prod
from typing import TypeGuard

import numpy as np

from tdcd.core.algorithm import flat_rows
from tdcd.core.lazy import Array, library_of
from tdcd.core.objective import Tree


@dataclass(frozen=True)
class Linear:
    r"""A linear model of the silo's columns, started at zero: :math:`\Phi = X \theta`, with theta ``[D_j, C]``."""

    def init(self, key: Array, feature_shape: tuple[int, ...], num_outputs: int) -> Tree:
        """A ``[D_j, C]`` of zeros."""
        return {"weight": np.zeros((self.num_weights(feature_shape), num_outputs), np.float32)}

    def phi(self, block: Tree, features: Array) -> Array:
        """X theta; images are flattened."""
        return product(flat_rows(features), block["weight"])

    def weighted_sum(self, features: Array, slopes: Array) -> Tree:
        r"""The gradient of rows' losses, :math:`X^\top S`, from S, their slopes by phi, ``[rows, C]``."""
        return {"weight": product(flat_rows(features).T, slopes)}

    def design(self, features: Array) -> Array:
        """X itself, ``[rows, D]``: what the weights are multiplied by."""
        return flat_rows(features)

    def num_weights(self, feature_shape: tuple[int, ...]) -> int:
        """D, the columns of X, for samples of this shape."""
        return prod(feature_shape)


@dataclass(frozen=True)
class LinearWithStandIns(Linear):
    r"""A linear block and a linear function for each silo that may be absent.

    With the marks :math:`a_s` of a row, phi is :math:`w^\top x + \sum_s a_s (c_s + v_s^\top x)`: the product of the row
    :math:`[x, a_1, a_1 x, a_2, a_2 x, \dots, 1]` with the weights. That row is never made: x is multiplied by w, and by
    each v, which for one output is faster than by all of them at once.
    """

    num_stand_ins: int
    num_ones: int
    """1 if the last column is one of ones."""

    def num_weights(self, feature_shape: tuple[int, ...]) -> int:
        """See :meth:`Linear.num_weights`."""
        return feature_shape[0] + self.num_stand_ins * self._num_own(feature_shape[0])

    def _num_own(self, width: int) -> int:
        """The columns x of features of this width."""
        return width - self.num_stand_ins - self.num_ones

    def phi(self, block: Tree, features: Array) -> Array:
        """See the class."""
        weight, count, own = block["weight"], self.num_stand_ins, self._num_own(features.shape[-1])
        library, outputs = library_of(weight), weight.shape[-1]
        end = len(weight) - self.num_ones
        of_stand_ins = weight[own:end].reshape(count, 1 + own, outputs)
        # The constants are the weights of the marks themselves.
        total = product(features, library.concatenate([weight[:own], of_stand_ins[:, 0], weight[end:]]))
        nothing = library.zeros((features.shape[-1] - own, outputs), weight.dtype)
        for place in range(count):
            function = library.concatenate([of_stand_ins[place, 1:], nothing])
            total = total + features[:, own + place, None] * product(features, function)
        return total

    def weighted_sum(self, features: Array, slopes: Array) -> Tree:
        """See :meth:`Linear.weighted_sum`."""
        count, own, library = self.num_stand_ins, self._num_own(features.shape[-1]), library_of(slopes)
        main = product(features.T, slopes)
        marks = [features[:, own + place, None] for place in range(count)]
        functions = [product(features.T, mark * slopes)[:own] for mark in marks]
        each = [part for place in range(count) for part in (main[own + place, None], functions[place])]
        return {"weight": library.concatenate([main[:own], *each, main[own + count :]])}

    def design(self, features: Array) -> Array:
        """The rows that the weights are multiplied by; see the class."""
        own = self._num_own(features.shape[-1])
        x, marks = features[:, :own], [features[:, own + place, None] for place in range(self.num_stand_ins)]
        each = [part for mark in marks for part in (mark, mark * x)]
        rows: Array = library_of(features).concatenate([x, *each, features[:, own + self.num_stand_ins :]], axis=1)
        return rows


def is_linear(block: object) -> TypeGuard[Linear]:
    """Whether a block's phi is a product of its weights with rows that follow from its features. Of a class that
    inherits from one of these, this is not known.
    """
    return type(block) in (Linear, LinearWithStandIns)


def product(left: Array, right: Array) -> Array:
    """A matrix product without NumPy's warnings: of finite numbers as well; others are found where it matters."""
    with np.errstate(all="ignore"):
        result: Array = left @ right
    return result
