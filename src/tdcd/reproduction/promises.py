"""What overlapped rounds, periods and few bits are there for, judged by what was measured.

As for the paper's claims, curves are compared seed by seed, and t intervals decide. The thresholds are promises: they
were set before anything was run.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdcd.reproduction.evidence import Claim, Quantity, exactly, marks
from tdcd.reproduction.results import CurveResult, ExperimentResult, Results
from tdcd.reproduction.statistics import final, reached

SOONER = 3.0
"""How many times sooner, with one silo four times slower, overlap and period get to where the run in step ends."""
AS_GOOD = 0.01
"""How far above the run in step they may end."""


class Few(NamedTuple):
    """What numbers of few bits may cost."""

    bytes: float
    """Of those between hubs with 32 bits, at most."""
    loss: float
    """How far above 32 bits the loss may end, as a fraction."""


FEW_BITS = {"8 bits": Few(0.27, 0.01), "4 bits": Few(0.14, 0.02)}
"""By the label of the curve."""


def judge_promises(results: Results) -> list[Claim]:
    """The verdict on every promise whose experiment is in ``results``."""
    with np.errstate(invalid="ignore"):
        return [judge(name, results[name]) for name in results for judge in _JUDGES.get(name.partition("-")[0], ())]


def curve_of(result: ExperimentResult, label: str) -> CurveResult:
    """The curve with a label."""
    return next(curve for curve in result.curves if curve.label == label)


def seconds_to(curve: CurveResult, level: NDArray[np.float64]) -> NDArray[np.float64]:
    """``[seeds]``: the predicted time at which each seed's loss comes down to its ``level``; infinite if never."""
    assert curve.seconds is not None
    return reached(curve, level, curve.seconds)


def excess(curve: CurveResult, plain: CurveResult) -> NDArray[np.float64]:
    """``[seeds]``: how far a curve lies above another where that ends, as a fraction of it."""
    as_long = curve.rounds <= plain.rounds[-1]
    shortened = replace(curve, rounds=curve.rounds[as_long], losses=curve.losses[:, as_long])
    above: NDArray[np.float64] = final(shortened) / final(plain) - 1
    return above


def _sooner(name: str, result: ExperimentResult) -> Claim:
    level = final(result.curves[0])
    times = [seconds_to(curve, level) for curve in result.curves]
    gain = times[0] / times[-1]
    listed = ", ".join(f"{curve.label}: {time.mean():.3g}" for curve, time in zip(result.curves, times, strict=True))
    return Claim(
        f"{name}/sooner",
        name,
        "With one silo four times slower, overlap and period together get at least 3 times sooner to the loss at which "
        "the run in step ends.",
        "predicted time to that loss",
        f"{gain.mean():.1f} times; {listed} s to a loss of {level.mean():.4f}",
        (Quantity("times sooner - 3", gain - SOONER),),
        "",
        marks(result),
    )


def _as_good(name: str, result: ExperimentResult) -> Claim:
    plain, *others = result.curves
    over = [excess(curve, plain) for curve in others]
    told = [f"{curve.label}: {100 * each.mean():+.2f} %" for curve, each in zip(others, over, strict=True)]
    return Claim(
        f"{name}/as-good",
        name,
        "After as many rounds, the loss with overlap and period is at most 1 % above that of the run in step.",
        "the mean loss of the last evaluations against that of the run in step",
        ", ".join(told),
        tuple(Quantity(f"1 % - {c.label}", AS_GOOD - each) for c, each in zip(others, over, strict=True)),
        "",
        marks(result),
    )


def _few_bits(label: str) -> Callable[[str, ExperimentResult], Claim]:
    few = FEW_BITS[label]

    def judge(name: str, result: ExperimentResult) -> Claim:
        curve, plain = curve_of(result, label), result.curves[0]
        share, over = curve.hub_megabytes[-1] / plain.hub_megabytes[-1], excess(curve, plain)
        return Claim(
            f"{name}/{label.replace(' ', '-')}",
            name,
            f"Phi in {label}: at most {few.bytes:g} of the bytes between hubs, and a final loss at most "
            f"{100 * few.loss:.0f} % above that of 32 bits.",
            "bytes by the ledger; the mean loss of the last evaluations against that of 32 bits",
            f"{share:.3f} of the bytes, loss {100 * over.mean():+.2f} %",
            (
                exactly(f"{few.bytes:g} - part of the bytes", few.bytes - share),
                Quantity(f"{100 * few.loss:.0f} % - loss above", few.loss - over),
            ),
            "",
            marks(result),
        )

    return judge


_JUDGES: dict[str, tuple[Callable[[str, ExperimentResult], Claim], ...]] = {
    "stragglers": (_sooner, _as_good),
    "bits": tuple(map(_few_bits, FEW_BITS)),
}
"""By the first word of an experiment's name."""
