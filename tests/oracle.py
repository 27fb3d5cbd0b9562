"""Algorithm 1 in plain loops over NumPy arrays, in float64: the reference that every engine is compared with.

Written from the paper, sections 2 and 3; line numbers are those of its Algorithm 1. It shares one thing with the
package, the sample ids of the minibatches. Gradients are written by hand. A block is a list of arrays, in the order in
which ``jax.tree.leaves`` lists the package's blocks. Intermediate information is a dictionary from a sample's id to its
C numbers: stacking joins dictionaries, projecting keeps the keys that a client holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tdcd.schedule import batch_ids

Array = NDArray[np.float64]
Block = list[Array]
Batch = list[int]
Phi = dict[int, Array]


class Model(Protocol):
    """What a silo makes of one sample."""

    def phi(self, block: Block, x: Array) -> Array:
        """``[D]`` features of one sample to the ``[C]`` they add to its scores."""
        ...

    def gradient(self, block: Block, x: Array, slope: Array) -> Block:
        """The gradient of a sample's loss, given ``slope`` ``[C]``, the loss's derivative with respect to phi."""
        ...


class Linear:
    """phi = x theta. The block is [theta]."""

    def phi(self, block: Block, x: Array) -> Array:
        (theta,) = block
        return x @ theta

    def gradient(self, block: Block, x: Array, slope: Array) -> Block:
        return [np.outer(x, slope)]


class Mlp:
    """phi = h_L S with h_i = max(0, h_{i-1} W_i + b_i) and h_0 = x. The block is [b_1, W_1, ..., b_L, W_L, S]."""

    def phi(self, block: Block, x: Array) -> Array:
        return self._activations(block, x)[-1] @ block[-1]

    def gradient(self, block: Block, x: Array, slope: Array) -> Block:
        h = self._activations(block, x)
        weights, classifier = block[1:-1:2], block[-1]
        gradient = [np.outer(h[-1], slope)]
        upstream = classifier @ slope
        for layer in reversed(range(len(weights))):
            upstream = upstream * (h[layer + 1] > 0)
            gradient = [upstream, np.outer(h[layer], upstream), *gradient]
            upstream = weights[layer] @ upstream
        return gradient

    def _activations(self, block: Block, x: Array) -> list[Array]:
        """h_0 .. h_L."""
        h = [x]
        for bias, weight in zip(block[0:-1:2], block[1:-1:2], strict=True):
            h.append(np.maximum(0, h[-1] @ weight + bias))
        return h


@dataclass(frozen=True)
class Silo:
    """One organisation: its columns of all M samples, and the samples that each of its clients holds."""

    model: Model
    features: Array
    rows: Sequence[Sequence[int]]

    def average(self, client_blocks: Sequence[Block]) -> Block:
        """The hub's block: the sum over clients of n_k / M times the client's block. Line 5."""
        mean = [np.zeros_like(array) for array in client_blocks[0]]
        for rows, block in zip(self.rows, client_blocks, strict=True):
            share = len(rows) / len(self.features)
            mean = [total + share * array for total, array in zip(mean, block, strict=True)]
        return mean

    def share_out(self, hub_block: Block) -> list[Block]:
        """The hub's block to every client. Line 8."""
        return [hub_block for _ in self.rows]


def loss_of(loss: str, score: Array, label: float) -> float:
    """f(score, label) for one sample."""
    if loss == "squared":
        return float((score[0] - label) ** 2 / 2)
    if loss == "logistic":
        return float(np.log(1 + np.exp(score[0])) - label * score[0])
    return float(np.log(np.sum(np.exp(score))) - score[int(label)])


def slope_of(loss: str, score: Array, label: float) -> Array:
    """The derivative of :func:`loss_of` with respect to the score, ``[C]``."""
    if loss == "squared":
        return score - label
    if loss == "logistic":
        return 1 / (1 + np.exp(-score)) - label
    chances: Array = np.exp(score) / np.sum(np.exp(score))
    chances[int(label)] -= 1
    return chances


def objective(silos: Sequence[Silo], labels: Any, hub_blocks: Sequence[Block], loss: str, l2: float) -> float:
    """The mean loss of the M samples plus l2 / 2 times the sum of all squared parameters."""
    total = 0.0
    for sample, label in enumerate(labels):
        score = sum(silo.model.phi(block, silo.features[sample]) for silo, block in zip(silos, hub_blocks, strict=True))
        total += loss_of(loss, np.asarray(score), label)
    squares = sum(float(np.sum(array**2)) for block in hub_blocks for array in block)
    return total / len(labels) + l2 / 2 * squares


def exchange(silos: Sequence[Silo], hub_blocks: Sequence[Block], batches: Sequence[Batch]) -> list[list[Phi]]:
    """What each client of each silo gets of the other silos' intermediate information. Lines 9 to 14."""
    wanted = {p for batch in batches for p in batch}
    stacked: list[Phi] = []
    for silo, block in zip(silos, hub_blocks, strict=True):
        phi: Phi = {}
        for rows in silo.rows:
            phi |= {p: silo.model.phi(block, silo.features[p]) for p in rows if p in wanted}  # lines 9 and 11
        stacked.append(phi)
    projected = []
    for j, silo in enumerate(silos):
        phi_others = {p: np.zeros_like(stacked[j][p]) for p in wanted}
        for other, phi in enumerate(stacked):
            if other != j:
                phi_others = {p: total + phi[p] for p, total in phi_others.items()}  # line 13
        projected.append([{p: phi_others[p] for p in rows if p in wanted} for rows in silo.rows])  # line 14
    return projected


def client_gradient(
    silo: Silo, client: int, block: Block, phi_others: Phi, batch: Batch, labels: Any, loss: str, l2: float, rule: str
) -> Block:
    """g_{k,j}: the sum over the client's rows of the minibatch, scaled by the rule, plus l2 times the block."""
    held = silo.rows[client]
    mine = [p for p in batch if p in held]
    scale = len(labels) / (len(held) * len(batch)) if rule == "unbiased" else 1 / max(len(mine), 1)
    gradient = [l2 * array for array in block]
    for p in mine:
        x = silo.features[p]
        slope = slope_of(loss, silo.model.phi(block, x) + phi_others[p], labels[p])
        row = silo.model.gradient(block, x, slope)
        gradient = [total + scale * part for total, part in zip(gradient, row, strict=True)]
    return gradient


def train(
    silos: Sequence[Silo],
    labels: Any,
    start: Sequence[Block],
    *,
    loss: str,
    l2: float,
    num_rounds: int,
    local_steps: int,
    batch_size: int,
    step_size: float,
    minibatches: Any,
    gradient: str,
    seed: int,
) -> list[Block]:
    """Algorithm 1 for ``num_rounds`` times Q iterations; the hub blocks at its end."""
    client_blocks = [silo.share_out(block) for silo, block in zip(silos, start, strict=True)]  # line 1
    for t in range(num_rounds * local_steps):
        round_index, step = divmod(t, local_steps)
        if step == 0:
            hub_blocks = [silo.average(blocks) for silo, blocks in zip(silos, client_blocks, strict=True)]  # line 5
            batches = batch_ids(
                seed,
                [round_index],
                num_samples=len(labels),
                batch_size=batch_size,
                local_steps=local_steps,
                minibatches=minibatches,
            )[0].tolist()  # line 6
            client_blocks = [silo.share_out(block) for silo, block in zip(silos, hub_blocks, strict=True)]  # line 8
            phi_others = exchange(silos, hub_blocks, batches)  # lines 9 to 14
        batch = batches[step if minibatches == "fresh" else 0]
        for j, silo in enumerate(silos):
            for k in range(len(silo.rows)):
                block = client_blocks[j][k]
                slopes = client_gradient(silo, k, block, phi_others[j][k], batch, labels, loss, l2, gradient)
                client_blocks[j][k] = [a - step_size * slope for a, slope in zip(block, slopes, strict=True)]  # line 19
    return [silo.average(blocks) for silo, blocks in zip(silos, client_blocks, strict=True)]
