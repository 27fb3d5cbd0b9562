"""The Poisson loss with the log link, of counts."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.core.lazy import Array, library_of
from tdcd.core.losses import figures
from tdcd.core.losses.figures import Figures, Tallies
from tdcd.core.losses.loss import Loss
from tdcd.core.randomized import Response


@dataclass(frozen=True)
class Poisson(Loss):
    r""":math:`e^s - y s + y \log y - y` of a score s and a count y: half the deviance of y from the mean :math:`e^s`.

    The last two terms move no block; with them no loss is below 0. The second derivative is :math:`e^s`, which has no
    bound; so counts are divided by their mean, and scores of 0 are the best guess to begin with. The slope
    :math:`e^s - y` alone does not say how the loss changes; with the expected count :math:`e^s` it does.
    """

    name = "poisson"
    is_convex = True
    labels = "counts: 0 or more, not necessarily whole"
    standardizes = False
    metric_names = ("deviance", "d2", "mae")

    def losses(self, scores: Array, labels: Array) -> Array:
        """The loss of every sample."""
        library, score = library_of(scores), scores[..., 0]
        least = labels * library.log(library.where(labels > 0, labels, 1)) - labels
        losses: Array = library.exp(score) - labels * score + least
        return losses

    def slopes(self, scores: Array, labels: Array, response: Response) -> Array:
        """The expected count less the label."""
        expected: Array = library_of(scores).exp(scores)
        return expected - labels[..., None]

    def statistic(self, scores: Array, labels: Array, response: Response) -> Array:
        """The slope and the expected count."""
        library, slopes = library_of(scores), self.slopes(scores, labels, response)
        statistic: Array = library.concatenate([slopes, library.exp(scores)], axis=-1)
        return statistic

    def statistic_width(self, num_outputs: int) -> int:
        """2 C: the slope and the expected count of each score."""
        return 2 * num_outputs

    def change(self, statistic: Array, change: Array, response: Response) -> Array:
        """The expected count is multiplied by exp(change), and the label does not move."""
        slope, expected, change = statistic[..., 0], statistic[..., 1], change[..., 0]
        grown: Array = expected * (library_of(statistic).expm1(change) - change) + slope * change
        return grown

    def change_slopes(self, statistic: Array, change: Array, response: Response) -> Array:
        """The growth of the expected count."""
        grown: Array = statistic[..., 1:] * library_of(statistic).expm1(change)
        return statistic[..., :1] + grown

    def fits(self, labels: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether labels are counts, or counts per exposure."""
        return np.asarray(labels >= 0)

    def unit(self, labels: NDArray[Any]) -> tuple[float, float]:
        """Their mean: curvature and steps are then the same for counts of any size."""
        return 0.0, float(labels.mean()) or 1.0

    def inverse_link(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """The expected count, ``[n, 1]``."""
        # Infinite where a count would be too large for a float64.
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(scores))

    def metrics(self, scores: NDArray[np.float64], labels: NDArray[Any], unit: float, response: Response) -> Figures:
        """The mean Poisson deviance, the part of it that is explained, and the mean absolute error."""
        return figures.of_counts(scores[:, 0], labels, unit)

    def sums(self, scores: NDArray[np.float64], labels: NDArray[Any]) -> Tallies:
        """See :func:`tdcd.core.losses.figures.sums_of_counts`."""
        return figures.sums_of_counts(scores[:, 0], labels)

    def metrics_of_sums(self, sums: Tallies, unit: float, response: Response) -> Figures:
        """The mean Poisson deviance, the part of it that is explained, and the mean absolute error."""
        return figures.counts_of_sums(sums, unit)
