"""Processes that a service starts: they end when it does, and stay within its limits."""

import gc
import os
import resource
import signal
import socket
import subprocess
import sys
import traceback
import zlib
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import NoReturn

from tdcd.runtime.process.forking import ForkedProcess, serve, start_copy

GB = 10**9
CRASHED = 1


def start_child(module: str, words: list[str]) -> "subprocess.Popen[bytes]":
    """Run a module with the service's own output."""
    command = [sys.executable, "-m", module, *words]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


class StepServer:
    """A copy of the service from before it has links and threads, of which each step of a job is a copy.

    So a step has imported everything and read the log when it begins, and shares the service's memory.
    """

    def __init__(self, run: Callable[..., int], prepare: Callable[[], object]) -> None:
        """Copy this process, which must have no thread of Python's or zenoh's.

        Args:
            run: a step, in a process of its own; returns its exit status.
            prepare: called in the copy before each step.
        """
        self._control, theirs = socket.socketpair()
        # The collector would write to all that it looks at, and what is written is not shared any more.
        gc.freeze()
        if not os.fork():
            self._control.close()
            _serve_steps(theirs, run, prepare)
        theirs.close()

    def start(self, words: list[str], log: Path) -> ForkedProcess:
        """A process that runs a step with these words, and adds its output to a file.

        Raises:
            RuntimeError: the copy has ended, and takes the service with it: threads keep that from making another one.
        """
        with log.open("ab") as file:
            try:
                return start_copy(self._control, words, file.fileno(), os.environ)
            except ConnectionError:
                why = "the process that steps are copies of has ended: start the service again, the job continues"
                raise RuntimeError(why) from None

    def close(self) -> None:
        """End it; a step that runs ends with the service."""
        self._control.close()


def _serve_steps(control: socket.socket, run: Callable[..., int], prepare: Callable[[], object]) -> NoReturn:
    """Wait for steps; nothing of the service's that is further up is done in a copy of it."""
    status = 0
    try:
        os.setsid()
        # It ends when the service does, which may want to end a step first.
        before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
        serve(control, prepare)
        for number in before:
            signal.signal(number, signal.SIG_DFL)
        status = CRASHED
        status = run(*sys.argv[1:])
    except SystemExit:
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def limit_cores(number: int | None, party: str) -> None:
    """Let this process, and what it starts, have so many of its cores: parties on one machine get others by chance."""
    if number is None:
        return
    # Imported where it is asked for: most parties have no such limit.
    from threadpoolctl import threadpool_limits  # noqa: PLC0415

    ordered = sorted(os.sched_getaffinity(0))
    first = zlib.crc32(party.encode())
    os.sched_setaffinity(0, {ordered[(first + index) % len(ordered)] for index in range(number)})
    # As many as there were cores when it was imported.
    threadpool_limits(number)


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
