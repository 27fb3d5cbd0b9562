"""What may be wrong with a machine that is to run a party, and what to do about it. Nothing is trained or sent."""

import os
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from tdcd.config import Config
from tdcd.federation import client_of, hub_of
from tdcd.runtime.certificates.check import authority_path, cautions, explain, read_secret
from tdcd.runtime.certificates.issue import SECRET
from tdcd.runtime.certificates.revocation import watched_list

Level = Literal["ok", "caution", "wrong"]

NEEDED = ("jax", "jaxlib", "numpy", "scikit-learn", "safetensors", "msgspec", "optax", "pydantic", "eclipse-zenoh")
OLDEST_PYTHON = (3, 11)
LITTLE_DISK, SCARCE_DISK = 1 << 30, 100 << 20
CONNECT_S = 2.0
LAST_PORT = 65535
SKEW_S = 86400.0
"""How far before the installed files' own times a clock may be: archives keep no time zone."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    subject: str
    level: Level
    words: str
    """What it is; if it is not ok, what is wrong and what to do."""


@dataclass(frozen=True)
class Party:
    """Who this machine is to be: a hub, a client of it, or anybody if there is no silo."""

    silo: str | None = None
    client: str | None = None
    certs: Path | None = None
    listen: str | None = None
    """Where a hub listens, if that is not its address in the shared file."""


def examine_machine(folder: Path) -> Iterator[Finding]:
    """Versions, devices, disk and clock; ``folder`` is where runs go."""
    yield from _versions()
    yield _devices()
    yield _disk(folder)
    yield clock(time.time(), Path(__file__).stat().st_mtime)


def _versions() -> Iterator[Finding]:
    python = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < OLDEST_PYTHON:
        yield Finding("Python", "wrong", f"{python} is too old: tdcd needs 3.11 or newer")
    installed, missing = [f"tdcd {sys.modules['tdcd'].__version__}", f"Python {python}"], []
    for name in NEEDED:
        try:
            installed.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    yield Finding("versions", "ok", ", ".join(installed))
    if missing:
        yield Finding("versions", "wrong", f"{', '.join(missing)}: not installed; pip install tdcd")


def _devices() -> Finding:
    try:
        import jax  # noqa: PLC0415 - a broken installation is one of the things to find

        devices = jax.devices()
    except (ImportError, RuntimeError, OSError) as error:
        return Finding("devices", "wrong", f"JAX does not start: {error}; pip install --upgrade jax jaxlib")
    kinds = ", ".join(sorted({f"{device.platform} {device.device_kind}" for device in devices}))
    if devices[0].platform == "cpu" and Path("/proc/driver/nvidia/version").exists():
        return Finding(
            "devices", "caution", f'{kinds}: there is an NVIDIA GPU that JAX does not use; pip install "jax[cuda13]"'
        )
    return Finding("devices", "ok", f"{len(devices)}: {kinds}; {os.cpu_count()} cores")


def _disk(folder: Path) -> Finding:
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        return Finding("disk", "wrong", f"{there} cannot be written: choose another folder with --out")
    free = shutil.disk_usage(there).free
    words = f"{free / 1e9:.1f} GB free in {there}"
    if free < LITTLE_DISK:
        level: Level = "wrong" if free < SCARCE_DISK else "caution"
        return Finding("disk", level, f"{words}: make room, or choose another folder with --out")
    return Finding("disk", "ok", words)


def clock(now: float, installed: float) -> Finding:
    """Whether the time can be: tdcd was installed before it. Certificates are checked against the same clock."""
    words = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    if now < installed - SKEW_S:
        made = datetime.fromtimestamp(installed, UTC).strftime("%Y-%m-%d")
        return Finding("clock", "wrong", f"{words}, but tdcd was installed on {made}: set the clock (timedatectl)")
    return Finding("clock", "ok", words)


def examine_federation(config: Config, party: Party) -> Iterator[Finding]:
    """Addresses and certificates of a federation, as this party sees them."""
    if not config.silos:
        yield Finding(
            "federation", "caution", "no [[silos]]: the file can be simulated; real parties need them by name"
        )
        return
    for silo in config.silos:
        if party.client is not None and silo.name != party.silo:
            continue
        if silo.hub is None:
            yield Finding(hub_of(silo.name), "caution", 'no address: add hub = "host:port" before real parties start')
        elif silo.name == party.silo and party.client is None:
            yield can_listen(hub_of(silo.name), party.listen or silo.hub, given=party.listen is not None)
        elif party.client is None and party.silo in config.silo_names and not config.dials(party.silo, silo.name):
            yield Finding(hub_of(silo.name), "ok", "dials this hub, and need not be reached from here")
        else:
            yield can_reach(hub_of(silo.name), silo.hub)
    if party.certs is not None:
        yield from _certificates(config, party, party.certs)


def can_listen(hub: str, address: str, given: bool = False) -> Finding:
    """Whether a hub's port is free on this machine."""
    host, _, port = address.rpartition(":")
    if int(port) > LAST_PORT:
        return _no_port(hub, address)
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    # The name that others dial need not be an address of this machine: a hub listens on all interfaces.
    own = host.strip("[]") if given or _is_loopback(host) else ""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((own, int(port)))
    except OSError as error:
        words = f"cannot listen at {address}: {error}; stop what uses the port, or listen elsewhere with --listen"
        return Finding(hub, "wrong", words)
    return Finding(hub, "ok", f"port {port} is free")


def can_reach(hub: str, address: str) -> Finding:
    """Whether a process listens at a hub's address."""
    host, _, port = address.rpartition(":")
    if int(port) > LAST_PORT:
        return _no_port(hub, address)
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_S):
            return Finding(hub, "ok", f"{address} answers")
    except ConnectionRefusedError:
        return Finding(hub, "caution", f"nothing listens at {address} yet: start the hub; the others wait for it")
    except socket.gaierror:
        return Finding(
            hub, "wrong", f"{host} is not a known host name: correct 'hub' in the file, or ask for a DNS entry"
        )
    except OSError as error:
        words = f"{address} cannot be reached: {error or 'no answer'}; ask for TCP port {port} to be opened"
        return Finding(hub, "wrong", words)


def _no_port(hub: str, address: str) -> Finding:
    words = f"{address}: there is no port {address.rpartition(':')[2]}: ports go up to {LAST_PORT}"
    return Finding(hub, "wrong", words)


def _certificates(config: Config, party: Party, folder: Path) -> Iterator[Finding]:
    """The certificates of this party; of all parties in the folder if none is given."""
    hosts = {hub_of(silo.name): silo.hub.rpartition(":")[0].strip("[]") for silo in config.silos if silo.hub}
    if party.silo is not None:
        wanted = [hub_of(party.silo) if party.client is None else client_of(party.silo, party.client)]
    else:
        every = [hub_of(silo.name) for silo in config.silos]
        every += [client_of(silo.name, client) for silo in config.silos for client in silo.client_names]
        wanted = [name for name in every if (folder / f"{name}.pem").exists()]
    if not wanted:
        yield Finding("certificates", "caution", f"none of this federation's parties has one in {folder}")
    for name in wanted:
        yield from _certificate(folder, name, hosts.get(name), config.federation.name)


def _certificate(folder: Path, name: str, host: str | None, federation: str | None) -> Iterator[Finding]:
    certificate, key, authority = folder / f"{name}.pem", folder / f"{name}.key", authority_path(folder, name)
    problems = explain(certificate, key, authority, name, host, federation=federation)
    try:
        if not problems:
            problems += watched_list(folder, name, lambda news: None).current.problems(certificate)
        if name.startswith("hub."):
            read_secret(folder / SECRET)
    except (ValueError, OSError) as error:
        problems.append(str(error))
    yield from (Finding(f"certificate of {name}", "wrong", problem) for problem in problems)
    if not problems:
        careful = cautions(certificate, key)
        yield from (Finding(f"certificate of {name}", "caution", caution) for caution in careful)
        if not careful:
            yield Finding(f"certificate of {name}", "ok", "good")


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "[::1]") or host.startswith("127.")
