r"""Updates by Optax optimisers: a client's, with a step-size schedule, and a hub's.

A hub uses the difference between its block and its clients' average as a gradient, as in FedOpt (Reddi et al., 2021):

.. math:: \tilde\theta \leftarrow \tilde\theta - \eta_h\, d(\tilde\theta - \bar\theta)

with d the optimiser's direction; plain SGD with :math:`\eta_h = 1` takes the average, as Algorithm 1 does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from tdcd.core.objective import Tree
from tdcd.core.update import UpdateState


@cache
def direction(name: str, momentum: float = 0.9, clip: float | None = None) -> optax.GradientTransformation:
    """``"sgd"``, ``"momentum"`` or ``"adam"`` without a step size; always the same object.

    Args:
        clip: scale every gradient down to this norm first, taken over the whole block, if it is longer.
    """
    if clip is not None:
        return optax.chain(optax.clip_by_global_norm(clip), direction(name, momentum))
    if name == "momentum":
        return optax.trace(decay=momentum)
    return optax.scale_by_adam() if name == "adam" else optax.identity()


@cache
def schedule(name: str, iterations: int) -> Callable[[Array], Array]:
    """The factor of the step size: ``"constant"``, or ``"linear"`` or ``"cosine"`` from 1 to 0 over the run."""
    falling = {
        "linear": optax.linear_schedule(1.0, 0.0, iterations),
        "cosine": optax.cosine_decay_schedule(1.0, iterations),
    }
    factor: Callable[[Array], Array] = falling.get(name, optax.constant_schedule(1.0))
    return factor


@dataclass(frozen=True)
class ClientOptimizer:
    """A client's update. The optimiser starts again every round, the schedule continues."""

    transform: optax.GradientTransformation = direction("sgd")  # noqa: RUF009  (it is cached)
    factor: Callable[[Array], Array] = schedule("constant", 1)  # noqa: RUF009

    def start(self, block: Tree, iteration: Array) -> UpdateState:
        """The optimiser's own state, and how many local steps were taken before."""
        return self.transform.init(block), jnp.asarray(iteration, jnp.int32)

    def step(self, block: Tree, gradient: Tree, state: UpdateState, step_size: Array) -> tuple[Tree, UpdateState]:
        """One step in the optimiser's direction."""
        remembered, iteration = state
        directions, remembered = self.transform.update(gradient, remembered, block)
        # Optax would turn a whole number into single precision.
        size = (step_size * self.factor(iteration.astype(step_size.dtype))).astype(step_size.dtype)
        moved = jax.tree.map(lambda leaf, direction: leaf - size * direction, block, directions)
        return moved, (remembered, iteration + 1)


@dataclass(frozen=True)
class HubOptimizer:
    """A hub's update; its state is part of the hub's checkpoint."""

    transform: optax.GradientTransformation
    step_size: float = 1.0

    def start(self, block: Tree) -> UpdateState:
        """The optimiser's own state."""
        return self.transform.init(block)

    def restarted(self, state: UpdateState) -> UpdateState:
        """The state without its momentum: after a step that led uphill."""
        moving = [name for name in ("mu", "trace") if hasattr(state, name)]
        still = {
            name: jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), getattr(state, name)) for name in moving
        }
        return state._replace(**still) if moving else state

    def step(self, block: Tree, average: Tree, state: UpdateState) -> tuple[Tree, UpdateState]:
        """One step from the block towards the average, in the optimiser's direction."""
        directions, state = self.transform.update(jax.tree.map(jnp.subtract, block, average), state, block)
        return jax.tree.map(lambda leaf, direction: leaf - self.step_size * direction, block, directions), state
