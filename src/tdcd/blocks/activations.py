"""The size of a block's activations, and its phi in chunks of rows whose activations fit in a cache."""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.blocks.base import Block, Layered, without_head
from tdcd.core.lazy import Array, compiled, jax, jnp
from tdcd.core.objective import Tree

PORTION_ON_CPU, PORTION = 1 << 20, 1 << 22
"""The most numbers in a chunk of rows: in the largest activation, which has to fit in a CPU's cache; on an accelerator,
in the features, since its memory has room for millions of rows."""


def phi_in_portions(block: Block) -> Callable[[Tree, Array], Array]:
    """The block's phi, for any number of rows: in chunks that suit the processor."""

    def apply(parameters: Tree, features: Array) -> Array:
        num_rows, *shape = features.shape
        cpu = jax.default_backend() == "cpu"
        per_row = activation_size_per_row(block, tuple(shape)) if cpu else math.prod(shape)
        portions = min(num_rows, math.ceil(num_rows * per_row / (PORTION_ON_CPU if cpu else PORTION)))
        if portions <= 1:
            return block.phi(parameters, features)
        chunks = jnp.pad(features, [(0, -num_rows % portions)] + [(0, 0)] * len(shape)).reshape(portions, -1, *shape)
        scores: Array = jax.lax.map(lambda chunk: block.phi(parameters, chunk), chunks)
        return scores.reshape(portions * chunks.shape[1], -1)[:num_rows]

    return apply


def pull_back(block: Block, parameters: Tree, features: NDArray[Any], slopes: NDArray[Any]) -> Tree:
    """The gradient of rows' losses by the block's parameters, from their slopes by phi, ``[rows, C]``; in chunks of
    rows, which are added up in float64.
    """
    num_rows, *shape = features.shape
    per_row = max(1, activation_size_per_row(block, tuple(shape)))
    rows = max(1, min(num_rows, max(16, PORTION_ON_CPU // per_row)))
    total = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float64), parameters)
    for begin in range(0, num_rows, rows):
        # The last chunk is padded with rows that do not count.
        padding = [(0, max(0, begin + rows - num_rows))]
        chunk = np.pad(features[begin : begin + rows], padding + [(0, 0)] * len(shape))
        its_slopes = np.pad(slopes[begin : begin + rows], [*padding, (0, 0)])
        gradient = _gradient(parameters, chunk, its_slopes, block=block)
        total = jax.tree.map(lambda total_leaf, more: total_leaf + np.asarray(more, np.float64), total, gradient)
    return total


@compiled("block")
def _gradient(parameters: Tree, features: Array, slopes: Array, *, block: Block) -> Tree:
    return jax.grad(lambda parameters: jnp.sum(block.phi(parameters, features) * slopes))(parameters)


def activation_size_per_row(block: Block, feature_shape: tuple[int, ...]) -> int:
    """The size of the block's largest activation per row; of a block that does not say that it has layers, of its
    features.

    >>> from tdcd.blocks import Cnn, Mlp
    >>> activation_size_per_row(Mlp((50,)), (20,)), activation_size_per_row(Cnn((8, 8), embedding=32), (28, 14))
    (50, 2304)
    """
    block = without_head(block)
    return _most_numbers(block, feature_shape) if isinstance(block, Layered) else math.prod(feature_shape)


@lru_cache
def _most_numbers(block: Layered, feature_shape: tuple[int, ...]) -> int:
    blocks = jax.eval_shape(lambda: block.init(jax.random.key(0), feature_shape, 1))

    def sizes(rows: int) -> list[int]:
        traced = jax.make_jaxpr(block.phi)(blocks, np.empty((rows, *feature_shape), np.float32))
        return [variable.aval.size for step in traced.eqns for variable in step.outvars]

    # Arrays that do not grow with the rows, such as reshaped weights, do not count.
    return max(math.prod(feature_shape), *(more - less for less, more in zip(sizes(2), sizes(3), strict=True)))
