"""A hub's run folder: what any run folder has, and what the hub needs to continue after a crash.

::

    config.toml, federation.json, history.jsonl, model/<silo>.safetensors, report.html      as in every run folder
    hub.json                 the silo, a nonce of this run, how it ended, and who has not confirmed that
    hub.lock                 locked by the hub's process for as long as it lives
    held-out.csv             ids, labels and predictions of the held-out samples; after the end, if clients have tables,
                             and only in a silo with labels
    mask.key                 what the hub's masks follow from; with exchange.protect = "mask", and until the run ends
    absences.jsonl           which clients were left out when, and since when they are back; if there were any
    checkpoint/*.tdcd        the last few states
    shutdown.tdcd            after the end: what slower hubs may still ask for
    status.json              what the hub is doing, for those who watch
    timeline.json            how long it worked and waited, round by round
"""

import hashlib
import math
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from numpy.typing import NDArray

from tdcd.config.losses import named_loss
from tdcd.core.objective import Tree
from tdcd.federation.silos import ONES
from tdcd.prediction.predictions import Named, write_held_out
from tdcd.prediction.subsets import temperature_in
from tdcd.records.files import Mark, write_durably
from tdcd.records.history import Record
from tdcd.records.manifest import Manifest, keyed, schedule_of
from tdcd.records.run_folder import RunFolder
from tdcd.runtime.compute.sample_index import SampleIndex
from tdcd.runtime.job import Job
from tdcd.runtime.machine.exchange import kept_rounds
from tdcd.runtime.machine.handshake import Handshake
from tdcd.runtime.machine.hub import Shutdown
from tdcd.runtime.machine.instructions import Absence, Append, HubState
from tdcd.runtime.messages.wire import RejectedMessage
from tdcd.runtime.storage.checkpoint import Checkpoints, read_shutdown, save_shutdown
from tdcd.runtime.storage.failpoints import failpoint
from tdcd.runtime.storage.hub_restart import (
    ENDED,
    RESTORE,
    SHUTDOWN,
    about_text,
    absence_line,
    check_ended,
    is_over,
    read_about,
    read_absences,
    readable,
    state_to_continue,
    way_on,
)
from tdcd.runtime.storage.keys import NOISE_KEY, forget_run_keys, noise_key
from tdcd.runtime.storage.status import lock, replace_quickly, write_status
from tdcd.tables.labels import LabelEncoding
from tdcd.tables.preparation import Preparation, load_label_encoding, save_preparations


class Journal:
    """The file at ``path``, which need not be there before its first line."""

    def __init__(self, path: Path) -> None:
        self._path, self._unwritten = path, b""

    def lines(self) -> list[str]:
        """All whole lines on the disk."""
        # Bytes that are no text are for those to refuse who know what the lines must be.
        return self._path.read_bytes().decode(errors="replace").split("\n")[:-1] if self._path.exists() else []

    def keep(self, lines: list[str]) -> None:
        """Leave nothing in the file but these lines."""
        write_durably(self._path, "".join(line + "\n" for line in lines).encode())

    def append(self, line: str) -> None:
        """Add a line; if the disk takes no more, the line waits for the next call, or for :meth:`write`."""
        self._unwritten += f"{line}\n".encode()
        self.write()

    def write(self) -> None:
        """Write the lines that wait."""
        if not self._unwritten:
            return
        if not self._path.exists():
            write_durably(self._path, b"")
        with self._path.open("ab", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            try:
                written = file.write(self._unwritten)
                os.fsync(file.fileno())
            except OSError:
                file.truncate(size)
                raise
            if written < len(self._unwritten):
                file.truncate(size)
                raise OSError(f"{self._path}: the disk took only a part of a line")
        self._unwritten = b""


def label_encoding_of(sample_index: SampleIndex, job: Job) -> LabelEncoding:
    """How labels become numbers; in a silo without, only how many outputs blocks have."""
    meaning = sample_index.meaning
    if meaning is not None:
        return LabelEncoding(meaning.task, meaning.classes, meaning.label_mean, meaning.label_scale)
    outputs = sample_index.outputs(job.config)
    return LabelEncoding(named_loss(job.config.model, outputs.loss).tasks[0], num_outputs=outputs.count)


def labels_in_words(sample_index: SampleIndex, job: Job) -> str:
    """How the labels were interpreted, or where they are."""
    if sample_index.meaning is not None:
        return sample_index.meaning.in_words
    return f"only silo '{job.config.federation.labels}' has them"


class HubFolder:
    """The run folder of one hub; made at the first start, taken up again at later ones."""

    def __init__(self, path: Path, job: Job, silo: int) -> None:
        """Open or make the folder; refuses one of another run, or one that another process has open."""
        self.path, self.hub, self.silo = path, job.hubs[silo], job.config.silos[silo].name
        self._about = path / "hub.json"
        self._history, self._absences = Journal(path / "history.jsonl"), Journal(path / "absences.jsonl")
        self.complaints: list[str] = []
        """What was wrong with what the folder held."""
        self.restored: HubState | Shutdown | None = None
        """What the hub continues from."""
        self.absences: list[Absence] = []
        """The clients that were left out, and are back."""
        self.note_end: Callable[[int], None] = lambda round_index: None
        """Called with the round of the last line, before the folder says that the run is over."""
        self._noted, self._written, self.seconds_before = Mark(), Mark(), 0.0
        is_new = not self._about.exists()
        self.run = self._create(job) if is_new else RunFolder(path)
        self.about = {} if is_new else self._read_about(job)
        self._lock = lock(path)
        try:
            if is_new:
                self.about = {"hub": self.hub, "settings": job.digest, "nonce": secrets.token_hex(16), "status": None}
                self._write_about()
                self.checkpoints = Checkpoints(path / "checkpoint", self.hub)
            else:
                self._take_up(job, silo)
            self._manifest = Manifest(self.run)
            if self.about["status"] is None:
                self._manifest.begin(self.hub)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let another process have the folder."""
        os.close(self._lock)

    def _create(self, job: Job) -> RunFolder:
        """A new run folder, or one whose making was cut short before there was anything in it."""
        history = self.path / "history.jsonl"
        if (self.path / "checkpoint").exists() or (history.exists() and history.stat().st_size):
            raise ValueError(f"{self._about} is missing, and {self.path} holds a run. {way_on(self.path)}")
        if not history.exists():
            return RunFolder.create(self.path, job.config.model_dump(), {})
        folder = RunFolder(self.path)
        folder.write_config(job.config.model_dump())
        folder.write_facts({})
        return folder

    def _take_up(self, job: Job, silo: int) -> None:
        """Continue with what is there, or refuse it before anything is changed."""
        lines, run = self._history.lines(), self.about.get("run")
        records = readable(lines)
        self.checkpoints = Checkpoints(self.path / "checkpoint", self.hub, run)
        if self.about["status"] is not None:
            check_ended(self.path, self.about, lines)
            forget_run_keys(self.path)
            self.restored = None if self.is_over else self._read_shutdown()
            return
        self.absences, self._noted = read_absences(
            self.path / "absences.jsonl",
            self._absences.lines(),
            self.nonce,
            job.clients(silo),
            self.checkpoints.newest,
        )
        kept = kept_rounds(job.timing) if job.peers(silo) else math.inf
        state, self.complaints = state_to_continue(self.path, self.checkpoints, records, kept)
        self.restored = state
        self.checkpoints.durable = 0 if state is None else state.round
        # Lines past the state are written again, and what is torn is dropped.
        if state is not None:
            self._written = state.history
            self.seconds_before = records[state.history.lines - 1].seconds if state.history.lines else 0.0
        self._history.keep(lines[: self._written.lines])
        if (self.path / "absences.jsonl").exists():
            self._absences.keep(self._absences.lines())
        # It follows from the shared file, whose digest is in hub.json.
        self.run.write_config(job.config.model_dump())

    def _read_shutdown(self) -> Shutdown:
        path = self.path / SHUTDOWN
        try:
            shutdown = read_shutdown(path, self.hub, self.about.get("run"))
        except (RejectedMessage, OSError) as error:
            whole = f"History and model in {self.path} are whole"
            raise ValueError(f"{path} is damaged: {error}. {whole}. {ENDED}: {RESTORE}") from None
        shutdown.unaware &= set(self.about.get("unaware", shutdown.unaware))
        return shutdown

    def _read_about(self, job: Job) -> dict[str, Any]:
        about = read_about(self._about)
        hub, settings = about["hub"], about["settings"]
        if (hub, settings) != (self.hub, job.digest):
            what = f"a run of {hub}" if hub != self.hub else "a run of other settings"
            raise FileExistsError(f"{self.path} holds {what}: choose another --out, or remove it to start over")
        return about

    def _write_about(self) -> None:
        write_durably(self._about, about_text(self.about).encode())

    @property
    def nonce(self) -> str:
        """Drawn at the first start."""
        return str(self.about["nonce"])

    def noise_key(self) -> bytes:
        """The secret of the hub's noise, the same as long as the run lasts."""
        path, known = self.path / NOISE_KEY, self.about.get("noise_key")
        if known is not None and not path.exists():
            raise ValueError(f"{path} is missing, and another one draws other noise. {way_on(self.path)}")
        key = noise_key(self.path)
        digest = hashlib.blake2b(key, digest_size=16, person=b"tdcd noise key").hexdigest()
        if known is None:
            self.about["noise_key"] = digest
            self._write_about()
        elif digest != known:
            raise ValueError(f"{path} is not the key that this run began with. {way_on(self.path)}")
        return key

    @property
    def is_over(self) -> bool:
        """Whether the run in this folder has ended, and everybody knows."""
        return is_over(self.about)

    def append(self, record: Record, seconds: float) -> None:
        """Add a line to the history; if the disk takes no more, the line waits for the next call."""
        failpoint("append.before")
        self._written = self._written.after(record.without_seconds())
        self._history.append(replace(record, seconds=round(self.seconds_before + seconds, 6)).to_json())
        failpoint("append.after")

    def note_absence(self, absence: Absence) -> None:
        """Make durable that a client is left out, or is back."""
        failpoint("absence.before")
        line, self._noted = absence_line(absence, self.nonce, self._noted)
        self._absences.append(line)
        failpoint("absence.after")

    def marked(self, state: HubState) -> HubState:
        """A state with marks of all lines that led to it: those so far."""
        return msgspec.structs.replace(state, history=self._written, absences=self._noted)

    def save(self, state: HubState) -> None:
        """Make all lines of history and absences that led to a state durable, and begin to make the state so.

        ``checkpoints.settle`` waits for that.
        """
        self._absences.write()
        self._history.write()
        self.checkpoints.save(state)

    def describe(self, handshake: Handshake) -> None:
        """Say who there is, when all have met. The columns of other silos are theirs to know."""
        sample_index, job = handshake.sample_index, handshake.job
        assert sample_index is not None
        if self.about.get("run") != handshake.run:
            self.about["run"] = handshake.run
            self._write_about()
        own: tuple[str, ...] = ()
        if handshake.preparation is not None:
            save_preparations(self.path, {self.silo: handshake.preparation}, label_encoding_of(sample_index, job))
            own = handshake.preparation.columns + (ONES,) * handshake.job.has_bias(handshake.silo)
        openings = [handshake.openings[hub] for hub in job.hubs]
        silos = [
            {
                "name": silo.name,
                "feature_shape": [*opening.feature_shape],
                "columns": [*own] if silo.name == self.silo else [],
                "clients": opening.clients,
                "parameters": opening.parameters,
            }
            for silo, opening in zip(job.config.silos, openings, strict=True)
        ]
        self.run.write_facts(
            {
                "name": job.config.title,
                "num_samples": sample_index.num_samples,
                "num_test": int(sample_index.held_out.sum()),
                "labels": labels_in_words(sample_index, job),
                "silos": silos,
            }
        )
        data = keyed(handshake.secret, dict(zip(handshake.clients, handshake.rows(), strict=True)))
        self._manifest.note(schedule_of(job.settings.at(sample_index.num_samples), sample_index.num_samples), data)

    def save_figures(self, handshake: Handshake, line: Append) -> None:
        """Write what the model of a line that stays says of subsets of silos, and of the held-out samples."""
        if line.subsets is not None:
            self.run.write_subsets(line.subsets)
        if line.test_scores is not None:
            self.save_held_out(handshake, line.test_scores, temperature_in(line.subsets or {}))

    def save_held_out(self, handshake: Handshake, scores: NDArray[Any], temperature: float = 1.0) -> None:
        """Write the model's predictions for the held-out samples, with probabilities at a temperature."""
        sample_index, config = handshake.sample_index, handshake.job.config
        if sample_index is None or not len(scores):
            return
        ids, encoding = sample_index.test_ids, label_encoding_of(sample_index, handshake.job)
        if handshake.preparation is not None:
            id_column = config.silos[handshake.silo].id
            named = Named(id_column, ids, sample_index.known.test_originals, encoding)
        else:
            named = Named.by_number(ids, sample_index.test_labels, encoding, scores.shape[1])
        form: dict[str, Any] = {"randomized": config.federation.label_epsilon is not None, "temperature": temperature}
        write_held_out(self.path, named, scores, sample_index.loss(config), **form)

    def finish(
        self, blocks: Mapping[str, Tree], preparations: Mapping[str, Preparation], shutdown: Shutdown, kept: int
    ) -> None:
        """Write the model of round ``kept``, what came with other silos' blocks, and last that the run is over."""
        failpoint("finish.before")
        self._absences.write()
        self._history.write()
        if preparations:
            save_preparations(self.path, preparations, load_label_encoding(self.path))
        self.run.save_blocks(list(blocks), list(blocks.values()), kept, self._written)
        self._manifest.seal()
        save_shutdown(self.path / SHUTDOWN, shutdown)
        self.note_end(shutdown.round)
        self.about |= {"status": shutdown.status, "history": self._written}
        self._write_about()
        # What slower hubs may still ask for is masked already.
        forget_run_keys(self.path)
        failpoint("finish.after")

    def note_confirmed(self, shutdown: Shutdown) -> None:
        """Make durable who knows by now that the run is over: a hub that comes back does not wait for them."""
        self.about["unaware"] = sorted(shutdown.unaware)
        self._write_about()

    def report(self) -> None:
        """Write the report, once no party waits."""
        # Only here, so that parties that write no report start without what figures need.
        from tdcd.pages.report import write_report  # noqa: PLC0415

        write_report(self.path)

    def close_run(self) -> None:
        """All parties know that the run is over: no more requests will come."""
        self.about["everybody_knows"] = True
        self._write_about()

    def write_status(self, status: Mapping[str, Any]) -> None:
        """Replace ``status.json``."""
        write_status(self.path, status)

    def replace_quickly(self, name: str, content: bytes) -> None:
        """Replace a file that only people look at; losing it in a crash, or on a full disk, is no loss."""
        replace_quickly(self.path / name, content)
