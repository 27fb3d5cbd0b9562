r"""Losses: one entry each, with everything that the rest of the package needs to know of it.

========== ================================================ ======================= =========
loss       f(phi, y)                                        labels                  outputs C
========== ================================================ ======================= =========
squared    (phi - y)^2 / 2                                  real numbers            1
logistic   log(1 + exp(phi)) - y phi                        0 or 1                  1
softmax    log(sum_c exp(phi_c)) - phi_y                    0 .. C-1                C classes
========== ================================================ ======================= =========

A new loss is a new entry here, and its name in :data:`LossName`. Reading this file needs no JAX; computing a loss does.
"""
# ruff: noqa: PLC0415 - commands that only read a configuration start without JAX

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from tdcd.core.randomized import Response

if TYPE_CHECKING:
    from jax import Array

LossName = Literal["squared", "logistic", "softmax"]
Target = Literal["amount", "binary", "classes"]
"""What a model predicts: an amount; whether it is the second of two classes, by one score; or a class, by one score
per class."""
Task = Literal["regression", "binary", "multiclass"]
"""What labels are."""


@dataclass(frozen=True)
class Loss:
    """What there is to know of a loss."""

    target: Target
    tasks: tuple[Task, ...]
    """The tasks that it fits; it is the default for the first."""
    labels: str
    """Which labels it takes, in words."""
    curvature: float
    """The supremum over scores and labels of the spectral norm of its second derivative."""
    is_quadratic: bool
    """Whether that derivative is the same everywhere."""
    fits: Callable[[NDArray[Any]], NDArray[np.bool_]]
    """Which finite labels it takes."""
    losses: Callable[["Array", "Array"], "Array"]
    """The loss of every sample: ``[..., C]`` summed phi and ``[...]`` labels to ``[...]``."""
    change: Callable[["Array", "Array", Response], "Array"]
    """How much a sample's loss grows when its scores change, from its slope before (the derivative by the scores) and
    the change, ``[..., C]`` each, to ``[...]``. The slope says all that there is to know of label and scores. Labels
    may have been randomised: the loss is then the corrected one."""
    corrected: Callable[["Array", "Array", Response], "Array"] | None = None
    """The loss of randomised labels, with that of the true ones as its mean; None where labels are no classes."""

    def num_outputs(self, num_classes: int) -> int:
        """C, the scores of a sample."""
        return num_classes if self.target == "classes" else 1

    def label_dtype(self, dtype: str) -> np.dtype[Any]:
        """Of labels in a run whose arithmetic has ``dtype``."""
        return np.dtype(np.int32 if self.target == "classes" else dtype)


def _squared(phi: "Array", labels: "Array") -> "Array":
    return (phi[..., 0] - labels) ** 2 / 2


def _logistic(phi: "Array", labels: "Array") -> "Array":
    from jax.nn import softplus

    score = phi[..., 0]
    return softplus(score) - labels * score


def _softmax(phi: "Array", labels: "Array") -> "Array":
    import jax.numpy as jnp
    from jax.nn import logsumexp

    picked = jnp.take_along_axis(phi, labels[..., None].astype(jnp.int32), axis=-1)[..., 0]
    return logsumexp(phi, axis=-1) - picked


def _corrected_logistic(phi: "Array", labels: "Array", response: Response) -> "Array":
    return _logistic(phi, (labels - response.other) / response.slope)


def _corrected_softmax(phi: "Array", labels: "Array", response: Response) -> "Array":
    import jax.numpy as jnp
    from jax.nn import logsumexp

    picked = jnp.take_along_axis(phi, labels[..., None].astype(jnp.int32), axis=-1)[..., 0]
    return logsumexp(phi, axis=-1) - (picked - response.other * phi.sum(axis=-1)) / response.slope


def _squared_change(slope: "Array", change: "Array", response: Response) -> "Array":
    return (slope * change + change**2 / 2)[..., 0]


def _logistic_change(slope: "Array", change: "Array", response: Response) -> "Array":
    """The slope is p - y: p itself where y is 0, and p - 1 where it is 1; corrected, y is below 0 or above 1."""
    import jax.numpy as jnp

    slope, change = slope[..., 0], change[..., 0]
    label = ((slope < 0).astype(slope.dtype) - response.other) / response.slope
    chance, rest = label + slope, (1 - label) - slope
    return _log_mean(jnp.stack([rest, chance], axis=-1), jnp.stack([0 * change, change], axis=-1)) - label * change


def _softmax_change(slope: "Array", change: "Array", response: Response) -> "Array":
    """The slope is p - 1 for the label's class, where alone it is negative, and p for the others; corrected too."""
    import jax.numpy as jnp

    is_label = jnp.arange(slope.shape[-1]) == jnp.argmin(slope, axis=-1)[..., None]
    label = (is_label.astype(slope.dtype) - response.other) / response.slope
    return _log_mean(slope + label, change) - jnp.sum(label * change, axis=-1)


def _log_mean(chances: "Array", change: "Array") -> "Array":
    """The logarithm of the mean of exp(change)."""
    from jax.nn import logsumexp

    # Rounding may leave a chance just below zero.
    found: Array = logsumexp(change, axis=-1, b=chances.clip(0))
    return found


LOSSES: Mapping[LossName, Loss] = {
    "squared": Loss(
        target="amount",
        tasks=("regression",),
        labels="finite numbers",
        curvature=1.0,
        is_quadratic=True,
        fits=lambda labels: np.ones(labels.shape, bool),
        losses=_squared,
        change=_squared_change,
    ),
    "logistic": Loss(
        target="binary",
        tasks=("binary",),
        labels="0 or 1",
        curvature=1 / 4,
        is_quadratic=False,
        fits=lambda labels: (labels == 0) | (labels == 1),
        losses=_logistic,
        change=_logistic_change,
        corrected=_corrected_logistic,
    ),
    "softmax": Loss(
        target="classes",
        tasks=("multiclass", "binary"),
        labels="whole numbers from 0 on",
        curvature=1 / 2,
        is_quadratic=False,
        fits=lambda labels: (labels >= 0) & (labels == np.round(labels)),
        losses=_softmax,
        change=_softmax_change,
        corrected=_corrected_softmax,
    ),
}
"""By name."""


def fitting(task: Task) -> tuple[LossName, ...]:
    """The losses that fit a task, the default first.

    >>> fitting("binary"), fitting("multiclass")
    (('logistic', 'softmax'), ('softmax',))
    """
    names = [name for name, loss in LOSSES.items() if task in loss.tasks]
    return tuple(sorted(names, key=lambda name: LOSSES[name].tasks[0] != task))
