"""The runs in the folders that were given, and their small files, read again only when they have changed.

The names of files are those of :mod:`tdcd.records.run_folder` and :mod:`tdcd.records.run_folder`. Both import JAX,
and a watcher shall be small.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Generic, Literal, NamedTuple, TypeVar

from tdcd.records.files import parse_json, read_plain
from tdcd.records.run_folder import HISTORY, SWEEP

Content = TypeVar("Content")

MOST_BYTES = 16 << 20


class SmallFile(Generic[Content]):
    """A file's content; of a file that cannot be read, its last content, with the problem in words."""

    def __init__(self, path: Path, read: Callable[[Path], Content]) -> None:
        """Read ``path`` by ``read``, which raises OSError or ValueError for a file that is not as it should be."""
        self.path, self._read = path, read
        self.content: Content | None = None
        self.problem = ""
        self._known: tuple[int, ...] | None = None

    def look(self) -> None:
        """Read it if it is not as it was at the last look. A file that is not there is no problem."""
        try:
            facts = self.path.stat()
        except OSError:
            self._known, self.problem = None, ""
            return
        known = facts.st_ino, facts.st_mtime_ns, facts.st_size
        if known == self._known:
            return
        self._known, self.problem = known, ""
        if facts.st_size > MOST_BYTES:
            self.problem = f"{self.path} is too large to be what its name says"
            return
        try:
            self.content = self._read(self.path)
        except FileNotFoundError:
            self._known = None
        except (OSError, ValueError) as error:
            self.problem = str(error)


TRIAL = ("federation.toml", "data/options.json")
"""What ``tdcd up`` makes before its first hub starts; a shared file alone is none of its folders."""
HUB, STATUS = "hub.json", "status.json"

LOG, JOBS, RUN = "log", "jobs", "run"
"""Of a party that stands by: its log, and the folders of its jobs, each with a run."""

RunKind = Literal["simulation", "hub", "trial", "party", "nothing"]


class FoundRun(NamedTuple):
    """A run, or the place where one may begin."""

    path: Path
    name: str
    kind: RunKind
    homes: tuple[Path, ...]
    """The run folders that it is made of: its own, or those of a trial's hubs."""
    group: str = ""
    """The sweep, or the folder of runs, that it belongs to."""


def runs_in(folders: Iterable[Path]) -> list[FoundRun]:
    """The runs in all folders, each once."""
    by_path: dict[Path, FoundRun] = {}
    for folder in folders:
        for run in _runs_in(folder):
            by_path.setdefault(run.path, run)
    return [*by_path.values()]


def _runs_in(folder: Path) -> Iterator[FoundRun]:
    """A run itself, the runs of a sweep, or all of those in a folder of runs; else a run that may begin here."""
    name = folder.resolve().name
    if _is_run(folder):
        yield _run(folder, name)
    elif _is_party(folder):
        yield FoundRun(folder, name, "party", (folder,))
        for job in _folders_in(folder / JOBS):
            if _is_run(job / RUN):
                yield _run(job / RUN, f"job {job.name[:12]}", name)
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
            yield FoundRun(folder, name, "nothing", (folder,))


def _sweep(folder: Path, name: str) -> Iterator[FoundRun]:
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


def _is_party(folder: Path) -> bool:
    return (folder / LOG).is_dir() and (folder / STATUS).is_file()


def _is_trial(folder: Path) -> bool:
    return all((folder / name).is_file() for name in TRIAL)


def _run(folder: Path, name: str, group: str = "") -> FoundRun:
    if not _is_run(folder):
        return FoundRun(folder, name, "nothing", (folder,), group)
    hubs = _hubs_in(folder)
    if hubs or (_is_trial(folder) and not (folder / HISTORY).is_file()):
        return FoundRun(folder, name, "trial", tuple(hubs), group)
    kind: RunKind = "hub" if (folder / HUB).is_file() or (folder / STATUS).is_file() else "simulation"
    return FoundRun(folder, name, kind, (folder,), group)


def _hubs_in(folder: Path) -> list[Path]:
    """The folders of a trial's hubs."""
    return [path for path in _folders_in(folder / "silos") if (path / HISTORY).is_file()]


def _folders_in(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError:
        return []
