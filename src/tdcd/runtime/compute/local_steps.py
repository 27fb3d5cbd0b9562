"""A client's local steps: compiled by JAX or, of a linear block, in NumPy, which starts sooner and is smaller."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, cast

import numpy as np

from tdcd.blocks.base import Block
from tdcd.blocks.linear import Linear
from tdcd.core import algorithm
from tdcd.core.algorithm import Descent, Minibatch, Moving
from tdcd.core.choices import Gradient
from tdcd.core.knowledge import Known, WrittenOut
from tdcd.core.lazy import Array, compiled
from tdcd.core.objective import Objective
from tdcd.core.trees import Tree, map_tree
from tdcd.core.update import Sgd
from tdcd.core.variant import Variant
from tdcd.runtime.compute.client_rows import ClientRows
from tdcd.runtime.compute.links import precision


@dataclass(frozen=True)
class LocalSteps:
    """Line 19 for one client: all that its steps depend on besides arrays."""

    model: Block
    objective: Objective
    variant: Variant
    silo: int
    gradient: Gradient
    steps: int
    num_samples: int
    batch_size: int
    dtype: str

    @cached_property
    def needs_jax(self) -> bool:
        """Whether the steps are differentiated and compiled."""
        is_written_out = isinstance(self.variant.knowledge, WrittenOut) and self.objective.is_written_out
        return not (type(self.model) is Linear and isinstance(self.variant.update, Sgd) and is_written_out)

    def take(self, block: Tree, rows: ClientRows, known: Known, held: Any, step_size: Any, iteration: int) -> Tree:
        """The block after Q steps. ``held``: n_k, or what it comes to for each minibatch if clients are absent."""
        arrays: Any = rows.features, known, rows.counts, rows.weights, held, step_size, np.int32(iteration)
        if not self.needs_jax:
            # A run that diverges is told as such, not by warnings.
            with np.errstate(all="ignore"):
                return _steps(block, *arrays, local=self)
        with precision(self.dtype):
            return map_tree(np.asarray, _compiled_steps(block, *arrays, local=self))


def _steps(
    block: Tree,
    features: Array,
    known: Known,
    counts: Array,
    own_weights: Array | None,
    held: Array,
    step_size: Array,
    iteration: Array,
    *,
    local: LocalSteps,
) -> Tree:
    weights = algorithm.row_weights(
        counts,
        features.shape[1],
        gradient=local.gradient,
        num_samples=local.num_samples,
        batch_size=local.batch_size,
        held=held,
    )
    objective, knowledge = local.objective, local.variant.knowledge
    losses = partial(knowledge.losses, local.silo, objective=objective)
    descent = Descent(losses, objective, local.variant.update, step_size)
    minibatches = Minibatch(features, known, weights if own_weights is None else weights * own_weights)
    if local.needs_jax:
        return algorithm.client_steps(
            block, minibatches, iteration, apply=local.model.phi, descent=descent, steps=local.steps
        )
    slopes = cast("WrittenOut", knowledge).slopes
    descent = descent._replace(slopes=partial(slopes, local.silo, objective=objective))
    step = partial(_linear_step, descent=descent)
    return algorithm.local_steps(
        block, minibatches, iteration, step=step, descent=descent, steps=local.steps, scan=_loop
    )


_compiled_steps = compiled("local")(_steps)


def _linear_step(moving: Moving, minibatch: Minibatch, *, descent: Descent) -> Moving:
    features, known, weights = minibatch

    def weighted_sum(dloss: Array) -> Tree:
        return Linear().weighted_sum(features, weights[:, None] * dloss)

    phi = Linear().phi(moving[0], features)
    return algorithm.linear_step(moving, phi, known, weighted_sum, descent=descent)


def _loop(
    step: Callable[[Moving, Any], tuple[Moving, None]], moving: Moving, minibatches: Any = None, length: int = 0
) -> tuple[Moving, None]:
    """``jax.lax.scan`` as a plain loop."""
    for index in range(length or len(minibatches.features)):
        moving, _ = step(moving, map_tree(lambda part, index=index: part[index], minibatches))
    return moving, None
