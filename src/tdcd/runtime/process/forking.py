"""Processes as copies of one that has imported everything, so that each starts at once.

A party takes a second of work to import what it needs, and a trial of eight takes longest over that. So does each step
of a job, in a service. Where copies of a process are not safe, every party of a trial is a new interpreter instead.
"""

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Protocol

_PARTY, _JAX = b"+", b"j"
"""What a server is asked for: a party, or to import JAX."""


class PartyProcess(Protocol):
    """A party that was started; a part of what :class:`subprocess.Popen` has, with the same meaning."""

    @property
    def pid(self) -> int:
        """The number of the process."""

    @property
    def returncode(self) -> int | None:
        """The exit status as far as it is known; negative for the signal that ended it."""

    def poll(self) -> int | None:
        """The exit status, or None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, when it has ended."""

    def send_signal(self, sig: int) -> None:
        """Send it a signal, if it still runs."""

    def kill(self) -> None:
        """End it at once."""


def start_party(arguments: Sequence[str], log: Path, variables: Mapping[str, str]) -> PartyProcess:
    """Run ``tdcd`` with these arguments in a process and a session of its own, with its output added to ``log``."""
    with log.open("ab") as file:
        if sys.platform == "linux":
            return _fork_server().start(arguments, file.fileno(), variables)
        command = [sys.executable, "-m", "tdcd", *arguments]
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=variables, start_new_session=True
        )


def warm_up(*, with_jax: bool = False) -> None:
    """Start the process that parties are copied from: it imports what they need while this one does something else.

    Args:
        with_jax: whether they need that, too; each would have to import it by itself.
    """
    if sys.platform == "linux":
        server = _fork_server()
        if with_jax:
            server.import_jax()


def environment() -> dict[str, str]:
    """The environment of a party. Many share this machine's cores: each does its arithmetic in one thread."""
    flags = os.environ.get("XLA_FLAGS", "")
    single_thread = {
        "XLA_FLAGS": f"{flags} --xla_cpu_multi_thread_eigen=false".strip(),
        "OMP_NUM_THREADS": "1",
        "NPROC": "1",
    }
    return {**os.environ, **single_thread}


class ForkServer:
    """The process that is copied. It has imported everything and computed nothing, and so has one thread."""

    def __init__(self) -> None:
        """Start it; it ends when this process does."""
        self._control, theirs = socket.socketpair()
        self._has_jax = False
        command = [sys.executable, "-m", "tdcd.cli.forked", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=environment(),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def close(self) -> None:
        """End it; the parties that it started continue."""
        self._control.close()
        self._process.kill()
        self._process.wait()

    def import_jax(self) -> None:
        """Have it import JAX, too; what it was asked for before comes first."""
        if not self._has_jax:
            self._has_jax = True
            self._control.sendall(_JAX)

    def start(self, arguments: Sequence[str], log: int, variables: Mapping[str, str]) -> "ForkedProcess":
        """See :func:`start_party`; ``log`` is an open file."""
        return start_copy(self._control, arguments, log, variables)


def start_copy(
    control: socket.socket, arguments: Sequence[str], log: int, variables: Mapping[str, str]
) -> "ForkedProcess":
    """Ask the process that :func:`serve` serves at the other end for a copy of it."""
    channel, theirs = socket.socketpair()
    with theirs:
        socket.send_fds(control, [_PARTY], [theirs.fileno(), log])
    wanted = {"arguments": [*arguments], "environment": {**variables}, "folder": str(Path.cwd())}
    channel.sendall(json.dumps(wanted).encode() + b"\n")
    return ForkedProcess(channel)


class ForkedProcess:
    """A copy of the fork server that has become a party, or a step; its standard input ends when who asked does."""

    def __init__(self, channel: socket.socket) -> None:
        """Take the socket on which its parent sends its process id, and later its exit status."""
        self.returncode: int | None = None
        self._channel = channel
        self._replies = channel.makefile("rb")
        line = self._replies.readline()
        if not line:
            raise ConnectionError("the process that starts parties has ended: give the command again")
        self.pid = int(line)

    def poll(self) -> int | None:
        """See :class:`PartyProcess`."""
        if self.returncode is None and select.select([self._channel], [], [], 0)[0]:
            self._end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """See :class:`PartyProcess`."""
        if self.returncode is None:
            if not select.select([self._channel], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            self._end()
        assert self.returncode is not None
        return self.returncode

    def _end(self) -> None:
        line = self._replies.readline()
        # The process that watched over it was killed, and it has ended, too: how is not known.
        self.returncode = int(line) if line else -signal.SIGKILL
        self._replies.close()
        self._channel.close()

    def send_signal(self, sig: int) -> None:
        """See :class:`PartyProcess`."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        """See :class:`PartyProcess`."""
        self.send_signal(signal.SIGKILL)

    def end_input(self) -> None:
        """End its standard input; those that read it leave by that."""
        if self.poll() is None:
            self._channel.shutdown(socket.SHUT_WR)


@cache
def _fork_server() -> ForkServer:
    server = ForkServer()
    atexit.register(server.close)
    return server


def serve(control: socket.socket, prepare: Callable[[], object] = lambda: None) -> None:
    """Start a party whenever one is asked for; returns in the party's own process alone.

    Args:
        prepare: called each time before the process is copied.
    """
    # The process that watches over a party ends after it; no process waits for that.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()
    while True:
        asked, files, _, _ = socket.recv_fds(control, 1, 2)
        if not asked:
            sys.exit()
        prepare()
        if asked == _JAX:
            importlib.import_module("jax")
            continue
        if not os.fork():
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return _begin(*files)
        for file in files:
            os.close(file)


def _begin(channel: int, log: int) -> None:
    """In a copy of the server: start the party in a copy of this, report how it ended; returns in the party alone."""
    with socket.socket(fileno=channel) as asker, asker.makefile("rb") as lines:
        wanted = json.loads(lines.readline())
        party = os.fork()
        if party:
            os.close(log)
            # Who asked may have ended by now.
            with suppress(OSError):
                asker.sendall(b"%d\n" % party)
            _, status = os.waitpid(party, 0)
            with suppress(OSError):
                asker.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
            os._exit(0)
        os.dup2(asker.fileno(), 0)
    os.setsid()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.chdir(wanted["folder"])
    os.environ.clear()
    os.environ.update(wanted["environment"])
    sys.argv[1:] = wanted["arguments"]
