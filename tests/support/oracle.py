"""Algorithm 1 in plain loops over NumPy arrays, in float64: the reference that every engine is compared with.

Written from the paper, sections 2 and 3; line numbers are those of its Algorithm 1. It shares one thing with the
package, the sample ids of the minibatches. Gradients are written by hand. A block is a list of arrays, in the order in
which ``jax.tree.leaves`` lists the package's blocks. Intermediate information is a dictionary from a minibatch's number
and a sample's id to C numbers: stacking joins dictionaries, projecting keeps the keys that a client holds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tdcd.core.schedule import batch_ids

Array = NDArray[np.float64]
Block = list[Array]
Batch = list[int]
Phi = dict[tuple[int, int], Array]


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

    @cached_property
    def held(self) -> list[frozenset[int]]:
        """The rows of each client once more, to look a sample up."""
        return [frozenset(int(row) for row in rows) for rows in self.rows]

    def average(self, client_blocks: Sequence[Block], answering: Sequence[bool] = ()) -> Block:
        """The sum over the clients that answer of the share of their rows times the client's block. Line 5."""
        who = list(answering) or [True] * len(self.rows)
        rows = sum(len(held) for held, there in zip(self.rows, who, strict=True) if there)
        mean = [np.zeros_like(array) for array in client_blocks[0]]
        for held, block, there in zip(self.rows, client_blocks, who, strict=True):
            if there:
                mean = [total + len(held) / rows * array for total, array in zip(mean, block, strict=True)]
        return mean


HUBER_DELTA = 1.35


def loss_of(loss: str, score: Array, label: float) -> float:
    """f(score, label) for one sample."""
    if loss == "squared":
        return float((score[0] - label) ** 2 / 2)
    if loss == "logistic":
        return float(np.log(1 + np.exp(score[0])) - label * score[0])
    if loss == "poisson":
        return float(np.exp(score[0]) - label * score[0] + (label * np.log(label) if label else 0) - label)
    if loss == "huber":
        off = abs(score[0] - label)
        return float(off**2 / 2 if off <= HUBER_DELTA else HUBER_DELTA * (off - HUBER_DELTA / 2))
    return float(np.log(np.sum(np.exp(score))) - score[int(label)])


def slope_of(loss: str, score: Array, label: float) -> Array:
    """The derivative of :func:`loss_of` with respect to the score, ``[C]``."""
    if loss == "squared":
        return score - label
    if loss == "logistic":
        return 1 / (1 + np.exp(-score)) - label
    if loss == "poisson":
        return np.exp(score) - label
    if loss == "huber":
        return np.clip(score - label, -HUBER_DELTA, HUBER_DELTA)
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


Memory = Any


@dataclass(frozen=True)
class Variation:
    """What may differ from Algorithm 1, each in its plainest form; the defaults are the algorithm."""

    step: Callable[[Block, Block, Memory, float, int], tuple[Block, Memory]] = lambda block, slopes, memory, eta, t: (
        [a - eta * slope for a, slope in zip(block, slopes, strict=True)],
        memory,
    )
    """A client's block, gradient, memory (None when a round begins), step size and iteration to block and memory."""
    hub: Callable[[Block, Block, Memory], tuple[Block, Memory]] = lambda block, average, memory: (average, memory)
    """A hub's block, its clients' average and its memory (None at first) to its next block and memory."""
    sent: Callable[[str, int, int, list[int], Array], Array] = lambda link, round_index, silo, places, phi: phi
    """Phi ``[n, C]`` as its receiver has it, of samples at these places of the round's minibatches: ``"up"`` from a
    client to its hub, ``"across"`` from a silo to the others, ``"down"`` from a hub to its client."""
    block_sent: Callable[[int, int, int, Block, Block], Block] = lambda round_index, silo, client, before, after: after
    """A client's block as its hub has it."""
    period: Callable[[int], int] = lambda silo: 1
    """m: a silo begins its steps in rounds 0, m, 2m ..., m times as large, and its block moves m rounds later."""
    age: Callable[[int, int], int] = lambda silo, round_index: 0
    """How many rounds old the block is whose phi a silo sends in a round."""
    answering: Callable[[int, int, int], Sequence[bool]] = lambda round_index, silo, clients: [True] * clients
    """Which clients of a silo answer in a round."""
    seen: Callable[[int, int, int, Array], Array | None] = lambda round_index, silo, place, x: x
    """What a silo sees of a sample at this place of a round's minibatches; None if it is dropped: then it adds nothing
    and takes no gradient."""
    slope: Callable[[int, str, Array, Array, Array, float], Array] = lambda silo, loss, phi, start, others, label: (
        slope_of(loss, phi + others, label)
    )
    """The slope that a silo's client steps by, from its own phi now and at the round's start, the others' and the
    label."""


def exchange(
    silos: Sequence[Silo], sending: Sequence[Block], batches: Sequence[Batch], vary: Variation, round_index: int
) -> list[list[Phi]]:
    """What each client of each silo gets of the other silos' intermediate information. Lines 9 to 14."""
    wanted = [(e, p) for e, batch in enumerate(batches) for p in batch]
    place = {key: index for index, key in enumerate(wanted)}

    def sent(link: str, j: int, phi: Phi) -> Phi:
        if not phi:
            return phi
        keys = sorted(phi, key=place.__getitem__)
        arrived = vary.sent(link, round_index, j, [place[key] for key in keys], np.array([phi[key] for key in keys]))
        return dict(zip(keys, arrived, strict=True))

    stacked: list[Phi] = []
    for j, (silo, block) in enumerate(zip(silos, sending, strict=True)):
        phi: Phi = {}
        for held in silo.held:
            mine = {}
            for e, p in (key for key in wanted if key[1] in held):
                x = vary.seen(round_index, j, place[e, p], silo.features[p])
                mine[e, p] = 0 * silo.model.phi(block, silo.features[p]) if x is None else silo.model.phi(block, x)
            phi |= sent("up", j, mine)  # lines 9 and 11
        stacked.append(sent("across", j, phi))
    projected = []
    for j, silo in enumerate(silos):
        phi_others = {key: np.zeros_like(stacked[j][key]) for key in wanted}
        for other, phi in enumerate(stacked):
            if other != j:
                phi_others = {key: total + phi[key] for key, total in phi_others.items()}  # line 13
        each = [{(e, p): phi_others[e, p] for e, p in wanted if p in held} for held in silo.held]
        projected.append([sent("down", j, mine) for mine in each])  # line 14
    return projected


def client_gradient(
    silo: Silo,
    client: int,
    block: Block,
    start: Block,
    phi_others: Phi,
    minibatch: int,
    batch: Batch,
    labels: Any,
    loss: str,
    l2: float,
    rule: str,
    slope: Callable[..., Array],
    num_samples: int,
    weights: Any,
    seen: Callable[[int, Array], Array | None],
    places: dict[int, int],
) -> Block:
    """g_{k,j}: the sum over the client's rows of the minibatch, scaled by the rule, plus l2 times the block."""
    held = silo.held[client]
    mine = [p for p in batch if p in held]
    scale = num_samples / (len(held) * max(len(batch), 1)) if rule == "unbiased" else 1 / max(len(mine), 1)
    gradient = [l2 * array for array in block]
    for p in mine:
        x = seen(places[p], silo.features[p])
        if x is None:
            continue
        own, before = silo.model.phi(block, x), silo.model.phi(start, x)
        row = silo.model.gradient(block, x, slope(loss, own, before, phi_others[minibatch, p], labels[p]))
        gradient = [total + scale * weights[p] * part for total, part in zip(gradient, row, strict=True)]
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
    variation: Variation | None = None,
    weights: Any = None,
) -> list[Block]:
    """Algorithm 1 for ``num_rounds`` rounds of Q iterations; the hub blocks at its end."""
    vary = variation or Variation()
    weights = [1.0] * len(labels) if weights is None else [w * len(labels) / sum(weights) for w in weights]
    hub_blocks = list(start)  # line 1
    before, memories = [hub_blocks], [None] * len(silos)
    pending: list[Any] = [None] * len(silos)
    for r in range(num_rounds):
        batches = batch_ids(
            seed, [r], num_samples=len(labels), batch_size=batch_size, local_steps=local_steps, minibatches=minibatches
        )[0].tolist()  # line 6
        sending = [before[-1 - vary.age(j, r)][j] for j in range(len(silos))]
        phi_others = exchange(silos, sending, batches, vary, r)  # lines 9 to 14
        answering = [vary.answering(r, j, len(silo.rows)) for j, silo in enumerate(silos)]
        there = [
            {p for k, rows in enumerate(silo.rows) if answering[j][k] for p in rows} for j, silo in enumerate(silos)
        ]
        present = set.intersection(*there)
        scored = [[p for p in batch if p in present] for batch in batches]
        places = [{p: e * len(batch) + b for b, p in enumerate(batch)} for e, batch in enumerate(batches)]
        averages = []
        for j, silo in enumerate(silos):
            blocks = []
            eta = vary.period(j) * step_size
            for k in range(len(silo.rows)):
                block, memory = hub_blocks[j], None  # line 8
                for step in range(local_steps):
                    e = step if minibatches == "fresh" else 0
                    slopes = client_gradient(
                        silo, k, block, hub_blocks[j], phi_others[j][k], e, scored[e], labels, loss, l2, gradient,
                        partial(vary.slope, j), len(there[j]), weights, partial(vary.seen, r, j), places[e],
                    )  # fmt: skip
                    block, memory = vary.step(block, slopes, memory, eta, r * local_steps + step)  # line 19
                blocks.append(vary.block_sent(r, j, k, hub_blocks[j], block))
            averages.append(silo.average(blocks, answering[j]))  # line 5
        for j, three in enumerate(zip(hub_blocks, averages, memories, strict=True)):
            if r % vary.period(j) == 0:
                pending[j] = vary.hub(*three)
        ends = [(r + 1) % vary.period(j) == 0 for j in range(len(silos))]
        hub_blocks = [pending[j][0] if ends[j] else hub_blocks[j] for j in range(len(silos))]
        memories = [pending[j][1] if ends[j] else memories[j] for j in range(len(silos))]
        before.append(hub_blocks)
    return hub_blocks
