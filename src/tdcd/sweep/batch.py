"""Runs of the same shapes in one compiled program: when it pays, and for how many at once."""

from collections.abc import Sequence
from math import prod
from typing import Protocol

import jax
import numpy as np

from tdcd.blocks import Linear
from tdcd.objective import Tree
from tdcd.placement import Placer
from tdcd.run import Plan
from tdcd.simulate import FITS_WELL
from tdcd.sweep.client_batch import ClientBatch
from tdcd.sweep.lane_batch import LaneBatch
from tdcd.sweep.together import batch_size, exchanged

CELLS = 1 << 15
"""Linear blocks go into lanes if a silo's clients times the rows of a minibatch are no more than this."""
TINY = 1 << 14
"""Other blocks are batched on a CPU if all clients' rows of a minibatch are fewer numbers than this."""
AT_ONCE_ON_CPU, AT_ONCE = 1 << 17, 1 << 28
"""Most cells, or numbers, of all runs of a batch: a CPU's cache holds few, an accelerator's memory many."""


class Batch(Protocol):
    """Runs rounds of S runs."""

    def advance(self, hub_blocks: list[Tree], first_round: int, num_rounds: int) -> list[Tree]:
        """The hub blocks, ``[S, ...]`` each, so many rounds later. Returns before the device has finished."""
        ...


def batch_of(plans: Sequence[Plan], every: int) -> Batch:
    """A batch of runs with the same data, clients and settings but for seed, step size and l2.

    Args:
        every: rounds between two evaluations.
    """
    return LaneBatch(plans, every) if _in_lanes(plans[0]) else ClientBatch(plans, every)


def runs_at_once(plan: Plan) -> int:
    """How many runs like this one go into a batch; at most 1 if it had better run by itself."""
    rows, cpu = batch_size(plan), jax.default_backend() == "cpu"
    if _stays_on_host(plan):
        return 1
    if _in_lanes(plan):
        cells = rows * max(silo.num_clients for silo in plan.federation.silos)
        return (AT_ONCE_ON_CPU if cpu else AT_ONCE) // cells
    numbers = max(
        silo.num_clients * Placer(silo.owner(), rows).usual * prod(silo.feature_shape) for silo in plan.federation.silos
    )
    if cpu:
        return AT_ONCE_ON_CPU // numbers if numbers < TINY else 1
    return AT_ONCE // (numbers * plan.federation.num_silos * exchanged(plan))


def _in_lanes(plan: Plan) -> bool:
    clients = max(silo.num_clients for silo in plan.federation.silos)
    return all(type(block) is Linear for block in plan.blocks) and clients * batch_size(plan) <= CELLS


def _stays_on_host(plan: Plan) -> bool:
    """Whether the data is to stay in a file, or outside an accelerator's memory: a batch puts it there."""
    tables = [silo.features for silo in plan.federation.silos]
    if any(isinstance(table, np.memmap) for table in tables):
        return True
    if jax.default_backend() == "cpu" or plan.config.data.keep != "auto":
        return plan.config.data.keep == "host"
    memory = jax.local_devices()[0].memory_stats()["bytes_limit"]
    return bool(sum(table.nbytes for table in tables) > FITS_WELL * memory)
