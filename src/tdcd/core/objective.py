"""Objectives: the loss of one sample given the summed phi of all silos, and the L2 regulariser."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.core.combine import SUM, Combine
from tdcd.core.lazy import Array, jax, jnp, library_of
from tdcd.core.losses import LOSSES, Loss, loss_of, needs_labels, no_curvature, outputs_of
from tdcd.core.randomized import KEPT, Response, problem_with
from tdcd.core.trees import Tree, leaves_of

__all__ = ["Objective", "Tree"]


@dataclass(frozen=True)
class Objective:
    r"""What training minimises: a loss per sample plus L2 regularisation of every block.

    .. math:: \mathcal{L}(\theta) = \frac1M \sum_i f\Big(\sum_j \Phi_{(j)}^{(i)}, y^{(i)}\Big)
              + \frac{\lambda}{2} \sum_j \|\theta_{(j)}\|^2

    The losses are in :mod:`tdcd.core.losses`. Paper, section 2.2.

    >>> Objective("squared").losses(np.array([[3.0]]), np.array([1.0])).tolist()
    [2.0]
    """

    loss: str | Loss = "squared"
    """By name, or one of your own."""
    l2: float = 0.0
    label_epsilon: float | None = None
    """The labels were randomised with this epsilon: losses are corrected for it (:mod:`tdcd.core.randomized`)."""
    combine: Combine = SUM
    """How the sum of the silos' phi becomes scores: the sum itself, or a head on it (:mod:`tdcd.core.combine`)."""

    def __post_init__(self) -> None:
        """Refuse a loss that there is not, a negative l2, and randomised labels that are no classes."""
        self._check_loss()
        if not 0 <= self.l2 < float("inf"):
            raise ValueError(f"l2 must be a number of at least 0, not {self.l2}")
        if self.label_epsilon is not None:
            problem = problem_with(self.label_epsilon)
            if self.kind.corrected is None:
                problem = f"randomised response needs classes, and the {self.kind.name} loss predicts amounts"
            if problem:
                raise ValueError(f"label_epsilon = {self.label_epsilon:g}: {problem}")

    def _check_loss(self) -> None:
        if isinstance(self.loss, type) or not isinstance(self.loss, str | Loss):
            what = "the class itself: call it" if isinstance(self.loss, type) else type(self.loss).__name__
            raise ValueError(f"loss must be one of {', '.join(LOSSES)}, or a tdcd.Loss of your own, not {what}")
        try:
            hash(self.loss)
        except TypeError:
            raise ValueError(f"loss {self.kind.name} has no hash: make it a frozen dataclass") from None
        # Equal objectives share compiled programs: what has a name goes by it.
        if LOSSES.get(self.kind.name) == self.loss:
            object.__setattr__(self, "loss", self.kind.name)

    def check_labels(self, labels: NDArray[Any], *, everywhere: bool = True) -> None:
        """Refuse labels that the loss cannot take; and, if only one silo has them, a loss that all must know."""
        if not everywhere and (problem := needs_labels(self.kind)):
            raise ValueError(f"labels at one silo: {problem}")
        fits = np.isfinite(labels) & self.kind.fits(labels)
        if not fits.all():
            raise ValueError(f"{self.kind.name} loss takes labels that are {self.kind.labels}, not {labels[~fits][0]}")

    @cached_property
    def kind(self) -> Loss:
        """The loss as an object, with what is known about it."""
        return loss_of(self.loss)

    def check_additive(self, what: str) -> None:
        """Refuse a head for what rests on scores that are sums."""
        if not self.combine.is_additive:
            raise ValueError(f"model.head: {what} rests on scores that are sums of phi, and not on {self.combine}")

    @property
    def curvature(self) -> float:
        """The bound of its loss's second derivative; a loss without one is refused."""
        self.check_additive("Theorem 1")
        if self.kind.curvature is None:
            raise ValueError(no_curvature(self.kind))
        return self.kind.curvature

    def num_outputs(self, labels: Sequence[NDArray[Any] | None]) -> int:
        """C for these labels, the held-out ones counted in: what the loss says of so many classes."""
        return outputs_of(self.kind, labels)

    def label_dtype(self, dtype: str) -> np.dtype[Any]:
        """The type of labels in a run whose arithmetic has ``dtype``."""
        return self.kind.label_dtype(dtype)

    def phi_width(self, num_outputs: int) -> int:
        """The numbers of phi of a sample with C scores."""
        return self.combine.width(num_outputs)

    def scores(self, total: Any) -> Any:
        """The scores ``[..., C]`` of every sample, from the sum of all silos' phi."""
        return self.combine.scores(total)

    def losses(self, total: Array, labels: Array) -> Array:
        """The loss of every sample: the sum of all silos' phi ``[..., W]`` and ``[...]`` labels to ``[...]`` losses."""
        scores = self.scores(total)
        if self.label_epsilon is None or self.kind.corrected is None:
            return self.kind.losses(scores, labels)
        return self.kind.corrected(scores, labels, self.response(scores.shape[-1]))

    @property
    def is_written_out(self) -> bool:
        """Whether the loss's derivatives are, so that no differentiation is needed."""
        return self.kind.slopes is not None and (self.kind.change is None or self.kind.change_slopes is not None)

    def slopes(self, total: Array, labels: Array) -> Array:
        """The derivative of every sample's loss by that sum, ``[..., W]``; of a loss where it is written out."""
        slopes, scores = self.kind.slopes, self.scores(total)
        assert slopes is not None
        return self.combine.pull_back(total, slopes(scores, labels, self.response(scores.shape[-1])))

    def statistic_width(self, num_outputs: int) -> int:
        """The numbers of :meth:`statistic` for C scores."""
        start = 0 if self.combine.is_additive else self.phi_width(num_outputs)
        return self.kind.statistic_width(num_outputs) + start

    def statistic(self, total: Array, labels: Array) -> Array:
        """What the loss of every sample can be followed from without its label: the slope by its scores, or what the
        loss has in its place; behind a head, that and the sum itself.
        """
        scores, kind = self.scores(total), self.kind
        outputs = scores.shape[-1]
        if kind.statistic is not None:
            statistic = kind.statistic(scores, labels, self.response(outputs))
        else:
            statistic = self.score_slopes(scores, labels)
        if statistic.shape[-1] != kind.statistic_width(outputs):
            raise ValueError(
                f"the {kind.name} loss has a statistic of {statistic.shape[-1]} numbers, and its statistic_width says "
                f"{kind.statistic_width(outputs)}: make them agree"
            )
        if self.combine.is_additive:
            return statistic
        with_sum: Array = library_of(total).concatenate([statistic, total], axis=-1)
        return with_sum

    def score_slopes(self, scores: Array, labels: Array) -> Array:
        """The derivative of every sample's loss by its scores, ``[..., C]``."""
        plain = Objective(self.loss, label_epsilon=self.label_epsilon)
        if library_of(scores) is np and self.is_written_out:
            return plain.slopes(scores, labels)
        slopes: Array = jax.grad(lambda scores: jnp.sum(plain.losses(scores, labels)))(scores)
        return slopes

    def change(self, statistic: Array, change: Array) -> Array:
        """How much every sample's loss grows with a change of its sum, from its statistic before it.

        Only of a loss that says so, see :func:`tdcd.core.losses.needs_labels`.
        """
        assert self.kind.change is not None
        statistic, moved, _ = self._moved(statistic, change)
        return self.kind.change(statistic, moved, self.response(moved.shape[-1]))

    def change_slopes(self, statistic: Array, change: Array) -> Array:
        """The derivative of :meth:`change` by the change: the slope after it."""
        assert self.kind.change_slopes is not None
        statistic, moved, total = self._moved(statistic, change)
        return self.combine.pull_back(total, self.kind.change_slopes(statistic, moved, self.response(moved.shape[-1])))

    def _moved(self, statistic: Array, change: Array) -> tuple[Array, Array, Array]:
        """The loss's own part of a statistic, the change of the scores, and the sum after it."""
        if self.combine.is_additive:
            return statistic, change, change
        start = statistic[..., -change.shape[-1] :]
        moved = self.scores(start + change) - self.scores(start)
        return statistic[..., : -change.shape[-1]], moved, start + change

    def response(self, outputs: int) -> Response:
        """How the labels were randomised; a single output has two classes."""
        return KEPT if self.label_epsilon is None else Response.of(self.label_epsilon, max(2, outputs))

    def penalty(self, block: Tree) -> Array:
        """The regulariser of one block, l2 / 2 times the sum of its squared parameters."""
        total: Array = sum((leaf**2).sum() for leaf in leaves_of(block))
        return self.l2 / 2 * total
