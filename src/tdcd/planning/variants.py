"""Which overlap, periods and bits to take: all by their predicted time per round, the best few by pilot runs."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tdcd.config.resolve import Plan
from tdcd.core.network import Network
from tdcd.planning.candidates import Candidate, find_candidates, own_candidate
from tdcd.planning.cost import Cost, round_costs
from tdcd.planning.forecast import Forecast
from tdcd.planning.local_steps import Recommendation, recommend_local_steps
from tdcd.planning.pilots import Clock, Pilot, Point, run_pilots, start_pilot
from tdcd.theory.progress import Observer, silent

PILOTS = 3
"""Candidates that are tried in pilot runs."""
WORTH = 0.02
"""A candidate that is not faster by this fraction is not worth being further from Algorithm 1."""


@dataclass(frozen=True)
class Ranked:
    """One candidate: what a round costs, and what the pilot run needed."""

    candidate: Candidate
    cost: Cost
    forecast: Forecast | None = None
    """None without a pilot run."""

    @property
    def bytes_per_round(self) -> float:
        """The mean over rounds in which every silo steps as often as its period says."""
        rounds = 1
        for period in set(self.candidate.periods):
            rounds *= period
        return self.cost.ledger.traffic(rounds, "bytes").total / rounds

    @property
    def seconds(self) -> float | None:
        """The predicted time to the target; None if it is not known."""
        return None if self.forecast is None or self.forecast.rounds is None else self.forecast.seconds


@dataclass(frozen=True)
class Ranking:
    """Candidates with the plan's Q, and the one to take."""

    ranked: tuple[Ranked, ...]
    """All, the simplest first."""
    own: Ranked
    """What the configuration says."""
    recommended: Ranked
    step_size: float
    """For the recommended one."""
    local_steps: int
    silos: tuple[str, ...]
    """Their names."""

    def alike(self, *, overlap: int = 0, periods: tuple[int, ...] | None = None, phi_bits: int = 32) -> Ranked | None:
        """The candidate with exactly these, if there is one."""
        wanted = Candidate(overlap, periods or (1,) * len(self.silos), phi_bits)
        return next((each for each in self.ranked if each.candidate == wanted), None)


def rank_variants(
    planned: Plan,
    found: Recommendation,
    *,
    slower: Mapping[str, float] | None = None,
    seconds: float = 30.0,
    observe: Observer = silent,
) -> Ranking:
    """Rank overlap, periods and bits for the number of local steps that was recommended.

    Args:
        planned: as it was for ``found``.
        found: with a recommendation.
        slower: how many times longer the clients of a silo compute, by its name.
        seconds: a time limit for the pilot runs.
    """
    best = found.recommended
    if best is None:
        raise ValueError(f"there is no number of local steps to rank variants for. {found.reason}")
    settings = replace(planned.settings, local_steps=best.local_steps, step_size=best.step_size)
    chosen = planned._replace(settings=settings)
    cost = round_costs(chosen, found.network, found.compute, slower)
    own = own_candidate(chosen)
    ranked = {each: Ranked(each, cost(each.applied(chosen))) for each in find_candidates(chosen, slower or {})}
    ranked[own] = Ranked(own, best.cost, best)
    for each, forecast in _piloted(chosen, found, best, _worth_a_pilot(list(ranked.values()), own), seconds, observe):
        ranked[each] = replace(ranked[each], forecast=forecast)
    recommended = _fastest(list(ranked.values()), ranked[own])
    taken = recommended.forecast or best
    return Ranking(
        ranked=tuple(ranked.values()),
        own=ranked[own],
        recommended=recommended,
        step_size=taken.step_size,
        local_steps=best.local_steps,
        silos=tuple(silo.name for silo in planned.federation.silos),
    )


def worthwhile(ranked: Sequence[Ranked]) -> list[Ranked]:
    """The candidates whose rounds are faster than those of every simpler one, by what it takes to be worth it."""
    return [
        each
        for each in ranked
        if not any(
            other.candidate.is_simpler(each.candidate) and other.cost.seconds <= (1 + WORTH) * each.cost.seconds
            for other in ranked
        )
    ]


def _worth_a_pilot(ranked: Sequence[Ranked], own: Candidate) -> list[Ranked]:
    others = [each for each in worthwhile(ranked) if each.candidate != own]
    return sorted(others, key=lambda each: each.cost.seconds)[:PILOTS]


def _piloted(
    chosen: Plan,
    found: Recommendation,
    best: Forecast,
    candidates: Sequence[Ranked],
    seconds: float,
    observe: Observer,
) -> list[tuple[Candidate, Forecast]]:
    """Forecasts of the candidates; what the configuration's own way needed is known."""
    facts = found.facts
    names = [silo.name for silo in chosen.federation.silos]
    pilots = [
        start_pilot(
            each.candidate.applied(chosen),
            each.cost,
            facts.safe_step_size(best.local_steps, each.candidate.timing),
            facts.initial,
            each.candidate.in_words(names),
        )
        for each in candidates
    ]
    assert best.rounds is not None
    known = [Point(0, facts.initial), Point(best.rounds, found.target)]
    # That run is over: its step size needs no looking after.
    own = Pilot(chosen, best.cost, best.step_size, known, "as configured")
    run_pilots([own, *pilots], target=found.target, clock=Clock(seconds), observe=observe)
    return [(each.candidate, _forecast(pilot, found.target)) for each, pilot in zip(candidates, pilots, strict=True)]


def _forecast(pilot: Pilot, target: float) -> Forecast:
    return Forecast(
        local_steps=pilot.local_steps,
        safe_step_size=pilot.safe_step_size,
        step_size=pilot.step_size,
        rounds=pilot.reached(target),
        simulated=pilot.curve[-1].round,
        lowest=pilot.lowest,
        diverged=tuple(pilot.diverged),
        cost=pilot.cost,
        bound_rounds=None,
    )


def _fastest(ranked: Sequence[Ranked], own: Ranked) -> Ranked:
    """The simplest of those that are at the target soonest, if it gains enough over what the configuration says."""
    times = [each.seconds for each in ranked if each.seconds is not None]
    if own.seconds is None or own.seconds <= (1 + WORTH) * min(times):
        return own
    return next(each for each in ranked if each.seconds is not None and each.seconds <= (1 + WORTH) * min(times))


FOR_VARIANTS = 0.25
"""Of the time limit, what is kept for pilot runs of variants."""


class RunPlan(NamedTuple):
    """What to take."""

    local_steps: Recommendation
    variants: Ranking | None
    """None if no number of local steps is recommended."""


def plan_run(
    planned: Plan,
    network: Network,
    *,
    slower: Mapping[str, float] | None = None,
    seconds: float = 60.0,
    observe: Observer = silent,
    **options: Any,
) -> RunPlan:
    """Recommend a number of local steps, and then overlap, periods and bits for it.

    Args:
        slower: how many times longer the clients of a silo compute, by its name.
        seconds: a time limit for all.
        options: of :func:`.recommend_local_steps`.
    """
    began = time.monotonic()
    kept = FOR_VARIANTS * seconds
    found = recommend_local_steps(planned, network, slower=slower, seconds=seconds - kept, observe=observe, **options)
    if found.recommended is None:
        return RunPlan(found, None)
    left = max(kept, seconds - (time.monotonic() - began))
    return RunPlan(found, rank_variants(planned, found, slower=slower, seconds=left, observe=observe))
