"""Which overlap, periods of slow silos and bits of phi to take: by predicted time per round, the best few by pilots."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

from tdcd.config.resolve import Plan
from tdcd.core.codecs.codec import Identity
from tdcd.core.codecs.quantised import Quantised
from tdcd.core.family.overlap import Overlap
from tdcd.core.network import Network
from tdcd.planning.automatic_run import AutomaticRun, forecast_automatic_run
from tdcd.planning.facts import plain_steps
from tdcd.planning.forecast import Cost, Forecast, round_costs
from tdcd.planning.local_steps import Recommendation, recommend_local_steps
from tdcd.planning.pilots import Clock, Pilot, PilotPoint, run_pilots, start_pilot
from tdcd.theory.progress import EstimateObserver, silent

OVERLAPS = (0, 1, 2, 4)
BITS = (32, 8, 4)
AS_IT_IS, FEWEST = max(BITS), min(BITS)


class Candidate(NamedTuple):
    """A candidate: overlap, periods and bits."""

    overlap: int
    """D."""
    periods: tuple[int, ...]
    """m of each silo."""
    phi_bits: int

    @property
    def timing(self) -> Overlap:
        """The timing of the variant, with this overlap and these periods."""
        return Overlap(self.overlap, self.periods if max(self.periods) > 1 else ())

    def is_simpler(self, other: "Candidate") -> bool:
        """Whether it is closer to Algorithm 1 in something, and in nothing further from it."""
        pairs = zip(self.periods, other.periods, strict=True)
        closer = self.overlap <= other.overlap and self.phi_bits >= other.phi_bits and all(m <= n for m, n in pairs)
        return closer and self != other

    def applied(self, planned: Plan) -> Plan:
        """The plan with this overlap, these periods and these bits."""
        if planned.config.exchange.protect == "mask":
            return planned._replace(variant=replace(planned.variant, timing=self.timing))
        exchange = Identity() if self.phi_bits == AS_IT_IS else Quantised(self.phi_bits)
        variant = replace(planned.variant, timing=self.timing, exchange=exchange, client_exchange=exchange)
        return planned._replace(variant=variant)

    def in_words(self, silos: Sequence[str]) -> str:
        """The candidate in words, such as ``overlap = 1, lab: period = 4``; ``silos`` are the names."""
        changes = [f"overlap = {self.overlap}"] * (self.overlap > 0)
        changes += [f"{name}: period = {m}" for name, m in zip(silos, self.periods, strict=True) if m > 1]
        changes += [f"phi_bits = {self.phi_bits}"] * (self.phi_bits < AS_IT_IS)
        return ", ".join(changes) or "in step, as it is"


def own_candidate(planned: Plan) -> Candidate:
    """The candidate that the configuration sets."""
    silos = range(planned.federation.num_silos)
    timing = planned.variant.timing
    return Candidate(timing.depth, tuple(timing.period(silo) for silo in silos), planned.config.exchange.phi_bits)


def find_candidates(planned: Plan, slower: Mapping[str, float]) -> list[Candidate]:
    """All combinations that go with the configuration, the simplest first; its own is among them.

    Args:
        slower: how many times longer the clients of a silo compute, by its name.
    """
    own, config = own_candidate(planned), planned.config
    count, names = planned.federation.num_silos, [silo.name for silo in planned.federation.silos]
    rounds = config.train.rounds or max(OVERLAPS) + 1
    # A client that is away has sent phi of later rounds: neither goes with the grace period.
    # With labels at one silo slopes are of this round, in full.
    is_free = count > 1 and config.federation.labels is None
    may_be_late = is_free and config.federation.client_grace_s is None
    overlaps = {own.overlap, *(depth for depth in OVERLAPS if may_be_late and depth < rounds), 0}
    times = [slower.get(name, 1.0) for name in names]
    periods = {own.periods, (1,) * count}
    if may_be_late:
        periods.add(tuple(min(rounds, max(1, round(each / min(times)))) for each in times))
    # A configuration with float64 does not get the fewest bits.
    bits = {own.phi_bits, *(each for each in BITS if is_free and (each > FEWEST or config.dtype == "float32"))}
    # Masks take up all bits.
    bits = {AS_IT_IS} if config.exchange.protect == "mask" else {*bits, AS_IT_IS}
    return [
        Candidate(depth, own_periods, each)
        for own_periods, depth, each in product(sorted(periods), sorted(overlaps), sorted(bits, reverse=True))
    ]


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
    """The candidate that the configuration sets."""
    recommended: Ranked
    step_size: float
    """For the recommended one."""
    local_steps: int
    silos: tuple[str, ...]
    """Their names."""
    batch_size: int
    l2: float

    def alike(self, *, overlap: int = 0, periods: tuple[int, ...] | None = None, phi_bits: int = 32) -> Ranked | None:
        """The candidate with exactly these, if there is one."""
        wanted = Candidate(overlap, periods or (1,) * len(self.silos), phi_bits)
        return next((each for each in self.ranked if each.candidate == wanted), None)


def rank_variants(
    planned: Plan,
    recommendation: Recommendation,
    *,
    slower: Mapping[str, float] | None = None,
    seconds: float = 30.0,
    observe: EstimateObserver = silent,
) -> Ranking:
    """Rank overlap, periods and bits for the number of local steps that was recommended.

    Args:
        planned: as it was for ``found``.
        found: with a recommendation.
        slower: how many times longer the clients of a silo compute, by its name.
        seconds: a time limit for the pilot runs.
    """
    best, planned = recommendation.recommended, plain_steps(planned)
    if best is None:
        raise ValueError(f"there is no number of local steps to rank variants for. {recommendation.reason}")
    settings = replace(planned.settings, local_steps=best.local_steps, step_size=best.step_size)
    chosen = planned._replace(settings=settings)
    cost = round_costs(chosen, recommendation.network, recommendation.compute, slower)
    own = own_candidate(chosen)
    ranked = {each: Ranked(each, cost(each.applied(chosen))) for each in find_candidates(chosen, slower or {})}
    ranked[own] = Ranked(own, best.cost, best)
    for each, forecast in _piloted(
        chosen, recommendation, best, _worth_a_pilot(list(ranked.values()), own), seconds, observe
    ):
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
        batch_size=planned.settings.batch_size,
        l2=planned.objective.l2,
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
    recommendation: Recommendation,
    best: Forecast,
    candidates: Sequence[Ranked],
    seconds: float,
    observe: EstimateObserver,
) -> list[tuple[Candidate, Forecast]]:
    """Forecasts of the candidates; what the configuration's own way needed is known."""
    facts = recommendation.facts
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
    known = [PilotPoint(0, facts.initial), PilotPoint(best.rounds, recommendation.target)]
    # That run is over: its step size needs no looking after.
    own = Pilot(chosen, best.cost, best.step_size, known, "as configured")
    run_pilots([own, *pilots], target=recommendation.target, clock=Clock(seconds), observe=observe)
    return [
        (each.candidate, pilot.forecast(recommendation.target)) for each, pilot in zip(candidates, pilots, strict=True)
    ]


def _fastest(ranked: Sequence[Ranked], own: Ranked) -> Ranked:
    """The simplest of those that are at the target soonest, if it gains enough over what the configuration says."""
    times = [each.seconds for each in ranked if each.seconds is not None]
    if own.seconds is None or own.seconds <= (1 + WORTH) * min(times):
        return own
    return next(each for each in ranked if each.seconds is not None and each.seconds <= (1 + WORTH) * min(times))


FOR_VARIANTS, FOR_AUTOMATIC = 0.25, 0.25
"""The parts of the time limit that are kept for pilot runs of variants, and for the run with automatic steps."""


class RunPlan(NamedTuple):
    """The recommended settings."""

    local_steps: Recommendation
    variants: Ranking | None
    """None if no number of local steps is recommended."""
    automatic: AutomaticRun | None = None
    """The run itself, where its steps are automatic."""


def plan_run(
    planned: Plan,
    network: Network,
    *,
    step_seconds: float | None = None,
    slower: Mapping[str, float] | None = None,
    seconds: float = 60.0,
    observe: EstimateObserver = silent,
    **options: Any,
) -> RunPlan:
    """Recommend a number of local steps, and then overlap, periods and bits for it.

    With automatic steps the run itself is forecast, too, next to these plain ones.

    Args:
        step_seconds: what a client takes for a local step; measured by default.
        slower: how many times longer the clients of a silo compute, by its name.
        seconds: a time limit for all.
        options: of :func:`.recommend_local_steps`.
    """
    began = time.monotonic()
    kept = FOR_VARIANTS * seconds
    for_automatic = FOR_AUTOMATIC * seconds if planned.config.train.is_automatic else 0.0
    recommendation = recommend_local_steps(
        planned,
        network,
        step_seconds=step_seconds,
        slower=slower,
        seconds=seconds - kept - for_automatic,
        observe=observe,
        **options,
    )
    automatic = None
    if for_automatic:
        automatic = forecast_automatic_run(
            planned,
            recommendation,
            step_seconds=step_seconds,
            slower=slower,
            seconds=for_automatic,
            observe=observe,
        )
    if recommendation.recommended is None:
        return RunPlan(recommendation, None, automatic)
    left = max(kept, seconds - (time.monotonic() - began))
    ranking = rank_variants(planned, recommendation, slower=slower, seconds=left, observe=observe)
    return RunPlan(recommendation, ranking, automatic)
