"""A hub's run folder: what any run folder has, and what the hub needs to go on after a crash.

::

    config.toml, federation.json, history.jsonl, model/<silo>.safetensors, report.html      as in every run folder
    hub.json                 the silo, a number that only this run has, and how it ended
    hub.lock                 locked by the hub's process for as long as it lives
    held-out.csv             ids, labels and predictions of the held-out samples; after the end, if clients have tables
    absences.jsonl           which clients were left out when, and since when they are back; if there were any
    checkpoint/*.tdcd        the last few states
    farewell.tdcd            after the end: what slower hubs may still ask for
    status.json              what the hub is doing, for those who watch
"""

import contextlib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from tdcd.history import Record
from tdcd.objective import Tree
from tdcd.report import write_report
from tdcd.runfolder import RunFolder, write_durably
from tdcd.runtime.checkpoint import Checkpoints, read_farewell, save_farewell
from tdcd.runtime.failpoints import failpoint
from tdcd.runtime.farewell import Farewell
from tdcd.runtime.instructions import Absence, State
from tdcd.runtime.job import Job
from tdcd.runtime.journal import Journal
from tdcd.runtime.lock import lock
from tdcd.runtime.meeting import Meeting
from tdcd.tables.held_out import HeldOut, write_held_out
from tdcd.tables.labels import Meaning
from tdcd.tables.preparation import Preparation
from tdcd.tables.saving import load_meaning, save_preparations


class HubFolder:
    """The run folder of one hub; made at the first start, taken up again at later ones."""

    def __init__(self, path: Path, job: Job, silo: int) -> None:
        """Open or make the folder; refuses one of another run, or one that another process has open."""
        self.path, self.hub, self.silo = path, job.hubs[silo], job.config.silos[silo].name
        self._checkpoints = Checkpoints(path / "checkpoint", self.hub)
        self._about = path / "hub.json"
        self.complaints: list[str] = []
        """What was wrong with what the folder held."""
        self.restored: State | Farewell | None = None
        """What the hub goes on from."""
        if self._about.exists():
            self.run = RunFolder.open(path)
            self.about = self._read_about(job)
            self._lock = lock(path)
            self._restore()
        else:
            self.run = self._create(job)
            self._lock = lock(path)
            self.about = {"hub": self.hub, "settings": job.digest, "nonce": secrets.token_hex(16), "status": None}
            self._write_about()
        self._history, self._absences = Journal(path / "history.jsonl"), Journal(path / "absences.jsonl")
        self.absences = [Absence(**json.loads(line)) for line in self._absences.lines()]
        """The clients that were left out, and are back."""
        if not isinstance(self.restored, Farewell):
            self._rewind()

    def close(self) -> None:
        """Let another process have the folder."""
        os.close(self._lock)

    def _create(self, job: Job) -> RunFolder:
        """A new run folder, or one whose making was cut short before there was anything in it."""
        history = self.path / "history.jsonl"
        if not history.exists() or history.stat().st_size or (self.path / "checkpoint").exists():
            return RunFolder.create(self.path, job.config.model_dump(), {})
        folder = RunFolder(self.path)
        folder.write_config(job.config.model_dump())
        folder.write_facts({})
        return folder

    def _restore(self) -> None:
        if self.about["status"] is not None:
            self.restored = read_farewell(self.path / "farewell.tdcd", self.hub)
        else:
            self.restored, self.complaints = self._checkpoints.newest, self._checkpoints.complaints

    def _read_about(self, job: Job) -> dict[str, Any]:
        try:
            about = dict(json.loads(self._about.read_text()))
            hub, settings = about["hub"], about["settings"]
            about["nonce"], about["status"]
        except (ValueError, KeyError) as error:
            raise ValueError(f"{self._about} is damaged: {error}; remove {self.path} to begin anew") from None
        if (hub, settings) != (self.hub, job.digest):
            what = f"a run of {hub}" if hub != self.hub else "a run of other settings"
            raise FileExistsError(f"{self.path} holds {what}: choose another --out, or remove it to begin anew")
        return about

    def _write_about(self) -> None:
        write_durably(self._about, (json.dumps(self.about, indent=1) + "\n").encode())

    @property
    def nonce(self) -> str:
        """Drawn at the first start."""
        return str(self.about["nonce"])

    @property
    def is_over(self) -> bool:
        """Whether the run in this folder has ended, and everybody knows."""
        return self.about["status"] is not None and bool(self.about.get("everybody_knows"))

    def _rewind(self) -> None:
        """Drop the lines of the history that will be written again, and what is torn."""
        first = 0 if self.restored is None else self.restored.round
        kept = [line for line in self._history.lines() if Record.from_json(line).round < first]
        self._history.keep(kept)
        if (self.path / "absences.jsonl").exists():
            self._absences.keep(self._absences.lines())
        self.seconds_before = Record.from_json(kept[-1]).seconds if kept else 0.0

    def append(self, record: Record, seconds: float) -> None:
        """Add a line to the history; if the disk takes no more, the line waits for the next call."""
        failpoint("append.before")
        self._history.append(replace(record, seconds=round(self.seconds_before + seconds, 6)).to_json())
        failpoint("append.after")

    def note_absence(self, absence: Absence) -> None:
        """Make durable that a client is left out, or is back."""
        failpoint("absence.before")
        self._absences.append(json.dumps(asdict(absence)))
        failpoint("absence.after")

    def write_lines(self) -> None:
        """Add the lines that wait, if there are any."""
        self._absences.write()
        self._history.write()

    def save(self, state: State) -> None:
        """Make a state durable, and before it all lines of history and absences that led to it."""
        self.write_lines()
        self._checkpoints.save(state)

    def describe(self, meeting: Meeting) -> None:
        """Say who there is, when all have met. The columns of other silos are theirs to know."""
        roll, job = meeting.roll, meeting.job
        assert roll is not None
        if self.about.get("run") != meeting.run:
            self.about["run"] = meeting.run
            self._write_about()
        own: tuple[str, ...] = ()
        if meeting.preparation is not None:
            meaning = Meaning(roll.task, roll.classes, roll.label_mean, roll.label_scale)
            save_preparations(self.path, {self.silo: meeting.preparation}, meaning)
            own = meeting.preparation.columns + ("bias",) * meeting.has_bias
        silos = [
            {
                "name": silo.name,
                "feature_shape": opening["feature_shape"],
                "columns": [*own] if silo.name == self.silo else [],
                "clients": opening["clients"],
                "parameters": opening["parameters"],
            }
            for silo, opening in (
                (silo, meeting.openings[hub]) for silo, hub in zip(job.config.silos, job.hubs, strict=True)
            )
        ]
        self.run.write_facts(
            {
                "name": job.config.title,
                "num_samples": roll.num_samples,
                "num_test": int(roll.held_out.sum()),
                "labels": roll.labels_in_words,
                "silos": silos,
            }
        )

    def save_held_out(self, meeting: Meeting, scores: NDArray[Any]) -> None:
        """Write what the model says of the samples that nobody trained on, where clients have tables with ids."""
        roll, config = meeting.roll, meeting.job.config
        if roll is None or meeting.preparation is None or not len(scores):
            return
        samples = HeldOut(roll.test_ids, roll.test_originals, scores)
        id_column = config.silos[meeting.silo].id
        write_held_out(self.path, id_column, samples, load_meaning(self.path), roll.loss(config))

    def finish(self, blocks: Mapping[str, Tree], preparations: Mapping[str, Preparation], farewell: Farewell) -> None:
        """Write the model, what came with other silos' blocks, and last that the run is over."""
        failpoint("finish.before")
        self.write_lines()
        if preparations:
            save_preparations(self.path, preparations, load_meaning(self.path))
        self.run.save_blocks(list(blocks), list(blocks.values()), farewell.round)
        save_farewell(self.path / "farewell.tdcd", farewell)
        self.about["status"] = farewell.status
        self._write_about()
        failpoint("finish.after")

    def report(self) -> None:
        """Write the report, when nobody waits any more."""
        write_report(self.path)

    def close_run(self) -> None:
        """Everybody knows that the run is over: nobody will ask for the hub's last words."""
        self.about["everybody_knows"] = True
        self._write_about()

    def write_status(self, status: Mapping[str, Any]) -> None:
        """Replace what those who watch are told; losing it in a crash, or on a full disk, is no loss."""
        temporary = self.path / "status.json.tmp"
        with contextlib.suppress(OSError):
            temporary.write_text(json.dumps({**status, "pid": os.getpid()}))
            temporary.replace(self.path / "status.json")
