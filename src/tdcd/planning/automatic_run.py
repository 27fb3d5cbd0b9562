"""What a run with ``step_size = "auto"`` takes: it is carried out in simulation, as its configuration says."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tdcd.compare.compute import given, measured
from tdcd.compare.prediction import Prediction, predict
from tdcd.config.resolve import Plan
from tdcd.core.network import PRESETS, Network
from tdcd.core.words import counted
from tdcd.planning.facts import plain_steps
from tdcd.planning.forecast import round_costs, with_local_steps
from tdcd.planning.local_steps import Recommendation
from tdcd.records.history import Record
from tdcd.theory.progress import EstimateObserver, EstimateProgress, silent
from tdcd.training.train import Progress, ledger_of, train_plan

AS_CONFIGURED = "as planned for"


class PlainSteps(NamedTuple):
    """The plain local steps that are at the target soonest on a network."""

    local_steps: int
    seconds: float


@dataclass(frozen=True)
class AutomaticRun:
    """A run of automatic steps: its history, and the pace of its rounds on every network."""

    history: tuple[Record, ...]
    target: float
    """A training loss."""
    is_over: bool
    """Whether the run came to its end; otherwise time was up before."""
    reason: str
    """How it ended, if it did."""
    predictions: Mapping[str, Prediction]
    """By the network's name."""
    plain: Mapping[str, PlainSteps]
    """By the network's name, the fastest of the plain steps; of none that got to the target, none."""

    @property
    def last(self) -> Record:
        """The last line of the history."""
        return self.history[-1]

    @property
    def reached(self) -> Record | None:
        """The first evaluation with the target loss; None if there was none."""
        return next((each for each in self.history if each.train_loss <= self.target and not each.taken_back), None)

    @property
    def before(self) -> int:
        """The last evaluated round before the one with the target loss."""
        reached = self.reached
        assert reached is not None
        return max((each.round for each in self.history if each.round < reached.round), default=0)

    def seconds(self, network: str, record: Record) -> float:
        """The predicted time until the round of a line is over, with what clients send once before round 0."""
        return self.predictions[network].after(record.round)

    @property
    def source(self) -> str:
        """Where the figures come from, in a sentence."""
        whole = "carried out here up to its end" if self.is_over else "carried out here until time was up"
        lowest = min(each.train_loss for each in self.history)
        after = f"{whole}, {counted(self.last.round, 'round')} with the lowest training loss {lowest:.4g}"
        return f"The automatic run itself was {after}" + (f" ({self.reason})." if self.is_over and self.reason else ".")

    def verdict(self, network: str) -> str:
        """Whether to leave the steps automatic on a network."""
        reached, plain = self.reached, self.plain.get(network)
        if reached is None:
            if self.is_over:
                return "The automatic run does not get to the target."
            return "Time was up before the automatic run got to the target: give more seconds."
        after = counted(reached.round, "round")
        if plain is None:
            return f"The automatic run is at the target after {after}, and no plain steps were in the time given."
        words = f"step_size = 'auto' is at the target after {after}"
        times = plain.seconds / self.seconds(network, reached)
        if times >= 1:
            return f"{words}, {times:.2g} times as fast as plain steps with Q = {plain.local_steps}: leave it as it is."
        if plain.seconds >= self.predictions[network].after(self.before + 1):
            return f"{words} or fewer, since it is not evaluated in between: about as fast as Q = {plain.local_steps}."
        return (
            f"{words}, and takes {1 / times:.2g} times as long as plain steps with Q = {plain.local_steps} and the "
            "step size above."
        )


def forecast_automatic_run(
    planned: Plan,
    recommendation: Recommendation,
    *,
    step_seconds: float | None = None,
    slower: Mapping[str, float] | None = None,
    seconds: float = 15.0,
    observe: EstimateObserver = silent,
) -> AutomaticRun:
    """Carry out a plan with automatic steps, and predict its time on every preset and the recommendation's network.

    Args:
        recommendation: of plain steps, for the same plan.
        step_seconds: what a client takes for a local step; measured by default.
        slower: how many times longer the clients of a silo compute, by its name.
        seconds: a time limit, kept up to one call of the simulation.
    """
    ends, late = time.monotonic() + seconds, slower or {}
    rounds = planned.config.train.rounds

    def watch(progress: Progress) -> None:
        if progress.record is not None:
            observe(EstimateProgress("automatic run", progress.round, rounds, progress.record.train_loss))

    result = train_plan(planned, observe=watch, should_stop=lambda: time.monotonic() > ends)
    simulation = result.simulation
    compute = measured(planned, simulation) if step_seconds is None else given(step_seconds, planned)
    ledger = ledger_of(simulation, simulation.init().blocks, planned)
    networks = _networks(recommendation.network)
    return AutomaticRun(
        history=tuple(result.history),
        target=recommendation.target,
        is_over=result.status != "interrupted",
        reason=result.reason,
        predictions={name: predict(planned, ledger, network, compute, late) for name, network in networks.items()},
        plain=_plain(planned, recommendation, networks, late),
    )


def _networks(own: Network) -> dict[str, Network]:
    """All presets, and the network that is planned for if it is another."""
    return {**PRESETS, **({} if own in PRESETS.values() else {AS_CONFIGURED: own})}


def network_name(own: Network) -> str:
    """What the network that is planned for is called."""
    return next((name for name, network in PRESETS.items() if network == own), AS_CONFIGURED)


def _plain(
    planned: Plan, recommendation: Recommendation, networks: Mapping[str, Network], slower: Mapping[str, float]
) -> dict[str, PlainSteps]:
    """The fastest plain steps on every network, by the rounds of their pilot runs."""
    plain = plain_steps(planned)
    arrived = {each.local_steps: each.rounds for each in recommendation.forecasts if each.rounds is not None}
    fastest = {}
    for name, network in networks.items() if arrived else ():
        cost = round_costs(plain, network, recommendation.compute, slower)
        taken = {steps: cost(with_local_steps(plain, steps)).after(rounds) for steps, rounds in arrived.items()}
        best = min(taken, key=taken.__getitem__)
        fastest[name] = PlainSteps(best, taken[best])
    return fastest
