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
import optax
from jax import Array

from tdcd.core.objective import Tree
from tdcd.core.update import State


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

    def start(self, block: Tree, iteration: Array) -> State:
        """The optimiser's own state, and how many local steps were taken before."""
        return self.transform.init(block), jnp.asarray(iteration, jnp.int32)

    def step(self, block: Tree, gradient: Tree, state: State, step_size: Array) -> tuple[Tree, State]:
        """One step in the optimiser's direction."""
        remembered, iteration = state
        ways, remembered = self.transform.update(gradient, remembered, block)
        # Optax would turn a whole number into single precision.
        size = (step_size * self.factor(iteration.astype(step_size.dtype))).astype(step_size.dtype)
        return jax.tree.map(lambda leaf, way: leaf - size * way, block, ways), (remembered, iteration + 1)


@dataclass(frozen=True)
class HubOptimizer:
    """A hub's update; its state is part of the hub's checkpoint."""

    transform: optax.GradientTransformation
    step_size: float = 1.0

    def start(self, block: Tree) -> State:
        """The optimiser's own state."""
        return self.transform.init(block)

    def step(self, block: Tree, average: Tree, state: State) -> tuple[Tree, State]:
        """One step from the block towards the average, in the optimiser's direction."""
        ways, state = self.transform.update(jax.tree.map(jnp.subtract, block, average), state, block)
        return jax.tree.map(lambda leaf, way: leaf - self.step_size * way, block, ways), state
