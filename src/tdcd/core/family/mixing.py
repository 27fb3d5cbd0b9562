r"""Mixing: every few rounds all hubs continue from the best combination of the last rounds' models.

Momentum makes no way along directions in which the silos together curve by almost nothing, such as the difference of
near copies that two silos have. But the gradients of the last rounds say where to go. With parts c that add up to 1,
the model :math:`\sum_i c_i \theta_i` has the gradient :math:`\sum_i c_i g_i` if the loss is a parabola, and is nearly
so otherwise. Hubs take the c that make it shortest, and continue with a step from there:

.. math:: \theta_{k+1} = \sum_i c_i \theta_i - a_k A^{-1} \sum_i c_i g_i, \qquad
          \min_c\ \Big\| \sum_i c_i g_i \Big\|^2_{A^{-1}} + \sum_i (\delta\, c_i)^2 \|g_i\|^2_{A^{-1}}

That is Anderson's acceleration every few steps (Banerjee, Suryanarayana and Pask, 2016): for parabolas GMRES, the best
that anyone can do with these gradients. The c follow from the inner products of the gradients, which are sums over the
silos: each round, every hub sends with its phi those of its newest gradient with the ones before, a few numbers. They
are a round late, so that no hub waits for them. :math:`\delta` is by which part of itself a gradient may be off.

Gradients are *whitened* here, :math:`A_j^{-1/2} g_j`, so that their plain inner products are the ones that count.
"""

from typing import Any, NamedTuple

import numpy as np

from tdcd.core.lazy import jax, library_of

REMEMBERED = 24
"""The rounds whose models are mixed at most."""
EVERY = 5
"""Rounds from one mixture to the next."""
MIXING_BYTES = 1 << 20
"""A hub remembers models and gradients for mixtures in so many bytes at most, or none."""
DRIFT, LEAST_DRIFT = 1e-2, 3e-3
"""By which part of itself a gradient may be off: where the curvature of the loss changes, and where it does not. The
latter is what single precision leaves of inner products."""
FIRST, FIRST_OF_PARABOLAS = 2 * EVERY, EVERY
"""The steps before the first mixture. Where curvature changes, the first steps say little about the later ones."""
LARGEST = 2.0**100
"""The largest product that is sent: a sum of such ones is finite in single precision."""
WIDTH = 1 + REMEMBERED
"""The numbers that a hub sends: how many rounds it remembers, and the products, the newest round first."""

Values = Any
"""An array of JAX or of NumPy."""
Memory = dict[str, Any]
"""A hub's blocks and whitened gradients of its last rounds, in a ring, and the sums of all hubs' products of these."""


def start(weight: Values, drift: float = DRIFT) -> Memory | None:
    """Nothing remembered; None for a block that is too large to remember."""
    if 2 * REMEMBERED * weight.size * weight.dtype.itemsize > MIXING_BYTES or not weight.size:
        return None
    empty = np.zeros((REMEMBERED, *weight.shape), weight.dtype)
    numbers = {name: np.zeros((), np.int32) for name in ("count", "met")}
    sums = np.zeros((REMEMBERED, REMEMBERED), weight.dtype)
    return {"blocks": empty, "whitened": empty, "products": sums, "drift": np.asarray(drift, weight.dtype), **numbers}


def forgotten(memory: Memory) -> Memory:
    """The memory as at the start: of steps that were taken back, no more is known."""
    return {**memory, **{name: np.zeros_like(np.asarray(memory[name])) for name in ("count", "met")}}


def products(memory: Memory | None, dtype: Any, largest: float = LARGEST) -> Values:
    """What a hub sends before the steps of a round, ``[WIDTH]``: the products of its newest gradient.

    Args:
        largest: with a larger product, or one that is not a number, it is those of no round; so it is without a memory.
    """
    if memory is None:
        return _none(np, dtype)
    whitened, count = memory["whitened"], memory["count"]
    library = library_of(whitened)
    flat = whitened.reshape(REMEMBERED, -1)
    newest_first = (count - 1 - library.arange(REMEMBERED)) % REMEMBERED
    with np.errstate(over="ignore", invalid="ignore"):
        latest = (flat[newest_first] * flat[newest_first[0]]).sum(axis=1)
    latest = library.where(library.arange(REMEMBERED) < count, latest, 0)
    sent = library.concatenate([count.astype(latest.dtype)[None], latest])
    limit = min(largest, LARGEST)
    # What is not a number is not below the limit.
    return library.where((abs(latest) <= limit).all(), sent, _none(library, latest.dtype))


def _none(library: Any, dtype: Any) -> Values:
    """What a hub sends that remembers nothing: no sum with it is the right one."""
    return library.concatenate([library.full(1, -1, dtype), library.zeros(REMEMBERED, dtype)])


def met(memory: Memory | None, total: Values, num_silos: int) -> Memory | None:
    """The memory with the sum of all silos' :func:`products`.

    Unless all remember as many rounds as this hub, it forgets its own: all others do so, too.
    """
    if memory is None:
        return None
    count = memory["count"]
    library = library_of(memory["products"])
    newest_first = (count - 1 - library.arange(REMEMBERED)) % REMEMBERED
    sums = _set(memory["products"], (newest_first[0], newest_first), total[1:])
    sums = _set(sums, (newest_first, newest_first[0]), total[1:])
    agree = total[0] == num_silos * count
    count = library.where(agree, count, 0)
    return _arrays({**memory, "products": sums, "count": count, "met": count})


class PlainStep(NamedTuple):
    """What a hub is about to do without mixing."""

    block: Values
    """Where the round began, ``[D, C]``."""
    whitened: Values
    """Its gradient there."""
    moved: Values
    """Where the step leads."""


def mixed(memory: Memory, step: PlainStep, root: Values, step_size: Values) -> tuple[Values, Values, Memory]:
    r"""Where the hub continues, whether that is from a mixture, and the memory with one more round.

    Args:
        root: :math:`A^{-1/2}`.
    """
    library, count = library_of(memory["blocks"]), memory["count"]
    library = library if library_of(step.moved) is np else jax.numpy
    place = count % REMEMBERED
    blocks, whitened = _set(memory["blocks"], place, step.block), _set(memory["whitened"], place, step.whitened)
    after = _arrays({**memory, "blocks": blocks, "whitened": whitened, "count": count + np.int32(1)})
    first = library.where(memory["drift"] > LEAST_DRIFT, FIRST, FIRST_OF_PARABOLAS)
    # The new gradient's products are not known yet.
    is_due = (memory["met"] == count) & ((count + 1) % EVERY == 0) & (count + 1 >= first)

    def continued() -> tuple[Values, Values]:
        age = (count - library.arange(REMEMBERED)) % REMEMBERED
        parts = combination(memory["products"], (age > 0) & (age <= count), memory["drift"])
        newest = blocks[(count - 1) % REMEMBERED]
        # Small differences, times parts that may be large.
        model = newest + library.tensordot(parts, blocks - newest, 1)
        moved = model - step_size * times(root, library.tensordot(parts, whitened, 1))
        is_good = library.isfinite(moved).all()
        return library.where(is_good, moved, step.moved), is_good

    if library is np:
        with np.errstate(all="ignore"):
            moved, is_mixed = continued() if is_due else (step.moved, np.False_)
    else:
        moved, is_mixed = jax.lax.cond(is_due, continued, lambda: (step.moved, jax.numpy.asarray(False)))
    return moved, is_mixed, after


def combination(products: Values, known: Values, drift: Values) -> Values:
    """How much of each model to take, ``[m]``, from the inner products of their gradients, ``[m, m]``.

    The parts add up to 1 and may be negative; they are zero where nothing is known.

    >>> products = np.array([[1.0, -1.0, 9.0], [-1.0, 1.0, 9.0], [9.0, 9.0, 9.0]])
    >>> combination(products, np.array([True, True, False]), np.array(0.01)).round(6)
    array([0.5, 0.5, 0. ])
    """
    library = library_of(products)
    squares = library.where(known, library.diagonal(products), 0)
    most = squares.max()
    # Gradients differ in length by many orders: all are made of length 1 before the system is solved.
    lengths = library.sqrt(library.where(known & (squares > 0), squares, library.where(most > 0, most, 1)))
    pairs = known[:, None] & known[None, :]
    relative = library.where(pairs, products / lengths[:, None] / lengths[None, :], 0)
    identity = library.eye(len(products), dtype=products.dtype)
    shortest = library.where(known, lengths, np.inf).min()
    right = library.where(known, shortest / lengths, 0).astype(products.dtype)
    parts = right * _solved(library, relative + (drift**2 + ~known) * identity, right)
    total = parts.sum()
    # No products of gradients are like that, but other hubs send what they like.
    is_good = library.isfinite(total) & (total > 0) & (most > 0)
    return library.where(is_good, parts / library.where(is_good, total, 1), np.nan).astype(products.dtype)


def _solved(library: Any, matrix: Values, right: Values) -> Values:
    if library is not np:
        return jax.numpy.linalg.solve(matrix, right)
    try:
        return np.linalg.solve(matrix, right)
    except np.linalg.LinAlgError:
        return np.full_like(right, np.nan)


def times(matrix: Values, vectors: Values) -> Values:
    """A symmetric matrix, or a diagonal, times the columns ``[D, C]``."""
    if matrix.ndim == 1:
        return matrix[:, None] * vectors
    if library_of(vectors) is np:
        return matrix @ vectors
    return jax.numpy.matmul(matrix, vectors, precision=jax.lax.Precision.HIGHEST)


def _set(ring: Values, place: Any, new: Values) -> Values:
    """The array with other numbers in a place; one that was handed out stays as it is."""
    if library_of(ring) is np and library_of(new) is np:
        changed = ring.copy()
        changed[place] = new
        return changed
    return jax.numpy.asarray(ring).at[place].set(new)


def _arrays(memory: Memory) -> Memory:
    """The memory with arrays in place of NumPy's numbers."""
    return {name: np.asarray(leaf) if isinstance(leaf, np.generic) else leaf for name, leaf in memory.items()}
