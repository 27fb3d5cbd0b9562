"""The logistic loss, of two classes."""
# ruff: noqa: PLC0415 - commands that only read a configuration start without JAX

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tdcd.core.losses import figures
from tdcd.core.losses.figures import Figures
from tdcd.core.losses.loss import Loss
from tdcd.core.losses.softmax import log_mean
from tdcd.core.randomized import Response

if TYPE_CHECKING:
    from jax import Array


@dataclass(frozen=True)
class Logistic(Loss):
    r""":math:`\log(1 + e^s) - y s` of a score s and a label y, 0 or 1."""

    name = "logistic"
    target = "binary"
    labels = "0 or 1"
    curvature = 1 / 4
    metric_names = ("accuracy", "auc")

    def losses(self, scores: "Array", labels: "Array") -> "Array":
        """The loss of every sample."""
        from jax.nn import softplus

        score = scores[..., 0]
        return softplus(score) - labels * score

    def corrected(self, scores: "Array", labels: "Array", response: Response) -> "Array":
        """The label enters as a linear term: its mean is put right."""
        return self.losses(scores, (labels - response.other) / response.slope)

    def change(self, slope: "Array", change: "Array", response: Response) -> "Array":
        """The slope is p - y: p itself where y is 0, and p - 1 where it is 1; corrected, y is below 0 or above 1."""
        import jax.numpy as jnp

        slope, change = slope[..., 0], change[..., 0]
        label = ((slope < 0).astype(slope.dtype) - response.other) / response.slope
        chance, rest = label + slope, (1 - label) - slope
        return log_mean(jnp.stack([rest, chance], axis=-1), jnp.stack([0 * change, change], axis=-1)) - label * change

    def fits(self, labels: NDArray[Any]) -> NDArray[np.bool_]:
        """0 and 1."""
        return np.asarray((labels == 0) | (labels == 1))

    def metrics(self, scores: NDArray[np.float64], labels: NDArray[Any], unit: float, response: Response) -> Figures:
        """Accuracy and AUC."""
        hits = float(np.mean((scores[:, 0] > 0) == labels))
        return {
            "accuracy": figures.corrected(hits, response),
            "auc": figures.auc(scores[:, 0], labels == 1, response),
        }
