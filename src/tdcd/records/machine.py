"""What a run was made with: versions of the software, and the machine."""

import os
import platform
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tdcd.core.lazy import jax

PACKAGES = ("jax", "jaxlib", "numpy", "optax", "safetensors")
"""Whose versions may change the last bits of a run."""
GIT_S = 5.0


@cache
def versions() -> dict[str, str]:
    """Of tdcd, with its commit if it runs from a checkout or was told, of Python, and of what computes."""
    # The package itself is above all layers: it imports them.
    found = {"tdcd": str(sys.modules["tdcd"].__version__), "python": platform.python_version()}
    commit = commit_of(Path(__file__).parents[1])
    if commit:
        found["commit"] = commit
    return found | {name: installed for name in PACKAGES if (installed := _installed(name))}


def hardware() -> dict[str, Any]:
    """The processor, its cores, the memory in bytes, and the devices that JAX computes on, if it is loaded."""
    found: dict[str, Any] = {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }
    if "jax" not in sys.modules:
        return {**found, "device": "cpu", "devices": 1}
    device = jax.devices()[0]
    return {**found, "device": f"{device.platform} {device.device_kind}", "devices": jax.device_count()}


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


@cache
def _cpu() -> str:
    """The processor's name, as the system knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def commit_of(package: Path) -> str:
    """The commit of a checkout that the package is a part of, with ``-dirty`` if files were changed.

    A copy without its checkout, as in a container, takes what $TDCD_COMMIT says; else there is none.
    """
    if not any((parent / ".git").exists() for parent in package.parents):
        return os.environ.get("TDCD_COMMIT", "")
    # An installed package may lie inside a checkout of something else, which does not track it.
    tracked = _git(package, "ls-files", "--error-unmatch", "__init__.py")
    return _git(package, "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty") if tracked else ""


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
