r"""A certificate: how far a model is, at most, above the best possible training loss.

With a convex loss, linear blocks and l2 = :math:`\lambda > 0`, any numbers z in place of the samples' scores prove that
no model has a loss below

.. math:: D(z) = \frac1M \sum_i w_i \big( f_i(z_i) - a_i^\top z_i \big)
          - \frac1{2\lambda} \sum_j \Big\| \frac1M X_j^\top W a \Big\|^2, \qquad a_i = f_i'(z_i).

It is the dual problem's value at a (docs/theory.md derives it): a sum over samples, and one number of each silo. Every
z proves a bound; some bounds are closer than others. The scores of the model itself give one that is far off where
there is a gradient left in directions of high curvature. A mixture of the models of the last rounds, whose gradients
cancel each other as far as possible, gives a close one: the witness. Hubs know these gradients anyway, and the mixture
follows from their inner products (:func:`mixture`).

Simulated and real parties call the same functions: :func:`products` and :func:`witness` of each silo, :class:`Proof` of
whoever has the labels, :class:`SiloSide` of each silo again.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from tdcd.core.algorithm import Design, flat_rows
from tdcd.core.codecs.fixed_point import FixedBlocks, FixedPoint
from tdcd.core.combine import Combine
from tdcd.core.family.scaled import Window
from tdcd.core.lazy import jax
from tdcd.core.objective import Objective
from tdcd.core.round import WITNESSES, CertificateKind, Everyone
from tdcd.core.schedule import Draws
from tdcd.core.settings import Settings, draws_of
from tdcd.core.trees import leaves_of, map_tree
from tdcd.core.variant import Variant

Floats = NDArray[np.float64]
SHARE = 50
"""The work of training is at least so many times that of its certificates."""
PASSES = 8
"""What a certificate costs: about as much as so many passes over all training rows in minibatches."""
MOST_SCORES = 1 << 22
"""There is no certificate of more scores than these: they are 64 bits each, of two models."""
PRODUCTS_AT_ONCE = 1 << 17
"""Rows become float64 in chunks that take so many products: larger ones would be shared out to threads, which wait for
each other, and change last bits with the number of cores."""
MOST_AT_ONCE = 1 << 15
"""Features of a chunk: they are to stay in the processor's cache."""
EPSILON = float(np.finfo(np.float64).eps)
DRIFT, LEAST_DRIFT = 1e-2, 1e-6
"""By which part of itself a mixture takes the gradient of a remembered model to be off: where the curvature of the loss
changes, and where it does not."""


def spacing(settings: Settings, num_samples: int) -> int:
    """The least rounds between two certificates, so that they cost little.

    >>> spacing(Settings(batch_size=64, local_steps=10), 455), spacing(Settings(batch_size=1000, local_steps=1), 17_000)
    (95, 2267)
    """
    # A sample of a round is passed three times: for phi, and forth and back in its step.
    per_round = settings.local_steps * settings.effective_batch_size(num_samples)
    return 1 + SHARE * PASSES * num_samples // (3 * per_round)


def is_due(round_index: int, every: int, least: int, last: int) -> bool:
    """Whether a round that is evaluated gets a certificate: the last one does, and some before it.

    >>> [round_index for round_index in range(0, 110, 10) if is_due(round_index, 10, 35, 100)]
    [40, 70, 100]

    Args:
        every: rounds between two evaluations.
        least: those between two certificates, see :func:`spacing`.
    """
    return round_index == last or (round_index > 0 and round_index // least > max(0, round_index - every) // least)


def kind_of(variant: Variant, combine: Combine, are_linear: bool, num_scores: int) -> CertificateKind:
    """What is worked out of a model: its gap by a witness, or by itself; the norm of its gradient only; or nothing.

    Args:
        num_scores: of all training samples.
    """
    if variant.encrypted is not None:
        # A certificate is made of every sample's slope.
        return ""
    if variant.has_noise or num_scores > MOST_SCORES:
        return ""
    if not are_linear or not combine.is_additive:
        return "gradient"
    return "witness" if variant.remembers_rounds else "model"


class Coverage:
    """From which round on every training sample was in a minibatch.

    A silo that alone has labels sends slopes of all training samples in a certificate. It waits until minibatches have
    had them all, so that no slope is sent of a sample of which training sent none.

    >>> from tdcd.core.family.labels import LabelsAt
    >>> settings = Settings(step_size=0.1, batch_size=4, local_steps=1)
    >>> coverage = Coverage(Variant(knowledge=LabelsAt(0)), settings, num_samples=10)
    >>> [coverage.is_whole(round_index) for round_index in (1, 2, 20)], Coverage(Variant(), settings, 10).is_whole(0)
    ([False, False, True], True)
    """

    def __init__(self, variant: Variant, settings: Settings, num_samples: int) -> None:
        """Before round 0."""
        self._drawn: Draws | None = None
        self._passed = 0
        """The rounds whose minibatches were looked at."""
        if variant.knowledge.route != Everyone() and settings.minibatches != "full":
            self._drawn = draws_of(settings, num_samples)
            self._per_round = settings.num_exchanged * settings.effective_batch_size(num_samples)
            self._missing, self._is_missing = num_samples, np.ones(num_samples, bool)

    def is_whole(self, round_index: int) -> bool:
        """Whether the rounds before this one had every sample."""
        if self._drawn is None:
            return True
        if round_index * self._per_round < len(self._is_missing):
            # Others need not be drawn again for it.
            return False
        while self._missing and self._passed < round_index:
            ids = np.unique(self._drawn(self._passed))
            self._missing -= int(self._is_missing[ids].sum())
            self._is_missing[ids] = False
            self._passed += 1
        return not self._missing and self._passed <= round_index


def no_certificate(objective: Objective, are_linear: bool) -> str:
    """Why there can be no certificate; empty if there can."""
    if not are_linear:
        return "blocks are not linear, so the loss is not convex in their parameters"
    if not objective.combine.is_additive:
        return f"scores are not sums of phi: {objective.combine} makes the loss one that is not convex"
    if not objective.kind.is_convex:
        return f"the {objective.kind.name} loss is not known to be convex: set is_convex if it is"
    if objective.l2 == 0:
        return "model.l2 = 0: the bound is divided by it"
    return ""


class Samples(NamedTuple):
    """What the hub with the labels knows of all training samples."""

    objective: Objective
    labels: Any
    """``[M]``."""
    parts: Floats
    """``[M]``: what part of the mean loss each is; together 1."""

    @classmethod
    def of(cls, objective: Objective, labels: Any, weights: Any = None) -> Self:
        """Of samples that weigh so much; all the same by default."""
        count = len(labels)
        even = weights is None
        return cls(objective, labels, np.full(count, 1 / count) if even else np.asarray(weights) / np.sum(weights))

    def slopes(self, scores: Floats) -> Floats:
        """``[M, C]``: every sample's part times the derivative of its loss by its scores ``[M, C]``.

        The gradient of the mean loss by a silo's block is X' times them.
        """
        objective = self.objective
        if objective.is_written_out:
            return np.asarray(self.parts[:, None] * objective.slopes(scores, self.labels))  # type: ignore[arg-type]
        with jax.enable_x64(True):
            total = lambda scores: objective.losses(scores, self.labels).sum()  # noqa: E731
            return np.asarray(self.parts[:, None] * jax.grad(total)(jax.numpy.asarray(scores)))

    def losses(self, scores: Floats) -> Floats:
        """``[M]``: every sample's part times its loss."""
        if self.objective.is_written_out:
            return np.asarray(self.parts * self.objective.losses(scores, self.labels))  # type: ignore[arg-type]
        with jax.enable_x64(True):
            return np.asarray(self.parts * self.objective.losses(jax.numpy.asarray(scores), self.labels))

    def most_losses(self, scores: Floats, error: float) -> Floats:
        """``[M]``: as :meth:`losses`, at most, of scores each of which is off by at most ``error``."""
        if not error:
            return self.losses(scores)
        if scores.shape[-1] == 1:
            # The largest value of a convex function between two points is at one of them.
            return np.maximum(self.losses(scores - error), self.losses(scores + error))
        curvature = np.inf if self.objective.kind.curvature is None else self.objective.kind.curvature
        bent = self.parts * curvature / 2 * scores.shape[-1] * error**2
        return np.asarray(self.losses(scores) + error * abs(self.slopes(scores)).sum(axis=1) + bent)

    @property
    def rounding(self) -> float:
        """What a sum over them in float64 loses at most, as a part of the numbers' absolute values and of 1."""
        return EPSILON * (len(self.parts) + 10)


def products(window: Window | None, largest: float = np.inf) -> tuple[Floats, int]:
    """The inner products of a silo's gradients in its last rounds, ``[64, 64]``, the last round first; and how many
    rounds these are: what is beyond them is zero.

    Products of what gradients may be off by are added: a mixture is not to rest on it.

    Args:
        largest: with a larger product, it is those of no rounds.
    """
    gram = np.zeros((WITNESSES, WITNESSES))
    if window is None or not len(window.blocks):
        return gram, 0
    count = len(window.blocks)
    flat = window.gradients.reshape(count, -1)
    own = flat @ flat.T + window.errors
    if not np.abs(own).max() <= largest:
        return gram, 0
    gram[:count, :count] = own
    return gram, count


def mixture(products: Floats, drift: float = 0.0) -> Floats:
    r"""How much of each model to take, ``[m]``, from the inner products of their gradients, ``[m, m]``.

    The parts c add up to 1 and may be negative. If losses were parabolas, the mixture's gradient would be that mixture
    of the gradients: of all such ones it is the shortest. Where curvature changes from model to model, every gradient
    is off by a part of itself, and so is counted in:

    .. math:: \min_c\ \Big\| \sum_i c_i g_i \Big\|^2 + \sum_i (\delta\, c_i)^2 \|g_i\|^2

    Args:
        drift: :math:`\delta`, by which part of itself.

    >>> mixture(np.array([[1.0, -1.0], [-1.0, 1.0]])).round(3).tolist()
    [0.5, 0.5]
    """
    count = len(products)
    even = np.full(count, 1 / max(count, 1))
    most = np.diagonal(products).max(initial=0.0)
    if not 0 < most < np.inf:
        return even
    # Gradients differ in length by many orders: all are made of length 1 before the system is solved.
    lengths = np.sqrt(np.maximum(np.diagonal(products), 1e-30 * most))
    relative = products / np.outer(lengths, lengths) + max(drift**2, LEAST_DRIFT**2) * np.eye(count)
    try:
        parts: Floats = np.linalg.solve(relative, 1 / lengths) / lengths
    except np.linalg.LinAlgError:
        # No products of gradients are like that, but other hubs send what they like.
        return even
    total = parts.sum()
    return parts / total if np.isfinite(total) and total > 0 else even


def weights_of(products: Floats, counts: Sequence[int], objective: Objective) -> Floats:
    """How much of the model of each of the last rounds the witness is, from the sum of all silos' :func:`products` and
    from each one's number of rounds.

    Rounds that some silo does not remember are left out; of none, and where nothing can be proven, the witness is the
    model itself. Where the curvature of the loss changes, the earlier half of the rounds says too little of the last.
    """
    count = 0 if no_certificate(objective, are_linear=True) else min(counts)
    drift = 0.0 if objective.kind.is_quadratic else DRIFT
    count = -(-count // 2) if drift else count
    return mixture(products[:count, :count], drift)


def witness(weights: Floats, window: Window | None, block: Floats) -> Floats:
    """A silo's block of the witness, ``[D, C]``; that of the model where there is nothing to mix."""
    if window is None or not 0 < len(weights) <= len(window.blocks):
        return block
    return np.asarray(np.tensordot(weights, window.blocks[: len(weights)], 1))


def scores_of(features: NDArray[Any], blocks: Floats, design: Design = flat_rows) -> Floats:
    """The scores ``[n, k C]`` of rows, by each of the blocks ``[k, D, C]`` in turn, in float64."""
    side_by_side = np.concatenate([*blocks], axis=1)
    scores = np.empty((len(features), side_by_side.shape[1]))
    for part, rows in _chunks(features, side_by_side.shape[1], design):
        scores[part] = rows @ side_by_side
    return scores


def pull_back(features: NDArray[Any], slopes: Floats, design: Design = flat_rows) -> Floats:
    """X' times the slopes ``[n, C]`` of rows, ``[D, C]``, in float64."""
    total = np.zeros((_width(features, design), slopes.shape[-1]))
    for part, rows in _chunks(features, slopes.shape[-1], design):
        total += rows.T @ slopes[part]
    return total


def _width(features: NDArray[Any], design: Design) -> int:
    none: Any = features[:0]
    return design(none).shape[1]


def _chunks(features: NDArray[Any], outputs: int, design: Design) -> Iterator[tuple[slice, Floats]]:
    at_once = max(16, min(MOST_AT_ONCE, PRODUCTS_AT_ONCE // outputs) // max(1, _width(features, design)))
    for begin in range(0, len(features), at_once):
        part = slice(begin, begin + at_once)
        rows: Any = np.asarray(features[part], np.float64)
        yield part, np.asarray(design(rows))


def fixed_gradient(gradient: Any, summed: FixedBlocks, num_clients: int) -> Any:
    """What a client adds to the sum of its silo's gradients where a hub sees nothing but sums; None beyond the range.

    The sum of all clients' has to be within it.
    """
    largest = max(float(np.max(np.abs(leaf), initial=0)) for leaf in leaves_of(gradient))
    if not largest <= summed.largest / num_clients:
        return None
    return map_tree(summed.fixed.steps, gradient)


def sum_of_gradients(total: Any, summed: FixedBlocks, num_clients: int) -> tuple[Any, float]:
    """The gradient of a silo, from the sum of what its clients added, and how far each of its numbers may be off."""
    numbers = map_tree(lambda leaf: summed.fixed.numbers(leaf, np.float64), total)
    return numbers, num_clients * 2.0 ** -(summed.fixed.bits + 1)


class SiloSide(NamedTuple):
    """What a silo adds: three numbers."""

    square: float
    """Of the norm of X' times the slopes, at most."""
    penalty: float
    """The regulariser of the model's block."""
    gradient_square: float
    """Of the norm of the objective's gradient by the witness's block."""

    @property
    def is_sound(self) -> bool:
        """Whether these numbers can be."""
        return all(np.isfinite(number) and number >= 0 for number in self)

    @classmethod
    def of(cls, pulled: Floats, blocks: Sequence[Floats], l2: float, error: float = 0.0) -> Self:
        """From X' times the slopes, ``[D, C]``, and the blocks of the model and of the witness.

        Args:
            error: how far each number of X' times the slopes may be off.
        """
        square = float((pulled**2).sum())
        off = error * math.sqrt(pulled.size)
        most = square + off * (2 * math.sqrt(square) + off)
        full = float(((pulled + l2 * blocks[-1]) ** 2).sum())
        return cls(most, l2 / 2 * float((blocks[0] ** 2).sum()), full)

    @classmethod
    def of_any(cls, pulled: Any, block: Any, l2: float) -> Self:
        """Of a block that is not linear, from the gradient of the mean loss by its parameters: nothing is proven."""
        pairs = zip(leaves_of(pulled), leaves_of(block), strict=True)
        full = sum(
            float(((np.asarray(own, np.float64) + l2 * np.asarray(leaf, np.float64)) ** 2).sum()) for own, leaf in pairs
        )
        return cls(0.0, 0.0, full)


class Certificate(NamedTuple):
    """What is known of a model's distance from the best one."""

    loss: float
    """The model's training loss is at most this."""
    bound: float
    """No model's is below this one; not finite if there is no such bound."""
    gradient_norm: float
    """The Euclidean norm of the objective's gradient, over all training samples and parameters, at the witness."""


NOTHING = Certificate(np.nan, np.nan, np.nan)
"""Nothing is known: a client did not answer, or numbers were too large."""


class Proof:
    """What whoever has the labels works out."""

    def __init__(self, samples: Samples, scores: Floats, num_blocks: int, error: float = 0.0) -> None:
        """Take the scores ``[M, k C]`` of the model and of the witness; of one of them if they are the same.

        Args:
            num_blocks: k.
            error: how far the scores may be off.
        """
        each = np.split(scores, num_blocks, axis=1)
        self._samples, self._now, self._witness, self._error = samples, each[0], each[-1], error
        self.slopes = samples.slopes(self._witness)
        """``[M, C]``: every sample's part of the gradient by its scores, at the witness."""

    @property
    def is_finite(self) -> bool:
        """Whether there is anything to prove."""
        return bool(np.isfinite(self.slopes).all())

    def certificate(self, sides: Sequence[SiloSide]) -> Certificate:
        """From what every silo adds."""
        if not self.is_finite or not all(side.is_sound for side in sides):
            return NOTHING
        samples, l2 = self._samples, self._samples.objective.l2
        now = samples.most_losses(self._now, self._error)
        penalty = sum(side.penalty for side in sides)
        loss = float(now.sum() + penalty + samples.rounding * (1 + abs(now).sum() + penalty))
        norm = gradient_norm(sides).gradient_norm
        if no_certificate(samples.objective, are_linear=True):
            return Certificate(loss, -np.inf, norm)
        losses, linear = samples.losses(self._witness), self.slopes * self._witness
        quadratic = sum(side.square for side in sides) / (2 * l2)
        scale = 1 + abs(losses).sum() + abs(linear).sum() + 2 * quadratic
        bound = float(losses.sum() - linear.sum() - quadratic - samples.rounding * scale)
        return Certificate(loss, bound, norm)


def gradient_norm(sides: Sequence[SiloSide]) -> Certificate:
    """What there is of blocks that are not linear: nothing is proven of them."""
    norm = float(np.sqrt(sum(side.gradient_square for side in sides)))
    return Certificate(-np.inf, -np.inf, norm) if np.isfinite(norm) else NOTHING


def score_error(fixed: FixedPoint | None, num_silos: int) -> float:
    """How far sums of scores in fixed point may be off."""
    return 0.0 if fixed is None else num_silos * 2.0 ** -(fixed.bits + 1)


def _finite(numbers: Iterable[float]) -> list[float]:
    return [number for number in numbers if np.isfinite(number)]


def in_words(gap: float | None, gradient_norm: float | None = None) -> str:
    """What a line of the history proves or, where it proves nothing, what it says of the gradient; else nothing.

    >>> in_words(0.000312), in_words(None, 0.0249)
    ('at most 0.00032 above the best possible training loss', 'gradient norm 0.025')
    """
    if gap is not None:
        return f"at most {rounded_up(gap)} above the best possible training loss"
    return "" if gradient_norm is None else f"gradient norm {gradient_norm:.2g}"


def rounded_up(number: float) -> str:
    """Two digits of a positive number, which are not below it.

    >>> rounded_up(0.000312), rounded_up(0.5), rounded_up(1.5e-13)
    ('0.00032', '0.5', '1.5e-13')
    """
    if number == 0:
        return "0"
    step = Decimal(1).scaleb(Decimal(number).adjusted() - 1)
    return f"{float((Decimal(number) / step).to_integral_value(ROUND_CEILING) * step):.2g}"


def gap_of(train_loss: float, certificate: Certificate, before: Sequence[float]) -> float | None:
    """The most that the model can be above the best one; None if nothing is proven.

    Args:
        train_loss: as the history has it.
        before: what earlier certificates proved: a bound is one for ever.
    """
    bound = max(_finite([certificate.bound, *before]), default=-np.inf)
    loss = max(train_loss, certificate.loss)
    # The subtraction is rounded, too.
    gap = max(loss - bound, 0.0) + EPSILON * abs(loss)
    return float(gap) if np.isfinite(gap) else None
