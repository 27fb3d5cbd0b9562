"""Parties as on machines of their own: one network namespace each, with its own address, all on one switch."""

import os
import secrets
import shutil
import subprocess
import sys
from contextlib import contextmanager


def unable() -> str:
    """Why there can be none here; nothing if there can."""
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("ss") is None:
        return "needs Linux, root and the commands ip and ss"
    return ""


def ip(*words):
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


@contextmanager
def machines(addresses):
    """One network namespace for each party, by the party's name; ``addresses`` has theirs."""
    mark = secrets.token_hex(2)
    switch, spaces = f"tdcd-{mark}", {party: f"tdcd-{mark}-{place}" for place, party in enumerate(addresses)}
    try:
        ip("netns", "add", switch)
        ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", switch, "link", "set", "bridge", "up")
        for place, (party, space) in enumerate(spaces.items()):
            ip("netns", "add", space)
            ip("-n", space, "link", "add", "eth", "type", "veth", "peer", "name", f"port{place}", "netns", switch)
            ip("-n", switch, "link", "set", f"port{place}", "master", "bridge", "up")
            ip("-n", space, "address", "add", f"{addresses[party]}/24", "dev", "eth")
            ip("-n", space, "link", "set", "eth", "up")
        yield spaces
    finally:
        for space in (switch, *spaces.values()):
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)


def listening(space):
    """The ports on which a process in a namespace accepts connections."""
    lines = subprocess.run(["ip", "netns", "exec", space, "ss", "-Hltn"], check=True, capture_output=True, text=True)
    return [line.split()[3].rpartition(":")[2] for line in lines.stdout.splitlines()]
