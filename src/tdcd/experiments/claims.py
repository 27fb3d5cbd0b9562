"""The paper's claims, judged by what was measured.

Every sentence of the paper's section 5 that says something about a curve is compared with what was measured. A verdict
compares the curves seed by seed, since runs with the same seed share their samples, and never sees a threshold that was
fitted to its outcome: "small" means under :data:`SMALL` of the distance that the loss falls in the whole experiment.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tdcd.experiments.sweep import CurveResult, ExperimentResult

Verdict = Literal["holds", "does not hold", "not decided at this size"]
SMALL = 0.05
"""A spread below this fraction of the loss's fall counts as small."""
LAST = 5
"""Final losses are means over this many last evaluations, if there are many."""


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper and what we found."""

    figure: str
    sentence: str
    """The paper's words, shortened."""
    check: str
    """What is computed."""
    verdict: Verdict
    measured: str


Results = Mapping[str, ExperimentResult]


def judge_claims(results: Results) -> list[Claim]:
    """The verdict on every claim whose experiments are in ``results``."""
    return [judge(results) for needs, judge in _JUDGES if all(name in results for name in needs)]


def final(curve: CurveResult) -> NDArray[np.float64]:
    """``[seeds]``: the mean loss of the last evaluations, at most a quarter of all."""
    count = max(1, min(LAST, curve.losses.shape[1] // 4))
    last: NDArray[np.float64] = curve.losses[:, -count:].mean(axis=1)
    return last


def rounds_to(curve: CurveResult, level: NDArray[np.float64]) -> NDArray[np.float64]:
    """``[seeds]``: the first evaluated round at which each seed's loss is at most its ``level``; infinite if never."""
    below = curve.losses <= level[:, None]
    first = curve.rounds[below.argmax(axis=1)].astype(float)
    return np.where(below.any(axis=1), first, np.inf)


def spread(result: ExperimentResult) -> float:
    """How far apart the curves end, as a fraction of the distance that the loss falls: the mean over seeds."""
    ends = np.stack([final(curve) for curve in result.curves])
    fall = result.curves[0].losses[:, 0] - ends.min(axis=0)
    return float(np.mean((ends.max(axis=0) - ends.min(axis=0)) / fall))


def ordered(values: NDArray[np.float64], *, rising: bool) -> Verdict:
    """Whether ``[curves, seeds]`` values are ordered from curve to curve.

    They are if the means over seeds are and every step is larger than twice its standard error; they are not if a step
    goes the wrong way by as much. Curves that diverged decide nothing.
    """
    with np.errstate(invalid="ignore"):
        steps = np.diff(values, axis=0) * (1 if rising else -1)
        error = steps.std(axis=1, ddof=1) / np.sqrt(steps.shape[1])
    mean = steps.mean(axis=1)
    if (mean < -2 * error).any():
        return "does not hold"
    return "holds" if (mean > 2 * error).all() else "not decided at this size"


def _listed(result: ExperimentResult, values: NDArray[np.float64], form: str) -> str:
    return ", ".join(f"{c.label}: {v:{form}}" for c, v in zip(result.curves, values, strict=True))


def _faster_with_q(figure: str, sentence: str) -> Callable[[Results], Claim]:
    def judge(results: Results) -> Claim:
        result = results[figure]
        # The loss at which the slowest curve ends is one that all curves can reach.
        level = np.max([final(curve) for curve in result.curves], axis=0)
        rounds = np.stack([rounds_to(curve, level) for curve in result.curves])
        measured = _listed(result, rounds.mean(axis=1), ".0f") + f" rounds to a loss of {level.mean():.4f}"
        words = "rounds until the loss at which the slowest curve ends fall as Q grows"
        return Claim(figure, sentence, words, ordered(rounds, rising=False), measured)

    return judge


def _error_grows(results: Results) -> Claim:
    result = results["error"]
    assert result.optimum is not None
    gaps = np.stack([final(curve) for curve in result.curves]) - result.optimum
    growth = gaps[-1] - gaps[0]
    error = growth.std(ddof=1) / np.sqrt(len(growth))
    return Claim(
        "fig2a",
        "A larger Q can result in a larger convergence error.",
        "the gap to the exact ridge solution after equally many local steps grows with every step of Q",
        ordered(gaps, rising=True),
        f"gap {_listed(result, gaps.mean(axis=1), '.2e')}; from the least to the largest Q it grows by "
        f"{growth.mean():.1e} +- {error:.1e}",
    )


def _observable_but_small(results: Results) -> Claim:
    result = results["fig2b"]
    ends = np.stack([final(curve) for curve in result.curves])
    difference = ends[-1] - ends[0]
    error = difference.std(ddof=1) / np.sqrt(len(difference))
    seen, small = abs(difference.mean()) > 2 * error, spread(result) < SMALL
    return Claim(
        "fig2b",
        "The effect of increasing N is observable but not very strong.",
        "the ends of the smallest and largest N differ by more than two standard errors; all ends lie within "
        f"{SMALL:.0%} of the loss's fall",
        "holds" if seen and small else "does not hold" if not small else "not decided at this size",
        f"difference {difference.mean():.2e} +- {error:.1e}; spread {spread(result):.2%} of the fall",
    )


def _better_with_lower_n(results: Results) -> Claim:
    result = results["fig2b"]
    ends = np.stack([final(curve) for curve in result.curves])
    return Claim(
        "fig2b",
        "In the last five rounds, the convergence rate improves with lower N.",
        "the mean loss of the last five rounds grows with N",
        ordered(ends, rising=True),
        _listed(result, ends.mean(axis=1), ".5f"),
    )


def _small_over_k(figure: str, sentence: str) -> Callable[[Results], Claim]:
    def judge(results: Results) -> Claim:
        fraction = spread(results[figure])
        ends = np.array([final(curve).mean() for curve in results[figure].curves])
        return Claim(
            figure,
            sentence,
            f"the curves of all K end within {SMALL:.0%} of the loss's fall",
            "holds" if fraction < SMALL else "does not hold",
            f"spread {fraction:.2%} of the fall; " + _listed(results[figure], ends, ".5f"),
        )

    return judge


def _q_matters_more_than_k(results: Results) -> Claim:
    over_q, over_k = spread(results["fig2a"]), spread(results["fig2c"])
    return Claim(
        "fig2c",
        "K does not play as large a role as Q in the convergence rate.",
        "the curves of all K end closer together than those of all Q, as fractions of the loss's fall",
        "holds" if over_k < over_q else "does not hold",
        f"spread {over_k:.2%} over K, {over_q:.2%} over Q",
    )


def _cheaper_with_q(results: Results) -> Claim:
    result = results["fig3a"]
    slowest = result.curves[0]
    level = final(slowest)
    spent = []
    for curve in result.curves:
        rounds = rounds_to(curve, level)
        reached = np.isfinite(rounds)
        spent.append(np.where(reached, np.interp(rounds, curve.rounds, curve.megabytes), np.inf))
    megabytes = np.stack(spent)
    best = int(megabytes.mean(axis=1).argmin())
    saved = best > 0 and bool((megabytes[best] < megabytes[0]).all())
    return Claim(
        "fig3a",
        "Choosing Q carefully decreases the communication cost significantly without losing performance.",
        "some Q > 1 reaches the loss at which Q = 1 ends with fewer bytes, on every seed",
        "holds" if saved else "does not hold",
        _listed(result, megabytes.mean(axis=1), ",.0f") + f" MB to a loss of {level.mean():.4f}",
    )


def _performs_well(results: Results) -> Claim:
    ridge, cnn = results["error"], results["accuracy"]
    assert ridge.optimum is not None
    assert cnn.curves[0].metric is not None
    assert cnn.curves[1].metric is not None
    best = min(ridge.curves, key=lambda curve: final(curve).mean())
    start = best.losses[:, 0].mean()
    closed = float((start - final(best).mean()) / (start - ridge.optimum))
    two_tier, central = (100 * float(curve.metric[:, -1].mean()) for curve in cnn.curves if curve.metric is not None)
    good = closed > 1 - SMALL and two_tier > central - 0.5
    return Claim(
        "all",
        "TDCD performs well with both convex and non-convex objectives.",
        f"ridge: at least {1 - SMALL:.0%} of the way to the exact solution; CNN: test accuracy at most 0.5 points "
        "below the same network trained centrally for as many steps",
        "holds" if good else "does not hold",
        f"ridge: {closed:.2%} of the way; CNN: {two_tier:.2f} % against {central:.2f} %",
    )


_FASTER = "With increasing Q, the convergence rate improves: fewer rounds to a given loss."
_JUDGES: tuple[tuple[tuple[str, ...], Callable[[Results], Claim]], ...] = (
    (("fig2a",), _faster_with_q("fig2a", _FASTER)),
    (("error",), _error_grows),
    (("fig2b",), _observable_but_small),
    (("fig2b",), _better_with_lower_n),
    (("fig2c",), _small_over_k("fig2c", "The variation of the convergence rate with K is low.")),
    (("fig2a", "fig2c"), _q_matters_more_than_k),
    (("fig3a",), _faster_with_q("fig3a", "The convergence rate improves radically for larger Q.")),
    (("fig3a",), _cheaper_with_q),
    (("fig3b",), _small_over_k("fig3b", "The effect of K is again very mild.")),
    (("error", "accuracy"), _performs_well),
)
