"""The cost of a round for any variant, what one number of local steps would take, and which number to take."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tdcd.compare.compute import Compute, given, measured
from tdcd.compare.prediction import Prediction, predict
from tdcd.config.resolve import Plan
from tdcd.core.ledger import Ledger, Traffic
from tdcd.core.network import Network
from tdcd.core.pace import Work
from tdcd.core.words import counted, duration, rounded_down
from tdcd.training.train import ledger_of, simulate

STEPS_TIMED = 10
"""Local steps over which a client's computing is measured, so that the call around them hardly counts."""


class Cost(NamedTuple):
    """What a plan's rounds send, and how long they take."""

    ledger: Ledger
    """What they send."""
    prediction: Prediction
    """What each silo does in them, and who waits for whom."""

    @property
    def seconds(self) -> float:
        """The predicted seconds of a round in the long run."""
        return self.prediction.seconds_per_round

    def after(self, rounds: int) -> float:
        """The predicted seconds of the first rounds; with overlap, nothing is hidden before the first."""
        return self.prediction.after(rounds)

    @property
    def works(self) -> tuple[Work, ...]:
        """What each silo does in a round."""
        return self.prediction.works

    @property
    def traffic(self) -> Traffic:
        """The bytes of the first round."""
        return self.ledger.traffic(1, "bytes")


def with_local_steps(planned: Plan, local_steps: int) -> Plan:
    """The same plan with another Q."""
    return planned._replace(settings=replace(planned.settings, local_steps=local_steps))


def round_costs(
    planned: Plan, network: Network, compute: Compute, slower: Mapping[str, float] | None = None
) -> Callable[[Plan], Cost]:
    """The cost of a round as a function of the plan, for plans that differ in settings and variant.

    Args:
        compute: from :func:`computing`.
        slower: how many times longer the clients of a silo compute, by its name.
    """
    simulation = simulate(planned)
    blocks = simulation.init().blocks

    def cost(other: Plan) -> Cost:
        settings = other.settings
        own = ledger_of(simulation, blocks, settings=settings, variant=other.variant)
        all_phi = compute._replace(phi_seconds=settings.num_exchanged * compute.phi_seconds)
        return Cost(own, predict(other, own, network, all_phi, slower or {}))

    return cost


def computing(planned: Plan, step_seconds: float | None) -> Compute:
    """What the slowest client takes for a local step, and for the phi of one minibatch; for every Q.

    Args:
        step_seconds: for a local step; measured here if None.
    """
    timed = with_local_steps(planned, STEPS_TIMED)
    compute = measured(timed, simulate(timed)) if step_seconds is None else given(step_seconds, timed)
    return compute._replace(phi_seconds=compute.phi_seconds / timed.settings.num_exchanged)


@dataclass(frozen=True)
class Forecast:
    """One Q: the rounds to the target, their bytes and their predicted time."""

    local_steps: int
    safe_step_size: float | None
    """The largest that Theorem 1's proof admits; None for a model without constants."""
    step_size: float
    """The pilot run's."""
    rounds: int | None
    """Rounds to the target, by the pilot run; None if it did not get there."""
    simulated: int
    """Rounds that the pilot run took."""
    lowest: float
    """The lowest loss that it reached."""
    diverged: tuple[float, ...]
    """Step sizes with which it diverged."""
    cost: Cost
    """The cost of a round."""
    bound_rounds: int | None
    """Rounds to the target by Theorem 1, with a step size of its own; None if no loss follows from it."""

    @property
    def failed(self) -> bool:
        """Whether the pilot run diverged with every step size tried."""
        return self.step_size in self.diverged

    @property
    def least_rounds(self) -> int:
        """Rounds to the target, or those that were not enough."""
        return self.simulated if self.rounds is None else self.rounds

    @property
    def warning(self) -> str | None:
        """A sentence if the pilot run's step size is larger than the safe one, and by how much; else None."""
        safe = self.safe_step_size
        if safe is None or self.step_size <= safe:
            return None
        return (
            f"Warning: step_size = {rounded_down(self.step_size)} is {self.step_size / safe:.3g} times the safe one of "
            f"Q = {self.local_steps}, {rounded_down(safe)}. The pilot run says that it works; Theorem 1 does not. "
            f"With step_size = {rounded_down(safe)} or less it does."
        )

    @property
    def traffic(self) -> Traffic:
        """The bytes of all those rounds."""
        return self.cost.ledger.traffic(self.least_rounds, "bytes")

    @property
    def seconds(self) -> float:
        """The predicted time of the rounds."""
        return self.cost.after(self.least_rounds)


def recommend(forecasts: Sequence[Forecast]) -> tuple[Forecast | None, str]:
    """The forecast that reaches the target soonest, and the reason in a sentence; None if no pilot run got there.

    Args:
        forecasts: with Q ascending.
    """
    running = [forecast for forecast in forecasts if not forecast.failed]
    if not running:
        least = min(min(forecast.diverged) for forecast in forecasts)
        raise ValueError(
            f"every pilot run diverged, with step sizes from {least:g} up: "
            "set a smaller train.step_size, or data.standardize = true"
        )
    arrived = [forecast for forecast in running if forecast.rounds is not None]
    if not arrived:
        best = min(running, key=lambda forecast: forecast.lowest)
        if not best.simulated:
            return None, "Nothing is recommended: time was up before any pilot run took a round. Give more seconds."
        return None, (
            "Nothing is recommended: time was up before any pilot run got to the target. Give more seconds or a higher "
            f"target; {_named(best)} came closest, with a loss of {best.lowest:.4g} after "
            f"{counted(best.simulated, 'round')}."
        )
    best = min(arrived, key=lambda forecast: forecast.seconds)
    parts = [f"{_named(best)} is the fastest on this network, {duration(best.seconds)} predicted"]
    parts += _below(best, arrived[0])
    parts += _above(best, [forecast for forecast in forecasts if forecast.local_steps > best.local_steps])
    unknown = [forecast for forecast in running if forecast.rounds is None and forecast.seconds < best.seconds]
    if unknown:
        listed = ", ".join(str(forecast.local_steps) for forecast in unknown)
        parts.append(f"time was up before it was known whether Q = {listed} is faster")
    return best, "; ".join(parts) + "."


def _named(forecast: Forecast) -> str:
    return f"Q = {forecast.local_steps} with step_size = {rounded_down(forecast.step_size)}"


def _below(best: Forecast, least: Forecast) -> list[str]:
    if least is best:
        return []
    times = least.seconds / best.seconds
    return [f"Q = {least.local_steps} takes {times:.2g} times as long, since it pays a round's latency more often"]


def _above(best: Forecast, larger: Sequence[Forecast]) -> list[str]:
    if not larger:
        return ["it is the largest Q tried, and a larger one might be faster still"]
    above = larger[0]
    if best.step_size in above.diverged:
        return [f"Q = {above.local_steps} diverges with that step size"]
    assert best.rounds is not None
    if above.least_rounds > best.rounds:
        return ["beyond it, staleness costs rounds instead of saving them"]
    if above.least_rounds == best.rounds:
        return ["beyond it, no more rounds are saved"]
    return ["beyond it, a round's local steps and phi cost more than the rounds saved are worth"]
