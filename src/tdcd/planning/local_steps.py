"""How many local steps to take: a forecast for each Q, and the one to take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf, isfinite, sqrt
from typing import NamedTuple

from tdcd.compare.compute import Compute
from tdcd.config import ConfigError
from tdcd.config.resolve import Plan
from tdcd.core.family.overlap import Overlap
from tdcd.core.network import Network
from tdcd.planning.facts import ProblemFacts, gather_facts, plain_steps, refuse_uncovered
from tdcd.planning.forecast import Forecast, computing, recommend, round_costs, with_local_steps
from tdcd.planning.pilots import Clock, Pilot, run_pilots, start_pilot
from tdcd.theory import (
    Constants,
    ReusedConstants,
    ReusedNoise,
    bits_caveats,
    caveats,
    effective_clients,
    epsilon_caveats,
    max_step_size,
)
from tdcd.theory.progress import EstimateObserver, silent
from tdcd.theory.step_size import IN_STEP, vanishing
from tdcd.theory.theorem import noise_terms

CANDIDATES = (1, 2, 5, 10, 20, 50, 100, 200, 500)
PART_OF_THE_WAY = 0.9
"""Where the target is by default, on the way from the loss before training to the lowest one known."""
THEORY_FRACTION = 0.15
"""The most of the time limit that each of the theorem's constants may take."""


@dataclass(frozen=True)
class Recommendation:
    """One forecast per Q, ascending, and the one to take."""

    forecasts: tuple[Forecast, ...]
    recommended: Forecast | None
    """None if no pilot run got to the target."""
    reason: str
    """Why that one, or why none, in a sentence."""
    target: float
    initial: float
    """The loss before training."""
    lowest: float
    """The lowest loss known: the least there is where that is known, else the lowest of any pilot run."""
    optimum_known: bool
    facts: ProblemFacts
    compute: Compute
    """For a local step, and for the phi of one minibatch."""
    network: Network
    notes: tuple[str, ...]
    """What to know before trusting the figures, in sentences."""

    @property
    def constants(self) -> Constants | None:
        """Theorem 1's; None for a model without second derivatives."""
        return self.facts.constants


def recommend_local_steps(
    planned: Plan,
    network: Network,
    *,
    target: float | None = None,
    step_seconds: float | None = None,
    slower: Mapping[str, float] | None = None,
    candidates: Sequence[int] = CANDIDATES,
    seconds: float = 60.0,
    observe: EstimateObserver = silent,
) -> Recommendation:
    """Compare numbers of local steps by the predicted time to a target loss, and recommend one.

    Rounds to the target are counted in pilot runs of the simulation, with the plan's step size, or with the safe one
    where that diverges. Theorem 1 gives the safe step sizes, and the rounds after which its bound is
    at the target.

    Args:
        target: a training loss; by default 90% of the way from the one before training to the lowest one known.
        step_seconds: what a client takes for a local step; measured by default.
        slower: how many times longer the clients of a silo compute, by its name.
        candidates: the Q to compare.
        seconds: a time limit. It is kept up to one round of a pilot run, and compiling it.
        observe: called after every piece of work.
    """
    planned = plain_steps(planned)
    steps, clock = _checked(planned, candidates), Clock(seconds)
    facts = gather_facts(planned, seconds * THEORY_FRACTION, observe)
    if target is not None:
        _check_target(target, facts)
    elif facts.optimum is not None:
        target = _part_of_the_way(facts.initial, facts.optimum)
    compute, unfinished = computing(planned, step_seconds), False
    cost = round_costs(planned, network, compute, slower)
    plans = [_pilot_plan(planned, facts, q) for q in steps]
    pilots = [
        start_pilot(each, cost(each), facts.safe_step_size(q), facts.initial)
        for q, each in zip(steps, plans, strict=True)
    ]
    if target is None:
        horizon = max(1, planned.config.train.rounds) * planned.settings.local_steps
        run_pilots(pilots, target=None, horizon=horizon, clock=clock, observe=observe)
        target = _learned_target(pilots, facts.initial)
        unfinished = any(pilot.taken < horizon and not pilot.failed for pilot in pilots)
    run_pilots(pilots, target=target, clock=clock, observe=observe)
    lowest = min(pilot.lowest for pilot in pilots) if facts.optimum is None else facts.optimum
    forecasts = tuple(
        pilot.forecast(target, bound_rounds(planned, facts, pilot.local_steps, target, lowest)) for pilot in pilots
    )
    recommended, reason = recommend(forecasts)
    return Recommendation(
        forecasts=forecasts,
        recommended=recommended,
        reason=reason,
        target=target,
        initial=facts.initial,
        lowest=lowest,
        optimum_known=facts.optimum is not None,
        facts=facts,
        compute=compute,
        network=network,
        notes=tuple(_notes(planned, facts, forecasts, unfinished)),
    )


def _checked(planned: Plan, candidates: Sequence[int]) -> list[int]:
    algorithm, steps = planned.config.train.algorithm, sorted(set(candidates))
    if algorithm != "tdcd":
        raise ConfigError([f"train.algorithm = {algorithm!r}: local steps are planned for TDCD; leave it out"])
    refuse_uncovered(planned.config, planned.variant)
    if not steps or steps[0] < 1:
        raise ValueError(f"candidates must be numbers of local steps of at least 1, not {list(candidates)}")
    return steps


def _pilot_plan(planned: Plan, facts: ProblemFacts, local_steps: int) -> Plan:
    """With so many local steps, and with the safe step size for them where the configuration leaves it open."""
    chosen = with_local_steps(planned, local_steps)
    if not planned.config.train.is_automatic:
        return chosen
    safe = facts.safe_step_size(local_steps)
    if safe is None or not isfinite(safe):
        reason = facts.no_constants or facts.no_reused or "the objective has no curvature"
        raise ConfigError([f"train.step_size = 'auto': no safe step size is known ({reason}); give it a number"])
    return chosen._replace(settings=replace(chosen.settings, step_size=safe))


def _check_target(target: float, facts: ProblemFacts) -> None:
    if not (isfinite(target) and target < facts.initial):
        raise ValueError(f"target = {target:g}: the loss before training is {facts.initial:.6g}; give a lower target")
    if target <= facts.least:
        least = (
            f"the lowest possible loss of this model is {facts.optimum:.6g}"
            if facts.optimum
            else f"no loss is below {facts.least:.6g}"
        )
        raise ValueError(f"target = {target:g}: {least}; give a higher target")


def _part_of_the_way(initial: float, lowest: float) -> float:
    return initial - PART_OF_THE_WAY * (initial - lowest)


def _learned_target(pilots: Sequence[Pilot], initial: float) -> float:
    lowest = min(pilot.lowest for pilot in pilots)
    if lowest >= initial:
        raise ValueError(
            f"no pilot run got below the loss before training, {initial:.6g}, in the time given: give more seconds, or "
            "set a smaller train.step_size"
        )
    return _part_of_the_way(initial, lowest)


def _notes(planned: Plan, facts: ProblemFacts, forecasts: Sequence[Forecast], unfinished: bool) -> list[str]:
    notes = [
        "Rounds are counted in pilot runs of the simulation, with one seed; times are a model of links and computing."
    ]
    if unfinished:
        notes.append(
            "Time was up before every pilot run took as many local steps as the configuration: the target is 90% of "
            "the way that they got, and may be too easy. Give more seconds, or a target."
        )
    diverged = ", ".join(str(forecast.local_steps) for forecast in forecasts if forecast.diverged)
    if planned.config.train.is_automatic:
        notes.append(
            "step_size = 'auto': this table is about plain local steps on minibatches of "
            f"{planned.settings.batch_size}, each Q with its safe step size. What the automatic run itself takes "
            "is forecast by carrying it out."
        )
    elif diverged:
        notes.append(
            f"With step_size = {planned.settings.step_size:g} the pilot runs of Q = {diverged} diverged; the safe step "
            "size was tried instead."
        )
    if facts.constants is None:
        notes.append(f"No safe step sizes: {facts.no_constants}.")
    elif facts.constants.kind == "estimate":
        notes.append(f"Safe step sizes rest on estimates and prove nothing: {facts.constants.note}.")
    if facts.constants is not None:
        vanished = vanishing(facts.constants, planned.settings.local_steps, facts.num_silos, facts.timing)
        notes += [vanished] if vanished else []
    if facts.no_reused:
        notes.append(f"No safe step sizes for Q above 1: {facts.no_reused}.")
    if facts.reused is not None:
        notes.append(
            "minibatches = 'reused': safe step sizes and rounds are those of the theorem for reused minibatches, with "
            f"Lambda = {facts.reused.constants.client:.4g} and E = {facts.reused.constants.expected:.4g}."
        )
    if facts.no_noise:
        notes.append(f"No rounds by Theorem 1: {facts.no_noise}.")
    elif facts.noise is None and not (facts.reused and planned.objective.l2):
        notes.append(
            "Theorem 1 says nothing about the loss here: it bounds gradients, and a bound of the loss follows only "
            "for linear blocks with l2 > 0."
        )
    elif facts.noise is not None:
        notes += caveats(planned.federation, planned.settings, facts.noise)
    return notes + bits_caveats(planned.variant, planned.blocks, planned.objective) + epsilon_caveats(planned.objective)


class FewestIterations(NamedTuple):
    """With which step size the bound reaches a level, and when."""

    step_size: float
    iterations: float
    """T; infinite where the numbers are too small."""


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


def fewest_reused_iterations(
    constants: ReusedConstants, noise: ReusedNoise, *, level: float, gap: float, local_steps: int
) -> FewestIterations:
    r"""The same for reused minibatches: the step size with the fewest iterations, by ternary search.

    What a step gains of the level is concave in the step size: c is, and the noise terms are convex.
    """

    def progress(step_size: float) -> float:
        left, variance, drifting = constants.terms(step_size, local_steps)
        return step_size * (left * level - variance * noise.averaged - drifting * noise.spread)

    low, high = 0.0, constants.max_step_size(local_steps)
    largest = high
    if not isfinite(high):
        return FewestIterations(inf, 0.0)
    while high - low > 1e-9 * high:
        below, above = (2 * low + high) / 3, (low + 2 * high) / 3
        low, high = (below, high) if progress(below) < progress(above) else (low, above)
    step_size = max((low, largest), key=progress)
    gained = progress(step_size)
    return FewestIterations(step_size, 2 * gap / gained if gained > 0 else inf)


def bound_rounds(planned: Plan, facts: ProblemFacts, local_steps: int, target: float, lowest: float) -> int | None:
    r"""Rounds after which the average loss is at most ``target`` by Theorem 1, with the step size that suits it best.

    A convex objective with l2 regularisation :math:`\lambda` is at most :math:`|\nabla\mathcal{L}|^2 / 2 \lambda` above
    its least value. So the loss is at the target once the bound is at :math:`2 \lambda\,(target - lowest)`.

    Args:
        lowest: the least loss, or one above it.

    Returns:
        None if no loss follows from the theorem.
    """
    if facts.constants is None or facts.constants.kind == "estimate" or lowest >= target:
        return None
    level, gap = 2 * planned.objective.l2 * (target - lowest), facts.initial - facts.least
    if facts.reused is not None and level:
        fewest = fewest_reused_iterations(*facts.reused, level=level, gap=gap, local_steps=local_steps)
    elif facts.noise is not None and not (facts.reuses and local_steps > 1):
        fewest = fewest_iterations(
            facts.constants,
            facts.noise.maximum,
            level=level,
            gap=gap,
            local_steps=local_steps,
            num_silos=facts.num_silos,
            num_clients=effective_clients(planned.federation),
            timing=facts.timing,
        )
    else:
        return None
    return ceil(fewest.iterations / local_steps) if isfinite(fewest.iterations) else None
