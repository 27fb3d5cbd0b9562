"""``manifest.json`` in a run folder: what a run was made with, and digests of what went in and came out.

::

    sessions    every start of the run: by whom, from when to when, versions, hardware
    config      digest of the settings; the number of rounds, and where data lies, may differ
    schedule    which minibatches: what they follow from, and a digest of those of a few rounds
    data        by client: keyed digest of its rows
    history     lines, and their digest without seconds
    model       by silo: digest of its arrays
    files       SHA-256 of every file, as sha256sum prints it
    digest      of all of this

A manifest finds changes. It is no signature: an attacker who can replace the files can replace it, too.
"""

import hashlib
import hmac
import json
import os
import platform
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from tdcd.core.lazy import jax
from tdcd.core.schedule import batch_ids, is_permuted
from tdcd.core.settings import Settings
from tdcd.federation import client_of
from tdcd.federation.hosts import Hosts, is_mapped
from tdcd.federation.partition import selection
from tdcd.federation.silos import Federation, Silo
from tdcd.records.files import digest_of, marks_of, open_plain, parse_json, read_plain, write_json
from tdcd.records.model_file import RESTORE, read_block, settings_digest
from tdcd.records.run_folder import RunFolder

ROUNDS = (0, 1, 2)
"""The rounds whose minibatches are in the schedule's digest."""
KEY_BYTES = 32


class Manifest:
    """The manifest of one run folder: begun with the run, sealed at its end."""

    def __init__(self, run: RunFolder) -> None:
        """Point to the manifest of ``run``."""
        self.run, self.file, self.key_file = run, run.path / "manifest.json", run.path / "manifest.key"

    @property
    def exists(self) -> bool:
        """Whether there is one; earlier versions wrote none."""
        return self.file.is_file()

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the file: kept elsewhere, it shows later that folder and manifest were not replaced."""
        return _sha256(self.file)

    def read(self) -> dict[str, Any]:
        """The manifest; refuses one that was changed since it was written."""
        try:
            facts = parse_json(read_plain(self.file))
            digest = facts.pop("digest")
        except FileNotFoundError:
            raise FileNotFoundError(f"{self.run.path} has no manifest: {self.file.name} is missing") from None
        except (ValueError, KeyError, AttributeError) as error:
            raise ValueError(f"{self.file} is damaged: {error!r}; {RESTORE}") from None
        if digest != digest_of(facts, {}):
            raise ValueError(f"{self.file} is damaged: it does not match its own digest; {RESTORE}")
        return dict(facts)

    def begin(self, by: str) -> None:
        """Start a session of ``by``: a "simulation", a "sweep" of several runs at once, or a hub.

        What an earlier session sealed is open again.
        """
        kept = {key: value for key, value in self._known().items() if key in ("sessions", "schedule", "data")}
        session = {"by": by, "started": _now(), "ended": None, "versions": versions(), "hardware": hardware()}
        self._write({**kept, "sessions": [*kept.get("sessions", []), session]})

    def note(self, schedule: Mapping[str, Any], data: Mapping[str, str]) -> None:
        """Say which minibatches there are, and what each client's rows are known by."""
        known = self._known()
        # A hub that was restarted says the same again.
        if (known.get("schedule"), known.get("data")) != (schedule, data):
            self._write({**known, "schedule": schedule, "data": data})

    def seal(self) -> None:
        """Say what the files are at the end of a session; again, if one was added."""
        facts, folder = self._known(), self.run
        if facts.get("sessions"):
            *before, last = facts["sessions"]
            facts["sessions"] = [*before, {**last, "ended": _now()}]
        records = folder.records()
        facts |= {
            "config": settings_digest(folder.config()),
            "history": marks_of(record.without_seconds() for record in records)[-1],
            "model": {path.stem: digest_of("", read_block(path)[0]) for path in _model_files(folder)},
            "files": {name: _sha256(folder.path / name) for name in covered(folder)},
        }
        self._write(facts)

    def gather(self, parts: Sequence["Manifest"]) -> None:
        """Make this the manifest of the whole run, of which every hub has a part; and seal it."""
        manifests = [part.read() for part in parts if part.exists]
        if manifests:
            sessions = [session for facts in manifests for session in facts.get("sessions", [])]
            data = {client: digest for facts in manifests for client, digest in facts.get("data", {}).items()}
            self._write({"sessions": sessions, "schedule": manifests[0].get("schedule"), "data": data})
            self.seal()

    def key(self) -> bytes:
        """The secret of this run's digests of data, in a file of its own that only its owner can read."""
        try:
            return bytes.fromhex(read_plain(self.key_file).decode("ascii"))
        except FileNotFoundError:
            made = secrets.token_bytes(KEY_BYTES)
        file = os.open(self.key_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(file, "w", encoding="ascii") as opened:
            opened.write(made.hex())
        return made

    def _known(self) -> dict[str, Any]:
        """What it says so far; nothing if that cannot be read, since it is written again."""
        try:
            return self.read()
        except (OSError, ValueError):
            return {}

    def _write(self, content: Mapping[str, Any]) -> None:
        plain = json.loads(json.dumps({"manifest": 1, **content}))
        write_json(self.file, {**plain, "digest": digest_of(plain, {})})


def covered(run: RunFolder) -> list[str]:
    """The files that a manifest is about, of those that are there. The report follows from them."""
    named = (
        run.config_file,
        run.facts_file,
        run.history_file,
        run.labels_file,
        run.held_out_file,
        run.alone_file,
        run.subsets_file,
    )
    files = [*(file for file in named if file.is_file()), *_model_files(run)]
    files += sorted((run.path / "preparation").glob("*.json"))
    return [file.relative_to(run.path).as_posix() for file in files]


def differences(manifest: Manifest) -> list[str]:
    """How a folder differs from its manifest, a sentence each; nothing if it does not.

    Raises:
        ValueError: the manifest is damaged, or was never sealed.
    """
    facts, run = manifest.read(), manifest.run
    if "files" not in facts:
        raise ValueError(
            f"{manifest.file} was not completed: the run is still running, or was killed; continue it first"
        )
    problems, there = [], covered(run)
    for name, digest in facts["files"].items():
        if name not in there:
            problems.append(f"{name} is missing")
        elif _sha256(run.path / name) != digest:
            problems.append(f"{name} is not as it was written{_more(run, name, facts)}")
    problems += [f"{name} was added" for name in there if name not in facts["files"]]
    schedule = facts.get("schedule")
    if schedule is not None and schedule["digest"] != schedule_digest(schedule):
        problems.append("the schedule: this version of tdcd draws other minibatches from the same seed")
    return problems


def _more(run: RunFolder, name: str, facts: Mapping[str, Any]) -> str:
    """Whether it is the numbers of a changed history that changed."""
    if name != run.history_file.name:
        return ""
    try:
        marks = marks_of(record.without_seconds() for record in run.records())
    except ValueError as damage:
        return f": {damage}"
    same = [*marks[-1]] == [*facts["history"]]
    return ": times or spacing were changed, the numbers were not" if same else ": its numbers were changed"


def schedule_of(settings: Settings, num_samples: int) -> dict[str, Any]:
    """What the minibatches follow from, and a digest of those of a few rounds."""
    facts: dict[str, Any] = {
        "seed": settings.seed,
        "num_samples": num_samples,
        "batch_size": settings.effective_batch_size(num_samples),
        "local_steps": settings.local_steps,
        "minibatches": settings.minibatches,
        "draws": "permutation" if is_permuted(settings.draws, num_samples) else "stream",
        "rounds": [*ROUNDS],
    }
    return {**facts, "digest": schedule_digest(facts)}


def schedule_digest(facts: Mapping[str, Any]) -> str:
    """A digest of the minibatches that follow from ``facts``."""
    chosen = {key: facts[key] for key in ("num_samples", "batch_size", "local_steps", "minibatches")}
    # Runs of before there was a choice drew from the stream.
    ids = batch_ids(facts["seed"], facts["rounds"], **chosen, draws=facts.get("draws", "stream"))
    return digest_of("", {"ids": ids})


def keyed(key: bytes, digests: Mapping[str, str]) -> dict[str, str]:
    """Digests by client, keyed: without the key a guess at the rows cannot be tested."""
    return {
        client: hmac.new(key, f"{client}\n{digest}".encode(), hashlib.sha256).hexdigest()
        for client, digest in digests.items()
    }


def client_digests(federation: Federation, hosts: Hosts | None = None) -> dict[str, str]:
    """Digests of each client's rows, by the client's name, in a simulation; rows of a mapped file count by number."""
    return _by_client(federation, hosts, lambda silo, client: _rows_digest(federation, silo, silo.rows[client]))


def held_out_digests(federation: Federation, hosts: Hosts | None = None) -> dict[str, str]:
    """Digests of each client's held-out rows, by the client's name."""

    def digest(silo: Silo, client: int) -> str:
        rows, features = silo.test_rows[client], silo.test_features
        return digest_of("", {"rows": rows} | ({} if is_mapped(features) else {"features": features[rows]}))

    return {} if federation.test_labels is None else _by_client(federation, hosts, digest)


def _by_client(federation: Federation, hosts: Hosts | None, digest: Callable[[Silo, int], str]) -> dict[str, str]:
    """A digest of each client by its name; of several hosts, each works out those of its own."""
    names, digests = [], {}
    for silo in federation.silos:
        has = np.ones(silo.num_clients, np.bool_) if hosts is None else hosts.has(silo.num_clients)
        for client, name in enumerate(silo.clients):
            names.append(client_of(silo.name, name))
            if has[client]:
                digests[names[-1]] = digest(silo, client)
    if hosts is not None:
        digests = {name: value for gathered in hosts.gather(lambda: digests) for name, value in gathered.items()}
    return {name: digests[name] for name in names}


def _rows_digest(federation: Federation, silo: Silo, rows: Any) -> str:
    chosen = selection(rows)
    arrays = {"rows": rows, "labels": federation.labels[chosen]}
    if federation.weights is not None:
        arrays["weights"] = federation.weights[chosen]
    if not is_mapped(silo.features):
        arrays["features"] = silo.features[chosen]
    return digest_of([*silo.features.shape], arrays)


def _model_files(run: RunFolder) -> Iterator[Path]:
    return iter(sorted(run.model.path.glob("*.safetensors")))


def _sha256(path: Path) -> str:
    with open_plain(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


PACKAGES = ("jax", "jaxlib", "numpy", "optax", "safetensors")
"""Packages whose versions may change the last bits of a run."""
GIT_S = 5.0


@cache
def versions() -> dict[str, str]:
    """The versions of tdcd, with its commit where that is known, of Python, and of the libraries that compute."""
    # The package itself is above all layers: it imports them.
    numbers = {"tdcd": str(sys.modules["tdcd"].__version__), "python": platform.python_version()}
    commit = commit_of(Path(__file__).parents[1])
    if commit:
        numbers["commit"] = commit
    return numbers | {name: installed for name in PACKAGES if (installed := _installed(name))}


def hardware() -> dict[str, Any]:
    """The processor, its cores, the memory in bytes, and the devices that JAX computes on, if it is loaded."""
    facts: dict[str, Any] = {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }
    if "jax" not in sys.modules:
        return {**facts, "device": "cpu", "devices": 1}
    device = jax.devices()[0]
    return {**facts, "device": f"{device.platform} {device.device_kind}", "devices": jax.device_count()}


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
