"""Runs of the same shapes in one compiled program: when it pays, and for how many at once."""

from math import prod

import jax
import numpy as np

from tdcd.blocks import Linear
from tdcd.config.resolve import Plan
from tdcd.federation.placement import Placer
from tdcd.simulation.simulate import FITS_WELL

CELLS = 1 << 15
"""Linear blocks are batched in groups if a silo's clients times the rows of a minibatch are no more than this."""
TINY = 1 << 14
"""Other blocks are batched on a CPU if all clients' rows of a minibatch are fewer numbers than this."""
AT_ONCE_ON_CPU, AT_ONCE = 1 << 17, 1 << 28
"""Most cells, or numbers, of all runs of a batch of runs: a CPU's cache holds few, an accelerator's memory many."""


def runs_at_once(plan: Plan) -> int:
    """How many runs like this one go into one batch of runs; at most 1 if it had better run by itself."""
    federation, settings = plan.federation, plan.settings
    rows, cpu = settings.effective_batch_size(federation.num_samples), jax.default_backend() == "cpu"
    if _stays_on_host(plan):
        return 1
    if all(type(block) is Linear for block in plan.blocks):
        cells = rows * max(silo.num_clients for silo in federation.silos)
        return (AT_ONCE_ON_CPU if cpu else AT_ONCE) // cells if cells <= CELLS else 1
    numbers = max(
        silo.num_clients * Placer(silo.owner(), rows).usual * prod(silo.feature_shape) for silo in federation.silos
    )
    if cpu:
        return AT_ONCE_ON_CPU // numbers if numbers < TINY else 1
    return AT_ONCE // (numbers * federation.num_silos * settings.num_exchanged)


def _stays_on_host(plan: Plan) -> bool:
    """Whether the data is to stay in a file, or outside an accelerator's memory: a batch of runs puts it there."""
    tables = [silo.features for silo in plan.federation.silos]
    if any(isinstance(table, np.memmap) for table in tables):
        return True
    if jax.default_backend() == "cpu" or plan.config.data.keep != "auto":
        return plan.config.data.keep == "host"
    memory = jax.local_devices()[0].memory_stats()["bytes_limit"]
    return bool(sum(table.nbytes for table in tables) > FITS_WELL * memory)
