r"""The step sizes that Theorem 1 admits, and what to do about one that it does not.

They follow from how late a silo's steps reach the others: staleness is what the proof multiplies
:math:`\eta^2 L_{max}^2 Q^2` by.
"""

import math
from bisect import bisect_left
from collections import Counter
from dataclasses import replace
from typing import Literal, NamedTuple

from tdcd.core.family.overlap import Overlap
from tdcd.theory.smoothness import Constants

IN_STEP = Overlap()
"""Algorithm 1: no overlap, every silo steps in every round."""


class Staleness(NamedTuple):
    """The staleness of one silo's steps."""

    period: int
    """m: it steps in every m-th round, with m times the step size."""
    factor: int
    """R, see :func:`staleness_of`."""


def staleness_of(num_silos: int, timing: Overlap = IN_STEP) -> tuple[Staleness, ...]:
    r"""Every silo's period and staleness.

    With overlap D and periods :math:`m_j`,

    .. math:: R_l = m_l^2 + m_l \Big(1 + \Big\lceil\frac{D}{m_l}\Big\rceil\Big)
              \sum_{j \ne l} m_j \Big\lceil\frac{D + m_l}{m_j}\Big\rceil

    The first part is what silo l's clients drift apart in their own local steps. In the second, up to
    :math:`1 + \lceil D / m_l \rceil` updates of silo l, each of Q steps :math:`m_l \eta`, are not seen by the others
    yet, and each of them is not seen for :math:`D + m_l` rounds. Without periods all are
    :math:`1 + (N-1)(D+1)^2`; in step, N.

    >>> [[silo.factor for silo in staleness_of(2, timing)] for timing in (IN_STEP, Overlap(2), Overlap(0, (4, 1)))]
    [[2, 2], [10, 10], [32, 5]]
    """
    if len(timing.periods) not in {0, num_silos}:
        raise ValueError(f"periods = {timing.periods}: give one for each of the {num_silos} silos, or none")
    periods = timing.periods or (1,) * num_silos
    silos, late = Counter(periods), timing.rounds

    def factor(period: int) -> int:
        unseen = 1 + -(-late // period)
        seeing = sum(count * m * -(-(late + period) // m) for m, count in silos.items()) - period * unseen
        return period**2 + period * unseen * seeing

    factors = {period: factor(period) for period in silos}
    return tuple(Staleness(period, factors[period]) for period in periods)


def condition_in_words(timing: Overlap, *, printed: bool = False) -> str:
    """What the proof, or the paper's text, demands of the step size."""
    if printed:
        return "1 - eta L - eta^2 L_max^2 Q^2 >= 0"
    if timing.longest_period > 1:
        return "1 - eta m_j L - eta^2 L_max^2 Q^2 R_j >= 0 for every silo j"
    return f"1 - eta L - eta^2 L_max^2 Q^2 {_factor_in_words(timing)} >= 0"


def terms_in_words(timing: Overlap) -> dict[str, str]:
    """The bound's terms by the names of :class:`~tdcd.theory.Bound`."""
    periodic = timing.longest_period > 1
    late = f"N {_factor_in_words(timing)}" if timing.rounds else "N^2"
    return {
        "initial": "initial: 2 (L(start) - L_inf) / (eta T)",
        "variance": f"variance: eta L {'sum_j m_j' if periodic else 'N'} sigma^2 / K",
        "staleness": f"staleness: eta^2 L_max^2 sigma^2 Q^2 {'sum_j R_j' if periodic else late}",
    }


def _factor_in_words(timing: Overlap) -> str:
    return "[1 + (N-1)(D+1)^2]" if timing.rounds else "N"


def timing_in_words(timing: Overlap) -> list[str]:
    """The settings that differ from Algorithm 1."""
    overlap = [f"overlap = {timing.rounds}"] if timing.rounds else []
    return overlap + ([f"periods {', '.join(map(str, timing.periods))}"] if timing.longest_period > 1 else [])


Condition = Literal["proof", "printed"]
MOST_OVERLAP = 10**6
"""No larger D is looked at."""
VANISHED = 100
"""A step size that is this many times smaller than without overlap gets a run nowhere."""
WORTHWHILE = 10
"""One that is this many times smaller may still be worth it, if rounds are that much faster."""


def max_step_size(
    constants: Constants,
    local_steps: int,
    num_silos: int,
    condition: Condition = "proof",
    *,
    timing: Overlap = IN_STEP,
) -> float:
    r"""The largest step size that a condition admits.

    .. math:: \eta = \min_j \frac{2}{m_j L + \sqrt{m_j^2 L^2 + 4 L_{max}^2 Q^2 R_j}}

    the positive root of :math:`1 - \eta m_j L - \eta^2 L_{max}^2 Q^2 R_j`, in the form in which nothing cancels. In
    step, :math:`m_j = 1` and :math:`R_j = N`; with overlap D, :math:`R_j = 1 + (N-1)(D+1)^2`; with periods
    :math:`m_j`, see :func:`~tdcd.theory.step_size.staleness_of`. ``"printed"`` is the condition of the paper's text,
    with 1 in place of N, which is not enough; ``"proof"`` is the one that its proof arrives at. Infinite for an
    objective without curvature.

    >>> ridge = Constants(L=4.0, per_silo=(3.0, 3.5), kind="exact", note="")
    >>> round(max_step_size(ridge, local_steps=10, num_silos=2), 5)
    0.0194
    >>> round(max_step_size(ridge, local_steps=10, num_silos=2, timing=Overlap(2)), 5)
    0.00887
    """
    if condition not in {"proof", "printed"}:
        raise ValueError(f"condition must be 'proof' or 'printed', not {condition!r}")
    if condition == "printed" and timing_in_words(timing):
        raise ValueError("condition = 'printed' is for rounds in step; leave it out")
    at_least_one(local_steps=local_steps, num_silos=num_silos)
    silos = staleness_of(num_silos, timing) if condition == "proof" else [Staleness(period=1, factor=1)]
    return min(_root(constants, local_steps, silo) for silo in set(silos))


def _root(constants: Constants, local_steps: int, silo: Staleness) -> float:
    """The positive root of one silo's condition."""
    slope = constants.L * silo.period
    denominator = slope + math.hypot(slope, 2 * constants.L_max * local_steps * math.sqrt(silo.factor))
    return 2 / denominator if denominator else math.inf


def largest_overlap(
    constants: Constants, step_size: float, local_steps: int, num_silos: int, periods: tuple[int, ...] = ()
) -> int | None:
    """The largest D for which the proof admits a step size; None if not even D = 0 does.

    >>> ridge = Constants(L=4.0, per_silo=(3.0, 3.5), kind="exact", note="")
    >>> largest_overlap(ridge, 0.005, local_steps=10, num_silos=2), largest_overlap(ridge, 0.1, 10, 2)
    (4, None)
    """

    def outside(rounds: int) -> bool:
        return step_size > max_step_size(constants, local_steps, num_silos, timing=Overlap(rounds, periods))

    first = bisect_left(range(MOST_OVERLAP), True, key=outside)
    return first - 1 if first else None


def inside_instead(
    constants: Constants, step_size: float, local_steps: int, num_silos: int, timing: Overlap
) -> list[str]:
    """Sentences on what would bring a step size that is too large into the range, besides a smaller one."""
    sentences = []
    if timing.rounds:
        most = largest_overlap(constants, step_size, local_steps, num_silos, timing.periods)
        least = max_step_size(constants, local_steps, num_silos, timing=replace(timing, rounds=0))
        sentences.append(
            f"No overlap is inside with this step size: even overlap = 0 admits only up to {least:.4g}."
            if most is None
            else f"With this step size, overlap = {most} is the largest inside."
        )
    if timing.longest_period > 1:
        least = max_step_size(constants, local_steps, num_silos, timing=replace(timing, periods=()))
        sentences.append(f"With period = 1 at every silo, step sizes up to {least:.4g} are inside.")
    return sentences


def vanishing(constants: Constants, local_steps: int, num_silos: int, timing: Overlap) -> str | None:
    """A sentence on what to do about a D that leaves hardly any step size; None if it leaves enough."""
    here = max_step_size(constants, local_steps, num_silos, timing=timing)
    without = max_step_size(constants, local_steps, num_silos, timing=replace(timing, rounds=0))
    if not here * VANISHED < without < math.inf:
        return None
    most = largest_overlap(constants, without / WORTHWHILE, local_steps, num_silos, timing.periods)
    return (
        f"overlap = {timing.rounds} leaves step sizes up to {here:.3g} only, {without / here:.3g} times less than "
        f"without overlap, and rounds would have to be that much faster. Set train.overlap = {most} or less, which "
        "leaves at least a tenth."
    )


def at_least_one(**values: float) -> None:
    """Refuse numbers that are smaller, or not finite."""
    for name, value in values.items():
        if not 1 <= value < math.inf:
            raise ValueError(f"{name} must be at least 1, not {value}")
