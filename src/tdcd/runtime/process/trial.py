"""A trial of a federation on one machine: every party a process of its own, as if on a machine of its own.

:func:`table_of` shows it live: rounds, losses, bytes and who is connected.
"""

import contextlib
import json
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

from tdcd.config import Config, SiloSection, check_config, override, read_config
from tdcd.config.checks import FEWEST_LEFT
from tdcd.config.members import variant_of
from tdcd.config.resolve import Plan, plan
from tdcd.core.words import bytes_in_words
from tdcd.federation import client_of, hub_of
from tdcd.federation.silos import SiloIds
from tdcd.pages.report import write_report
from tdcd.records.files import write_durably
from tdcd.records.manifest import Manifest
from tdcd.records.run_folder import RunFolder, toml_text
from tdcd.runtime.certificates.issue import throwaway
from tdcd.runtime.compute.client_data import shards
from tdcd.runtime.job import Job, shared_digest
from tdcd.runtime.machine.instructions import OutcomeStatus, RunOutcome
from tdcd.runtime.process.forking import PartyProcess, environment, start_party, warm_up
from tdcd.runtime.process.log import failure_in
from tdcd.runtime.storage.hub_restart import holds_whole_run
from tdcd.runtime.storage.status import read_status
from tdcd.tables.assembly import Assembled
from tdcd.tables.label_privacy import write_randomized
from tdcd.tables.preparation import save_prepared, say_what_labels_are
from tdcd.tables.reader import keys_of, read_rows
from tdcd.tables.rows import Columns, RawRows
from tdcd.tables.source import open_table
from tdcd.tables.split import deal_rows


def write_rows(planned: Plan, folder: Path) -> dict[str, list[str]]:
    """Write what the parties need into ``folder``; the options of ``tdcd client`` that point each to its rows, and
    those of ``tdcd hub`` to its list of samples, where silos may lack some.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if planned.assembled is not None:
        options = _of_tables(planned.config, planned.assembled, folder)
        return options | _lists(planned.assembled, folder)
    options = {}
    for client, rows in shards(planned).items():
        path = folder / f"{client}.safetensors"
        rows.save(path)
        options[client] = ["--data", str(path)]
    return options


def _of_tables(config: Config, assembled: Assembled, folder: Path) -> dict[str, list[str]]:
    """Every client's own table as it is, or its rows of the silo's one table; labels and ids in files next to them."""
    everyone = _write_ids(folder / "ids.txt", (*assembled.ids, *assembled.test_ids))
    options: dict[str, list[str]] = {}
    knowledge = variant_of(config).knowledge
    for index, silo in enumerate(config.silos):
        dealt = {} if silo.client else _dealt(config, assembled, index)
        tables = _tables(config, index, dealt, folder)
        labels = _labels(config, assembled, silo, tables, folder) if knowledge.scored_at(index) == index else []
        for client, path in tables.items():
            party = client_of(silo.name, client)
            # Two clients may have the row of a key, each for samples of its own.
            is_shared = silo.key is not None and client in dealt
            ids = _write_ids(folder / f"ids.{party}.txt", sorted(dealt[client])) if is_shared else everyone
            options[party] = ["--data", str(path), "--ids", str(ids), *labels]
    return options


def _lists(assembled: Assembled, folder: Path) -> dict[str, list[str]]:
    """The option for each hub's list of samples; none where every silo has every sample."""
    options = {}
    for silo, listed in assembled.lists.items():
        path = folder / f"{hub_of(silo)}.json"
        listed.write(path)
        options[hub_of(silo)] = ["--samples", str(path)]
    return options


def _write_ids(path: Path, ids: Iterable[str]) -> Path:
    path.write_text("".join(f"{sample}\n" for sample in ids), encoding="utf-8")
    return path


def _dealt(config: Config, assembled: Assembled, index: int) -> dict[str, set[str]]:
    """The ids that each client of a silo with one table gets."""
    names, silo = config.silos[index].client_names, assembled.federation.silos[index]
    dealt = {name: {assembled.ids[row] for row in own} for name, own in zip(names, silo.rows, strict=True)}
    for name, own in zip(names, silo.test_rows, strict=False):
        dealt[name] |= {assembled.test_ids[row] for row in own}
    return dealt


def _tables(config: Config, index: int, dealt: dict[str, set[str]], folder: Path) -> dict[str, Path]:
    silo, home = config.silos[index], Path(config.data.folder or "")
    if silo.client:
        return {client.name: home / client.table for client in silo.client}
    assert silo.table is not None
    paths = {client: folder / f"{client_of(silo.name, client)}.parquet" for client in dealt}
    columns = Columns.of(config, silo)
    deal_rows(home / silo.table, columns, {paths[client]: keys_of(columns, ids) for client, ids in dealt.items()})
    return paths


def _header(path: Path, columns: Columns) -> set[str]:
    """The columns of a table."""
    with open_table(path, columns.row_id, columns.dialect) as table:
        return {*table.header}


def _labels(
    config: Config, assembled: Assembled, silo: SiloSection, tables: dict[str, Path], folder: Path
) -> list[str]:
    """The option for a file of labels, for a silo whose tables have none: those of a silo that has.

    Randomised labels are in a file for every silo.
    """
    holder = next(other for other in config.silos if other.label is not None)
    label = silo.label or holder.label
    assert label is not None
    out = folder / f"labels.{silo.name}.parquet"
    if config.federation.label_epsilon is not None:
        federation, names = assembled.federation, assembled.label_encoding.classes
        drawn = [names[int(number)] for number in federation.labels] + [*assembled.test_labels]
        ids = [*assembled.ids, *assembled.test_ids]
        own = [weights for weights in (federation.weights, federation.test_weights) if weights is not None]
        weights = (silo.weight or holder.weight or "", np.concatenate(own).tolist()) if own else None
        write_randomized(out, (silo.id, label), ids, drawn, config.federation.label_epsilon, weights)
        return ["--labels", str(out)]
    needed, weight = {label, *([silo.weight or holder.weight] if holder.weight else [])}, holder.weight
    if all(needed <= _header(path, Columns.of(config, silo)) for path in tables.values()):
        return []
    home = Path(config.data.folder or "")
    parts = list[RawRows]()
    # Where silos lack samples, another one may have the label.
    for other in config.silos if config.data.samples == "all" else (holder,):
        sources = [home / client.table for client in other.client] or [home / (other.table or "")]
        columns = replace(Columns.of(config, other).only(()), label=other.label, weight=other.weight)
        known = {sample for part in parts for sample in part.ids}
        for part in [read_rows(source, columns) for source in sources] if other.label is not None else ():
            parts.append(
                part.take(np.array([place for place, sample in enumerate(part.ids) if sample not in known], np.int64))
            )
    ids = [sample for part in parts for sample in part.ids]
    # Parquet, since the configuration may say that CSV files are written in another way than this one would be.
    written = {silo.id: ids, label: np.concatenate([np.asarray(part.labels) for part in parts])}
    if weight is not None:
        written[silo.weight or weight] = np.concatenate([np.asarray(part.weights) for part in parts])
    pq.write_table(pa.table(written), out)
    return ["--labels", str(out)]


ALIGNMENT = "alignment.json"
"""In the folder of a trial's data: what the silos lost by keeping to the common ids."""
POLL_S = 0.1
GRACE_S = 10.0
"""What processes get to leave by themselves."""
_ENDINGS: dict[int, OutcomeStatus] = {0: "finished", 3: "diverged", 130: "interrupted"}


@dataclass
class Trial:
    """A folder with everything that the parties of a trial need, and their processes."""

    folder: Path
    job: Job
    labels_in_words: str = ""
    """How the labels were interpreted; empty when a trial continues that has shown it before."""
    alignment: Mapping[str, SiloIds] = field(default_factory=dict)
    """What the silos lost by keeping to the common ids; empty as above."""
    processes: dict[str, PartyProcess] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    """The clients that ended early and that their hubs continue without."""
    _dismissed: set[str] = field(default_factory=set)
    """The hubs that need not wait for lost clients at the end."""

    @classmethod
    def prepare(cls, path: Path, assignments: list[str], folder: Path) -> Self:
        """Cut the data, choose ports and issue certificates; a folder that has all of that is taken as it is."""
        config = check_config(override(read_config(path), assignments), str(path))
        wanted = Job(config)
        warm_up(with_jax=any(wanted.needs_jax(silo) for silo in range(len(wanted.hubs))))
        shared = folder / "federation.toml"
        if shared.exists():
            # Of what is there, only the addresses are used: code that it names may not be what this file names.
            there = check_config(read_config(shared), str(shared))
            if len(there.silos) == len(config.silos):
                config = _at(config, [silo.hub for silo in there.silos])
            if shared_digest(config) != shared_digest(there):
                raise FileExistsError(f"{folder} holds a trial of other settings: choose another --out, or remove it")
            job = Job(config)
            write_durably(shared, toml_text(job.config.model_dump()).encode())
            return cls(folder, job)
        if folder.exists() and any(folder.iterdir()):
            raise FileExistsError(f"{folder} is there already and is not an empty folder: choose another --out")
        planned = plan(config)
        say_what_labels_are(planned.federation, planned.objective)
        job = Job(_at(config, [f"127.0.0.1:{port}" for port in _free_ports(len(config.silos))]))
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        options = write_rows(planned, (folder / "data").resolve())
        if planned.assembled is None:
            # Clients get arrays that are ready for training: only the trial knows how they came to be.
            save_prepared(folder / "data", planned.federation, planned.objective)
        (folder / "data" / "options.json").write_text(json.dumps(options))
        lost = {silo: asdict(ids) for silo, ids in planned.federation.alignment.items()}
        (folder / "data" / ALIGNMENT).write_text(json.dumps(lost))
        clients = [client for silo in range(len(job.hubs)) for client in job.clients(silo)]
        shutil.rmtree(folder / "certs", ignore_errors=True)
        throwaway(folder / "certs", {hub: ["127.0.0.1"] for hub in job.hubs}, clients, config.federation.name)
        # Last, so that a folder with this file is complete.
        write_durably(shared, toml_text(job.config.model_dump()).encode())
        return cls(folder, job, planned.federation.labels_in_words, planned.federation.alignment)

    def start(self) -> None:
        """Start every party."""
        logs = self.folder / "logs"
        logs.mkdir(exist_ok=True)
        rows = self._options()
        for index, silo in enumerate(self.job.config.silos):
            options = ["--silo", silo.name, "--certs", str(self.folder / "certs")]
            home = self.folder / "silos" / silo.name
            hub = self.job.hubs[index]
            self._start(hub, "hub", [*options, "--out", str(home), *rows.get(hub, [])])
            if holds_whole_run(home):
                continue  # Its clients know of the end, and would wait for a hub that leaves at once.
            for client, name in zip(self.job.clients(index), silo.client_names, strict=True):
                self._start(client, "client", [*options, "--client", name, *rows[client]])

    def _options(self) -> dict[str, list[str]]:
        """Per client, and per hub with a list of samples: the options that point it to its files."""
        path = self.folder / "data" / "options.json"
        try:
            options = dict(json.loads(path.read_text()))
            parties = [client for index in range(len(self.job.hubs)) for client in self.job.clients(index)]
            parties += self.job.hubs if self.job.may_lack_samples else ()
            return {party: [str(word) for word in options[party]] for party in parties}
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path} is damaged: {error!r}; remove {self.folder} to start the trial over") from None

    def _start(self, party: str, role: str, options: list[str]) -> None:
        arguments = [role, str(self.folder / "federation.toml"), *options]
        # A session of its own: Ctrl-C reaches the launcher, which asks the parties to leave.
        self.processes[party] = start_party(arguments, self._log(party), environment())

    def run(self, show: Callable[[], None], should_stop: Callable[[], bool]) -> RunOutcome:
        """Start all parties and wait until they are done.

        A party that fails ends the trial, unless it is a client that its hub continues without. An exception, such as
        the KeyboardInterrupt of a second Ctrl-C, ends all parties at once.
        """
        try:
            early = self._follow(show, should_stop)
            self.stop()
        except BaseException:
            self.kill()
            raise
        if early is not None:
            return early
        codes = {party: process.wait() for party, process in self.processes.items() if party not in self.lost}
        worst = max(codes, key=lambda party: codes[party])
        if codes[worst]:
            return RunOutcome(_ENDINGS.get(codes[worst], "refused"), self._last_words(worst))
        history = RunFolder(self.folder / "silos" / self.job.config.silos[0].name).history()
        reason = self.job.stopping.ending(history)
        without = [f"without {party}, which ended early: see {self._log(party)}" for party in self.lost]
        return RunOutcome("finished", "; ".join([*([reason] if reason else []), *without]))

    def _follow(self, show: Callable[[], None], should_stop: Callable[[], bool]) -> RunOutcome | None:
        """Wait until all parties have ended; how the trial ends if it does before that."""
        self.start()
        while any(process.poll() is None for process in self.processes.values()):
            show()
            if should_stop():
                return RunOutcome("interrupted", "the same command continues from here")
            self._note_lost()
            failed = [p for p, process in self.processes.items() if (process.poll() or 0) not in _ENDINGS]
            failed = [party for party in failed if party not in self.lost]
            if failed:
                return RunOutcome("refused", f"{failed[0]} ended:\n{self._last_words(failed[0])}")
            time.sleep(POLL_S)
        show()
        return None

    def _note_lost(self) -> None:
        """Find clients that ended early and whose hubs continue; the trial does not wait for them at the end."""
        if self.job.config.federation.client_grace_s is None:
            return
        statuses = self.statuses()
        for index, hub in enumerate(self.job.hubs):
            clients, status = self.job.clients(index), statuses.get(hub)
            if status is None or status["needs_all"]:
                continue
            started = [client for client in clients if client in self.processes]
            gone = [client for client in started if (self.processes[client].poll() or 0) not in (0, 3)]
            # A hub without enough clients waits; no client would ever come.
            if len(clients) - len(gone) >= (FEWEST_LEFT if self.job.config.exchange.protect_blocks else 1):
                self.lost += [client for client in gone if client not in self.lost]
            unaware = {*status["missing"]} if status["status"] is not None else set()
            if unaware and unaware <= {*self.lost} and hub not in self._dismissed:
                self._dismissed.add(hub)
                self.processes[hub].send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """Ask every party to leave, and after a while insist."""
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        for process in self.processes.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def kill(self) -> None:
        """End every party at once; each can continue from its last checkpoint."""
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()

    def statuses(self) -> dict[str, dict[str, Any]]:
        """What each hub reports that it is doing; hubs that have not reported yet are left out."""
        by_hub = {}
        for hub, silo in zip(self.job.hubs, self.job.config.silos, strict=True):
            home = self.folder / "silos" / silo.name
            # A hub that has just started may find there what was damaged while it was down.
            with contextlib.suppress(ValueError, OSError):
                by_hub[hub] = read_status(home)
        return by_hub

    def gather(self) -> Path:
        """Make the trial's folder a run folder too, with all silos' blocks; the path of its report."""
        homes = [self.folder / "silos" / silo.name for silo in self.job.config.silos]
        run, data = RunFolder(self.folder), RunFolder(self.folder / "data")
        parts = [RunFolder(home) for home in homes]
        run.gather(parts)
        lost = data.path / ALIGNMENT
        # Hubs are given the common ids only.
        run.write_facts({**run.facts(), "alignment": json.loads(lost.read_text()) if lost.exists() else {}})
        if data.labels_file.exists():
            shutil.copy(data.labels_file, run.labels_file)
            shutil.copytree(data.path / "preparation", run.path / "preparation", dirs_exist_ok=True)
        Manifest(run).gather([Manifest(part) for part in parts])
        return write_report(self.folder)

    def _last_words(self, party: str) -> str:
        lines = self._log(party).read_text(errors="replace").strip().splitlines()[-3:]
        return failure_in(lines[-1]) if lines and failure_in(lines[-1]) else "\n".join(lines)

    def _log(self, party: str) -> Path:
        return self.folder / "logs" / f"{party}.log"


def _at(config: Config, addresses: list[str | None]) -> Config:
    """The same federation with its hubs at other addresses."""
    silos = [silo.model_copy(update={"hub": address}) for silo, address in zip(config.silos, addresses, strict=True)]
    return config.model_copy(update={"silos": silos})


def _free_ports(count: int) -> list[int]:
    """Free ports of this machine."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in sockets]
    finally:
        for listener in sockets:
            listener.close()


class TrialDisplay:
    """Shows a trial's parties while they work."""

    def __init__(self, console: Console, trial: Trial) -> None:
        self._trial = trial
        self._live = Live(console=console, auto_refresh=False, transient=False)

    def __enter__(self) -> Self:
        """Begin to show."""
        self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        """Leave the last table standing."""
        self._live.__exit__(None, None, None)

    def show(self) -> None:
        """Show how things stand now."""
        self._live.update(table_of(self._trial), refresh=True)


def table_of(trial: Trial) -> Table:
    """One line per hub, with its clients."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("hub", "round", "doing", "loss", "held out", "sent", "clients", "hubs", "waiting for"):
        is_text = column in ("hub", "doing", "waiting for")
        table.add_column(column, justify="left" if is_text else "right", no_wrap=column != "waiting for")
    statuses = trial.statuses()
    for index, hub in enumerate(trial.job.hubs):
        status, clients = statuses.get(hub), set(trial.job.clients(index))
        if status is None:
            table.add_row(hub, "", "starting")
            continue
        present = set(status["connected"])
        table.add_row(
            hub,
            f"{status['round']}/{status['rounds']}",
            status["status"] or status["phase"],
            _number(status["train_loss"]),
            _number(status["test_loss"]),
            bytes_in_words(status["bytes_sent"]),
            f"{len(present & clients)}/{len(clients)}",
            f"{len(present - clients)}/{len(trial.job.hubs) - 1}",
            "; ".join(filter(None, (_names(status["missing"]), _left_out(status["left_out"])))),
        )
    return table


def _names(parties: list[str]) -> str:
    shown = [party.rpartition(".")[2] if party.startswith("client.") else party for party in parties[:4]]
    return ", ".join(shown) + (", ..." if len(parties) > 4 else "")


def _left_out(clients: list[str]) -> str:
    """The mark of clients that the round continues without.

    >>> _left_out(["client.lab.north"])
    'left out: north'
    """
    return f"left out: {_names(clients)}" if clients else ""


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
