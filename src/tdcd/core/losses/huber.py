"""The Huber loss, of amounts among which a few are far off."""

from dataclasses import dataclass
from math import inf
from typing import Any

from tdcd.core.lazy import Array, library_of
from tdcd.core.losses.loss import Loss
from tdcd.core.randomized import Response

DELTA = 1.35
"""For normal errors with standard deviation 1, this keeps 95 % of the efficiency of the squared loss (Huber 1981)."""


@dataclass(frozen=True)
class Huber(Loss):
    r""":math:`r^2 / 2` of the residual r = s - y where it is small, :math:`\delta\,(|r| - \delta / 2)` elsewhere.

    The two meet at :math:`|r| = \delta`. A slope of :math:`\pm \delta` does not say how far off a label is, and with
    it how the loss changes: the residual does.
    """

    delta: float = DELTA
    """In standard deviations of the labels, where they are standardised; in their own unit otherwise."""
    name = "huber"
    is_convex = True
    curvature = 1.0

    def __post_init__(self) -> None:
        """Refuse a delta that is no positive number."""
        if not 0 < self.delta < inf:
            raise ValueError(f"delta must be a positive number, not {self.delta}")

    def losses(self, scores: Array, labels: Array) -> Array:
        """The loss of every sample."""
        library = library_of(scores)
        distance = library.abs(scores[..., 0] - labels)
        inside = library.minimum(distance, self.delta)
        losses: Array = inside * (distance - inside / 2)
        return losses

    def statistic(self, scores: Array, labels: Array, response: Response) -> Array:
        """The residual."""
        return scores - labels[..., None]

    def change(self, residual: Array, change: Array, response: Response) -> Array:
        """The loss at the new residual less that at the old one."""
        nothing: Any = 0
        return self.losses(residual + change, nothing) - self.losses(residual, nothing)

    def slopes(self, scores: Array, labels: Array, response: Response) -> Array:
        """The residual, up to delta."""
        slopes: Array = library_of(scores).clip(scores - labels[..., None], -self.delta, self.delta)
        return slopes

    def change_slopes(self, residual: Array, change: Array, response: Response) -> Array:
        """The residual after the change, up to delta."""
        slopes: Array = library_of(residual).clip(residual + change, -self.delta, self.delta)
        return slopes
