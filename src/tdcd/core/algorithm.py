r"""Tiered Decentralized Coordinate Descent: Algorithm 1 of the paper, as pure functions.

The paper: Das and Patterson, "Multi-tier federated learning for vertically partitioned data", ICASSP 2021. One round:

1. :func:`average`       every hub averages its clients' blocks;                                  lines 5 and 8
2. ``schedule.batch_ids`` everyone derives the round's minibatches from (seed, round);                   line 6
3. :func:`phi`           every client sends what its columns contribute to its rows' scores;             line 9
4. :func:`stack`         every hub puts its clients' rows into minibatch order;                         line 11
5. :func:`sum_others`    hubs exchange phi; each sums what the other silos sent;                   lines 12, 13
6. :func:`project`       every client gets the rows of that sum that it holds;                          line 14
7. :func:`local_steps`   every client takes Q gradient steps on its block, the others frozen.           line 19

Every engine of the simulation and both real parties call these functions; they differ only in how they lay rows out. A
step of any block is :func:`local_step`, a step of linear blocks :func:`linear_step`, and both move the block by
:func:`local_update`. What may vary is in :mod:`tdcd.core.variant`.

Shapes: E minibatches of B samples are exchanged per round (E = Q, or 1 when one minibatch serves all local steps); a
client holds at most P of a minibatch's samples; phi has C outputs.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tdcd.core.choices import Gradient
from tdcd.core.lazy import Array, jax, jnp, library_of
from tdcd.core.trees import Tree, leaves_of, map_tree, plus
from tdcd.core.update import Update, UpdateState

Apply = Callable[[Tree, Array], Array]
"""A block's phi: (block, features ``[rows, ...]``) to ``[rows, C]``."""
Design = Callable[[Array], Array]
"""From features ``[rows, ...]`` to the rows ``[rows, D]`` that the weights of a linear block are multiplied by."""
Losses = Callable[[Array, Any], Array]
"""The loss of every row: (its own phi ``[..., C]``, what the client knows of it) to ``[...]``."""
Slopes = Callable[[Array, Any], Array]
"""Its derivative by that phi, ``[..., C]``, of the same two."""


def flat_rows(features: Array) -> Array:
    """Rows of one axis; images are flattened."""
    return features.reshape(features.shape[0], prod(features.shape[1:]))


def _pick(rows: Array, which: Array) -> Array:
    """``rows[e, which[e]]`` for every minibatch e."""
    if len(rows) == 1:
        picked: Array = rows[0].take(which[0], axis=0)[None]
        return picked
    picked_rows: Array = library_of(rows).take_along_axis(rows, which[..., None], axis=1)
    return picked_rows


def average(client_blocks: Tree, shares: Array) -> Tree:
    r"""The mean of a hub's clients' blocks, weighted by the rows they hold.

    .. math:: \tilde\theta_{(j)} = \sum_k \frac{n_k}{M}\, \theta_{k,j}

    Args:
        client_blocks: tree of ``[K, ...]``, the clients' blocks on the first axis.
        shares: ``[K]``, n_k / M; with equal shards this is the paper's 1 / K.

    Blocks are added up in full, however short the factors of other products are.
    """

    def mean(leaf: Array) -> Array:
        weights, library = shares.astype(leaf.dtype), library_of(leaf)
        summed: Array = (
            # NumPy's tensordot, which takes longer to call it.
            library.dot(weights[None], leaf.reshape(len(leaf), -1)).reshape(leaf.shape[1:])
            if library is np
            else library.tensordot(weights, leaf, axes=1, precision=jax.lax.Precision.HIGHEST)
        )
        return summed

    return map_tree(mean, client_blocks)


def phi(block: Tree, features: Array, *, apply: Apply) -> Array:
    r"""One client's contribution to its rows' scores, with the fresh hub block.

    .. math:: \Phi_{k,j}^{\zeta} = \{X_{(j)}^{(p)} \tilde\theta_{(j)} : p \in \zeta\}

    At that moment all clients of a silo have the same block, so one call can also do the rows of all of them.

    Args:
        features: ``[E, P, ...]``, the client's rows in each minibatch.

    Returns:
        ``[E, P, C]``.
    """
    num_batches, num_rows, *shape = features.shape
    scores = apply(block, features.reshape(num_batches * num_rows, *shape))
    return scores.reshape(num_batches, num_rows, -1)


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
        phis: one ``[E, B, C]`` per silo.
    """
    others = [sent for index, sent in enumerate(phis) if index != silo]
    if not others:
        none: Array = library_of(phis[silo]).zeros_like(phis[silo])
        return none
    return sum(others[1:], start=others[0])


def project(phi_others: Array, positions: Array) -> Array:
    r"""The rows of the others' sum that one client holds, :math:`\pi_{k,j}(\Phi_{-j})`.

    Args:
        phi_others: ``[E, B, C]``.
        positions: ``[E, P]``, where in the minibatch each of the client's rows stands; any number on padding.

    Returns:
        ``[E, P, C]``.
    """
    return _pick(phi_others, positions)


def row_weight(counts: Array, *, gradient: Gradient, num_samples: Any, batch_size: Any, held: Array) -> Array:
    r"""What a client multiplies the loss of each of its rows by: its rule for turning rows into a gradient.

    ``"unbiased"`` is :math:`M / (n_k B)`, so that the hub's average is the centralised minibatch gradient for every
    row split; ``"mean"`` is one over the rows the client has in the minibatch.

    Args:
        counts: the client's rows in a minibatch; any shape.
        num_samples: M; if clients are absent, what the others hold.
        batch_size: B; if samples are absent, how many each minibatch still has, of the shape of ``counts``.
        held: n_k, the rows the client holds in all; of that shape, or one for all minibatches.
    """
    library = library_of(counts)
    weight: Array = (
        1 / library.maximum(counts, 1).astype(held.dtype)
        if gradient == "mean"
        else (library.broadcast_to(num_samples / (held * batch_size), counts.shape))
    )
    return weight


def row_weights(
    counts: Array, num_rows: int, *, gradient: Gradient, num_samples: Any, batch_size: Any, held: Array
) -> Array:
    """:func:`row_weight` for every row of a client; padding, and so a minibatch without rows of it, weighs zero.

    Args:
        counts: ``[..., E]``, the client's rows in each minibatch.
        num_rows: P.
        held: n_k, the rows the client holds in all.

    Returns:
        ``[..., E, P]``.
    """
    weight = row_weight(counts, gradient=gradient, num_samples=num_samples, batch_size=batch_size, held=held)
    library = library_of(counts)
    weights: Array = library.where(library.arange(num_rows) < counts[..., None], weight[..., None], 0)
    return weights


class Descent(NamedTuple):
    """What a client's local steps go by."""

    losses: Losses
    l2: Any
    """lambda, of the regulariser."""
    update: Update
    step_size: Array
    """eta."""
    slopes: Slopes | None = None
    """The derivative of the losses, if it is written out: NumPy does not differentiate."""


class Minibatch(NamedTuple):
    """A client's rows of one minibatch, or of E of them on the first axis."""

    features: Any
    """``[P, ...]``, padded to P."""
    known: Any
    """What the client knows of those rows, see :class:`tdcd.core.knowledge.Known`."""
    weights: Any
    """``[P]``, see :func:`row_weights`."""
    key: Any = None
    """``[2]``: a random key of the step, for a block whose members are trained by losses of their own; else None."""

    def first(self, count: int) -> "Minibatch":
        """The first rows of one minibatch."""
        rows: Minibatch = map_tree(lambda part: part[:count], self._replace(key=None))
        return rows._replace(key=self.key)


Moving = tuple[Tree, UpdateState]
"""A client's block and the state of its update."""


def local_update(moving: Moving, gradient: Tree, descent: Descent) -> Moving:
    r"""The block after one local step, given the gradient of the data term. Paper, Algorithm 1, line 19.

    .. math:: \theta \leftarrow \theta - \eta\, \big(g(\Phi_{-k,j}, \theta; \zeta^\tau) + \lambda\, \theta\big)
    """
    block, state = moving
    return descent.update.step(block, plus(gradient, descent.l2, block), state, descent.step_size)


def local_step(moving: Moving, minibatch: Minibatch, *, apply: Callable[..., Array], descent: Descent) -> Moving:
    """One local step of any block: its gradient by differentiation of the rows' weighted losses.

    Args:
        apply: the block's phi; where minibatches have a key, that of all members of the block, ``[k, P, C]``. The loss
            of a row is then the mean of what it would be with each member alone.
    """
    features, known, weights, key = minibatch

    def data_term(block: Tree) -> Array:
        if key is None:
            losses = descent.losses(apply(block, features), known)
        else:
            losses = jax.vmap(lambda phi: descent.losses(phi, known))(apply(block, features, key)).mean(axis=0)
        return jnp.sum(weights * losses)

    return local_update(moving, jax.grad(data_term)(moving[0]), descent)


def linear_step(
    moving: Moving, phi: Array, known: Any, weighted_sum: Callable[[Array], Tree], *, descent: Descent
) -> Moving:
    r"""One local step of linear blocks, for any layout of many clients' rows.

    The gradient of a linear block is the weighted sum :math:`\sum_p w_p\, x_p\, \partial f / \partial \phi_p`.

    Args:
        phi: ``[..., C]``, every row's own phi: its features times its client's block.
        weighted_sum: from dloss ``[..., C]``, the slope of each row's loss, to the clients' gradients.
    """
    slopes = descent.slopes or jax.grad(lambda phi, known: jnp.sum(descent.losses(phi, known)))
    return local_update(moving, weighted_sum(slopes(phi, known)), descent)


def local_steps(
    block: Tree,
    minibatches: Any,
    memory: UpdateState = None,
    *,
    iteration: Array,
    step: Callable[[Moving, Any], Moving],
    descent: Descent,
    steps: int,
    loop: Callable[..., Any] | None = None,
) -> Any:
    r"""Q gradient steps on one client's block, the other silos frozen.

    What the client knows of the others was computed when the round began and stays; only ``block`` moves. Step tau uses
    minibatch tau, or the only one.

    Args:
        minibatches: a :class:`Minibatch` of E, or any tree that ``step`` takes one of, with E first.
        memory: what the client's last round left, of an update that carries it; the result is then the block and what
            this round leaves.
        iteration: local steps taken before this round.
        step: :func:`local_step` with its block's phi, or an engine's own way of calling it.
        steps: Q.
        loop: ``jax.lax.scan``, or what else does the same.
    """
    update: Any = descent.update
    start = (block, update.start(block, iteration) if memory is None else update.resume(block, iteration, memory))
    # One minibatch may serve all steps.
    is_shared = leaves_of(minibatches)[0].shape[0] != steps
    only = map_tree(lambda part: part[0], minibatches) if is_shared else None

    def next_step(moving: Moving, minibatch: Any) -> tuple[Moving, None]:
        return step(moving, only if is_shared else minibatch), None

    (stepped, state), _ = (loop or jax.lax.scan)(next_step, start, None if is_shared else minibatches, steps)
    return stepped if memory is None else (stepped, update.carry(state))


def client_steps(
    block: Tree,
    minibatches: Minibatch,
    iteration: Array,
    *,
    apply: Apply,
    descent: Descent,
    steps: int,
    memory: UpdateState = None,
) -> Any:
    """:func:`local_steps` by :func:`local_step`: line 19 as one client does it."""
    step = partial(local_step, apply=apply, descent=descent)
    return local_steps(block, minibatches, memory, iteration=iteration, step=step, descent=descent, steps=steps)
