r"""Steps of a hub, scaled by the curvature of its own silo.

For linear blocks a silo's own part of the Hessian is at most :math:`c H_j`, with
:math:`H_j = \frac1M \sum_i x_{ij} x_{ij}^\top` and c the bound of the loss's second derivative (1 for the squared loss,
1/4 for the logistic one). :math:`H_j` is a mean over the silo's rows: every client sends its own once, before round 0,
and it never leaves the silo. The hub divides what its clients' steps changed by how far they went, which is the
averaged gradient g, and takes

.. math:: u_k = \beta_k u_{k-1} + g_k, \qquad
          \theta_{k+1} = \theta_k - a_k A_j^{-1} \big(\beta_{k+1} u_k + g_k\big), \qquad
          A_j = c H_j + (\lambda + \epsilon) I, \qquad \beta_k = \min\Big(0.9, \frac{k}{k + 3}\Big)

Nesterov's momentum with a preconditioner. In the variables :math:`w_j = A_j^{1/2} \theta_j` these are plain steps on a
function with curvature at most 1 in every silo and N overall (docs/theory.md), so that a has no unit: columns may be
correlated and of any scale. :math:`a_0 = 1 / N` is safe whatever the data. Most data allow for more: losses curve less
where they are small, and silos overlap less than wholly. So every hub measures how its own gradient changed with its
block, in the scaled norms, and takes longer steps where that is little:

.. math:: a_k = \max\Big(a_0, \min\Big(1.2\, a_{k-1}, \frac{1}{2 \ell_k}\Big)\Big), \qquad
          \ell_k^2 = \frac{\|g_k - g_{k-1}\|^2_{A_j^{-1}}}{\|\theta_k - \theta_{k-1}\|^2_{A_j}}

That is the rule of adaptive gradient descent (Malitsky and Mishchenko, 2020) with a floor. Nothing is sent for it.

Every few rounds a step begins at a mixture of the last rounds' models in place of the last one
(:mod:`tdcd.core.family.mixing`), and momentum starts anew.

The hub also remembers the blocks and the gradients of its last rounds: certificates are made of them
(:mod:`tdcd.core.certificate`).
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tdcd.core.algorithm import Design, average, flat_rows
from tdcd.core.codecs.fixed_point import FixedBlocks
from tdcd.core.family import mixing
from tdcd.core.lazy import Array, jax, library_of
from tdcd.core.objective import Objective, Tree
from tdcd.core.round import WITNESSES
from tdcd.core.trees import leaves_of, map_tree
from tdcd.core.update import HubUpdate, UpdateState

DAMPING = 1e-3
r""":math:`\epsilon`, times the mean of the diagonal of :math:`c H_j`."""
WIDEST = 2048
"""The most features of a silo whose products are sent in full; of wider ones the diagonal is."""
MOST_ROWS = 20_000
"""A client works out its products from so many of its rows at most, evenly spread."""
MOMENTUM_AGE = 3
"""After k steps the momentum is k / (k + 3), up to its limit."""
GROWTH, MOST_GROWN = 1.2, 32.0
"""By how much a step may be longer than the last one, and than 1 at most."""
LEAST_WINDOW, WINDOW_BYTES = 4, 1 << 18
"""A hub remembers blocks and gradients of its last rounds, at least of so many or of none, in so many bytes at most."""


def window_size(numbers: int, itemsize: int) -> int:
    """How many rounds a hub remembers of a block of so many numbers.

    >>> window_size(100, 4), window_size(4096, 4), window_size(100_000, 4)
    (64, 8, 0)
    """
    size = min(WITNESSES, WINDOW_BYTES // (2 * numbers * itemsize))
    return size if size >= LEAST_WINDOW else 0


class Window(NamedTuple):
    """A silo's blocks of its last rounds, and the gradients that it found there, the last one first."""

    blocks: NDArray[np.float64]
    """``[m, D, C]``."""
    gradients: NDArray[np.float64]
    """``[m, D, C]``: of the objective, l2 counted in."""
    errors: NDArray[np.float64]
    """``[m, m]``: inner products of what the gradients may be off by."""


@runtime_checkable
class CurvedUpdate(HubUpdate, Protocol):
    """A hub's update that knows the curvature of its silo."""

    def curved(self, state: UpdateState, products: NDArray[Any], objective: Objective) -> UpdateState:
        """The state before round 0, from :func:`products` of the silo's rows."""
        ...

    def products(self, state: UpdateState, largest: float = np.inf) -> Array:
        """What a hub sends the others before a step, for :meth:`met`; a vector of :data:`mixing.WIDTH`."""
        ...

    def met(self, state: UpdateState, total: Array, num_silos: int) -> UpdateState:
        """The state with the sum of what all hubs sent."""
        ...


def products(features: NDArray[Any], design: Design = flat_rows) -> NDArray[np.float64]:
    r"""A client's :math:`\frac1n \sum_i x_i x_i^\top`, ``[D, D]``; its diagonal ``[D]`` if D is large.

    Sample weights are left out: where one silo has them, the clients of the others do not know them.

    >>> products(np.array([[1.0, 2.0], [3.0, 0.0]])).tolist()
    [[5.0, 1.0], [1.0, 2.0]]
    """
    step = max(1, -(-len(features) // MOST_ROWS))
    rows = np.asarray(design(features[::step]), np.float64)  # type: ignore[arg-type]
    if not len(rows):
        return np.zeros(products_shape(rows.shape[1]))
    if rows.shape[1] > WIDEST:
        return np.asarray((rows**2).mean(axis=0))
    return np.asarray(rows.T @ rows / len(rows))


def mean_products(by_client: NDArray[Any], shares: NDArray[Any], summed: FixedBlocks | None = None) -> NDArray[Any]:
    """The products of a silo, from those of its clients ``[K, ...]`` and their parts of the rows.

    Args:
        summed: the codec of the clients' blocks, where a hub sees nothing but sums.
    """
    if summed is not None:
        parts = [summed.part(own, share) for own, share in zip(by_client, shares.astype(by_client.dtype), strict=True)]
        total: NDArray[Any] = summed.average(sum(parts[1:], start=parts[0]), by_client.dtype)
        return total
    weights: Any = shares
    return np.asarray(average(by_client, weights))


def products_shape(num_features: int) -> tuple[int, ...]:
    """The shape of :func:`products` for D features."""
    return (num_features,) if num_features > WIDEST else (num_features, num_features)


def damping_of(diagonal: NDArray[Any], l2: float) -> float:
    r""":math:`\lambda + \epsilon`, from the diagonal of :math:`c H_j`."""
    # Columns without any spread have no curvature: without l2 either, they stay where they are.
    return l2 + max(DAMPING * float(diagonal.mean()), 1e-30)


def inverse_root_of(products: NDArray[Any], curvature: float, l2: float) -> NDArray[np.float64]:
    """The root of the inverse of A, from the silo's products: a matrix, or a diagonal."""
    bound = curvature * np.asarray(products, np.float64)
    diagonal = bound if bound.ndim == 1 else np.diagonal(bound)
    damping = damping_of(diagonal, l2)
    if bound.ndim == 1:
        return np.asarray(1 / np.sqrt(np.maximum(bound, 0) + damping))
    # Sums in fixed point may leave a matrix that is just not positive.
    values, vectors = np.linalg.eigh((bound + bound.T) / 2)
    return np.asarray((vectors / np.sqrt(np.maximum(values, 0) + damping)) @ vectors.T)


@dataclass(frozen=True)
class Scaled:
    """The part ``hub_update`` of a variant: scaled steps with momentum, for linear blocks.

    Args:
        step_size: the first step, and the shortest.
        reach: how far the clients' local steps go along a gradient: their step size times Q.
        momentum: its limit.
        margin: the longest step, times the curvature that was measured.
    """

    step_size: float
    reach: float
    momentum: float = 0.9
    margin: float = 0.5
    takes_numpy: ClassVar[bool] = True
    longest: ClassVar[float] = 1.0
    """The largest factor of steered steps: these grow by themselves."""

    def start(self, block: Tree) -> UpdateState:
        """As if the curvature were 1 everywhere: see :meth:`curved`."""
        weight = block["weight"]
        size = weight.shape[0]
        root = np.ones(size) if size > WIDEST else np.eye(size)
        numbers = {"step_size": self.step_size, "age": 0.0, "stiffness": 0.0}
        state = {
            **{name: np.asarray(number, weight.dtype) for name, number in numbers.items()},
            **{name: map_tree(lambda leaf: 0 * leaf, block) for name in ("velocity", "gradient", "block")},
            "root": root.astype(weight.dtype),
        }
        if (memory := mixing.start(weight)) is not None:
            state["mixing"] = memory
        rounds = window_size(max(1, weight.size), weight.dtype.itemsize)
        if not rounds:
            return state
        empty = np.zeros((rounds, *weight.shape), weight.dtype)
        return {**state, "window": {"blocks": empty, "gradients": empty, "steps": np.zeros((), np.int32)}}

    def curved(self, state: UpdateState, products: NDArray[Any], objective: Objective) -> UpdateState:
        """The state with what A is, and how much its curvature may change."""
        root = inverse_root_of(products, objective.curvature, objective.l2).astype(state["root"].dtype)
        if "mixing" not in state:
            return {**state, "root": root}
        drift = mixing.LEAST_DRIFT if objective.kind.is_quadratic else mixing.DRIFT
        return {**state, "root": root, "mixing": {**state["mixing"], "drift": np.asarray(drift, root.dtype)}}

    def restarted(self, state: UpdateState) -> UpdateState:
        """The state without its momentum, and with nothing to mix: after a step that led uphill."""
        still = map_tree(lambda leaf: np.zeros(leaf.shape, leaf.dtype), state["velocity"])
        after = {**state, "velocity": still, "age": np.zeros_like(np.asarray(state["age"]))}
        return {**after, "mixing": mixing.forgotten(state["mixing"])} if "mixing" in state else after

    def products(self, state: UpdateState, largest: float = np.inf) -> Array:
        """What a hub sends the others before a step, see :func:`mixing.products`."""
        sent: Array = mixing.products(state.get("mixing"), state["root"].dtype, largest)
        return sent

    def met(self, state: UpdateState, total: Array, num_silos: int) -> UpdateState:
        """The state with the sum of all silos' :meth:`products`; without it a step is never from a mixture."""
        if "mixing" not in state:
            return state
        return {**state, "mixing": mixing.met(state["mixing"], total, num_silos)}

    def step(self, block: Tree, average: Tree, state: UpdateState) -> tuple[Tree, UpdateState]:
        """One step along the velocity, or now and then from a mixture of the last rounds' models."""
        root, library = state["root"], library_of(block["weight"])
        gradient = map_tree(lambda now, after: (now - after) / self.reach, block, average)
        whitened = map_tree(lambda leaf: mixing.times(root, leaf), gradient)
        step_size = self._step_size(block, whitened, state)
        age = state["age"] + 1
        old, new = (library.minimum(self.momentum, k / (k + MOMENTUM_AGE)) for k in (age, age + 1))
        velocity = map_tree(lambda fast, slope: old * fast + slope, state["velocity"], whitened)
        push = map_tree(lambda fast, slope: new * fast + slope, velocity, whitened)
        way = map_tree(lambda leaf: mixing.times(root, leaf), push)
        moved = map_tree(lambda leaf, along: leaf - step_size * along, block, way)
        length = _dot(way, way)
        after = {**state, "step_size": step_size, "gradient": whitened, "block": block}
        after["stiffness"] = _dot(push, push) / library.where(length > 0, length, 1)
        if "mixing" in state:
            step = mixing.PlainStep(block["weight"], whitened["weight"], moved["weight"])
            weight, is_mixed, after["mixing"] = mixing.mixed(state["mixing"], step, root, step_size)
            # Momentum starts anew from there.
            moved = {**moved, "weight": weight}
            age = library.where(is_mixed, 0 * age, age)
            velocity = map_tree(lambda fast: library.where(is_mixed, 0 * fast, fast), velocity)
        after["age"], after["velocity"] = age, velocity
        if "window" in state:
            after["window"] = _with_round(state["window"], block["weight"], gradient["weight"])
        return moved, {name: np.asarray(leaf) if isinstance(leaf, np.generic) else leaf for name, leaf in after.items()}

    def _step_size(self, block: Tree, whitened: Tree, state: UpdateState) -> Array:
        """How long the step is, from how the gradient changed since the last one."""
        last, library = state["step_size"], library_of(block["weight"])
        pairs = (block, state["block"]), (whitened, state["gradient"])
        step, change = (map_tree(lambda now, before: now - before, *pair) for pair in pairs)
        # The last step went along A^-1 push: its norm by A follows from its length.
        moved, turned = state["stiffness"] * _dot(step, step), _dot(change, change)
        is_measured = (state["age"] > 0) & (moved > 0) & (turned > 0)
        measured = self.margin * library.sqrt(
            library.where(is_measured, moved, 1) / library.where(is_measured, turned, 1)
        )
        longest = library.minimum(library.minimum(GROWTH * last, MOST_GROWN), measured)
        step_size: Array = library.where(is_measured, library.maximum(longest, self.step_size), last)
        return step_size

    def window(self, state: UpdateState, delay: int = 0) -> Window | None:
        r"""The last rounds, as far as they are remembered.

        Gradients are differences of rounded blocks, and of rounded scores. Where rounds overlap by D, they are also
        those of other silos' blocks of D rounds before, and so off by what these blocks have moved since then. A hub
        knows that of its own block, :math:`\Delta_k`, and how far it reaches at most: the gradients of a silo with the
        same curvature would be off by :math:`a\, \Delta_k^\top A_j \Delta_l` in their products, with a the mean of A's
        diagonal.

        Args:
            delay: D.
        """
        if "window" not in state:
            return None
        known = {name: np.asarray(array) for name, array in state["window"].items()}
        steps, rounds, epsilon = int(known["steps"]), len(known["blocks"]), np.finfo(known["blocks"].dtype).eps
        count = min(steps, rounds)
        if count <= delay:
            return None
        last_first = (steps - 1 - np.arange(count)) % rounds
        blocks, gradients = (known[name][last_first].astype(np.float64) for name in ("blocks", "gradients"))
        errors = np.diag((epsilon / min(self.reach, 1.0)) ** 2 * np.einsum("mdc,mdc->m", blocks, blocks))
        if delay:
            count -= delay
            moved = blocks[:count] - blocks[delay:]
            errors = errors[:count, :count] + _products_by(np.asarray(state["root"], np.float64), moved)
        return Window(blocks[:count], gradients[:count], errors)


def _products_by(root: NDArray[np.float64], moved: NDArray[np.float64]) -> NDArray[np.float64]:
    """Inner products of changes of a block ``[m, D, C]`` by A, times the mean of A's diagonal."""
    inverse: Any = 1 / root if root.ndim == 1 else np.linalg.inv(root)
    along = inverse[:, None] * moved if root.ndim == 1 else inverse @ moved
    diagonal = inverse**2 if root.ndim == 1 else np.einsum("de,ed->d", inverse, inverse)
    return np.asarray(diagonal.mean() * np.einsum("adc,bdc->ab", along, along))


def _with_round(window: dict[str, Array], block: Array, gradient: Array) -> dict[str, Array]:
    """The window with one more round, in the place of the oldest."""
    steps = window["steps"]
    place = steps % len(window["blocks"])
    after = {"steps": steps + np.int32(1)}
    for name, new in (("blocks", block), ("gradients", gradient)):
        if library_of(window[name]) is np and library_of(new) is np:
            # A state that was handed out stays as it is.
            after[name] = window[name].copy()
            after[name][place] = new
        else:
            after[name] = jax.numpy.asarray(window[name]).at[place].set(new)
    return {name: np.asarray(leaf) if isinstance(leaf, np.generic) else leaf for name, leaf in after.items()}


def _dot(first: Tree, second: Tree) -> Array:
    total: Array = sum((left * right).sum() for left, right in zip(leaves_of(first), leaves_of(second), strict=True))
    return total
