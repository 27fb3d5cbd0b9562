"""What all tests share: a profile of hypothesis, and a cache of compiled programs.

The profile has the same examples on every run, and no deadline, since programs compile. The cache is shared by all
workers and by the processes that tests start; it is new in every session, so no result depends on an earlier one.
"""

import os
import shutil
import tempfile

from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")

CACHE = "JAX_COMPILATION_CACHE_DIR"
IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ

if not IS_WORKER:  # before JAX is imported, which reads it; workers and other processes inherit it
    os.environ[CACHE] = tempfile.mkdtemp(prefix="tdcd-compiled-")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"


def pytest_unconfigure():
    if not IS_WORKER:
        shutil.rmtree(os.environ[CACHE], ignore_errors=True)
