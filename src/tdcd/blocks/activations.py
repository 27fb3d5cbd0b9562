"""How much memory a block's phi takes on the way."""

import math
from functools import lru_cache

import jax
import numpy as np

from tdcd.blocks.base import Block
from tdcd.blocks.cnn import Cnn
from tdcd.blocks.mlp import Mlp


def numbers_a_row(block: Block, feature_shape: tuple[int, ...]) -> int:
    """How many numbers a row takes up in the largest array on the way to phi; of a foreign block, in its features.

    >>> numbers_a_row(Mlp((50,)), (20,)), numbers_a_row(Cnn((8, 8), embedding=32), (28, 14))
    (50, 2304)
    """
    return _most_numbers(block, feature_shape) if isinstance(block, Cnn | Mlp) else math.prod(feature_shape)


@lru_cache
def _most_numbers(block: Cnn | Mlp, feature_shape: tuple[int, ...]) -> int:
    blocks = jax.eval_shape(lambda: block.init(jax.random.key(0), feature_shape, 1))

    def sizes(rows: int) -> list[int]:
        traced = jax.make_jaxpr(block.phi)(blocks, np.empty((rows, *feature_shape), np.float32))
        return [variable.aval.size for step in traced.eqns for variable in step.outvars]

    # Arrays that do not grow with the rows, such as reshaped weights, do not count.
    return max(math.prod(feature_shape), *(more - less for less, more in zip(sizes(2), sizes(3), strict=True)))
