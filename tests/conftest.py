"""What all tests share: a cache of compiled programs, where temporary files are, and three plugins of tests/support.

The cache is shared by all workers and by the processes that tests start; it is new in every session, so no result
depends on an earlier one.
Temporary files are in memory if there is room: hubs wait for the disk again and again, and no test cuts the power.
"""

import gc
import os
import shutil
import tempfile
from pathlib import Path

import pytest

collect_ignore_glob = ["*/conftest.py"]
"""They have no doctests; collected for those, two folders' would be two modules of one name."""
CACHE = "JAX_COMPILATION_CACHE_DIR"
IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ
MEMORY, ROOM_BYTES = Path("/dev/shm"), 2**31

if not IS_WORKER:  # before JAX is imported, which reads it; workers and other processes inherit it
    os.environ[CACHE] = tempfile.mkdtemp(prefix="tdcd-compiled-")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


pytest.register_assert_rewrite("support")  # before any of it is imported
pytest_plugins = ["support.examples", "support.memory", "support.quick"]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    """What is imported and collected by now stays until the end: the collector of garbage need not look at it again."""
    gc.freeze()


def pytest_unconfigure():
    if not IS_WORKER:
        shutil.rmtree(os.environ[CACHE], ignore_errors=True)
