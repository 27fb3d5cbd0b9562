"""Processes that a service starts: they end when it does, and stay within its limits."""

import os
import resource
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import IO

GB = 10**9


def start_child(
    module: str, words: list[str], output: IO[bytes] | None = None, cores: int | None = None
) -> "subprocess.Popen[bytes]":
    """Run a module; by default its output is the service's own.

    Args:
        cores: how many it may use.
    """
    with _on_cores(cores, words):
        return subprocess.Popen(
            [sys.executable, "-m", module, *words],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


@contextmanager
def _on_cores(number: int | None, words: list[str]) -> Iterator[None]:
    """What this thread starts gets so many of its cores; those of several parties on one machine differ by chance."""
    allowed = os.sched_getaffinity(0)
    if number is not None:
        first, ordered = zlib.crc32(" ".join(words).encode()), sorted(allowed)
        os.sched_setaffinity(0, {ordered[(first + index) % len(ordered)] for index in range(number)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def limit_memory(memory: float | None) -> None:
    """Let this process have so many GB of its own; the system gives it no more, and it ends with a MemoryError."""
    if memory is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (round(memory * GB), resource.getrlimit(resource.RLIMIT_DATA)[1]))


def lift_memory_limit() -> None:
    """Take :func:`limit_memory` back: a process that has reached its limit needs some more to say so."""
    most = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def beyond_machine(memory: float | None, cores: int | None) -> list[str]:
    """Why limits limit nothing."""
    has_cores = len(os.sched_getaffinity(0))
    has_memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GB
    problems = []
    if memory is not None and memory > has_memory:
        problems.append(f"memory = {memory:g}: this machine has {has_memory:.1f} GB")
    if cores is not None and cores > has_cores:
        problems.append(f"cores = {cores}: this process may use {has_cores}")
    return problems


def end_with_service(end: Callable[[], object]) -> None:
    """In a process that a service has started: call ``end`` when the service has ended, however that was."""

    def wait() -> None:
        # The service holds the other end open.
        while os.read(0, 1):
            pass
        end()

    Thread(target=wait, daemon=True).start()
