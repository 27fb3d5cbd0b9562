"""Initial blocks."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdcd.blocks.base import Block, with_head, without_head
from tdcd.blocks.linear import is_linear
from tdcd.core.combine import SUM, Combine
from tdcd.core.lazy import Array, compiled, jax, jnp
from tdcd.core.objective import Tree
from tdcd.core.settings import Settings
from tdcd.core.trees import like, map_tree, named_leaves

STREAM = 0x68656164
"""Separates this draw from all others of the same seed."""


class FormerBlock(NamedTuple):
    """A silo's block at the end of a former run, from which another one starts."""

    where: str
    """Its file, for messages."""
    arrays: Mapping[str, NDArray[Any]]
    columns: tuple[str, ...] | None = None
    """The names of the features that it was trained on, if they are known."""

    def check(self, columns: Sequence[str]) -> None:
        """Refuse features with other names, or in another order."""
        if self.columns is None or self.columns == (*columns,):
            return
        gone = [name for name in self.columns if name not in columns]
        new = [name for name in columns if name not in self.columns]
        words = [f"it lacks {', '.join(new[:5])}"] * bool(new) + [f"it alone has {', '.join(gone[:5])}"] * bool(gone)
        differ = "; ".join(words) or "their order differs"
        raise ValueError(f"train.start: the features of {self.where} are not those of this run: {differ}")

    def fitted(self, template: Tree) -> Tree:
        """It, in the form and precision of a block that is drawn for this run."""
        leaves = named_leaves(template)
        ours = {name: np.shape(leaf) for name, leaf in leaves.items()}
        theirs = {name: array.shape for name, array in self.arrays.items()}
        for name in sorted({*ours, *theirs}):
            if ours.get(name) != theirs.get(name):
                there, here = (list(shape[name]) if name in shape else "none" for shape in (theirs, ours))
                raise ValueError(f"train.start: {self.where} does not fit: {name} is {there} there, and {here} here")
        return like(template, [self.arrays[name].astype(np.asarray(leaf).dtype) for name, leaf in leaves.items()])


def start_block(
    block: Block,
    settings: Settings,
    silo: int,
    feature_shape: tuple[int, ...],
    num_outputs: int,
    name: str = "",
    combine: Combine = SUM,
    former: FormerBlock | None = None,
) -> Tree:
    """A silo's block before round 0: a function of the seed and the silo's index, or the block of a former run.

    Args:
        num_outputs: C, the scores of a sample.
        name: the silo's, for the message if the block refuses samples of that shape.
        combine: what makes scores of phi, which says how wide phi is.
    """
    if former is not None:
        return former.fitted(start_block(block, settings, silo, feature_shape, num_outputs, name, combine))
    if is_linear(own := without_head(block)):
        # JAX is not needed.
        width = combine.block_width(num_outputs)
        started = own.init(None, feature_shape, width)  # type: ignore[arg-type]
        if width > num_outputs:
            # Units, and factors of products, that all start at zero would stay there.
            started["weight"][:, num_outputs:] = _drawn(
                settings.seed, silo, own.num_weights(feature_shape), width - num_outputs
            )
        return map_tree(lambda leaf: leaf.astype(settings.dtype), started)
    block, width = with_head(block, combine), combine.width(num_outputs)
    # Drawn in single precision, so that both precisions start from the same values.
    with jax.enable_x64(False):
        high, low = divmod(settings.seed, 2**32)
        key = _key(np.uint32(low), np.uint32(high), np.uint32(silo))
        try:
            drawn = block.init(key, feature_shape, width)
        except ValueError as error:
            raise ValueError(f"silo '{name}': {error}" if name else str(error)) from None
    with jax.enable_x64(settings.dtype == "float64"):
        started = map_tree(lambda leaf: jnp.asarray(leaf, settings.dtype), drawn)
        if problem := _misfit(block, started, feature_shape, width, settings.dtype):
            raise ValueError(f"silo '{name}': {problem}" if name else problem)
    return started


def _misfit(block: Block, started: Tree, shape: tuple[int, ...], num_outputs: int, dtype: str) -> str:
    """Why a block does not fit samples of this shape; empty if it does."""
    kind = type(without_head(block)).__name__
    try:
        samples = jax.ShapeDtypeStruct((2, *shape), dtype)  # type: ignore[no-untyped-call]
        phi = jax.eval_shape(block.phi, started, samples)
    except (TypeError, ValueError, IndexError) as error:
        return f"{kind} does not take samples of shape {shape}: {error}"
    if phi.shape == (2, num_outputs):
        return ""
    return (
        f"{kind} maps 2 samples of shape {shape} to phi of shape {phi.shape}, but the task needs (2, {num_outputs}): "
        "one row per sample, one score per output"
    )


def _drawn(seed: int, silo: int, rows: int, columns: int) -> NDArray[np.float32]:
    """Weights of linear units: mean 0 and variance 1 / rows, the same in every precision and on every machine."""
    generator = np.random.Philox(key=np.array([seed, STREAM], np.uint64), counter=[0, 0, silo, 0])
    # NumPy promises only for raw draws that they stay the same from version to version.
    uniform = (generator.random_raw(rows * columns).reshape(rows, columns) >> np.uint64(40)).astype(np.float32) / 2**24
    return ((2 * uniform - 1) * np.float32((3 / rows) ** 0.5)).astype(np.float32)


def block_bytes(block: Block, settings: Settings, feature_shape: tuple[int, ...], num_outputs: int) -> int:
    """The size of a silo's block, without making one; of a block that cannot be traced, that of one row of features."""
    itemsize = np.dtype(settings.dtype).itemsize
    if is_linear(block):
        return block.num_weights(feature_shape) * num_outputs * itemsize
    try:
        key = jax.eval_shape(_key, np.uint32(0), np.uint32(0), np.uint32(0))
        leaves = jax.tree.leaves(jax.eval_shape(lambda key: block.init(key, feature_shape, num_outputs), key))
    except Exception:
        # Whatever its author may raise: it refuses the shape itself when it starts.
        return prod(feature_shape) * itemsize
    return itemsize * sum(int(leaf.size) for leaf in leaves)


@compiled()
def _key(low: Array, high: Array, silo: Array) -> Array:
    """Of a seed of 64 bits and a silo; as one program, since each takes longer to load than to run."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(low), high), silo)
