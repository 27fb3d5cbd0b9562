"""What a communication round costs, for any number of local steps and any variant."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from tdcd.compare.compute import Compute, given, measured
from tdcd.compare.prediction import Prediction, predict
from tdcd.config.resolve import Plan
from tdcd.core.ledger import Ledger, Traffic
from tdcd.core.network import Network
from tdcd.core.pace import Work
from tdcd.training.train import ledger_of, simulate

STEPS_TIMED = 10
"""Local steps over which a client's computing is measured, so that the call around them hardly counts."""


class Cost(NamedTuple):
    """Of a plan's rounds."""

    ledger: Ledger
    """What they send."""
    prediction: Prediction
    """What each silo does in them, and who waits for whom."""

    @property
    def seconds(self) -> float:
        """What one takes in the long run, predicted."""
        return self.prediction.seconds_per_round

    def after(self, rounds: int) -> float:
        """What the first rounds take, predicted; with overlap, nothing is hidden before the first."""
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
