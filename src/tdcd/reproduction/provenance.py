"""What the runs of an experiment were made with, from their manifests."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tdcd.config import Config
from tdcd.records.manifest import Manifest
from tdcd.records.run_folder import RunFolder


def made_with(config: Config, folders: Iterable[Path]) -> dict[str, Any]:
    """Versions, commit, device, precision and times of an experiment's runs.

    ``with`` has an entry for every set of versions and machine, which is one unless runs were continued elsewhere.
    """
    sessions = [session for folder in folders for session in _sessions(folder)]
    sets: list[dict[str, Any]] = []
    for session in sessions:
        one = {"versions": session["versions"], "hardware": session["hardware"]}
        if one not in sets:
            sets.append(one)
    return {
        "with": sets,
        "started": min((session["started"] for session in sessions), default=None),
        "ended": max((session["ended"] for session in sessions if session["ended"]), default=None),
        "precision": config.train.precision,
        "dtype": config.dtype,
    }


def _sessions(folder: Path) -> list[dict[str, Any]]:
    manifest = Manifest(RunFolder(folder))
    # Earlier versions wrote none.
    return list(manifest.read().get("sessions", [])) if manifest.exists else []


def made_in_words(made: dict[str, Any]) -> str:
    """A line below a figure."""
    parts = [_one(each) for each in made.get("with", [])]
    if not parts:
        return "versions and device are not known"
    when = f"{made['started'] or '?'} to {made['ended'] or '?'}"
    device = made["with"][0]["hardware"]["device"]
    products = "float32" if made["dtype"] == "float64" or device.startswith("cpu") else made["precision"]
    return f"{'; then '.join(parts)}; matrix products in {products}; {when}"


def _one(each: dict[str, Any]) -> str:
    versions, hardware = each["versions"], each["hardware"]
    commit = f" at commit {versions['commit'][:12]}" if "commit" in versions else ""
    dirty = " with changes" if versions.get("commit", "").endswith("-dirty") else ""
    kind, _, name = hardware["device"].partition(" ")
    device = hardware["cpu"] if kind == "cpu" else name
    cores = f", {hardware['cores']} cores" if kind == "cpu" else ""
    return f"tdcd {versions['tdcd']}{commit}{dirty}, JAX {versions['jax']}, {device}{cores}"
