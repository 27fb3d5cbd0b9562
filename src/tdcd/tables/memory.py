"""Memory for columns, which Arrow keeps at hand: asking the system for fresh memory takes longer than filling it."""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def room_for(rows: int, dtype: Any) -> NDArray[Any]:
    """``[rows]``: room for a column, with nothing in it yet."""
    return np.frombuffer(pa.allocate_buffer(rows * np.dtype(dtype).itemsize), dtype)


def give_back_memory() -> None:
    """Give the system what Arrow keeps for further columns, when no more tables are to be read."""
    pa.default_memory_pool().release_unused()
