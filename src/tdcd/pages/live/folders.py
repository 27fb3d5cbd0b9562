"""The runs in the folders that were given.

The names of files are those of :mod:`tdcd.records.run_folder` and :mod:`tdcd.records.sweep_folder`. Both import JAX,
and a watcher shall be small.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from tdcd.pages.live.small_file import MOST_BYTES
from tdcd.records.files import parse_json, read_plain
from tdcd.records.run_folder import HISTORY
from tdcd.records.sweep_folder import SWEEP

TRIAL = ("federation.toml", "data/options.json")
"""What ``tdcd up`` makes before its first hub starts; a shared file alone is none of its folders."""
HUB, STATUS = "hub.json", "status.json"

Kind = Literal["simulation", "hub", "trial", "nothing"]


class Found(NamedTuple):
    """A run, or the place where one may begin."""

    path: Path
    name: str
    kind: Kind
    homes: tuple[Path, ...]
    """The run folders that it is made of: its own, or those of a trial's hubs."""
    group: str = ""
    """The sweep, or the folder of runs, that it belongs to."""


def runs_in(folders: Iterable[Path]) -> list[Found]:
    """The runs in all folders, each once."""
    found: dict[Path, Found] = {}
    for folder in folders:
        for run in _runs_in(folder):
            found.setdefault(run.path, run)
    return [*found.values()]


def _runs_in(folder: Path) -> Iterator[Found]:
    """A run itself, the runs of a sweep, or all of those in a folder of runs; else a run that may begin here."""
    name = folder.resolve().name
    if _is_run(folder):
        yield _run(folder, name)
    elif (folder / SWEEP).is_file():
        yield from _sweep(folder, name)
    else:
        inside = [path for path in _folders_in(folder) if _is_run(path) or (path / SWEEP).is_file()]
        for path in inside:
            if _is_run(path):
                yield _run(path, path.name, name)
            else:
                yield from _sweep(path, f"{name}/{path.name}")
        if not inside:
            yield Found(folder, name, "nothing", (folder,))


def _sweep(folder: Path, name: str) -> Iterator[Found]:
    """The runs that ``sweep.json`` names, begun or not; those that are there if it cannot be read."""
    try:
        listed = [str(run["folder"]) for run in parse_json(read_plain(folder / SWEEP, MOST_BYTES))["runs"]]
    except (OSError, ValueError, KeyError, TypeError):
        listed = [path.name for path in _folders_in(folder) if _is_run(path)]
    for run in listed:
        # A name that leads out of the sweep's folder is none that tdcd wrote.
        if Path(run).name == run != "..":
            yield _run(folder / run, run, name)


def _is_run(folder: Path) -> bool:
    return (folder / HISTORY).is_file() or _is_trial(folder) or bool(_hubs_in(folder))


def _is_trial(folder: Path) -> bool:
    return all((folder / name).is_file() for name in TRIAL)


def _run(folder: Path, name: str, group: str = "") -> Found:
    if not _is_run(folder):
        return Found(folder, name, "nothing", (folder,), group)
    hubs = _hubs_in(folder)
    if hubs or (_is_trial(folder) and not (folder / HISTORY).is_file()):
        return Found(folder, name, "trial", tuple(hubs), group)
    kind: Kind = "hub" if (folder / HUB).is_file() or (folder / STATUS).is_file() else "simulation"
    return Found(folder, name, kind, (folder,), group)


def _hubs_in(folder: Path) -> list[Path]:
    """The folders of a trial's hubs."""
    return [path for path in _folders_in(folder / "silos") if (path / HISTORY).is_file()]


def _folders_in(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError:
        return []
