"""Flax and Equinox modules as blocks. Neither library is needed, nor imported, before such a module is given."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tdcd.blocks.base import Block
from tdcd.core.lazy import Array, jax, jnp
from tdcd.core.objective import Tree


@dataclass(frozen=True)
class LinenBlock:
    """A module of ``flax.linen``, which maps ``[rows, *feature_shape]`` to ``[rows, C]``.

    It may keep nothing besides its parameters, since hubs average those and nothing else. Dropout has to be off:
    ``deterministic=True``.
    """

    module: Any

    def init(self, key: Array, feature_shape: tuple[int, ...], num_outputs: int) -> Tree:
        """The parameters that the module draws from ``key``."""
        variables = _tried(lambda: self.module.init(key, jnp.zeros((1, *feature_shape))))
        for name in variables:
            if name != "params":
                raise ValueError(_KEEPS.format(f"'{name}'"))
        return dict(variables["params"])

    def phi(self, block: Tree, features: Array) -> Array:
        """The module's outputs ``[rows, C]``."""
        scores: Array = _tried(lambda: self.module.apply({"params": block}, features))
        return scores


@dataclass(frozen=True, eq=False)
class NnxBlock:
    """A module of ``flax.nnx``, which maps ``[rows, *feature_shape]`` to ``[rows, C]``, in evaluation mode.

    Its ``nnx.Param`` are trained, and start as they are. All else is constant; batch statistics are refused.
    """

    module: Any

    def init(self, key: Array, feature_shape: tuple[int, ...], num_outputs: int) -> Tree:
        """The module's own parameters; ``key`` changes nothing."""
        nnx = sys.modules["flax.nnx"]
        _, params, statistics, _ = nnx.split(self.module, nnx.Param, nnx.BatchStat, ...)
        if jax.tree.leaves(statistics):
            raise ValueError(_KEEPS.format("batch statistics"))
        return _named_leaves(params)

    def phi(self, block: Tree, features: Array) -> Array:
        """The module's outputs ``[rows, C]``."""
        nnx = sys.modules["flax.nnx"]
        graph, params, rest = nnx.split(self.module, nnx.Param, ...)
        names = _named_leaves(params)
        own = jax.tree.unflatten(jax.tree.structure(params), [block[name] for name in names])
        module = nnx.merge(graph, own, rest)
        module.eval()
        scores: Array = _tried(lambda: module(features))
        return scores


@dataclass(frozen=True, eq=False)
class EquinoxBlock:
    """A module of Equinox, which maps one sample ``[*feature_shape]`` to ``[C]``, in inference mode.

    Its real-valued arrays are trained, and start as they are. All else is constant.
    """

    module: Any

    def init(self, key: Array, feature_shape: tuple[int, ...], num_outputs: int) -> Tree:
        """The module's own arrays; ``key`` changes nothing."""
        return {name: leaf for name, leaf in _named_leaves(self.module).items() if _is_real(leaf)}

    def phi(self, block: Tree, features: Array) -> Array:
        """The module's outputs ``[rows, C]``."""
        leaves = [block.get(name, leaf) for name, leaf in _named_leaves(self.module).items()]
        module = jax.tree.unflatten(jax.tree.structure(self.module), leaves)
        module = sys.modules["equinox"].nn.inference_mode(module)
        scores: Array = _tried(lambda: jax.vmap(module)(features))
        return scores


_KEEPS = (
    "the module keeps {} besides its parameters, which hubs would not average: use layers that treat every row alike, "
    "for example GroupNorm instead of BatchNorm"
)


def as_block(candidate: Any) -> Block | None:
    """A block as it is, a Flax or Equinox module as a block; None for all else."""
    if isinstance(candidate, type):
        return None
    if all(callable(getattr(candidate, name, None)) for name in ("init", "phi")):
        own: Block = candidate
        return own
    kinds: dict[str, Callable[[Any], Block]] = {"flax.linen": LinenBlock, "flax.nnx": NnxBlock, "equinox": EquinoxBlock}
    for library, kind in kinds.items():
        if _is_module(candidate, library):
            return kind(candidate)
    if _is_module(candidate, "torch.nn"):
        raise ValueError(
            "a PyTorch module is given as tdcd.blocks.torch.TorchBlock(make), where make() builds it; in a "
            'configuration, block = "torch" and module = "package.module:make"'
        )
    return None


def _is_module(candidate: Any, library: str) -> bool:
    """Whether it is a module of a library: one that was never imported has made none."""
    kind = getattr(sys.modules.get(library), "Module", None)
    return isinstance(kind, type) and isinstance(candidate, kind)


def _named_leaves(tree: Tree) -> dict[str, Any]:
    """A tree's leaves by their paths, in the order of ``jax.tree.leaves``."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    # Variables of ``flax.nnx`` are trees with one leaf.
    names = [jax.tree_util.keystr(path, simple=True, separator=".").removesuffix(".value") for path, _ in leaves]
    return {name: leaf for name, (_, leaf) in zip(names, leaves, strict=True)}


def _is_real(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and bool(jnp.issubdtype(leaf.dtype, jnp.floating))


def _tried(call: Callable[[], Any]) -> Any:
    """The result of calling a module, whose own errors are of many kinds."""
    try:
        return call()
    except Exception as error:
        raise ValueError(f"the module says: {str(error).strip().partition(chr(10))[0]}") from error
