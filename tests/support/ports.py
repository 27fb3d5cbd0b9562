"""Ports of this machine at which nobody listens, for processes that are to."""

import itertools
import os
import socket
from contextlib import suppress

FIRST, COUNT = 10_000, 20_000
"""Ports that the system gives to nobody who dials: between the choice and the use, no other test's link takes one."""
_NUMBERS = itertools.count(61 * os.getpid())
"""Workers that run tests side by side begin at different ones."""


def free_ports(count):
    ports = []
    while len(ports) < count:
        port = FIRST + next(_NUMBERS) % COUNT
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports.append(port)
    return ports


def free_address():
    return f"127.0.0.1:{free_ports(1)[0]}"
