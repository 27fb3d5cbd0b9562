"""The blocks of several silos as one, for those who hold all columns."""

from dataclasses import dataclass, replace
from math import prod

import jax
from jax import Array

from tdcd.blocks.base import Block, with_heads
from tdcd.core.combine import Combine
from tdcd.core.objective import Tree


@dataclass(frozen=True)
class Joint:
    r"""The same summed model in one place: :math:`\Phi = \sum_j \Phi_{(j)}`, each of its own columns.

    A sample's features are those of all silos, flat, one silo after the other.
    """

    blocks: tuple[Block, ...]
    shapes: tuple[tuple[int, ...], ...]
    """The shape of a sample in each silo."""

    def init(self, key: Array, feature_shape: tuple[int, ...], num_outputs: int) -> Tree:
        """Every block's own, from a key of its own."""
        return [
            block.init(jax.random.fold_in(key, index), shape, num_outputs)
            for index, (block, shape) in enumerate(zip(self.blocks, self.shapes, strict=True))
        ]

    def phi(self, block: Tree, features: Array) -> Array:
        """The sum of what the blocks add to a sample's scores."""
        begin, phis = 0, []
        for model, own, shape in zip(self.blocks, block, self.shapes, strict=True):
            columns = features[:, begin : begin + prod(shape)]
            phis.append(model.phi(own, columns.reshape(-1, *shape)))
            begin += prod(shape)
        return sum(phis[1:], start=phis[0])

    def behind(self, combine: Combine) -> "Joint":
        """Every block behind the head: what a head makes of one silo's numbers, it makes of one silo's."""
        return replace(self, blocks=with_heads(self.blocks, combine))
