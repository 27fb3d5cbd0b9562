"""What a communication round costs, for any number of local steps."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import jax
import numpy as np

from tdcd.compare.compute import Compute, given, measured
from tdcd.compare.network import Network, round_seconds
from tdcd.config.resolve import Plan
from tdcd.core.ledger import Traffic, by_link, round_messages
from tdcd.core.schedule import num_exchanged
from tdcd.training.run import simulate

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
    simulation, settings = simulate(planned), planned.settings
    silos = planned.federation.silos
    parameters = [sum(leaf.size for leaf in jax.tree.leaves(block)) for block in simulation.init().blocks]
    compute, itemsize = _computing(planned, step_seconds), np.dtype(settings.dtype).itemsize

    def cost(local_steps: int) -> Cost:
        exchanged = num_exchanged(settings.minibatches, local_steps)
        samples, outputs = exchanged * simulation.batch_size, simulation.num_outputs
        seconds = round_seconds(
            network,
            parameters=parameters,
            clients=[[len(rows) for rows in silo.rows] for silo in silos],
            samples=samples,
            outputs=outputs,
            itemsize=itemsize,
            phi_seconds=exchanged * compute.phi_seconds,
            step_seconds=compute.step_seconds,
            local_steps=local_steps,
        )
        num_clients = [silo.num_clients for silo in silos]
        sent = round_messages(parameters, num_clients, samples=samples, outputs=outputs, itemsize=itemsize)
        return Cost(by_link(sent, "bytes"), seconds)

    return cost


def _computing(planned: Plan, step_seconds: float | None) -> Compute:
    """What the slowest client takes for a local step, and for the phi of one minibatch."""
    timed = with_local_steps(planned, STEPS_TIMED)
    compute = measured(timed, simulate(timed)) if step_seconds is None else given(step_seconds, timed)
    exchanged = num_exchanged(timed.settings.minibatches, STEPS_TIMED)
    return compute._replace(phi_seconds=compute.phi_seconds / exchanged)
