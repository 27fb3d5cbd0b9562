"""A hub's run folder: what any run folder has, and what the hub needs to go on after a crash.

::

    config.toml, federation.json, history.jsonl, model/<silo>.safetensors, report.html      as in every run folder
    hub.json                 the silo, a number that only this run has, and how it ended
    checkpoint/<round>.tdcd  the last few states
    status.json              what the hub is doing, for those who watch
"""

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tdcd.history import Record
from tdcd.objective import Tree
from tdcd.report import write_report
from tdcd.runfolder import RunFolder, write_durably
from tdcd.runtime.checkpoint import newest_state, save_state
from tdcd.runtime.job import Job
from tdcd.runtime.meeting import Meeting
from tdcd.runtime.rounds import State
from tdcd.tables.labels import Meaning
from tdcd.tables.saving import save_preparations


class HubFolder:
    """The run folder of one hub; made at the first start, taken up again at later ones."""

    def __init__(self, path: Path, job: Job, silo: int) -> None:
        """Open or make the folder; refuses one of another run."""
        self.path, self.hub, self.silo = path, job.hubs[silo], job.config.silos[silo].name
        self._about = path / "hub.json"
        self.complaints: list[str] = []
        """What was wrong with what the folder held."""
        self.restored: State | None = None
        if self._about.exists():
            self.run = RunFolder.open(path)
            self.about = self._read_about(job)
            self.restored, self.complaints = newest_state(path / "checkpoint", self.hub)
        else:
            self.run = RunFolder.create(path, job.config.model_dump(), {})
            self.about = {"hub": self.hub, "settings": job.digest, "nonce": secrets.token_hex(16), "status": None}
            self._write_about()
        if not self.is_over:
            self._rewind()

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
        """Whether the run in this folder has ended."""
        return self.about["status"] is not None

    def _rewind(self) -> None:
        """Drop the lines of the history that will be written again."""
        path, first = self.path / "history.jsonl", 0 if self.restored is None else self.restored.round
        lines = path.read_text().split("\n")[:-1]
        kept = [line for line in lines if Record.from_json(line).round < first]
        write_durably(path, "".join(line + "\n" for line in kept).encode())
        self.seconds_before = Record.from_json(kept[-1]).seconds if kept else 0.0

    def append(self, record: Record, seconds: float) -> None:
        """Add a line to the history."""
        self.run.append(replace(record, seconds=round(self.seconds_before + seconds, 6)))

    def save(self, state: State) -> None:
        """Make a state durable."""
        save_state(self.path / "checkpoint", self.hub, state)

    def describe(self, meeting: Meeting) -> None:
        """Say who there is, when all have met. The columns of other silos are theirs to know."""
        roll, job = meeting.roll, meeting.job
        assert roll is not None
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
        held_out = int(roll.held_out.sum())
        self.run.write_facts(
            {"name": job.config.data.source, "num_samples": roll.num_samples, "num_test": held_out, "silos": silos}
        )

    def finish(self, status: str, blocks: Mapping[str, Tree], round_index: int) -> Path | None:
        """Write the model and the report, and that the run is over; the report's path, if there is a history."""
        if blocks:
            self.run.save_blocks(list(blocks), list(blocks.values()), round_index)
        self.about["status"] = status
        self._write_about()
        return write_report(self.path) if (self.path / "history.jsonl").read_text() else None

    def write_status(self, status: Mapping[str, Any]) -> None:
        """Replace what those who watch are told; losing it in a crash is no loss."""
        temporary = self.path / "status.json.tmp"
        temporary.write_text(json.dumps({**status, "pid": os.getpid()}))
        temporary.replace(self.path / "status.json")
