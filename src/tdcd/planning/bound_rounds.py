"""After how many rounds the loss is at the target by the bound of Theorem 1, even in the worst case."""

from math import ceil, inf, isfinite, sqrt
from typing import NamedTuple

from tdcd.config.resolve import Plan
from tdcd.core.timing import Overlap
from tdcd.planning.facts import Facts
from tdcd.theory import Constants, effective_clients, max_step_size
from tdcd.theory.staleness import IN_STEP
from tdcd.theory.theorem import noise_terms


class FewestIterations(NamedTuple):
    """With which step size the bound reaches a level, and when."""

    step_size: float
    iterations: float
    """T; infinite where the numbers are too small to tell."""


def fewest_iterations(
    constants: Constants,
    sigma_max: float,
    *,
    level: float,
    gap: float,
    local_steps: int,
    num_silos: int,
    num_clients: float,
    timing: Overlap = IN_STEP,
) -> FewestIterations:
    r"""The admissible step size with which the bound of Theorem 1 falls to ``level`` after the fewest iterations.

    With :math:`a = L N \sigma_{max}^2 / K` and :math:`b = L_{max}^2 \sigma_{max}^2 Q^2 N^2`, or what replaces them
    with overlap and periods (:func:`tdcd.theory.bound`), the bound is at the level for

    .. math:: T = \frac{2\,gap}{\eta\,(level - a \eta - b \eta^2)}, \qquad
              \text{least at} \quad \eta = \frac{level}{a + \sqrt{a^2 + 3\,b\,level}}

    or at the largest admissible step size, if that is smaller.

    Args:
        level: of the average squared gradient norm.
        gap: see :func:`tdcd.theory.initial_gap`.

    >>> noiseless = dict(level=0.5, gap=1.0, local_steps=2, num_silos=1, num_clients=1.0)
    >>> fewest_iterations(Constants(L=1.5, per_silo=(0.5,), kind="exact", note=""), 0.0, **noiseless)
    FewestIterations(step_size=0.5, iterations=8.0)
    """
    variance, staleness = noise_terms(constants, sigma_max, local_steps, num_silos, num_clients, timing)
    noise = variance + sqrt(variance**2 + 3 * staleness * level)
    largest = max_step_size(constants, local_steps, num_silos, timing=timing)
    step_size = min(largest, level / noise if noise else inf)
    progress = step_size * (level - variance * step_size - staleness * step_size**2)
    return FewestIterations(step_size, 2 * gap / progress if progress > 0 else inf)


def bound_rounds(planned: Plan, facts: Facts, local_steps: int, target: float, lowest: float) -> int | None:
    r"""Rounds after which the average loss is at most ``target`` by Theorem 1, with the step size that suits it best.

    A convex objective with l2 regularisation :math:`\lambda` is at most :math:`|\nabla\mathcal{L}|^2 / 2 \lambda` above
    its least value. So the loss is at the target once the bound is at :math:`2 \lambda\,(target - lowest)`.

    Args:
        lowest: the least loss, or one above it.

    Returns:
        None if no loss follows from the theorem.
    """
    if facts.noise is None or facts.constants is None or facts.constants.kind == "estimate" or lowest >= target:
        return None
    found = fewest_iterations(
        facts.constants,
        facts.noise.maximum,
        level=2 * planned.objective.l2 * (target - lowest),
        gap=facts.initial - facts.least,
        local_steps=local_steps,
        num_silos=facts.num_silos,
        num_clients=effective_clients(planned.federation),
        timing=facts.timing,
    )
    return ceil(found.iterations / local_steps) if isfinite(found.iterations) else None
