r"""A certificate: how far a model is, at most, above the best possible training loss.

With a convex loss, linear blocks and l2 = :math:`\lambda > 0`, any numbers z in place of the samples' scores prove that
no model has a loss below

.. math:: D(z) = \frac1M \sum_i w_i \big( f_i(z_i) - a_i^\top z_i \big)
          - \frac1{2\lambda} \sum_j \Big\| \frac1M X_j^\top W a \Big\|^2, \qquad a_i = f_i'(z_i).

It is the dual problem's value at a (docs/theory.md derives it): a sum over samples, and one number of each silo. Every
z proves a bound; some bounds are closer than others. The scores of the model itself give one that is far off where
minibatches have left noise in directions of high curvature. A mixture of the models evaluated last, whose gradients
cancel each other as far as possible, gives a close one: :func:`mixture`.
"""

from collections.abc import Callable, Iterable, Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from tdcd.core.lazy import jax
from tdcd.core.objective import Objective

Floats = NDArray[np.float64]
MODELS = 16
"""At most so many models are mixed: the ones evaluated last."""
MIXTURES = 2
"""How often the models are mixed; the second time the first mixture is one of them."""
NUMBERS = 1 << 24
"""At most so many scores are held at once."""
SHARE = 50
"""The work of training is at least so many times that of its certificates."""
PASSES = 8
"""What a certificate costs: about as much as so many passes over all training rows in minibatches."""
EPSILON = float(np.finfo(np.float64).eps)


def num_models(num_samples: int, num_outputs: int) -> int:
    """How many models are mixed: fewer where their scores would take up much memory.

    >>> num_models(20_000, 1), num_models(1_000_000, 10)
    (16, 1)
    """
    return max(1, min(MODELS, NUMBERS // (num_samples * num_outputs)))


def spacing(num_samples: int, samples_per_round: int) -> int:
    """The least rounds between two certificates, so that they cost little.

    >>> spacing(455, 640), spacing(17_000, 1_000)
    (95, 2267)
    """
    # A sample of a round is passed three times: for phi, and forth and back in its step.
    return 1 + SHARE * PASSES * num_samples // (3 * samples_per_round)


def is_due(round_index: int, every: int, least: int, last: int) -> bool:
    """Whether a round that is evaluated gets a certificate: the last one does, and some before it.

    >>> [round_index for round_index in range(0, 110, 10) if is_due(round_index, 10, 35, 100)]
    [40, 70, 100]

    Args:
        every: rounds between two evaluations.
        least: those between two certificates, see :func:`spacing`.
    """
    return round_index == last or (round_index > 0 and round_index // least > max(0, round_index - every) // least)


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

    @property
    def rounding(self) -> float:
        """What a sum over them in float64 loses at most, as a part of the numbers' absolute values."""
        return EPSILON * (len(self.parts) + 10)


def mixture(products: Floats) -> Floats:
    """How much of each model to take, ``[m]``, from the inner products of their gradients, ``[m, m]``.

    The parts add up to 1 and may be negative. If losses were parabolas, the mixture's gradient would be that mixture
    of the gradients: of all such ones it is the shortest.

    >>> mixture(np.array([[1.0, -1.0], [-1.0, 1.0]])).round(3).tolist()
    [0.5, 0.5]
    """
    count = len(products)
    scale = np.trace(products) / count
    if not scale > 0:
        return np.full(count, 1 / count)
    # Gradients that are nearly the same would give parts without a bound.
    parts: Floats = np.linalg.solve(products / scale + 1e-10 * np.eye(count), np.ones(count))
    found: Floats = parts / parts.sum()
    return found


class Model(NamedTuple):
    """One of the models that are mixed."""

    blocks: list[Floats]
    """Of every silo, ``[D_j, C]``."""
    scores: Floats
    """``[M, C]``."""
    slopes: Floats
    """``[M, C]``."""
    gradient: list[Floats]
    """Of the mean loss, without l2, by every silo's block."""

    def full_gradient(self, l2: float) -> Floats:
        """Of the objective, by all parameters."""
        both = zip(self.gradient, self.blocks, strict=True)
        return np.concatenate([(gradient + l2 * block).ravel() for gradient, block in both])

    def bound(self, samples: Samples) -> float:
        """D: no model's training loss is below it. What float64 may have lost is taken off."""
        losses, linear = samples.losses(self.scores), self.slopes * self.scores
        quadratic = sum(float((one**2).sum()) for one in self.gradient) / (2 * samples.objective.l2)
        scale = abs(losses).sum() + abs(linear).sum() + 2 * quadratic
        return float(losses.sum() - linear.sum() - quadratic - samples.rounding * scale)

    def loss(self, samples: Samples) -> float:
        """The training loss; what float64 may have lost is added."""
        losses = samples.losses(self.scores)
        penalty = samples.objective.l2 / 2 * sum(float((block**2).sum()) for block in self.blocks)
        return float(losses.sum() + penalty + samples.rounding * (abs(losses).sum() + penalty))


class Certificate(NamedTuple):
    """What is known of a model's distance from the best one."""

    loss: float
    """The model's training loss is at most this."""
    bound: float
    """No model's is below this one; not finite if there is no such bound."""
    gradient_norm: float
    """The Euclidean norm of the objective's gradient, over all training samples and parameters."""


PullBack = Callable[[Floats], list[list[Floats]]]
"""From slopes ``[m, M, C]`` to every silo's X' times them, of each of the m."""


def certify(models: Sequence[tuple[list[Floats], Floats]], pull_back: PullBack, samples: Samples) -> Certificate:
    """The certificate of the last of these models.

    Args:
        models: the blocks ``[D_j, C]`` of all silos and the scores ``[M, C]`` of each, those evaluated before it first.
    """
    objective = samples.objective
    slopes = [samples.slopes(scores) for _, scores in models]
    gradients = pull_back(np.stack(slopes))
    known = [Model(*model, *found) for model, found in zip(models, zip(slopes, gradients, strict=True), strict=True)]
    now = known[-1]
    loss, norm = now.loss(samples), float(np.linalg.norm(now.full_gradient(objective.l2)))
    if no_certificate(objective, are_linear=True):
        return Certificate(loss, -np.inf, norm)
    bounds = [now.bound(samples)]
    for _ in range(MIXTURES if len(models) > 1 else 0):
        known.append(_mixed(known, pull_back, samples))
        bounds.append(known[-1].bound(samples))
    return Certificate(loss, max(_finite(bounds), default=-np.inf), norm)


def _mixed(models: Sequence[Model], pull_back: PullBack, samples: Samples) -> Model:
    gradients = np.stack([model.full_gradient(samples.objective.l2) for model in models])
    parts = mixture(gradients @ gradients.T)
    blocks = [np.tensordot(parts, np.stack(each), 1) for each in zip(*(one.blocks for one in models), strict=True)]
    scores = sum(part * one.scores for part, one in zip(parts, models, strict=True))
    slopes = samples.slopes(np.asarray(scores))
    return Model(blocks, np.asarray(scores), slopes, pull_back(slopes[None])[0])


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


def gap_of(train_loss: float, found: Certificate, before: Sequence[float]) -> float | None:
    """The most that the model can be above the best one; None if nothing is proven.

    Args:
        train_loss: as the history has it.
        before: what earlier certificates proved: a bound is one for ever.
    """
    bound = max(_finite([found.bound, *before]), default=-np.inf)
    loss = max(train_loss, found.loss)
    # The subtraction is rounded, too.
    gap = max(loss - bound, 0.0) + EPSILON * abs(loss)
    return float(gap) if np.isfinite(gap) else None
