"""The softmax loss, of classes with one score each."""
# ruff: noqa: PLC0415 - commands that only read a configuration start without JAX

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tdcd.core.losses import figures
from tdcd.core.losses.figures import Figures
from tdcd.core.losses.loss import Loss
from tdcd.core.randomized import Response

if TYPE_CHECKING:
    from jax import Array


@dataclass(frozen=True)
class Softmax(Loss):
    r""":math:`\log \sum_c e^{s_c} - s_y` of C scores s and a class y."""

    name = "softmax"
    target = "classes"
    labels = "whole numbers from 0 on"
    curvature = 1 / 2
    metric_names = ("accuracy", "auc")

    def losses(self, scores: "Array", labels: "Array") -> "Array":
        """The loss of every sample."""
        from jax.nn import logsumexp

        return logsumexp(scores, axis=-1) - _picked(scores, labels)

    def corrected(self, scores: "Array", labels: "Array", response: Response) -> "Array":
        """The label enters as a linear term: its mean is put right."""
        from jax.nn import logsumexp

        picked = _picked(scores, labels)
        return logsumexp(scores, axis=-1) - (picked - response.other * scores.sum(axis=-1)) / response.slope

    def change(self, slope: "Array", change: "Array", response: Response) -> "Array":
        """The slope is p - 1 for the label's class, where alone it is negative, and p for the others; corrected too."""
        import jax.numpy as jnp

        is_label = jnp.arange(slope.shape[-1]) == jnp.argmin(slope, axis=-1)[..., None]
        label = (is_label.astype(slope.dtype) - response.other) / response.slope
        return log_mean(slope + label, change) - jnp.sum(label * change, axis=-1)

    def fits(self, labels: NDArray[Any]) -> NDArray[np.bool_]:
        """0, 1, 2, ..."""
        return np.asarray((labels >= 0) & (labels == np.round(labels)))

    def metrics(self, scores: NDArray[np.float64], labels: NDArray[Any], unit: float, response: Response) -> Figures:
        """Accuracy, and the mean of each class's AUC against the rest."""
        chances = self.inverse_link(scores)
        areas = [figures.auc(chances[:, label], labels == label, response) for label in range(scores.shape[1])]
        known = [area for area in areas if area is not None]
        hits = float(np.mean(scores.argmax(axis=1) == labels))
        return {"accuracy": figures.corrected(hits, response), "auc": float(np.mean(known)) if known else None}


def _picked(scores: "Array", labels: "Array") -> "Array":
    """The score of every sample's own class."""
    import jax.numpy as jnp

    return jnp.take_along_axis(scores, labels[..., None].astype(jnp.int32), axis=-1)[..., 0]


def log_mean(chances: "Array", change: "Array") -> "Array":
    """The logarithm of the mean of exp(change)."""
    from jax.nn import logsumexp

    # Rounding may leave a chance just below zero.
    found: Array = logsumexp(change, axis=-1, b=chances.clip(0))
    return found
