"""What is measured of an experiment: a number for every curve and seed, or one for all its curves together.

Claims name these in their table, ``claims.toml``. A run that diverged has no number: it counts as infinite.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tdcd.reproduction.results import CurveResult, ExperimentResult, Limit, SeedValues
from tdcd.reproduction.statistics import errors, final, reached, rounds_by_curve, settled, slope, spread, t_interval
from tdcd.theory.smoothness import Constants
from tdcd.theory.step_size import IN_STEP
from tdcd.theory.theorem import noise_terms

NEAR = 0.01
"""Of the gap before training: a loss so near to the exact solution shows how fast runs get there."""


@dataclass(frozen=True)
class ExperimentMeasure:
    """A quantity of an experiment, and how it is written."""

    words: str
    """What it is; with ``{}`` for the number or numbers."""
    form: str
    compute: Callable[[ExperimentResult], SeedValues]
    """``[curves, seeds]``, or ``[1, seeds]`` for all curves together; a single column where no seed matters."""

    def in_words(self, result: ExperimentResult) -> str:
        """The mean over seeds: for every curve, or for all of them with its interval."""
        with np.errstate(invalid="ignore", divide="ignore"):
            values = self.compute(result)
        if len(values) == 1:
            mean, *ends = (f"{each:{self.form}}" for each in t_interval(values[0]))
            interval = f" ({' to '.join(ends)})" if ends[0] != ends[1] else ""
            known = np.isfinite(values).all()
            return self.words.format(f"{mean}{interval}" if known else "no number, since a curve diverged,")
        numbers = [self._number(row, curve.diverged) for curve, row in zip(result.curves, values, strict=True)]
        if len({*numbers}) == 1:
            return self.words.format(numbers[0])
        each = [f"{curve.label}: {number}" for curve, number in zip(result.curves, numbers, strict=True)]
        return self.words.format(", ".join(each))

    def _number(self, values: SeedValues, diverged: NDArray[np.bool_]) -> str:
        mean = float(np.mean(values))
        if np.isfinite(mean):
            return f"{mean:{self.form}}"
        if not diverged.any():
            return "never"
        return "diverged" if diverged.all() else f"diverged with {int(diverged.sum())} of {len(diverged)} seeds"


def _each(compute: Callable[[CurveResult], SeedValues]) -> Callable[[ExperimentResult], SeedValues]:
    return lambda result: np.stack([compute(curve) for curve in result.curves])


def _one(compute: Callable[[ExperimentResult], SeedValues | float]) -> Callable[[ExperimentResult], SeedValues]:
    return lambda result: np.atleast_2d(np.asarray(compute(result), np.float64))


def _exactly(compute: Callable[[CurveResult], float]) -> Callable[[ExperimentResult], SeedValues]:
    return lambda result: np.array([[compute(curve)] for curve in result.curves])


def _near(result: ExperimentResult) -> SeedValues:
    """``[seeds]``: a loss near to the exact solution."""
    assert result.optimum is not None
    level: SeedValues = result.optimum + NEAR * (result.curves[0].losses[:, 0] - result.optimum)
    return level


def _to_first_end(result: ExperimentResult, curve: CurveResult, over: SeedValues | None) -> SeedValues:
    """``[seeds]``: what a curve takes to the loss at which the first one ends."""
    assert over is not None
    return reached(curve, final(result.curves[0]), over)


def excess(curve: CurveResult, plain: CurveResult) -> SeedValues:
    """``[seeds]``: how far a curve lies above another where that ends, as a fraction of it."""
    as_long = curve.rounds <= plain.rounds[-1]
    shortened = replace(curve, rounds=curve.rounds[as_long], losses=curve.losses[:, as_long])
    above: SeedValues = final(shortened) / final(plain) - 1
    return above


def _per_step(curve: CurveResult) -> tuple[float, float]:
    """MB per local step inside the silos and between hubs."""
    hubs = float(curve.hub_megabytes[-1])
    return (float(curve.megabytes[-1]) - hubs) / curve.steps[-1], hubs / curve.steps[-1]


def _saving(result: ExperimentResult) -> float:
    return sum(_per_step(result.curves[0])) / sum(_per_step(result.curves[-1]))


def _saved_inside(result: ExperimentResult) -> float:
    pairs = zip(_per_step(result.curves[0]), _per_step(result.curves[-1]), strict=True)
    inside, between = (before - after for before, after in pairs)
    return inside / (inside + between)


def _hub_range(result: ExperimentResult) -> float:
    between = np.array([_per_step(curve)[1] for curve in result.curves])
    return float(np.ptp(between) / between.max())


def _phi(curve: CurveResult) -> float:
    """MB that a hub sends in a round."""
    return float(curve.hub_megabytes[-1]) / int(curve.rounds[-1]) / max(curve.hub_messages, 1)


def _converged_errors(result: ExperimentResult) -> tuple[SeedValues, SeedValues]:
    """``[curves, seeds]`` errors of the curves that no seed diverged with, and the quantity that is swept."""
    found, over = errors(result), np.array([swept(curve) for curve in result.curves])
    converged = np.isfinite(found).all(axis=1)
    return found[converged], over[converged]


def swept(curve: CurveResult) -> float:
    """N, Q or K, from the label."""
    return float(curve.label.split(",")[0].split()[-1])


def _error_range(result: ExperimentResult) -> SeedValues:
    """As a multiple of the smallest error, since experiments differ in their minibatches; B must not vary."""
    found, _ = _converged_errors(replace(result, curves=tuple(c for c in result.curves if "," not in c.label)))
    wide: SeedValues = np.ptp(found, axis=0) / found.min(axis=0)
    return wide


def _power(result: ExperimentResult) -> SeedValues:
    found, over = _converged_errors(result)
    return slope(np.log(found), np.log(over))


def _quarters(result: ExperimentResult) -> tuple[SeedValues, SeedValues]:
    """``[seeds]``: the first curve's gap to the exact solution in the third quarter of the run and in the last."""
    assert result.optimum is not None
    losses = result.curves[0].losses
    count = losses.shape[1] // 4
    third, last = (losses[:, part].mean(axis=1) for part in (slice(-2 * count, -count), slice(-count, None)))
    return third - result.optimum, last - result.optimum


def _closed(result: ExperimentResult) -> SeedValues:
    assert result.optimum is not None
    best = min(result.curves, key=lambda curve: float(settled(curve).mean()))
    start = best.losses[:, 0]
    part: SeedValues = (start - settled(best)) / (start - result.optimum)
    return part


def _bound(silos: float, local_steps: float) -> tuple[float, float]:
    """The terms of Theorem 1 that time does not make up for, with all constants 1."""
    ones = Constants(1.0, (1.0,), "exact", "")
    return noise_terms(ones, 1.0, int(local_steps), int(silos), 1.0, IN_STEP)


def _bound_power(of: Callable[[float], float]) -> Callable[[ExperimentResult], float]:
    """With which power a term of the bound grows over the range that is swept."""

    def power(result: ExperimentResult) -> float:
        least, most = swept(result.curves[0]), swept(result.curves[-1])
        return float(np.log(of(most) / of(least)) / np.log(most / least))

    return power


def _room(of: Callable[[Limit], float]) -> Callable[[ExperimentResult], float]:
    return lambda result: min(limit.stable / of(limit) for limit in result.limits)


def _metric(curve: CurveResult) -> SeedValues:
    assert curve.metric is not None
    last: SeedValues = curve.metric[:, -1]
    return last


MEASURES: Mapping[str, ExperimentMeasure] = {
    "rounds": ExperimentMeasure("{} rounds to the loss at which the slowest curve ends", ".1f", rounds_by_curve),
    "end": ExperimentMeasure("final loss {}", ".5f", _each(final)),
    "error": ExperimentMeasure("gap that stays {}", ".2e", errors),
    "near rounds": ExperimentMeasure(
        "{} rounds until 99 % of the way is done",
        ".1f",
        lambda result: np.stack([reached(curve, _near(result)) for curve in result.curves]),
    ),
    "near steps": ExperimentMeasure(
        "{} local steps until 99 % of the way is done",
        ",.0f",
        lambda result: np.stack([reached(curve, _near(result), curve.steps) for curve in result.curves]),
    ),
    "megabytes": ExperimentMeasure(
        "{} MB to the loss at which the first ends",
        ",.0f",
        lambda result: np.stack([_to_first_end(result, curve, curve.megabytes) for curve in result.curves]),
    ),
    "accuracy": ExperimentMeasure("accuracy {}", ".2%", _each(_metric)),
    "spread": ExperimentMeasure("the curves end within {} of the loss's fall", "z.2%", _one(spread)),
    "range of the error": ExperimentMeasure("the gap that stays varies by {}", "z.0%", _one(_error_range)),
    "power of the error": ExperimentMeasure("the gap that stays grows with the power {}", ".2f", _one(_power)),
    "third quarter": ExperimentMeasure(
        "gap {} in the third quarter of the run", ".2e", _one(lambda r: _quarters(r)[0])
    ),
    "last quarter": ExperimentMeasure("{} in the last", ".2e", _one(lambda r: _quarters(r)[1])),
    "part of the way": ExperimentMeasure("{} of the way to the exact solution", ".2%", _one(_closed)),
    "saving": ExperimentMeasure("{} times fewer bytes per local step with the largest Q", ".3g", _one(_saving)),
    "saved inside": ExperimentMeasure("{} of the saved bytes are inside the silos", ".1%", _one(_saved_inside)),
    "hub bytes": ExperimentMeasure(
        "{} kB between hubs per local step", ".4g", _exactly(lambda curve: 1e3 * _per_step(curve)[1])
    ),
    "range of hub bytes": ExperimentMeasure(
        "bytes between hubs per local step differ by {} over Q", ".2%", _one(_hub_range)
    ),
    "messages": ExperimentMeasure(
        "{} messages per local step", ".3g", _exactly(lambda c: c.hub_messages / c.local_steps)
    ),
    "phi": ExperimentMeasure("{} MB of phi that a hub sends in a round", ".3g", _exactly(_phi)),
    "model": ExperimentMeasure("{} MB of model", ".3g", _exactly(lambda curve: 4e-6 * curve.parameters)),
    "limit of the bound": ExperimentMeasure(
        "the bound's terms without T: {} with all constants 1",
        ".4g",
        _one(lambda result: sum(_bound(4, swept(result.curves[0])))),
    ),
    "power of N in the bound": ExperimentMeasure(
        "the bound's third term grows with the power {}", ".3g", _one(_bound_power(lambda n: _bound(n, 1)[1]))
    ),
    "power of Q in the bound": ExperimentMeasure(
        "the bound's third term grows with the power {}", ".3g", _one(_bound_power(lambda q: _bound(1, q)[1]))
    ),
    "room as printed": ExperimentMeasure(
        "the largest stable step size is down to {} times the largest that the printed condition admits",
        ".3g",
        _one(_room(lambda limit: limit.printed)),
    ),
    "room with N": ExperimentMeasure(
        "the largest stable step size is at least {} times the largest that the condition with N admits",
        ".3g",
        _one(_room(lambda limit: limit.proof)),
    ),
    "seconds": ExperimentMeasure(
        "{} s to the loss at which the run in step ends",
        ".3g",
        lambda result: np.stack([_to_first_end(result, curve, curve.seconds) for curve in result.curves]),
    ),
    "times sooner": ExperimentMeasure(
        "{} times sooner",
        ".1f",
        _one(
            lambda result: (
                _to_first_end(result, result.curves[0], result.curves[0].seconds)
                / _to_first_end(result, result.curves[-1], result.curves[-1].seconds)
            )
        ),
    ),
    "excess": ExperimentMeasure(
        "loss against the first: {}",
        "+z.2%",
        lambda result: np.stack([excess(curve, result.curves[0]) for curve in result.curves]),
    ),
    "hub share": ExperimentMeasure(
        "{} of the first one's bytes between hubs",
        ".3f",
        lambda result: np.array([[c.hub_megabytes[-1] / result.curves[0].hub_megabytes[-1]] for c in result.curves]),
    ),
}
"""By the names that claims give them."""
