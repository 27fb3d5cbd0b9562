"""The paper's claims of section 5, in its own words, judged by what was measured."""

from collections.abc import Callable

import numpy as np

from tdcd.reproduction.evidence import Claim, Quantity, listed, marks
from tdcd.reproduction.results import CurveResult, ExperimentResult, Numbers, Results
from tdcd.reproduction.statistics import errors, final, reached, rounds_by_curve, settled, slope, slowest_end, spread

SMALL = 0.05
"""A spread below this fraction of the loss's fall counts as small."""
RADICAL = 5.0
"""So many times fewer rounds are a radical improvement."""
SIGNIFICANT = 2.0
"""So many times fewer bytes are a significant decrease."""
POINTS = 0.005
"""How far the test accuracy may be below that of central training: half a point."""

Judge = Callable[[Results], Claim]


def _steps(result: ExperimentResult, values: Numbers, what: str) -> list[Quantity]:
    """What each curve has more than the next, of ``[curves, seeds]`` values."""
    pairs = zip(result.curves[:-1], result.curves[1:], strict=True)
    return [
        Quantity(f"{what}: {a.label} - {b.label}", values[place] - values[place + 1])
        for place, (a, b) in enumerate(pairs)
    ]


def _faster_with_q(figure: str) -> Judge:
    def judge(results: Results) -> Claim:
        result = results[figure]
        rounds = rounds_by_curve(result)
        return Claim(
            f"{figure}/rate",
            figure,
            "We observe that with increasing values of Q, the convergence rate improves.",
            "rounds to the loss at which the slowest curve ends fall with every step of Q",
            f"{listed(result, rounds.mean(axis=1), '.1f')} rounds to a loss of {slowest_end(result).mean():.4f}",
            tuple(_steps(result, rounds, "rounds")),
            mark=marks(result),
        )

    return judge


def _fewer_rounds(figure: str) -> Judge:
    def judge(results: Results) -> Claim:
        result = results[figure]
        rounds = rounds_by_curve(result)
        first, last = result.curves[0].label, result.curves[-1].label
        fewer = Quantity(f"rounds: {first} - {last}", rounds[0] - rounds[-1])
        return Claim(
            f"{figure}/rounds",
            figure,
            "This implies that by increasing the number of local iterations at clients, we can improve the overall "
            "communication efficiency by reducing the total number of communication rounds required for a given loss.",
            f"rounds to the loss at which the slowest curve ends, {last} against {first}",
            f"{(rounds[0] / rounds[-1]).mean():.1f} times fewer rounds with {last}; by {fewer.interval}",
            (fewer,),
            mark=marks(result),
        )

    return judge


def _error_grows(results: Results) -> Claim:
    result = results["error"]
    found = errors(result)
    converged = [place for place, gaps in enumerate(found) if np.isfinite(gaps).all()]
    largest, diverged = converged[-1], [c.label for c in result.curves if c.diverged.all()]
    more = Quantity(f"error: {result.curves[largest].label} - {result.curves[0].label}", found[largest] - found[0])
    told = f"; {', '.join(diverged)} diverges on every seed" if diverged else ""
    return Claim(
        "fig2a/error",
        "error",
        "[...] however, as stated in Theorem 1, this can result in a larger convergence error.",
        "the gap to the exact solution that stays after equally many local steps: the largest Q that converges against "
        "the smallest",
        f"gap {listed(result, found.mean(axis=1), '.2e', 'diverges')}; {more.what} is {more.interval}{told}",
        (more,),
        mark=marks(result),
    )


def _ends(result: ExperimentResult) -> Numbers:
    return np.stack([final(curve) for curve in result.curves])


def _observable_but_small(figure: str) -> Judge:
    def judge(results: Results) -> Claim:
        result = results[figure]
        ends, apart = _ends(result), spread(result)
        seen = Quantity(f"final loss: {result.curves[-1].label} - {result.curves[0].label}", ends[-1] - ends[0])
        # An effect is to be seen whichever way it goes; which way is another claim.
        direction = 1.0 if seen.interval.mean >= 0 else -1.0
        return Claim(
            f"{figure}/observable",
            figure,
            "We observe that the effect of increasing N is observable but not very strong.",
            f"the largest and the smallest N end apart, and all within {SMALL:.0%} of the loss's fall",
            f"{seen.what} is {seen.interval}; the curves end within {apart.mean():.2%} of the fall",
            (Quantity(seen.what, direction * seen.values), Quantity("within 5 % of the fall", SMALL - apart)),
            mark=marks(result),
        )

    return judge


def _better_with_lower_n(figure: str) -> Judge:
    def judge(results: Results) -> Claim:
        result = results[figure]
        ends = _ends(result)
        trend = slope(ends, np.arange(len(ends), dtype=float))
        wrong = [step.what for step in _steps(result, ends, "final loss") if step.interval.low > 0]
        against = f"; but {', '.join(wrong)} is above zero" if wrong else ""
        rises = Quantity("final loss per doubling of N", trend)
        return Claim(
            f"{figure}/lower-n",
            figure,
            "The inset figure shows the last five communication rounds, and we observe that the convergence rate "
            "improves with lower value of N, which is as per Theorem 1.",
            "the mean loss of the last five rounds rises with N: the slope of the line through all curves",
            f"{listed(result, ends.mean(axis=1), '.5f')}; {rises.interval} per doubling{against}",
            (rises,),
            mark=marks(result),
        )

    return judge


def _small_over_k(figure: str, key: str, sentence: str) -> Judge:
    def judge(results: Results) -> Claim:
        result = results[figure]
        apart = spread(result)
        return Claim(
            f"{figure}/{key}",
            figure,
            sentence,
            f"the curves of all K end within {SMALL:.0%} of the loss's fall",
            f"within {apart.mean():.2%} of the fall; {listed(result, _ends(result).mean(axis=1), '.5f')}",
            (Quantity("within 5 % of the fall", SMALL - apart),),
            mark=marks(result),
        )

    return judge


def _q_matters_more_than_k(over_q: str, over_k: str, *, with_error: bool) -> Judge:
    def judge(results: Results) -> Claim:
        rates = spread(results[over_q]), spread(results[over_k])
        quantities = [Quantity("spread over Q - spread over K", rates[0] - rates[1])]
        measured = f"rate: the curves end within {rates[1].mean():.2%} over K, {rates[0].mean():.2%} over Q"
        used = [results[over_q], results[over_k]]
        if with_error:
            q, k = errors(results["error"]), errors(results["error-k"])[:3]
            q = q[np.isfinite(q).all(axis=1)]
            # As multiples of the smallest error of each, since the two differ in their minibatches.
            ranges = [np.ptp(each, axis=0) / each.min(axis=0) for each in (q, k)]
            quantities.append(Quantity("range of the error over Q - over K", ranges[0] - ranges[1]))
            measured += f"; error: it varies by {ranges[1].mean():.0%} over K, {ranges[0].mean():.0%} over Q"
            used += [results["error"], results["error-k"]]
        return Claim(
            f"{over_k}/less-than-q",
            over_k,
            "This shows that K does not play a large role as Q in its effect on the convergence rate or convergence "
            "error.",
            "the curves of all K end closer together than those of all Q, as fractions of the loss's fall"
            + ("; and so do the gaps that stay, as multiples of the smallest" if with_error else ""),
            measured,
            tuple(quantities),
            mark=marks(*used),
        )

    return judge


def _radically_faster(results: Results) -> Claim:
    result = results["fig3a"]
    rounds = rounds_by_curve(result)
    first, last = result.curves[0].label, result.curves[-1].label
    times = Quantity(f"rounds: {first} - {RADICAL:g} x {last}", rounds[0] - RADICAL * rounds[-1])
    return Claim(
        "fig3a/radically",
        "fig3a",
        "We observe that the convergence rate improves radically for larger values of Q.",
        "rounds to the loss at which the slowest curve ends fall with every step of Q, and there are at least "
        f"{RADICAL:g} times fewer with the largest Q than with the smallest",
        f"{listed(result, rounds.mean(axis=1), '.1f')} rounds to a loss of {slowest_end(result).mean():.4f}",
        (*_steps(result, rounds, "rounds"), times),
        mark=marks(result),
    )


def _similar_to_convex(results: Results) -> Claim:
    convex, other = (results[name] for name in ("fig2a", "fig3a"))
    quantities = [*_steps(convex, rounds_by_curve(convex), "ridge, rounds")]
    quantities += _steps(other, rounds_by_curve(other), "CNN, rounds")
    return Claim(
        "fig3a/similar",
        "fig3a",
        "This result is similar to what we obtained from the convex case.",
        "rounds to the loss at which the slowest curve ends fall with every step of Q, in both figures",
        f"ridge: {listed(convex, rounds_by_curve(convex).mean(axis=1), '.1f')}; "
        f"CNN: {listed(other, rounds_by_curve(other).mean(axis=1), '.1f')} rounds",
        tuple(quantities),
        mark=marks(convex, other),
    )


def _spent(curve: CurveResult, level: Numbers) -> Numbers:
    return reached(curve, level, curve.megabytes)


def _cheaper_with_q(results: Results) -> Claim:
    result = results["fig3a"]
    plain, *others = result.curves
    level = final(plain)
    megabytes = [_spent(curve, level) for curve in result.curves]
    best = min(others, key=lambda curve: float(_spent(curve, level).mean()))
    saved = Quantity(
        f"MB: {plain.label} - {SIGNIFICANT:g} x {best.label}", megabytes[0] - SIGNIFICANT * _spent(best, level)
    )
    ends = Quantity(f"final loss: {plain.label} - {best.label}", level - final(best))
    return Claim(
        "fig3a/cheaper",
        "fig3a",
        "Hence, by choosing Q carefully it is possible to significantly decrease the communication cost without losing "
        "performance.",
        f"the Q that takes the fewest bytes to the loss at which Q = 1 ends takes at least {SIGNIFICANT:g} times "
        "fewer, and its own final loss is not above that of Q = 1",
        f"{listed(result, [each.mean() for each in megabytes], ',.3g')} MB to a loss of {level.mean():.4f}; "
        f"{ends.what} is {ends.interval}",
        (saved, ends),
        mark=marks(result),
    )


def _performs_well(results: Results) -> Claim:
    ridge, cnn = results["error"], results["accuracy"]
    assert ridge.optimum is not None
    two_tier, central = (curve.metric[:, -1] for curve in cnn.curves if curve.metric is not None)
    best = min(ridge.curves, key=lambda curve: float(np.nan_to_num(settled(curve).mean(), nan=np.inf)))
    start = best.losses[:, 0]
    closed = (start - settled(best)) / (start - ridge.optimum)
    behind = Quantity("accuracy: two tiers - central + 0.5 points", two_tier - central + POINTS)
    return Claim(
        "all/performs-well",
        "accuracy",
        "Overall, we observe that TDCD performs well with both convex and non-convex objectives.",
        f"ridge: at least {1 - SMALL:.0%} of the way to the exact solution; CNN: test accuracy at most 0.5 points "
        "below the same network trained centrally for as many steps",
        f"ridge: {closed.mean():.2%} of the way; CNN: {two_tier.mean():.2%} against {central.mean():.2%}",
        (Quantity("ridge: part of the way - 95 %", closed - (1 - SMALL)), behind),
        mark=marks(ridge, cnn),
    )


_LOW_OVER_K = "We observe that variation of convergence rate is low with varying K."
_MILD = "Similar to the convex case, we again observe that the effect of K is very mild."
SECTION_5: tuple[tuple[tuple[str, ...], Judge], ...] = (
    (("fig2a",), _faster_with_q("fig2a")),
    (("error",), _error_grows),
    (("fig2a",), _fewer_rounds("fig2a")),
    (("fig2b",), _observable_but_small("fig2b")),
    (("fig2b",), _better_with_lower_n("fig2b")),
    (("fig2c",), _small_over_k("fig2c", "low", _LOW_OVER_K)),
    (("fig2a", "fig2c", "error", "error-k"), _q_matters_more_than_k("fig2a", "fig2c", with_error=True)),
    (("fig3a",), _radically_faster),
    (("fig2a", "fig3a"), _similar_to_convex),
    (("fig3a",), _cheaper_with_q),
    (("fig3b",), _small_over_k("fig3b", "mild", _MILD)),
    (("error", "accuracy"), _performs_well),
)
"""The experiments that each claim needs, and how it is judged."""
AS_PRINTED: tuple[tuple[tuple[str, ...], Judge], ...] = (
    (("fig2a-lambda1",), _faster_with_q("fig2a-lambda1")),
    (("fig2a-lambda1",), _fewer_rounds("fig2a-lambda1")),
    (("fig2b-lambda1",), _observable_but_small("fig2b-lambda1")),
    (("fig2b-lambda1",), _better_with_lower_n("fig2b-lambda1")),
    (("fig2c-lambda1",), _small_over_k("fig2c-lambda1", "low", _LOW_OVER_K)),
    (
        ("fig2a-lambda1", "fig2c-lambda1"),
        _q_matters_more_than_k("fig2a-lambda1", "fig2c-lambda1", with_error=False),
    ),
)
"""The same with lambda = 1."""
