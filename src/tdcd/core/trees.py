"""Trees of arrays: JAX's own functions where JAX is loaded; without it the same ones, for dicts, lists and tuples."""

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from tdcd.core.lazy import jax

Tree = Any
"""A block's parameters: any nesting of dicts, lists and tuples of arrays."""


def map_tree(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """The function of every leaf, and of the same leaf of trees that are alike.

    >>> map_tree(lambda leaf, other: leaf - other, {"weight": 3, "bias": [1, None]}, {"weight": 1, "bias": [1, None]})
    {'bias': [0, None], 'weight': 2}
    """
    if _jax_knows():
        return jax.tree.map(function, tree, *others)
    return _mapped(function, tree, others)


def plus(tree: Tree, factor: Any, other: Tree) -> Tree:
    """``tree + factor * other``, leaf by leaf.

    >>> plus({"weight": 3}, 10, {"weight": 2})
    {'weight': 23}
    """
    # An array is a tree, too, and steps in NumPy take this way only.
    if type(tree) is np.ndarray:
        return tree + factor * other
    return map_tree(lambda leaf, more: leaf + factor * more, tree, other)


def minus(tree: Tree, factor: Any, other: Tree) -> Tree:
    """``tree - factor * other``, leaf by leaf."""
    if type(tree) is np.ndarray:
        return tree - factor * other
    return map_tree(lambda leaf, less: leaf - factor * less, tree, other)


def leaves_of(tree: Tree) -> list[Any]:
    """All leaves, those of a dict in the order of its keys."""
    if _jax_knows():
        return jax.tree.leaves(tree)
    leaves: list[Any] = []
    _gather(tree, leaves)
    return leaves


def like(template: Tree, leaves: Sequence[Any]) -> Tree:
    """A tree of the template's form with other leaves."""
    if _jax_knows():
        return jax.tree.unflatten(jax.tree.structure(template), leaves)
    rest = iter(leaves)
    built = _built(template, rest)
    assert next(rest, None) is None
    return built


def named_leaves(tree: Tree) -> dict[str, Any]:
    """All leaves by path.

    >>> list(named_leaves({"hidden": [{"bias": 0.0}], "slice": 1.0}))
    ['hidden.0.bias', 'slice']
    """
    if _jax_knows():
        leaves, structure = jax.tree.flatten(tree)
        return dict(zip(_paths(structure), leaves, strict=True))
    return {".".join(path): leaf for path, leaf in _walk(tree, ())}


@cache
def _paths(structure: Any) -> list[str]:
    """The path of every leaf."""
    numbered = jax.tree.unflatten(structure, range(structure.num_leaves))
    paths = (path for path, _ in jax.tree_util.tree_leaves_with_path(numbered))
    return [jax.tree_util.keystr(path, simple=True, separator=".") for path in paths]


def _jax_knows() -> bool:
    """Whether JAX is loaded; no tree of other classes can exist without it."""
    return "jax" in sys.modules


def _mapped(function: Callable[..., Any], tree: Tree, others: Sequence[Tree]) -> Tree:
    # Blocks in NumPy are dicts of arrays: no question is asked of those but these two.
    if isinstance(tree, np.ndarray):
        return function(tree, *others)
    if isinstance(tree, dict):
        return {key: _mapped(function, tree[key], [other[key] for other in others]) for key in sorted(tree)}
    if isinstance(tree, list | tuple):
        parts = [_mapped(function, part, same) for part, *same in zip(tree, *others, strict=True)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return None if tree is None else function(tree, *others)


def _gather(tree: Tree, leaves: list[Any]) -> None:
    if isinstance(tree, np.ndarray):
        leaves.append(tree)
    elif isinstance(tree, dict):
        for key in sorted(tree):
            _gather(tree[key], leaves)
    elif isinstance(tree, list | tuple):
        for part in tree:
            _gather(part, leaves)
    elif tree is not None:
        leaves.append(tree)


def _walk(tree: Tree, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(tree, dict):
        for key in sorted(tree):
            yield from _walk(tree[key], (*path, str(key)))
    elif isinstance(tree, list | tuple):
        names = getattr(tree, "_fields", range(len(tree)))
        for name, part in zip(names, tree, strict=True):
            yield from _walk(part, (*path, str(name)))
    elif tree is not None:
        yield path, tree


def _built(template: Tree, rest: Iterator[Any]) -> Tree:
    if isinstance(template, dict):
        return {key: _built(template[key], rest) for key in sorted(template)}
    if isinstance(template, list | tuple):
        parts = [_built(part, rest) for part in template]
        return type(template)(*parts) if hasattr(template, "_fields") else type(template)(parts)
    return None if template is None else next(rest)
