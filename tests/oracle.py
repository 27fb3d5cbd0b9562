"""Algorithm 1 in plain loops over NumPy arrays, in float64: the reference that every engine is compared with.

Written from the paper, sections 2 and 3; line numbers are those of its Algorithm 1. It shares one thing with the
package, the sample ids of the minibatches. Gradients are written by hand. A block is a list of arrays, in the order in
which ``jax.tree.leaves`` lists the package's blocks. Intermediate information is a dictionary from a sample's id to its
C numbers: stacking joins dictionaries, projecting keeps the keys that a client holds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tdcd.schedule import batch_ids

Array = NDArray[np.float64]
Block = list[Array]
Phi = Mapping[int, Array]


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
    rows: Sequence[NDArray[np.int64]]

    def shares(self) -> list[float]:
        """n_k / M."""
        return [len(rows) / len(self.features) for rows in self.rows]


def loss_of(loss: str, score: Array, label: Any) -> float:
    """f(score, label) for one sample."""
    if loss == "squared":
        return float((score[0] - label) ** 2 / 2)
    if loss == "logistic":
        return float(np.log(1 + np.exp(score[0])) - label * score[0])
    return float(np.log(np.sum(np.exp(score))) - score[label])


def slope_of(loss: str, score: Array, label: Any) -> Array:
    """The derivative of :func:`loss_of` with respect to the score, ``[C]``."""
    if loss == "squared":
        return score - label
    if loss == "logistic":
        return 1 / (1 + np.exp(-score)) - label
    chances = np.exp(score) / np.sum(np.exp(score))
    chances[label] -= 1
    return chances


def objective(silos: Sequence[Silo], labels: Sequence[Any], hub_blocks: Sequence[Block], loss: str, l2: float) -> float:
    """The mean loss of the M samples plus l2 / 2 times the sum of all squared parameters."""
    total = 0.0
    for sample, label in enumerate(labels):
        score = sum(silo.model.phi(block, silo.features[sample]) for silo, block in zip(silos, hub_blocks, strict=True))
        total += loss_of(loss, np.asarray(score), label)
    squares = sum(float(np.sum(array**2)) for block in hub_blocks for array in block)
    return total / len(labels) + l2 / 2 * squares


def average(client_blocks: Sequence[Block], shares: Sequence[float]) -> Block:
    """The hub's block: the sum over clients of n_k / M times the client's block. Line 5."""
    mean = [np.zeros_like(array) for array in client_blocks[0]]
    for block, share in zip(client_blocks, shares, strict=True):
        mean = [total + share * array for total, array in zip(mean, block, strict=True)]
    return mean


def exchange(silos: Sequence[Silo], hub_blocks: Sequence[Block], batches: Sequence[Array]) -> list[list[Phi]]:
    """What each client of each silo gets of the other silos' intermediate information. Lines 9 to 14."""
    in_a_batch = {int(sample) for batch in batches for sample in batch}
    sent: list[Phi] = []
    for silo, block in zip(silos, hub_blocks, strict=True):
        stacked: dict[int, Array] = {}
        for rows in silo.rows:
            stacked |= {int(p): silo.model.phi(block, silo.features[p]) for p in rows if int(p) in in_a_batch}
        sent.append(stacked)
    received = []
    for j, silo in enumerate(silos):
        others = {p: np.zeros_like(own) for p, own in sent[j].items()}
        for other in range(len(silos)):
            if other != j:
                others = {p: total + sent[other][p] for p, total in others.items()}
        received.append([{int(p): others[int(p)] for p in rows if int(p) in in_a_batch} for rows in silo.rows])
    return received


def client_gradient(
    silo: Silo, client: int, block: Block, phi_others: Phi, batch: Array, labels: Any, loss: str, l2: float, rule: str
) -> Block:
    """g_{k,j}: the client's rows of the minibatch, scaled by its rule, plus l2 times the block."""
    mine = [int(p) for p in batch if p in silo.rows[client]]
    scale = len(labels) / (len(silo.rows[client]) * len(batch)) if rule == "unbiased" else 1 / max(len(mine), 1)
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
    shares = [silo.shares() for silo in silos]
    client_blocks = [[block for _ in silo.rows] for silo, block in zip(silos, start, strict=True)]  # line 1
    batches: list[Array] = []
    phi_others: list[list[Phi]] = []
    for t in range(num_rounds * local_steps):
        if t % local_steps == 0:
            hub_blocks = [average(*pair) for pair in zip(client_blocks, shares, strict=True)]  # line 5
            drawn = batch_ids(
                seed,
                [t // local_steps],
                num_samples=len(labels),
                batch_size=batch_size,
                local_steps=local_steps,
                minibatches=minibatches,
            )[0]
            batches = [drawn[step if minibatches == "fresh" else 0] for step in range(local_steps)]  # line 6
            client_blocks = [
                [block for _ in silo.rows] for silo, block in zip(silos, hub_blocks, strict=True)
            ]  # line 8
            phi_others = exchange(silos, hub_blocks, batches)  # lines 9 to 14
        batch = batches[t % local_steps]
        for j, silo in enumerate(silos):
            for k in range(len(silo.rows)):
                block = client_blocks[j][k]
                slopes = client_gradient(silo, k, block, phi_others[j][k], batch, labels, loss, l2, gradient)
                client_blocks[j][k] = [a - step_size * g for a, g in zip(block, slopes, strict=True)]  # line 19
    return [average(*pair) for pair in zip(client_blocks, shares, strict=True)]
