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
    quadratic: Callable[["Array"], "Array"]
    """Half of d' H d for a change d of a sample's scores, ``[..., C]`` to ``[...]``, where H is at least the second
    derivative of the loss, whatever the scores and the label are."""
    corrected: Callable[["Array", "Array", Response], "Array"] | None = None
    """The same of randomised labels, with the loss of the true ones as its mean; None where labels are no classes."""

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


def _centred(change: "Array") -> "Array":
    """H = (I - 11'/C) / 2 (Boehning 1992): the mean of a change, which moves no probability, counts nothing."""
    outputs = change.shape[-1]
    return ((change**2).sum(axis=-1) - change.sum(axis=-1) ** 2 / outputs) / 4


LOSSES: Mapping[LossName, Loss] = {
    "squared": Loss(
        target="amount",
        tasks=("regression",),
        labels="finite numbers",
        curvature=1.0,
        is_quadratic=True,
        fits=lambda labels: np.ones(labels.shape, bool),
        losses=_squared,
        quadratic=lambda change: change[..., 0] ** 2 / 2,
    ),
    "logistic": Loss(
        target="binary",
        tasks=("binary",),
        labels="0 or 1",
        curvature=1 / 4,
        is_quadratic=False,
        fits=lambda labels: (labels == 0) | (labels == 1),
        losses=_logistic,
        quadratic=lambda change: change[..., 0] ** 2 / 8,
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
        quadratic=_centred,
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
