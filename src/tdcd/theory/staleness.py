r"""How late a silo's steps reach the others: what the proof of Theorem 1 multiplies :math:`\eta^2 L_{max}^2 Q^2` by."""

from collections import Counter
from typing import NamedTuple

from tdcd.core.timing import Overlap

IN_STEP = Overlap()
"""Algorithm 1: no overlap, every silo steps in every round."""


class Staleness(NamedTuple):
    """Of one silo."""

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
