r"""Tiered Decentralized Coordinate Descent: Algorithm 1 of the paper, as pure functions.

The paper: Das and Patterson, "Multi-tier federated learning for vertically partitioned data", ICASSP 2021. One round:

1. :func:`average`       every hub averages its clients' blocks;                                  lines 5 and 8
2. ``schedule.batch_ids`` everyone derives the round's minibatches from (seed, round);                   line 6
3. :func:`phi`           every client sends what its columns contribute to its rows' scores;             line 9
4. :func:`stack`         every hub puts its clients' rows into minibatch order;                         line 11
5. :func:`sum_others`    hubs exchange phi; each sums what the other silos sent;                   lines 12, 13
6. :func:`project`       every client gets the rows of that sum that it holds;                          line 14
7. :func:`local_steps`   every client takes Q gradient steps on its block, the others frozen.           line 19

The simulation maps the client functions over all clients of a silo at once; the real federation calls the same
functions in each process, the hub's with NumPy arrays. Shapes: E minibatches of B samples are exchanged a round (E = Q,
or 1 when one minibatch serves all local steps); a client holds at most P of a minibatch's samples; phi has C outputs.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tdcd.choices import Gradient
from tdcd.objective import Objective, Tree

Apply = Callable[[Tree, Array], Array]
"""A block's phi: (block, features ``[rows, ...]``) to ``[rows, C]``."""


def _of(array: Array) -> Any:
    """The library that an array belongs to: JAX in a client and in the simulation, NumPy in a hub."""
    return array.__array_namespace__()


def _pick(rows: Array, which: Array) -> Array:
    """``rows[e, which[e]]`` for every minibatch e."""
    if len(rows) == 1:
        picked: Array = rows[0].take(which[0], axis=0)[None]
        return picked
    found: Array = _of(rows).take_along_axis(rows, which[..., None], axis=1)
    return found


def average(client_blocks: Tree, shares: Array) -> Tree:
    r"""The hub's block: the mean of its clients' blocks, weighted by the rows they hold.

    .. math:: \tilde\theta_{(j)} = \sum_k \frac{n_k}{M}\, \theta_{k,j}

    Args:
        client_blocks: tree of ``[K, ...]``, the clients' blocks on the first axis.
        shares: ``[K]``, n_k / M; with equal shards this is the paper's 1 / K.
    """
    return jax.tree.map(lambda leaf: _of(leaf).tensordot(shares.astype(leaf.dtype), leaf, axes=1), client_blocks)


def phi(block: Tree, features: Array, *, apply: Apply, numbers_a_row: int | None = None) -> Array:
    r"""One client's contribution to its rows' scores, with the fresh hub block.

    .. math:: \Phi_{k,j}^{\zeta} = \{X_{(j)}^{(p)} \tilde\theta_{(j)} : p \in \zeta\}

    At that moment all clients of a silo have the same block, so one call can also do the rows of all of them.

    Args:
        features: ``[E, P, ...]``, the client's rows in each minibatch.
        numbers_a_row: in the largest array on the way to phi, if that is known.

    Returns:
        ``[E, P, C]``.
    """
    num_batches, num_rows, *shape = features.shape
    rows = features.reshape(num_batches * num_rows, *shape)
    numbers = rows.size if numbers_a_row is None else len(rows) * numbers_a_row
    portions = min(len(rows), math.ceil(numbers / _numbers_at_once(known=numbers_a_row is not None)))
    if portions <= 1:
        scores = apply(block, rows)
    else:
        chunks = jnp.pad(rows, [(0, -len(rows) % portions)] + [(0, 0)] * len(shape)).reshape(portions, -1, *shape)
        scores = jax.lax.map(lambda chunk: apply(block, chunk), chunks)
        scores = scores.reshape(portions * chunks.shape[1], -1)[: len(rows)]
    return scores.reshape(num_batches, num_rows, -1)


def _numbers_at_once(*, known: bool) -> int:
    """How many numbers, or features, phi takes at a time, so that they fit in a CPU's cache or a GPU's memory."""
    return 1 << (22 if jax.default_backend() != "cpu" else 20 if known else 15)


def stack(client_phi: Array, slots: Array) -> Array:
    r"""The hub's phi in minibatch order, from what its clients sent.

    Args:
        client_phi: ``[E, B, C]``, the clients' rows one client after the other.
        slots: ``[E, B]``, where among those each sample of the minibatch is.

    Returns:
        :math:`\Phi_j`, ``[E, B, C]``.
    """
    return _pick(client_phi, slots)


def sum_others(phis: Sequence[Array], silo: int) -> Array:
    r"""What the other silos contribute, summed in silo order.

    .. math:: \Phi_{-j} = \sum_{l \neq j} \Phi_l

    Args:
        phis: one ``[E, B, C]`` a silo.
    """
    others = [sent for index, sent in enumerate(phis) if index != silo]
    none: Array = _of(phis[silo]).zeros_like(phis[silo])
    return sum(others[1:], start=others[0]) if others else none


def project(phi_others: Array, positions: Array) -> Array:
    r"""The rows of the others' sum that one client holds, :math:`\pi_{k,j}(\Phi_{-j})`.

    Args:
        phi_others: ``[E, B, C]``.
        positions: ``[E, P]``, where in the minibatch each of the client's rows stands; any number on padding.

    Returns:
        ``[E, P, C]``.
    """
    return _pick(phi_others, positions)


def row_weight(counts: Array, *, gradient: Gradient, num_samples: int, batch_size: int, held: Array) -> Array:
    r"""What a client multiplies the loss of each of its rows by: its rule for turning rows into a gradient.

    ``"unbiased"`` is :math:`M / (n_k B)`, so that the hub's average is the centralised minibatch gradient for every
    row split; ``"mean"`` is one over the rows the client has in the minibatch.

    Args:
        counts: the client's rows in a minibatch; any shape.
        held: n_k, the rows the client holds in all; of that shape, or one for all minibatches.
    """
    if gradient == "mean":
        return 1 / jnp.maximum(counts, 1).astype(held.dtype)
    return jnp.broadcast_to(num_samples / (held * batch_size), counts.shape)


def row_weights(
    counts: Array, num_rows: int, *, gradient: Gradient, num_samples: int, batch_size: int, held: Array
) -> Array:
    """:func:`row_weight` for every row of a client; padding, and so a minibatch without rows of it, weighs zero.

    Args:
        counts: ``[E]``, the client's rows in each minibatch.
        num_rows: P.
        held: n_k, the rows the client holds in all.

    Returns:
        ``[E, P]``.
    """
    weight = row_weight(counts, gradient=gradient, num_samples=num_samples, batch_size=batch_size, held=held)
    return jnp.where(jnp.arange(num_rows) < counts[:, None], weight[:, None], 0)


def local_steps(
    block: Tree,
    features: Array,
    labels: Array,
    phi_others: Array,
    weights: Array,
    num_rows: Array | None = None,
    *,
    apply: Apply,
    objective: Objective,
    step_size: Array,
    steps: int,
    prefixes: Sequence[int] = (),
    unroll: int = 1,
) -> Tree:
    r"""Q gradient steps on one client's block, the other silos frozen.

    .. math:: \theta \leftarrow \theta - \eta\, g(\Phi_{-k,j}, \theta; \zeta^\tau)

    ``phi_others`` was computed when the round started and stays; only ``block`` moves. Step tau uses minibatch tau,
    or the only one.

    Args:
        features: ``[E, P, ...]``, the client's rows in each minibatch, padded to P.
        labels: ``[E, P]``.
        phi_others: ``[E, P, C]``.
        weights: ``[E, P]``, see :func:`row_weights`.
        num_rows: ``[E]``, how many rows are not padding; only ``prefixes`` need it.
        steps: Q.
        prefixes: some numbers of rows below P, ascending. A step then works on the first of them that holds all its
            rows rather than on all P; the result is the same.
        unroll: how many steps to compile one after another into the loop's body, which pays if they are tiny.
    """

    def loss(block: Tree, features: Array, labels: Array, phi_others: Array, weights: Array) -> Array:
        losses = objective.losses(apply(block, features) + phi_others, labels)
        return jnp.sum(weights * losses) + objective.penalty(block)

    def step(block: Tree, minibatch: tuple[Array, ...]) -> tuple[Tree, None]:
        gradient = jax.grad(loss)(block, *minibatch)
        return jax.tree.map(lambda leaf, slope: leaf - step_size * slope, block, gradient), None

    def shortened(block: Tree, minibatch: tuple[Array, ...]) -> tuple[Tree, None]:
        *parts, count = minibatch
        sizes = [*prefixes, len(parts[0])]
        branches = [lambda block, *p, n=n: step(block, tuple(part[:n] for part in p))[0] for n in sizes]
        chosen = jnp.searchsorted(jnp.array(prefixes), count)
        return jax.lax.switch(chosen, branches, block, *parts), None

    minibatches: tuple[Array, ...] = (features, labels, phi_others, weights)
    one_step = step
    if prefixes and num_rows is not None:
        minibatches, one_step = (*minibatches, num_rows), shortened
    if features.shape[0] == steps:
        return jax.lax.scan(one_step, block, minibatches, unroll=unroll)[0]
    only = tuple(part[0] for part in minibatches)
    return jax.lax.scan(lambda block, _: one_step(block, only), block, length=steps, unroll=unroll)[0]
