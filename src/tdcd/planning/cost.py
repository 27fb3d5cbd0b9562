"""What a communication round costs, for any number of local steps."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from tdcd.compare.compute import Compute, given, measured
from tdcd.config.resolve import Plan
from tdcd.core.ledger import Traffic, item_bytes, phi_bytes
from tdcd.core.network import Network, round_seconds
from tdcd.training.recording import count_parameters
from tdcd.training.run import simulate
from tdcd.training.train import ledger_of

STEPS_TIMED = 10
"""Local steps over which a client's computing is measured, so that the call around them hardly counts."""


class Cost(NamedTuple):
    """Of one round."""

    traffic: Traffic
    """Bytes."""
    seconds: float
    """Predicted, on the network."""


def with_local_steps(planned: Plan, local_steps: int) -> Plan:
    """The same plan with another Q."""
    return planned._replace(settings=replace(planned.settings, local_steps=local_steps))


def round_costs(planned: Plan, network: Network, step_seconds: float | None) -> Callable[[int], Cost]:
    """The cost of a round as a function of Q.

    Args:
        step_seconds: what a client takes for a local step; measured here if None, once for every Q.
    """
    simulation, federation = simulate(planned), planned.federation
    blocks = simulation.init().blocks
    parameters = count_parameters(blocks)
    compute, itemsize = _computing(planned, step_seconds), item_bytes(planned.settings)

    def cost(local_steps: int) -> Cost:
        settings = with_local_steps(planned, local_steps).settings
        phi = phi_bytes(settings, federation.num_samples, simulation.num_outputs, planned.variant)
        seconds = round_seconds(
            network,
            parameters=parameters,
            shares=[silo.shares.max() for silo in federation.silos],
            phi=phi,
            itemsize=itemsize,
            phi_seconds=settings.num_exchanged * compute.phi_seconds,
            step_seconds=compute.step_seconds,
            local_steps=local_steps,
        )
        ledger = replace(ledger_of(simulation, blocks), phi=phi)
        return Cost(ledger.traffic(1, "bytes"), seconds)

    return cost


def _computing(planned: Plan, step_seconds: float | None) -> Compute:
    """What the slowest client takes for a local step, and for the phi of one minibatch."""
    timed = with_local_steps(planned, STEPS_TIMED)
    compute = measured(timed, simulate(timed)) if step_seconds is None else given(step_seconds, timed)
    return compute._replace(phi_seconds=compute.phi_seconds / timed.settings.num_exchanged)
