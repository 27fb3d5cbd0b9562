"""What the paper says before its experiments, judged alike: on bandwidth in section 3, and after Theorem 1."""

import numpy as np

from tdcd.reproduction.claims import AS_PRINTED, SECTION_5, Judge
from tdcd.reproduction.evidence import Claim, Quantity, exactly, listed, marks
from tdcd.reproduction.results import CurveResult, ExperimentResult, Numbers, Results
from tdcd.reproduction.statistics import errors, reached, slope, t_interval

FEW_MEGABYTES = 10.0
SAME = 0.01
"""Bytes that differ by less than this part are the same."""
STAYS = 0.86
"""Of an error that falls with the root of the steps, as much is left of a third quarter in the last."""
NEAR = 0.01
"""Of the gap before training: a loss so near to the exact solution tells how fast runs get there."""


def judge_claims(results: Results) -> list[Claim]:
    """The verdict on every claim of the paper whose experiments are in ``results``, in the paper's order."""
    return _judged(results, (*SECTION_3, *SECTION_4, *SECTION_5))


def judge_as_printed(results: Results) -> list[Claim]:
    """Those of the ridge figures once more, with lambda = 1."""
    return _judged(results, AS_PRINTED)


def _judged(results: Results, judges: tuple[tuple[tuple[str, ...], Judge], ...]) -> list[Claim]:
    # A loss that no curve reaches, or a run that diverges, leaves differences without a value: nothing is decided.
    with np.errstate(invalid="ignore"):
        return [judge(results) for needs, judge in judges if all(name in results for name in needs)]


def _per_step(curve: CurveResult) -> tuple[float, float]:
    """MB per local step inside the silos and between hubs."""
    hubs = float(curve.hub_megabytes[-1])
    return (float(curve.megabytes[-1]) - hubs) / curve.steps[-1], hubs / curve.steps[-1]


def _saves_bandwidth(results: Results) -> Claim:
    ridge, cnn = results["fig2a"], results["fig3a"]
    small, large = (sum(_per_step(each.curves[0])) / sum(_per_step(each.curves[-1])) for each in (ridge, cnn))
    return Claim(
        "section3/bandwidth",
        "fig3a",
        "This allows TDCD to save bandwidth by increasing Q, especially when the size of the model is large.",
        "bytes per local step over all links fall from the smallest to the largest Q, and more so for the larger model",
        f"{large:.3g} times fewer for the CNN ({cnn.curves[0].parameters:,} numbers), {small:.3g} times for ridge "
        f"regression ({ridge.curves[0].parameters:,})",
        (
            exactly("CNN: bytes of the smallest Q / of the largest - 1", large - 1),
            exactly("ridge: bytes of the smallest Q / of the largest - 1", small - 1),
            exactly("CNN: times fewer - ridge: times fewer", large - small),
        ),
        "3",
        marks(ridge, cnn),
    )


def _hubs_still_exchange(results: Results) -> Claim:
    quantities, told = [], []
    for result in (results["fig2a"], results["fig3a"]):
        between = np.array([_per_step(curve)[1] for curve in result.curves])
        quantities.append(exactly(f"{result.name}: equal within 1 %", SAME - float(np.ptp(between) / between.max())))
        told.append(f"{result.name}: {listed(result, 1e3 * between, '.4g')} kB per local step between hubs")
    return Claim(
        "section3/hubs",
        "fig3a",
        "Hubs still need to exchange intermediate information for all Q minibatches, in between local training rounds.",
        "bytes between hubs per local step are the same for all Q",
        "; ".join(told),
        tuple(quantities),
        "3",
        marks(results["fig2a"], results["fig3a"]),
    )


def _saves_messages(results: Results) -> Claim:
    result = results["fig3a"]
    messages = [curve.hub_messages / curve.local_steps for curve in result.curves]
    return Claim(
        "section3/latency",
        "fig3a",
        "However, sending all information at the beginning of Q iterations, rather than in every iteration, "
        "potentially saves network latency and overhead.",
        "messages between hubs per local step fall with Q",
        f"{listed(result, messages, '.3g')} messages per local step",
        tuple(
            exactly(f"messages: {a.label} - {b.label}", messages[place] - messages[place + 1])
            for place, (a, b) in enumerate(zip(result.curves[:-1], result.curves[1:], strict=True))
        ),
        "3",
        marks(result),
    )


def _saved_in_the_silos(results: Results) -> Claim:
    quantities, told = [], []
    for result in (results["fig2a"], results["fig3a"]):
        inside, between = (
            before - after
            for before, after in zip(_per_step(result.curves[0]), _per_step(result.curves[-1]), strict=True)
        )
        share = inside / (inside + between)
        quantities.append(exactly(f"{result.name}: part saved inside the silos - 1/2", share - 0.5))
        told.append(f"{result.name}: {share:.1%} of the bytes saved per local step are between hubs and their clients")
    return Claim(
        "section3/silos",
        "fig3a",
        "The significant bandwidth savings comes in the silos themselves, since each hub and its clients only share "
        "the models every Q iterations.",
        "of the bytes per local step that the largest Q saves, more than half are inside the silos",
        "; ".join(told),
        tuple(quantities),
        "3",
        marks(results["fig2a"], results["fig3a"]),
    )


def _phi_is_small(results: Results) -> Claim:
    quantities, told = [], []
    for result in (results["fig2a"], results["fig3a"]):
        curve = result.curves[-1]
        sent = float(curve.hub_megabytes[-1]) / curve.rounds[-1] / max(curve.hub_messages, 1)
        numbers = 1e6 * sent / 4 / curve.local_steps / curve.batch_size
        quantities.append(exactly(f"{result.name}: 10 MB - phi of a round", FEW_MEGABYTES - sent))
        told.append(
            f"{result.name}, {curve.label}: {numbers:.0f} per sample, {1e3 * sent:,.3g} kB for a round's minibatches; "
            f"the model has {4e-3 * curve.parameters:,.3g} kB"
        )
    return Claim(
        "section3/phi",
        "fig3a",
        "As a rough estimate, the intermediate information for a sample ranges from a simple scalar value to a small "
        "vector of very few dimensions. [...] the intermediate information of B minibatches with M samples each would "
        "be of the order of a few megabytes or less. Compared to this, the size of the actual model can be in the "
        "order of gigabytes.",
        f"the phi that a hub sends in a round is at most {FEW_MEGABYTES:g} MB; models of gigabytes are not run here",
        "; ".join(told),
        tuple(quantities),
        "3",
        marks(results["fig2a"], results["fig3a"]),
    )


def _error_stays(results: Results) -> Claim:
    result = results["error"]
    assert result.optimum is not None
    curve = result.curves[0]
    count = curve.losses.shape[1] // 4
    third, last = (
        curve.losses[:, part].mean(axis=1) - result.optimum for part in (slice(-2 * count, -count), slice(-count, None))
    )
    return Claim(
        "section4/non-zero",
        "error",
        "We note that the bound in Theorem 1 converges to a non-zero value as T → ∞.",
        f"so does what is measured with a fixed step size: with {curve.label} the gap to the exact solution in the "
        "last quarter of the run is above zero, and more than {STAYS} of that in the quarter before; of an error that "
        "falls with the root of T, it would be less",
        f"gap {third.mean():.2e} in the third quarter, {last.mean():.2e} in the last",
        (
            Quantity("gap in the last quarter", last),
            Quantity(f"last quarter - {STAYS} of the third", last - STAYS * third),
        ),
        "4",
        marks(result),
    )


def _exponent(result: ExperimentResult, over: list[float]) -> tuple[Numbers, Numbers]:
    """The errors of the curves that converged, and with which power they grow, seed by seed."""
    found = errors(result)[: len(over)]
    converged = np.isfinite(found).all(axis=1)
    return found[converged], slope(np.log(found[converged]), np.log(np.array(over)[converged]))


def _grows_with_n(results: Results) -> Claim:
    result = results["error-n"]
    return _grows(
        "N",
        "the largest N",
        "With an increase in the number of vertical partitions, the error term increases quadratically.",
        result,
        [float(curve.label.split()[-1]) for curve in result.curves],
    )


def _grows_with_q(results: Results) -> Claim:
    result = results["error"]
    return _grows(
        "Q",
        "the largest Q that converges",
        "The error also depends quadratically on Q [...]",
        result,
        [float(curve.local_steps) for curve in result.curves],
    )


def _grows(symbol: str, largest: str, sentence: str, result: ExperimentResult, over: list[float]) -> Claim:
    """A term of the bound that grows with the square of what varies: the measured error grows, and no faster."""
    found, power = _exponent(result, over)
    return Claim(
        f"section4/{symbol.lower()}",
        result.name,
        sentence,
        f"the gap that stays grows from the smallest to {largest}, and no faster than the bound's term, "
        f"{symbol} squared",
        f"gap {listed(result, errors(result).mean(axis=1), '.2e', 'diverges')}; it grows as {symbol} to the "
        f"power of {t_interval(power)}, the bound's term as {symbol} squared",
        (Quantity(f"error: largest {symbol} - smallest", found[-1] - found[0]), Quantity("2 - power", 2 - power)),
        "4",
        marks(result),
    )


def _falls_with_k(results: Results) -> Claim:
    result = results["error-k"]
    found = errors(result)
    fewest, most = found[-2:]
    return Claim(
        "section4/k",
        "error-k",
        "The convergence error results from [...] and due to parallel updates based on horizontal partitioning (on K) "
        "as well.",
        "with as many samples per client in a minibatch, the gap that stays falls as K grows, as the bound's second "
        "term does",
        f"gap {listed(result, found.mean(axis=1), '.2e', 'diverges')}",
        (Quantity(f"error: {result.curves[-2].label} - {result.curves[-1].label}", fewest - most),),
        "4",
        marks(result),
    )


def _near(result: ExperimentResult) -> Numbers:
    """``[seeds]``: a loss near to the exact solution."""
    assert result.optimum is not None
    level: Numbers = result.optimum + NEAR * (result.curves[0].losses[:, 0] - result.optimum)
    return level


def _offset_by_eta(results: Results) -> Claim:
    result = results["error-eta"]
    rounds = [reached(curve, _near(result)) for curve in result.curves]
    plain, *_, large, small = range(len(result.curves))
    labels = [curve.label for curve in result.curves]
    diverges = "diverges" if result.curves[large].diverged.all() else f"takes {rounds[large].mean():.1f}"
    return Claim(
        "section4/offset",
        "error-eta",
        "[...] in practice, if Q is offset by a suitable learning rate η, then we can leverage multiple local "
        "iterations to achieve faster convergence [...]",
        "rounds until 99 % of the way to the exact solution is done: many local steps with a smaller step size "
        "against one with a larger",
        f"{labels[plain]}: {rounds[plain].mean():.1f}, {labels[small]}: {rounds[small].mean():.1f} rounds; "
        f"{labels[large]} {diverges}",
        (Quantity(f"rounds: {labels[plain]} - {labels[small]}", rounds[plain] - rounds[small]),),
        "4",
        marks(result),
    )


def _small_eta(results: Results) -> Claim:
    result = results["error-eta"]
    found = errors(result)
    large, small = result.curves[:2]
    steps = [reached(curve, _near(result), curve.steps) for curve in (large, small)]
    return Claim(
        "section4/eta",
        "error-eta",
        "However, choosing a very small η will decrease the convergence error, but it will [...] increase the first "
        "term [...], leading to slower convergence.",
        "with the smaller step size the gap that stays is smaller, and it takes more local steps until 99 % of the way "
        "to the exact solution is done",
        f"gap {listed(result, found.mean(axis=1), '.2e', 'diverges')}; {steps[0].mean():,.0f} local steps with "
        f"{large.label}, {steps[1].mean():,.0f} with {small.label}",
        (
            Quantity(f"error: {large.label} - {small.label}", found[0] - found[1]),
            Quantity(f"local steps: {small.label} - {large.label}", steps[1] - steps[0]),
        ),
        "4",
        marks(result),
    )


_BOTH = ("fig2a", "fig3a")
SECTION_3: tuple[tuple[tuple[str, ...], Judge], ...] = (
    (_BOTH, _saves_bandwidth),
    (_BOTH, _hubs_still_exchange),
    (("fig3a",), _saves_messages),
    (_BOTH, _saved_in_the_silos),
    (_BOTH, _phi_is_small),
)
SECTION_4: tuple[tuple[tuple[str, ...], Judge], ...] = (
    (("error",), _error_stays),
    (("error-n",), _grows_with_n),
    (("error",), _grows_with_q),
    (("error-k",), _falls_with_k),
    (("error-eta",), _offset_by_eta),
    (("error-eta",), _small_eta),
)
