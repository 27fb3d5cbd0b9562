"""A client's rows of a round's minibatches, and its local steps on them.

The steps are compiled by JAX or, of a linear block, taken in NumPy, which starts sooner and is smaller.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import repeat
from operator import matmul
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from tdcd.blocks.base import Block, phi_of_members, step_phi
from tdcd.blocks.linear import Linear, is_linear
from tdcd.core import algorithm
from tdcd.core.algorithm import Descent, Minibatch, Moving
from tdcd.core.knowledge import Known, WrittenOut
from tdcd.core.lazy import Array, compiled
from tdcd.core.objective import Objective
from tdcd.core.presence import Remaining
from tdcd.core.schedule import step_keys
from tdcd.core.trees import Tree, map_tree
from tdcd.core.variant import Variant
from tdcd.runtime.compute.links import precision


class ClientRows(NamedTuple):
    """A client's rows of one round's minibatches."""

    places: NDArray[np.int64]
    """``[n]``: where its rows are among the E * P padded places; ordered by minibatch, then by place in it."""
    features: NDArray[Any]
    """``[E, P, ...]``; any row on padding."""
    labels: NDArray[Any]
    """``[E, P]``."""
    counts: NDArray[np.int32]
    """``[E]``: how many rows are not padding."""
    samples: NDArray[np.int64]
    """``[n]``: which of the round's E * B samples its rows are."""
    weights: NDArray[Any] | None = None
    """``[E, P]``: what each row weighs, if not all weigh the same."""
    kept: NDArray[np.bool_] | None = None
    """``[n]``: those that the silo is not dropped from; None if it always adds something."""
    rule: NDArray[Any] | None = None
    """``[E, P]``: what the rule of the gradient multiplies their losses by, see :func:`tdcd.core.presence.row_weights`;
    None until it is known what is left."""


class RowsLeft(NamedTuple):
    """What is left of a client's rows of one round when other clients are absent."""

    mask: NDArray[np.bool_]
    """``[n]``: which of its rows take part."""
    rows: ClientRows
    """The rows that take part."""
    left: Remaining
    """What is left of the minibatches."""


def pad(rows: ClientRows, values: NDArray[Any]) -> NDArray[Any]:
    """``[E, P, C]``, from ``[n, C]``; zero on padding."""
    padded = np.zeros((rows.labels.size, values.shape[1]), values.dtype)
    padded[rows.places] = values
    return padded.reshape(*rows.labels.shape, -1)


def places_in(counts: NDArray[np.int32], width: int) -> NDArray[np.int64]:
    """Where rows are among the E * P padded places, if each minibatch's rows are the first of its P places."""
    starts = width * np.arange(len(counts)) - (np.cumsum(counts) - counts)
    places: NDArray[np.int64] = np.arange(counts.sum()) + np.repeat(starts, counts)
    return places


def flat(padded: NDArray[Any]) -> NDArray[Any]:
    """``[E, P, ...]`` as ``[E * P, ...]``."""
    return padded.reshape(-1, *padded.shape[2:])


@dataclass(frozen=True)
class LocalSteps:
    """Line 19 for one client: all that its steps depend on except arrays."""

    model: Block
    objective: Objective
    variant: Variant
    silo: int
    steps: int
    dtype: str

    @cached_property
    def needs_jax(self) -> bool:
        """Whether the steps are differentiated and compiled."""
        return not (is_linear(self.model) and self.variant.has_slopes and self.objective.is_written_out)

    @cached_property
    def _is_plain(self) -> bool:
        """Whether NumPy steps as the package does; an update that inherits from it may do ``step_size *= 0.5``, or give
        arrays of JAX.
        """
        return self.variant.takes_plain_steps

    @cached_property
    def losses(self) -> Callable[[Any, Known], Any]:
        """Of rows, from their phi and what the client knows of them."""
        return partial(self.variant.knowledge.losses, self.silo, objective=self.objective)

    @cached_property
    def _products(self) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
        """Of features with weights, phi; of features with slopes, the gradient."""
        model = self.model
        if type(model) is Linear:
            # Of so few rows, `@` takes twice as long.
            product: Callable[[Any, Any], Any] = np.ndarray.dot if self._is_plain else matmul
            return product, lambda features, slopes: product(features.T, slopes)
        assert is_linear(model)
        return (
            lambda features, weight: model.phi({"weight": weight}, features),
            lambda features, slopes: model.weighted_sum(features, slopes)["weight"],
        )

    def take(
        self,
        block: Tree,
        rows: ClientRows,
        known: Known,
        step_size: Any,
        iteration: int,
        memory: Tree = None,
        *,
        client: tuple[NDArray[np.uint32], int],
    ) -> Any:
        """The block after Q steps, and the memory if there is one.

        Args:
            client: the words of the run's seed, and which client of the silo this is.
        """
        weights: Any = rows.rule if rows.weights is None else rows.rule * rows.weights
        if self.needs_jax:
            arrays: Any = rows.features, known, weights, step_size, np.int32(iteration), memory
            own = None if phi_of_members(self.model) is None else (client[0], np.int32(client[1]))
            with precision(self.dtype):
                return map_tree(np.asarray, _compiled_steps(block, *arrays, own, local=self))
        return self._linear_steps(block, rows, known, weights, step_size, iteration)

    def _linear_steps(
        self, block: Tree, rows: ClientRows, known: Known, weights: Any, step_size: Any, iteration: Any
    ) -> Tree:
        features: Any = rows.features.reshape(*rows.labels.shape, -1)
        written_out = cast("WrittenOut", self.variant.knowledge)
        descent = Descent(
            self.losses,
            # NumPy multiplies by an array of one number sooner than by a float.
            np.asarray(self.objective.l2, self.dtype),
            self.variant.update,
            step_size if self._is_plain else step_size[()],
            lambda phi, known: written_out.slopes(self.silo, phi, known, self.objective),
        )
        apply, weighted_sum = self._products

        def step(moving: Moving, minibatch: Any) -> Moving:
            """With features ``[P, D]`` and weights ``[P, 1]`` of the rows."""
            features, known, weights = minibatch[:3]
            phi = apply(features, moving[0])
            return algorithm.linear_step(
                moving, phi, known, lambda slopes: weighted_sum(features, weights * slopes), descent=descent
            )

        # An array is a tree, too, and the one that steps get through soonest.
        stepped = algorithm.local_steps(
            block["weight"],
            Minibatch(features, known, weights[..., None]),
            iteration=iteration,
            step=step,
            descent=descent,
            steps=self.steps,
            loop=_loop,
        )
        return {"weight": stepped}


@compiled("local")
def _compiled_steps(
    block: Tree,
    features: Array,
    known: Known,
    weights: Array,
    step_size: Array,
    iteration: Array,
    memory: Tree,
    client: tuple[Array, Array] | None,
    *,
    local: LocalSteps,
) -> Any:
    rounds = iteration // local.steps
    keys = None if client is None else step_keys(client[0], rounds, local.silo, client[1], len(features))
    minibatches = Minibatch(features, known, weights, keys)
    descent = Descent(local.losses, local.objective.l2, local.variant.update, step_size)
    return algorithm.client_steps(
        block, minibatches, iteration, apply=step_phi(local.model), descent=descent, steps=local.steps, memory=memory
    )


def _loop(
    step: Callable[[Moving, Any], tuple[Moving, None]], moving: Moving, minibatches: Minibatch | None, length: int
) -> tuple[Moving, None]:
    """``jax.lax.scan`` as a plain loop."""
    if minibatches is None:
        for _ in range(length):
            moving, _ = step(moving, None)
        return moving, None
    features, (labels, received, start), weights, _ = minibatches
    known = map(Known, labels, received, repeat(None) if start is None else start)
    # A tuple of the parts does for a Minibatch, and is made faster.
    for minibatch in zip(features, known, weights, strict=True):
        moving, _ = step(moving, minibatch)
    return moving, None
