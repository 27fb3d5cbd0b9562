r"""The smoothness constants of Theorem 1: L of the whole gradient, and L_j of each silo's part of it.

:math:`L_j` bounds how fast silo j's partial derivative changes when *any* coordinate moves, so for a twice
differentiable objective it is the largest spectral norm of the Hessian's block row :math:`\nabla^2_{(j),:}`, which is
``[D_j, D]``. Every norm is found by Lanczos iteration on Hessian-vector products: nothing of D x D is formed.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import sqrt
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from tdcd.blocks.base import Block
from tdcd.blocks.linear import Linear
from tdcd.federation import Federation
from tdcd.objective import Objective, Tree

Vector = NDArray[np.float64]
Kind = Literal["exact", "upper bound", "estimate"]

ROWS_AT_ONCE = 1024
"""Gradients over all samples are summed over chunks of this many."""
BASIS = 64
"""Lanczos starts over from its best vector when it holds this many."""
TOLERANCE = 1e-8
"""Lanczos ends when the relative residual is below."""


class Progress(NamedTuple):
    """News from a long estimate."""

    name: str
    """What is being estimated, such as ``"L_2"``."""
    done: int
    total: int
    """Parts finished, and parts in all."""
    value: float
    """The figure so far."""


Observer = Callable[[Progress], None]


class Meter:
    """Counts the parts of a long estimate, tells the observer, and knows when time is up."""

    def __init__(self, total: int, seconds: float | None, observe: Observer) -> None:
        """Take the number of parts, and the seconds that they may take together."""
        if seconds is not None and not seconds > 0:
            raise ValueError(f"seconds must be a positive number, or None for no limit, not {seconds}")
        self._total, self._done, self._observe = total, 0, observe
        self._end = None if seconds is None else time.monotonic() + seconds

    @property
    def expired(self) -> bool:
        """Whether the time is up."""
        return self._end is not None and time.monotonic() >= self._end

    def tell(self, name: str, value: float, *, finished: bool = False) -> None:
        """Report the figure so far, and whether this part is finished."""
        self._done += finished
        self._observe(Progress(name, self._done, self._total, value))


class GlobalObjective:
    """The objective over the training samples, in float64, as a function of one flat vector theta ``[D]``."""

    def __init__(
        self,
        federation: Federation,
        blocks: Sequence[Block],
        objective: Objective,
        rows: NDArray[np.int64] | None = None,
    ) -> None:
        """Take one block a silo, and the samples to average over: all of them by default."""
        if len(blocks) != federation.num_silos:
            raise ValueError(f"there are {federation.num_silos} silos, but {len(blocks)} blocks")
        self.blocks, self.objective = tuple(blocks), objective
        outputs = int(federation.labels.max()) + 1 if objective.loss == "softmax" else 1
        chosen = slice(None) if rows is None else rows
        with jax.enable_x64(True):
            self._features = [jnp.asarray(silo.features[chosen]) for silo in federation.silos]
            self._labels = jnp.asarray(
                federation.labels[chosen], jnp.int32 if objective.loss == "softmax" else jnp.float64
            )
            template = [
                jax.tree.map(lambda leaf: np.zeros(leaf.shape), _shapes(block, silo.feature_shape, outputs))
                for block, silo in zip(blocks, federation.silos, strict=True)
            ]
            start, self._unflatten = ravel_pytree(template)
        self.size = len(start)
        self._like = jax.tree.map(np.shape, template)
        edges = np.cumsum([0, *(sum(leaf.size for leaf in jax.tree.leaves(block)) for block in template)])
        self.parts = [slice(int(edges[j]), int(edges[j + 1])) for j in range(len(blocks))]
        """Where each silo's coordinates are in theta."""

    def flatten(self, hub_blocks: Sequence[Tree]) -> Vector:
        """The hub blocks as one vector, silo after silo."""
        if jax.tree.map(np.shape, list(hub_blocks)) != self._like:
            raise ValueError(
                f"these hub blocks have the shapes {jax.tree.map(np.shape, list(hub_blocks))}, but the federation's "
                f"blocks have {self._like}"
            )
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(list(hub_blocks))], dtype=np.float64)

    def loss_and_gradient(self, theta: Vector) -> tuple[float, Vector]:
        """L(theta), and its gradient ``[D]``."""
        loss, gradient = self._call(_loss_and_gradient, theta)
        return float(loss), self._flat(gradient)

    def hessian_vector(self, theta: Vector, direction: Vector) -> Vector:
        """The Hessian at ``theta`` times ``direction``, ``[D]``."""
        return self._flat(self._call(_hessian_vector, theta, direction))

    def _call(self, function: Callable[..., Any], *vectors: Vector) -> Any:
        with jax.enable_x64(True):
            trees = [self._unflatten(jnp.asarray(vector)) for vector in vectors]
            return function(*trees, self._features, self._labels, blocks=self.blocks, objective=self.objective)

    @staticmethod
    def _flat(tree: Tree) -> Vector:
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def _shapes(block: Block, feature_shape: tuple[int, ...], outputs: int) -> Tree:
    return jax.eval_shape(lambda: block.init(jax.random.key(0), feature_shape, outputs))


def _loss(
    hub_blocks: list[Tree],
    features: list[Array],
    labels: Array,
    weights: Array,
    *,
    blocks: tuple[Block, ...],
    objective: Objective,
) -> Array:
    phis = [model.phi(block, part) for model, block, part in zip(blocks, hub_blocks, features, strict=True)]
    return jnp.sum(weights * objective.losses(sum(phis[1:], start=phis[0]), labels))


def _sum_chunks(term: Callable[..., Tree], like: Tree, features: list[Array], labels: Array) -> Tree:
    """The sum of ``term(features, labels, weights)`` over chunks of rows, where every row weighs 1 / M once."""
    total = len(labels)
    rows = min(ROWS_AT_ONCE, total)

    def add(index: Array, summed: Tree) -> Tree:
        # The last chunk starts early enough to be whole; what the one before it had weighs nothing.
        begin = jnp.minimum(index * rows, total - rows)
        chunk = [jax.lax.dynamic_slice_in_dim(part, begin, rows).astype(jnp.float64) for part in features]
        weights = (begin + jnp.arange(rows) >= index * rows) / total
        return jax.tree.map(jnp.add, summed, term(chunk, jax.lax.dynamic_slice_in_dim(labels, begin, rows), weights))

    zero = jax.tree.map(jnp.zeros_like, like)
    return jax.lax.fori_loop(0, -(-total // rows), add, zero)


@partial(jax.jit, static_argnames=("blocks", "objective"))
def _loss_and_gradient(
    hub_blocks: list[Tree], features: list[Array], labels: Array, *, blocks: tuple[Block, ...], objective: Objective
) -> tuple[Array, list[Tree]]:
    data_loss = partial(_loss, blocks=blocks, objective=objective)

    def term(*chunk: Any) -> Tree:
        return jax.value_and_grad(data_loss)(hub_blocks, *chunk)

    loss, gradient = _sum_chunks(term, (jnp.zeros(()), hub_blocks), features, labels)
    loss += sum(objective.penalty(block) for block in hub_blocks)
    return loss, jax.tree.map(lambda slope, leaf: slope + objective.l2 * leaf, gradient, hub_blocks)


@partial(jax.jit, static_argnames=("blocks", "objective"))
def _hessian_vector(
    hub_blocks: list[Tree],
    direction: list[Tree],
    features: list[Array],
    labels: Array,
    *,
    blocks: tuple[Block, ...],
    objective: Objective,
) -> list[Tree]:
    slope = jax.grad(partial(_loss, blocks=blocks, objective=objective))

    def term(*chunk: Any) -> Tree:
        return jax.jvp(lambda at: slope(at, *chunk), (hub_blocks,), (direction,))[1]

    product = _sum_chunks(term, direction, features, labels)
    moved: list[Tree] = jax.tree.map(lambda slope, leaf: slope + objective.l2 * leaf, product, direction)
    return moved


def largest_eigenvalue(
    apply: Callable[[Vector], Vector], size: int, rng: np.random.Generator, observe: Callable[[float], bool]
) -> tuple[float, bool]:
    """The eigenvalue of largest magnitude of a symmetric operator on ``[size]`` vectors, by restarted Lanczos.

    Args:
        observe: takes the magnitude so far, from below, after every product; false ends the iteration.

    Returns:
        The magnitude, and whether it has converged.
    """
    start = rng.normal(size=size)
    while True:
        basis, diagonal, beside = [start / np.linalg.norm(start)], list[float](), list[float]()
        for _ in range(min(size, BASIS)):
            image = apply(basis[-1])
            diagonal.append(float(image @ basis[-1]))
            known = np.stack(basis)
            # Taken off twice: once leaves rounding errors, which bring eigenvalues back as copies.
            for _ in range(2):
                image = image - known.T @ (known @ image)
            beside.append(float(np.linalg.norm(image)))
            values, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(beside[:-1], 1) + np.diag(beside[:-1], -1))
            best = int(np.argmax(np.abs(values)))
            value = float(abs(values[best]))
            converged = bool(beside[-1] * abs(vectors[-1, best]) <= TOLERANCE * value)
            if not observe(value) or converged:
                return value, converged
            basis.append(image / beside[-1])
        start = known.T @ vectors[:, best]
