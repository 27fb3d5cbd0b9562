"""The memory of a process that runs tests is bounded: it forgets its compiled programs when they have become many.

Every test compiles programs of its own, a megabyte each, and JAX keeps them. What is used again comes from the cache of
the session; see tests/conftest.py.
"""

import ctypes
import gc
import os
import sys
from pathlib import Path

import jax
import pytest

from tdcd.simulation.engines.base import compiled

MOST_BYTES, GROWTH_BYTES = 2 * 10**9, 5 * 10**8
STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Of this process, now."""
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Bound:
    """When the programs are forgotten: at so many bytes, but not again before as many as a few tests take are new."""

    def __init__(self) -> None:
        self.limit = MOST_BYTES

    def keep(self) -> None:
        """Forget the programs if this process has become too large."""
        if resident_bytes() <= self.limit:
            return
        compiled.cache_clear()
        jax.clear_caches()
        gc.collect()
        # What was freed is in the hands of the C library, in one heap per thread that has ever compiled.
        ctypes.CDLL(None).malloc_trim(0)
        self.limit = max(MOST_BYTES, resident_bytes() + GROWTH_BYTES)


BOUND = Bound()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    if sys.platform == "linux":
        BOUND.keep()
