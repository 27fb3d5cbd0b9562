"""The squared loss, of amounts."""

from dataclasses import dataclass

from tdcd.core.lazy import Array
from tdcd.core.losses.loss import Loss
from tdcd.core.randomized import Response


@dataclass(frozen=True)
class Squared(Loss):
    r""":math:`(s - y)^2 / 2` of a score s and an amount y."""

    name = "squared"
    is_convex = True
    curvature = 1.0
    is_quadratic = True

    def losses(self, scores: Array, labels: Array) -> Array:
        """The loss of every sample."""
        return (scores[..., 0] - labels) ** 2 / 2

    def change(self, slope: Array, change: Array, response: Response) -> Array:
        """A parabola: the slope says all."""
        return (slope * change + change**2 / 2)[..., 0]

    def slopes(self, scores: Array, labels: Array, response: Response) -> Array:
        """The residual."""
        return scores - labels[..., None]

    def change_slopes(self, slope: Array, change: Array, response: Response) -> Array:
        """A straight line."""
        return slope + change
