"""Algorithm 1 in plain loops over NumPy arrays, in float64: the reference that every engine is compared with.

**The reading copy of a round.** :class:`Parties` holds what each hub and each client has, and :func:`train` sends
messages between them: those of :class:`tdcd.core.round.Round`, one flow after the other. For each kind of flow there is
one method that says what is computed before it is sent, and what its receivers then have. :class:`Evaluation` and
:func:`objective` are the same of an evaluation. The flows in ``core/round.py`` and these methods, read side by side,
say what a round of Algorithm 1 is, or one with labels at one silo.

Written from the paper, sections 2 and 3; line numbers are those of its Algorithm 1. It shares two things with the
package, the sample ids of the minibatches and the flows: no arithmetic. Gradients are written by hand. A block is a
list of arrays, in the order in which ``jax.tree.leaves`` lists the package's blocks. Intermediate information is a
dictionary from a minibatch's number and a sample's id to C numbers: stacking joins dictionaries, projecting keeps the
keys that a client holds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tdcd.core.round import Flow, Round, Widths, round_of
from tdcd.core.schedule import batch_ids
from tdcd.core.variant import Variant

Array = NDArray[np.float64]
Block = list[Array]
Batch = list[int]
Phi = dict[tuple[int, int], Array]
Slope = Callable[[Array], Array]


class Model(Protocol):
    """What a silo makes of one sample."""

    def phi(self, block: Block, x: Array) -> Array:
        """``[D]`` features of one sample to the ``[C]`` they add to its scores."""
        ...

    def gradient(self, block: Block, x: Array, slope: Slope) -> Block:
        """The gradient of a sample's loss, given ``slope``, the loss's derivative with respect to phi, at any phi."""
        ...


class Linear:
    """phi = x theta. The block is [theta]."""

    def phi(self, block: Block, x: Array) -> Array:
        (theta,) = block
        return x @ theta

    def gradient(self, block: Block, x: Array, slope: Slope) -> Block:
        return [np.outer(x, slope(self.phi(block, x)))]


class Mlp:
    """phi = h_L S with h_i = max(0, h_{i-1} W_i + b_i) and h_0 = x. The block is [b_1, W_1, ..., b_L, W_L, S]."""

    def phi(self, block: Block, x: Array) -> Array:
        return self._activations(block, x)[-1] @ block[-1]

    def gradient(self, block: Block, x: Array, slope: Slope) -> Block:
        h = self._activations(block, x)
        weights, classifier = block[1:-1:2], block[-1]
        own = slope(h[-1] @ classifier)
        gradient = [np.outer(h[-1], own)]
        upstream = classifier @ own
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


class Ensemble:
    """phi = the mean over members m of h_L^m S^m, with h_i = max(0, s_i (r_i h_{i-1} W_i) + b_i), h_0 = x and r_1 = 1.

    The block is [b_1, s_1, W_1, b_2, r_2, s_2, W_2, ..., S], and of b, r and s the first axis is the members. What is
    trained is the mean of the losses that there would be with each member's phi in place of their mean.
    """

    def phi(self, block: Block, x: Array) -> Array:
        members = range(len(block[0]))
        return sum(self._steps(block, x, m)[-1][0] @ self._slice(block, m) for m in members) / len(members)

    def gradient(self, block: Block, x: Array, slope: Slope) -> Block:
        members, gradient = len(block[0]), [np.zeros_like(array) for array in block]
        layers, slopes = self._layers(block), self._layers(gradient)
        for m in range(members):
            steps = self._steps(block, x, m)
            own = slope(steps[-1][0] @ self._slice(block, m)) / members
            self._slice(gradient, m)[:] = np.outer(steps[-1][0], own)
            upstream = self._slice(block, m) @ own
            for layer in reversed(range(len(layers))):
                _, inputs, outputs, weight = layers[layer]
                d_bias, d_inputs, d_outputs, d_weight = slopes[layer]
                (h, product), below = steps[layer + 1], steps[layer][0]
                upstream = upstream * (h > 0)
                d_bias[m], d_outputs[m] = upstream, upstream * product
                upstream = upstream * outputs[m]
                d_weight += np.outer(below if inputs is None else inputs[m] * below, upstream)
                upstream = weight @ upstream
                if inputs is not None:
                    d_inputs[m], upstream = upstream * below, upstream * inputs[m]
        return gradient

    @staticmethod
    def _slice(block: Block, m: int) -> Array:
        """S^m: the members' slices lie one below the other."""
        return block[-1].reshape(len(block[0]), -1, block[-1].shape[-1])[m]

    @staticmethod
    def _layers(block: Block) -> list[tuple[Array, Array | None, Array, Array]]:
        """(b_i, r_i, s_i, W_i) of every layer."""
        first, later = (block[0], None, *block[1:3]), block[3:-1]
        return [first, *(tuple(later[start : start + 4]) for start in range(0, len(later), 4))]

    def _steps(self, block: Block, x: Array, m: int) -> list[tuple[Array, Array]]:
        """h_i of member m, and the product that it is made of; of h_0 nothing."""
        steps = [(x, x)]
        for bias, inputs, outputs, weight in self._layers(block):
            h = steps[-1][0]
            product = (h if inputs is None else inputs[m] * h) @ weight
            steps.append((np.maximum(0, outputs[m] * product + bias[m]), product))
        return steps


@dataclass(frozen=True)
class Squared:
    """A model behind a head of pairs: phi = (s, e, |e|^2) with (s, sqrt(r) e) what the model gives."""

    model: Model
    rank: int

    def phi(self, block: Block, x: Array) -> Array:
        return self._extended(self.model.phi(block, x).copy())

    def _extended(self, given: Array) -> Array:
        outputs = len(given) // (1 + self.rank)
        given[outputs:] /= np.sqrt(self.rank)
        squares = [sum(number**2 for number in given[outputs + c :: outputs]) for c in range(outputs)]
        return np.concatenate([given, squares])

    def gradient(self, block: Block, x: Array, slope: Slope) -> Block:
        def through(given: Array) -> Array:
            phi = self._extended(given.copy())
            outputs, own = len(phi) // (2 + self.rank), slope(phi)
            through = own[:-outputs].copy()
            for c in range(outputs):
                through[outputs + c :: outputs] += 2 * phi[outputs + c : -outputs : outputs] * own[c - outputs]
            through[outputs:] /= np.sqrt(self.rank)
            return through

        return self.model.gradient(block, x, through)


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


def statistic_of(loss: str, score: Array, label: float) -> Array:
    """What the loss of a sample can be followed from without its label: the slope, or what a loss has in its place."""
    if loss == "poisson":
        return np.concatenate([slope_of(loss, score, label), np.exp(score)])
    return score - label if loss == "huber" else slope_of(loss, score, label)


def slope_after(loss: str, statistic: Array, change: Array) -> Array:
    """The slope of a sample whose score has changed, from its statistic before: without the label."""
    if loss == "squared":
        return statistic + change
    if loss == "huber":
        return np.clip(statistic + change, -HUBER_DELTA, HUBER_DELTA)
    if loss == "poisson":
        slope, expected = statistic
        return slope + expected * (np.exp(change) - 1)
    if loss == "logistic":
        label = statistic < 0
        chance = statistic + label
        return chance * np.exp(change) / (1 - chance + chance * np.exp(change)) - label
    label = np.arange(len(statistic)) == np.argmin(statistic)
    chances = (statistic + label) * np.exp(change)
    return chances / np.sum(chances) - label


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


@dataclass
class Parties:
    """The hubs and clients of a federation between two messages; one method for each kind of flow."""

    silos: Sequence[Silo]
    labels: Any
    weights: Sequence[float]
    loss: str
    l2: float
    local_steps: int
    step_size: float
    minibatches: Any
    gradient: str
    vary: Variation
    hub_blocks: list[Block]
    """Of each hub, now."""

    def __post_init__(self) -> None:
        """Before round 0."""
        self.earlier = [self.hub_blocks]
        self.memories: list[Memory] = [None] * len(self.silos)
        self.pending: list[Any] = [None] * len(self.silos)

    def begin(self, round_index: int, batches: list[Batch]) -> None:
        """A round: nobody has anything of it yet but the minibatches. Line 6."""
        vary, self.round, self.batches = self.vary, round_index, batches
        self.wanted = [(e, p) for e, batch in enumerate(batches) for p in batch]
        self.place = {key: index for index, key in enumerate(self.wanted)}
        self.answering = [vary.answering(round_index, j, len(silo.rows)) for j, silo in enumerate(self.silos)]
        self.held_here = [
            {p for k, rows in enumerate(silo.rows) if self.answering[j][k] for p in rows}
            for j, silo in enumerate(self.silos)
        ]
        self.is_left = set.intersection(*self.held_here)
        self.client_blocks: list[list[Block]] = [[] for _ in self.silos]
        self.stacked: list[Phi] = [{} for _ in self.silos]
        self.inbox: list[dict[int, Phi]] = [{} for _ in self.silos]
        self.slopes: dict[int, Phi] = {}
        self.received: list[list[Phi]] = [[{} for _ in silo.rows] for silo in self.silos]

    def block_to_clients(self, flow: Flow) -> None:
        """Every client of a silo begins with its hub's block. Line 8."""
        self.client_blocks = [[block] * len(silo.rows) for silo, block in zip(self.silos, self.hub_blocks, strict=True)]

    def phi_to_hub(self, flow: Flow) -> None:
        """A client computes phi of its rows, and its hub puts those of all clients together. Lines 9 and 11."""
        for j, silo in enumerate(self.silos):
            block = self.earlier[-1 - self.vary.age(j, self.round)][j]
            for held in silo.held:
                phi: Phi = {}
                for e, p in (key for key in self.wanted if key[1] in held):
                    x = self.vary.seen(self.round, j, self.place[e, p], silo.features[p])
                    nothing = 0 * silo.model.phi(block, silo.features[p])
                    phi[e, p] = nothing if x is None else silo.model.phi(block, x)
                self.stacked[j] |= self._sent("up", j, phi)

    def phi_to_hubs(self, flow: Flow) -> None:
        """A hub sends its phi along the flow's route. Line 12."""
        for j, phi in enumerate(self.stacked):
            receivers = flow.route.receivers(j, len(self.silos))
            # What is sent to nobody stays as it is.
            self.stacked[j] = self._sent("across", j, phi) if receivers else phi
            for other in receivers:
                self.inbox[other][j] = self.stacked[j]

    def slope_to_hubs(self, flow: Flow) -> None:
        """The hub with the labels sends how the loss of every sample slopes, or what its loss has in its place."""
        for j in range(len(self.silos)):
            receivers = flow.route.receivers(j, len(self.silos))
            if receivers:
                others, own = self._sum_others(j), self.stacked[j]
                slopes = {
                    (e, p): statistic_of(self.loss, own[e, p] + others[e, p], self.labels[p]) for e, p in self.wanted
                }
                self.slopes |= dict.fromkeys(receivers, slopes)

    def received_to_clients(self, flow: Flow) -> None:
        """A hub sums what it was sent, and each client gets its rows of that, or of the slopes. Lines 13 and 14."""
        for j, silo in enumerate(self.silos):
            if flow.is_of(j):
                passed = self.slopes[j] if j in self.slopes else self._sum_others(j)
                for k, held in enumerate(silo.held):
                    mine = {(e, p): passed[e, p] for e, p in self.wanted if p in held}
                    self.received[j][k] = self._sent("down", j, mine)

    def block_to_hub(self, flow: Flow) -> None:
        """A client takes Q local steps, and its hub averages the clients' blocks. Lines 19 and 5."""
        for j, silo in enumerate(self.silos):
            for k in range(len(silo.rows)):
                block, memory = self.client_blocks[j][k], None
                for step in range(self.local_steps):
                    e = step if self.minibatches == "fresh" else 0
                    slopes = self._gradient(j, k, block, e)
                    eta = self.vary.period(j) * self.step_size
                    block, memory = self.vary.step(block, slopes, memory, eta, self.round * self.local_steps + step)
                self.client_blocks[j][k] = self.vary.block_sent(self.round, j, k, self.hub_blocks[j], block)
            average = silo.average(self.client_blocks[j], self.answering[j])
            if self.round % self.vary.period(j) == 0:
                self.pending[j] = self.vary.hub(self.hub_blocks[j], average, self.memories[j])

    def end(self) -> None:
        """The hubs whose steps end with this round have their next block."""
        ends = [(self.round + 1) % self.vary.period(j) == 0 for j in range(len(self.silos))]
        for j in (j for j, is_over in enumerate(ends) if is_over):
            self.memories[j] = self.pending[j][1]
        self.hub_blocks = [self.pending[j][0] if is_over else self.hub_blocks[j] for j, is_over in enumerate(ends)]
        self.earlier.append(self.hub_blocks)

    def _sent(self, link: str, j: int, phi: Phi) -> Phi:
        """Phi as its receiver has it."""
        if not phi:
            return phi
        keys = sorted(phi, key=self.place.__getitem__)
        places, numbers = [self.place[key] for key in keys], np.array([phi[key] for key in keys])
        return dict(zip(keys, self.vary.sent(link, self.round, j, places, numbers), strict=True))

    def _sum_others(self, j: int) -> Phi:
        """The sum of what the other hubs sent to hub j, in silo order."""
        total = {key: np.zeros_like(self.stacked[j][key]) for key in self.wanted}
        for _, phi in sorted(self.inbox[j].items()):
            total = {key: before + phi[key] for key, before in total.items()}
        return total

    def _gradient(self, j: int, k: int, block: Block, e: int) -> Block:
        """g_{k,j}: the sum over the client's rows of the minibatch, scaled by the rule, plus l2 times the block."""
        silo, batch = self.silos[j], [p for p in self.batches[e] if p in self.is_left]
        held = silo.held[k]
        mine = [p for p in batch if p in held]
        rule = len(self.held_here[j]) / (len(held) * max(len(batch), 1))
        scale = rule if self.gradient == "unbiased" else 1 / max(len(mine), 1)
        gradient = [self.l2 * array for array in block]
        for p in mine:
            x = self.vary.seen(self.round, j, self.place[e, p], silo.features[p])
            if x is not None:
                row = silo.model.gradient(block, x, self._slope(j, k, x, (e, p)))
                weight = scale * self.weights[p]
                gradient = [total + weight * part for total, part in zip(gradient, row, strict=True)]
        return gradient

    def _slope(self, j: int, k: int, x: Array, key: tuple[int, int]) -> Slope:
        """The slope of a sample's loss, by what the client knows of it: label and others' phi, or the slope before."""
        before = self.silos[j].model.phi(self.hub_blocks[j], x)
        received = self.received[j][k].get(key, np.zeros_like(before))
        if j in self.slopes:
            return lambda own: slope_after(self.loss, received, own - before)
        return lambda own: self.vary.slope(j, self.loss, own, before, received, self.labels[key[1]])


@dataclass
class Evaluation:
    """The hubs and clients while the global model is evaluated; one method for each kind of flow."""

    silos: Sequence[Silo]
    labels: Any
    loss: str
    l2: float
    hub_blocks: Sequence[Block]

    def __post_init__(self) -> None:
        """No party has anything of it yet."""
        self.client_blocks: list[list[Block]] = [[] for _ in self.silos]
        self.scores: list[dict[int, Array]] = [{} for _ in self.silos]
        self.inbox: list[dict[int, tuple[dict[int, Array], float]]] = [{} for _ in self.silos]
        self.values: list[float | None] = [None] * len(self.silos)
        """What each hub knows of the objective: the mean loss of the M samples, and l2 / 2 times all squares."""

    def block_to_clients(self, flow: Flow) -> None:
        """Every client of a silo has its hub's block."""
        self.client_blocks = [[block] * len(silo.rows) for silo, block in zip(self.silos, self.hub_blocks, strict=True)]

    def scores_to_hub(self, flow: Flow) -> None:
        """A client computes phi of all its rows, and its hub puts those of all clients together."""
        for j, silo in enumerate(self.silos):
            for block, held in zip(self.client_blocks[j], silo.held, strict=True):
                self.scores[j] |= {p: silo.model.phi(block, silo.features[p]) for p in held}

    def scores_to_hubs(self, flow: Flow) -> None:
        """A hub sends its scores and the regulariser of its block; who has those of all silos has the objective."""
        sent = []
        for scores, block in zip(self.scores, self.hub_blocks, strict=True):
            sent.append((scores, self.l2 / 2 * sum(float(np.sum(array**2)) for array in block)))
        for j in range(len(self.silos)):
            for other in flow.route.receivers(j, len(self.silos)):
                self.inbox[other][j] = sent[j]
        for j, received in enumerate(self.inbox):
            parts = [part for _, part in sorted({**received, j: sent[j]}.items())]
            if len(parts) == len(self.silos):
                losses = [
                    loss_of(self.loss, np.asarray(sum(scores[p] for scores, _ in parts)), label)
                    for p, label in enumerate(self.labels)
                ]
                self.values[j] = sum(losses) / len(losses) + sum(penalty for _, penalty in parts)

    def figures_to_hubs(self, flow: Flow) -> None:
        """The hub with the labels sends the others what it found."""
        for j, value in enumerate(self.values.copy()):
            for other in flow.route.receivers(j, len(self.silos)):
                self.values[other] = value


SENDING: dict[tuple[str, str], Callable[[Parties, Flow], None]] = {
    ("block", "hub_to_client"): Parties.block_to_clients,
    ("phi", "client_to_hub"): Parties.phi_to_hub,
    ("phi", "hub_to_hub"): Parties.phi_to_hubs,
    ("slope", "hub_to_hub"): Parties.slope_to_hubs,
    ("received", "hub_to_client"): Parties.received_to_clients,
    ("block", "client_to_hub"): Parties.block_to_hub,
}
"""What each flow of training means."""
EVALUATING: dict[tuple[str, str], Callable[[Evaluation, Flow], None]] = {
    ("evaluated", "hub_to_client"): Evaluation.block_to_clients,
    ("scores", "client_to_hub"): Evaluation.scores_to_hub,
    ("scores", "hub_to_hub"): Evaluation.scores_to_hubs,
    ("figures", "hub_to_hub"): Evaluation.figures_to_hubs,
}
"""What each flow of an evaluation means."""


def objective(
    silos: Sequence[Silo],
    labels: Any,
    hub_blocks: Sequence[Block],
    loss: str,
    l2: float,
    flows: Round | None = None,
) -> float:
    """What every hub knows of a model when it was evaluated: its mean loss plus l2 / 2 times all squared parameters."""
    flows = flows or round_of(Variant(), len(silos), Widths(1, 1))
    parties = Evaluation(silos, labels, loss, l2, hub_blocks)
    for flow in flows.evaluation:
        EVALUATING[flow.name, flow.link](parties, flow)
    (value,) = {*parties.values}
    assert value is not None
    return value


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
    flows: Round | None = None,
    draws: Any = "auto",
) -> list[Block]:
    """Algorithm 1 for ``num_rounds`` rounds of Q iterations; the hub blocks at its end.

    Args:
        flows: what a round sends; by default what Algorithm 1 does.
    """
    flows = flows or round_of(Variant(), len(silos), Widths(1, 1))
    each = [1.0] * len(labels) if weights is None else [w * len(labels) / sum(weights) for w in weights]
    parties = Parties(
        silos, labels, each, loss, l2, local_steps, step_size, minibatches, gradient, variation or Variation(), [*start]
    )  # line 1
    for r in range(num_rounds):
        sizes = {"num_samples": len(labels), "batch_size": batch_size, "local_steps": local_steps}
        (batches,) = batch_ids(seed, [r], **sizes, minibatches=minibatches, draws=draws).tolist()
        parties.begin(r, batches)
        for flow in flows.training:
            # Weights of samples travel within others' messages; here every client knows them.
            if flow.within is None:
                SENDING[flow.name, flow.link](parties, flow)
        parties.end()
    return parties.hub_blocks
