"""What it takes to move raw data to where a baseline needs it, in bytes.

Only training samples count, for every algorithm; a column of ones is made where it is needed. A value counts
once, from the client that has it to the place where the algorithm works with it.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tdcd.core.ledger import Moved
from tdcd.federation.silos import Silo

if TYPE_CHECKING:
    from tdcd.config.resolve import Plan


def to_one_place(plan: "Plan") -> tuple[Moved, ...]:
    """All columns of all rows, and every label once, to a place outside of all silos."""
    samples = plan.federation.num_samples
    sizes = [samples * row_bytes(plan, silo) for silo in plan.federation.silos]
    sizes[0] += samples * label_bytes(plan)
    return (Moved("hub_to_hub", tuple(sizes)),)


def to_hubs(plan: "Plan") -> tuple[Moved, ...]:
    """In each silo the rows of all clients and their labels to the hub; a silo's only client is where its hub is."""
    sizes = [
        held * (row_bytes(plan, silo) + label_bytes(plan))
        for silo in plan.federation.silos
        if silo.num_clients > 1
        for held in silo.rows_held.tolist()
    ]
    return (Moved("client_to_hub", tuple(sizes)),)


def to_homes(plan: "Plan", homes: NDArray[np.int64]) -> tuple[Moved, ...]:
    """The columns of every other silo to the silo that a sample is at home in, which has its label.

    Args:
        homes: ``[M]``, the silos' numbers.
    """
    sizes = [int(np.sum(homes != number)) * row_bytes(plan, silo) for number, silo in enumerate(plan.federation.silos)]
    return (Moved("hub_to_hub", tuple(sizes)),)


def row_bytes(plan: "Plan", silo: Silo) -> int:
    """The bytes of a silo's raw columns of one sample: a category is one value, however many features it became."""
    from tdcd.tables.preparation import preparation_of  # noqa: PLC0415 - it needs JAX, and reading a configuration none

    each = silo.value_bytes or np.dtype(plan.settings.dtype).itemsize
    return len(preparation_of(silo).parts) * each


def label_bytes(plan: "Plan") -> int:
    """The bytes of one label."""
    return plan.objective.label_dtype(plan.settings.dtype).itemsize
