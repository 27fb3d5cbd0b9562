"""What is computed from curves, seed by seed, and the interval that decides a claim.

Runs with the same seed share their samples and their start. So curves are compared seed by seed, and the interval is
that of the differences.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdcd.reproduction.results import CurveResult, ExperimentResult, SeedValues

CONFIDENCE = 0.95


class Interval(NamedTuple):
    """A mean over seeds and the t interval around it."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        """The mean and its interval in words."""
        if not np.isfinite(self.mean):
            return "no number, since a curve diverged or did not get there"
        return f"{self.mean:.3g} ({self.low:.3g} to {self.high:.3g})"


def t_interval(values: SeedValues, confidence: float = CONFIDENCE) -> Interval:
    """The interval of a mean over seeds; of a single value, the value.

    Nothing is known where some are not finite. All the same infinity, by runs that all diverge, is as clear as can be.

    >>> print(t_interval(np.array([1.0, 2.0, 3.0])))
    2 (-0.484 to 4.48)
    """
    from scipy.special import stdtrit  # noqa: PLC0415  (slow to import)

    finite = np.isfinite(values).all()
    mean = float(np.mean(values)) if finite else float(values[0]) if (values == values[0]).all() else np.nan
    if len(values) == 1 or not finite:
        return Interval(mean, mean, mean)
    error = float(np.std(values, ddof=1)) / np.sqrt(len(values))
    half = float(stdtrit(len(values) - 1, (1 + confidence) / 2)) * error
    return Interval(mean, mean - half, mean + half)


def final(curve: CurveResult) -> SeedValues:
    """``[seeds]``: the mean loss of the last evaluations; infinite if the run diverged."""
    return np.where(curve.diverged, np.inf, curve.last_losses)


def settled(curve: CurveResult) -> SeedValues:
    """``[seeds]``: the mean loss of the second half of the run: of one that has converged, what stays."""
    return np.where(curve.diverged, np.inf, curve.losses[:, curve.losses.shape[1] // 2 :].mean(axis=1))


def reached(curve: CurveResult, level: SeedValues, over: NDArray[np.int64] | SeedValues | None = None) -> SeedValues:
    """``[seeds]``: where each seed's loss first comes down to its ``level``; infinite if never, or if the run diverges.

    Between evaluations the loss is taken to fall along a line.

    Args:
        over: ``[evaluations]``: what to count in; rounds by default.
    """
    axis = (curve.rounds if over is None else over).astype(float)
    places = np.full(len(level), np.inf)
    for seed, (losses, goal) in enumerate(zip(curve.losses, level, strict=True)):
        below = losses <= goal
        if below.any() and not curve.diverged[seed]:
            place = int(below.argmax())
            places[seed] = axis[place]
            if place:
                above, under = losses[place - 1 : place + 1]
                places[seed] -= (goal - under) / (above - under) * (axis[place] - axis[place - 1])
    return places


def slowest_end(result: ExperimentResult) -> SeedValues:
    """``[seeds]``: the highest loss at which a curve ends; one that all curves reach, those apart that diverge."""
    ends = np.stack([final(curve) for curve in result.curves])
    highest: SeedValues = np.max(np.where(np.isfinite(ends), ends, -np.inf), axis=0)
    return highest


def rounds_by_curve(result: ExperimentResult) -> SeedValues:
    """``[curves, seeds]``: rounds to the loss at which the slowest curve ends, which all can reach."""
    return np.stack([reached(curve, slowest_end(result)) for curve in result.curves])


def errors(result: ExperimentResult) -> SeedValues:
    """``[curves, seeds]``: the gap to the exact solution that stays; infinite after a run diverged."""
    assert result.optimum is not None
    gaps: SeedValues = np.stack([settled(curve) for curve in result.curves]) - result.optimum
    return gaps


def spread(result: ExperimentResult) -> SeedValues:
    """``[seeds]``: how far apart the curves end, as a fraction of the distance that the loss falls."""
    ends = np.stack([final(curve) for curve in result.curves])
    fall = result.curves[0].losses[:, 0] - ends.min(axis=0)
    apart: SeedValues = (ends.max(axis=0) - ends.min(axis=0)) / fall
    return apart


def spread_at_equal_steps(result: ExperimentResult) -> tuple[int, SeedValues]:
    """The most local steps after which all curves that do not diverge were evaluated, and their ``[seeds]`` spread."""
    curves = [curve for curve in result.curves if not curve.diverged.any()]
    steps = max(set.intersection(*({*curve.steps.tolist()} for curve in curves)))
    losses = np.stack([curve.losses[:, curve.steps.tolist().index(steps)] for curve in curves])
    fall = curves[0].losses[:, 0] - losses.min(axis=0)
    apart: SeedValues = np.ptp(losses, axis=0) / np.where(fall > 0, fall, np.inf)
    return steps, apart


def slope(values: SeedValues, over: SeedValues) -> SeedValues:
    """``[seeds]``: the slope of the line through ``[curves, seeds]`` values, by least squares."""
    centred = over - over.mean()
    slopes: SeedValues = centred @ values / (centred @ centred)
    return slopes
