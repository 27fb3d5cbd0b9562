"""The logistic loss, of two classes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.core.lazy import Array, library_of
from tdcd.core.losses import figures
from tdcd.core.losses.figures import Figures, Tallies
from tdcd.core.losses.loss import Loss
from tdcd.core.losses.softmax import log_mean, tilted
from tdcd.core.randomized import Response


@dataclass(frozen=True)
class Logistic(Loss):
    r""":math:`\log(1 + e^s) - y s` of a score s and a label y, 0 or 1."""

    name = "logistic"
    is_convex = True
    target = "binary"
    labels = "0 or 1"
    curvature = 1 / 4
    metric_names = ("accuracy", "auc")

    def losses(self, scores: Array, labels: Array) -> Array:
        """The loss of every sample."""
        softplus: Array
        score, library = scores[..., 0], library_of(scores)
        if library is np:
            # Of NumPy's functions these are the fast ones: logaddexp takes twenty times as long.
            softplus = library.maximum(score, 0) + library.log(1 + library.exp(-abs(score)))
        else:
            softplus = library.logaddexp(score, 0)
        return softplus - labels * score

    def slopes(self, scores: Array, labels: Array, response: Response) -> Array:
        """The chance of the second class, less the label."""
        library = library_of(scores)
        # Small chances keep all their digits.
        chance: Array
        if library is np:
            with np.errstate(over="ignore"):
                chance = 1 / (1 + library.exp(-scores))
        else:
            chance = library.exp(-library.logaddexp(0, -scores))
        return chance - ((labels - response.other) / response.slope)[..., None]

    def corrected(self, scores: Array, labels: Array, response: Response) -> Array:
        """The label enters as a linear term: its mean is put right."""
        return self.losses(scores, (labels - response.other) / response.slope)

    def change(self, slope: Array, change: Array, response: Response) -> Array:
        """The slope is p - y: p itself where y is 0, and p - 1 where it is 1; corrected, y is below 0 or above 1."""
        label, chances, changes = self._of_classes(slope, change, response)
        return log_mean(chances, changes) - label * change[..., 0]

    def change_slopes(self, slope: Array, change: Array, response: Response) -> Array:
        """The chance of the second class after the change, less the label."""
        label, chances, changes = self._of_classes(slope, change, response)
        return (tilted(chances, changes)[..., 1] - label)[..., None]

    def _of_classes(self, slope: Array, change: Array, response: Response) -> "tuple[Array, Array, Array]":
        """The label, and of both classes the chances before and the changes of their scores, ``[..., 2]``."""
        library, slope, change = library_of(slope), slope[..., 0], change[..., 0]
        label = ((slope < 0).astype(slope.dtype) - response.other) / response.slope
        chances: Array = library.stack([(1 - label) - slope, label + slope], axis=-1)
        return label, chances, library.stack([0 * change, change], axis=-1)

    def fits(self, labels: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether labels are 0 and 1."""
        return np.asarray((labels == 0) | (labels == 1))

    def metrics(self, scores: NDArray[np.float64], labels: NDArray[Any], unit: float, response: Response) -> Figures:
        """Accuracy and AUC."""
        hits = float(np.mean((scores[:, 0] > 0) == labels))
        return {
            "accuracy": figures.corrected(hits, response),
            "auc": figures.auc(scores[:, 0], labels == 1, response),
        }

    def sums(self, scores: NDArray[np.float64], labels: NDArray[Any]) -> Tallies:
        """Samples, hits, and scores in bins."""
        hits = np.count_nonzero((scores[:, 0] > 0) == labels)
        bins = figures.binned(scores[:, 0], labels == 1)
        return {"count": np.array(float(len(labels))), "hits": np.array(float(hits)), "bins": bins}

    def metrics_of_sums(self, sums: Tallies, unit: float, response: Response) -> Figures:
        """Accuracy and AUC."""
        hits = float(sums["hits"] / sums["count"])
        return {"accuracy": figures.corrected(hits, response), "auc": figures.auc_of_bins(sums["bins"], response)}
