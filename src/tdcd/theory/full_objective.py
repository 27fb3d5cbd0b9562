"""The objective over all training samples: its value, gradient and curvature at a model."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from tdcd.blocks.base import Block
from tdcd.core.objective import Objective, Tree
from tdcd.core.words import counted
from tdcd.federation.silos import Federation, Silo

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

ROWS_AT_ONCE = 1024
"""Sums over the samples go in chunks of this many."""


class FullObjective:
    """The objective in float64, as a function of one flat vector theta ``[D]``: the hub blocks, silo after silo."""

    def __init__(
        self,
        federation: Federation,
        blocks: Sequence[Block],
        objective: Objective,
        rows: NDArray[np.int64] | None = None,
    ) -> None:
        """Take one block per silo, and the samples to average over: all of them by default."""
        check_blocks(federation, blocks)
        objective.check_additive("Theorem 1")
        self.blocks, self.objective = tuple(blocks), objective
        chosen = slice(None) if rows is None else rows
        outputs = objective.num_outputs([federation.labels, federation.test_labels])
        with jax.enable_x64(True):
            self.features = [jnp.asarray(silo.features[chosen]) for silo in federation.silos]
            self.labels = jnp.asarray(federation.labels[chosen], objective.label_dtype("float64"))
            zeros = [
                jax.tree.map(
                    lambda leaf: np.zeros(leaf.shape),
                    jax.eval_shape(partial(_start, block, silo.feature_shape, outputs)),
                )
                for block, silo in zip(blocks, federation.silos, strict=True)
            ]
            self._restore = ravel_pytree(zeros)[1]
        self._shapes = jax.tree.map(np.shape, zeros)
        edges = np.cumsum([0, *(len(_flat(block)) for block in zeros)]).tolist()
        self.size: int = edges[-1]
        """D, the parameters of all silos."""
        self.parts = [slice(edges[j], edges[j + 1]) for j in range(len(blocks))]
        """Where each silo's coordinates are in theta."""

    def flatten(self, hub_blocks: Sequence[Tree]) -> Vector:
        """The hub blocks as one vector."""
        shapes = jax.tree.map(np.shape, list(hub_blocks))
        if shapes != self._shapes:
            raise ValueError(f"the hub blocks have shapes {shapes}, but the federation's blocks have {self._shapes}")
        theta = _flat(list(hub_blocks))
        if not np.isfinite(theta).all():
            raise ValueError("the hub blocks hold numbers that are not finite: take them from before the run diverged")
        return theta

    def unflatten(self, theta: Vector) -> list[Tree]:
        """The hub blocks that ``theta`` is made of, in float64."""
        with jax.enable_x64(True):
            hub_blocks: list[Tree] = self._restore(jnp.asarray(theta))
        return hub_blocks

    def loss_and_gradient(self, theta: Vector) -> tuple[float, Vector]:
        """The objective at ``theta``, and its gradient ``[D]``."""
        loss, gradient = self._call(_loss_and_gradient, theta)
        return float(loss), _flat(gradient)

    def hessian_vector(self, theta: Vector, direction: Vector) -> Vector:
        """The Hessian at ``theta`` times ``direction``, ``[D]``."""
        return _flat(self._call(_hessian_vector, theta, direction))

    def _call(self, function: Callable[..., Any], *vectors: Vector) -> Any:
        trees = [self.unflatten(vector) for vector in vectors]
        with jax.enable_x64(True):
            return function(*trees, self.features, self.labels, blocks=self.blocks, objective=self.objective)


def check_blocks(federation: Federation, blocks: Sequence[Block]) -> None:
    """Refuse another number of blocks than of silos."""
    if len(blocks) != federation.num_silos:
        silos = counted(federation.num_silos, "silo")
        raise ValueError(f"there must be one block per silo, and there are {counted(len(blocks), 'block')} for {silos}")


def flat_rows(silo: Silo, rows: Any) -> Matrix:
    """The features of these rows ``[n, D_j]`` in float64; images are flattened."""
    chosen = np.asarray(silo.features[rows], np.float64)
    return chosen.reshape(len(chosen), -1)


def _start(block: Block, feature_shape: tuple[int, ...], outputs: int) -> Tree:
    return block.init(jax.random.key(0), feature_shape, outputs)


def _flat(tree: Tree) -> Vector:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]).astype(np.float64)


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
    """The sum of ``term(features, labels, weights)`` over chunks of rows, in which every row weighs 1 / M once."""
    total = len(labels)
    rows = min(ROWS_AT_ONCE, total)

    def add(index: Array, so_far: Tree) -> Tree:
        # The last chunk starts early enough to be whole; what the one before it had weighs nothing.
        begin = jnp.minimum(index * rows, total - rows)
        chunk = [jax.lax.dynamic_slice_in_dim(part, begin, rows).astype(jnp.float64) for part in features]
        weights = (begin + jnp.arange(rows) >= index * rows) / total
        return jax.tree.map(jnp.add, so_far, term(chunk, jax.lax.dynamic_slice_in_dim(labels, begin, rows), weights))

    return jax.lax.fori_loop(0, -(-total // rows), add, jax.tree.map(jnp.zeros_like, like))


@partial(jax.jit, static_argnames=("blocks", "objective"))
def _loss_and_gradient(
    hub_blocks: list[Tree], features: list[Array], labels: Array, *, blocks: tuple[Block, ...], objective: Objective
) -> tuple[Array, list[Tree]]:
    value_and_grad = jax.value_and_grad(partial(_loss, blocks=blocks, objective=objective))
    loss, gradient = _sum_chunks(
        lambda *chunk: value_and_grad(hub_blocks, *chunk), (jnp.zeros(()), hub_blocks), features, labels
    )
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
    gradient = jax.grad(partial(_loss, blocks=blocks, objective=objective))

    def term(*chunk: Any) -> Tree:
        return jax.jvp(lambda at: gradient(at, *chunk), (hub_blocks,), (direction,))[1]

    product: list[Tree] = jax.tree.map(
        lambda curved, leaf: curved + objective.l2 * leaf, _sum_chunks(term, direction, features, labels), direction
    )
    return product
