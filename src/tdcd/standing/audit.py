"""An audit as a job: every client attacks its own rows at its own site, and figures are all that leaves it.

No party can attack what it does not have, and none gets rows for it. So a client runs ``tdcd audit`` on its own table,
next to tables of random numbers with the same ids in place of the other silos'. Its hub gets what each attack
recovered, and the proposer's hub gets of each silo the client that fared worst.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.csv

from tdcd.config import Config, SiloSection
from tdcd.core.words import TextTable, counted
from tdcd.federation import hub_of
from tdcd.pages.kit import html
from tdcd.records.files import PRIVATE, write_durably
from tdcd.records.run_folder import toml_text
from tdcd.runtime.job import Job, compare_settings
from tdcd.runtime.messages.messages import AuditFigure, AuditFigures
from tdcd.runtime.messages.structure import Message
from tdcd.runtime.messages.wire import RejectedMessage
from tdcd.standing.facts import Reads
from tdcd.tables.reader import read_rows
from tdcd.tables.rows import Columns

MOST_ROUNDS = 60
"""Rounds that attackers get to see, as in ``tdcd audit``."""
COLUMNS = 5
"""Columns of a silo that does not name them."""
CLASSES = ("no", "yes")
LEVELS = ("a", "b", "c", "d")
PAGE, NUMBERS = "audit.html", "audit.json"
WHAT_IT_IS = (
    "Every client attacked its own rows at its own site, as tdcd audit does, next to random numbers in place of the "
    "other silos' columns, and random labels where it has none. So what others' columns say of a silo's is not in "
    "these figures. Of each silo, the client that fared worst."
)


def figures_of(job: Job, silo: str, table: Path, ids: Path | None, fewest: int, folder: Path) -> list[AuditFigure]:
    """Run ``tdcd audit`` on a client's table, in ``folder``, where its page stays; what attacks on it recovered."""
    path, count = stand_in(job.config, silo, table, ids, folder)
    if count < fewest:
        raise ValueError(f"this client has {counted(count, 'row')}; policy: rows = {fewest}")
    # Another process of this party may be at it, whose end is near.
    out, rounds = folder / f"run-{os.getpid()}", str(max(2, min(MOST_ROUNDS, job.config.train.rounds)))
    command = [sys.executable, "-m", "tdcd", "audit", str(path), "--configured", "--rounds", rounds, "--out", str(out)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    sys.stderr.write(done.stderr)
    if done.returncode:
        raise ValueError(f"tdcd audit: {done.stderr.strip() or f'exit status {done.returncode}'}")
    for name in (PAGE, NUMBERS):
        (out / name).replace(folder / name)
    out.rmdir()
    has_labels = job.has_labels(job.silo_index(silo))
    findings = json.loads((folder / NUMBERS).read_text(encoding="utf-8"))["findings"]
    return [
        AuditFigure(**{key: finding[key] for key in ("line", "measure", "recovered", "guess")})
        for finding in findings
        if finding["recovered"] is not None
        and not finding["holds"]
        and (finding["silo"] == silo or (not finding["silo"] and has_labels))
    ]


def stand_in(config: Config, silo: str, table: Path, ids: Path | None, folder: Path) -> tuple[Path, int]:
    """Write a federation of a client's own table and of random ones into ``folder``; the file, and how many rows."""
    own = next(section for section in config.silos if section.name == silo)
    reads = Reads.of(config, own)
    rows = read_rows(table, replace(Columns.of(config, own).only(()), label=reads.label))
    kept = None if ids is None else {*ids.read_text(encoding="utf-8").splitlines()}
    chosen = [row for row, name in enumerate(rows.ids) if kept is None or name in kept]
    rows = rows.take(np.array(chosen, np.int64))
    folder.mkdir(parents=True, exist_ok=True)
    rng, sections = np.random.default_rng(0), []
    labels = rows.labels if rows.labels is not None else _labels(config, len(rows), rng)
    label = next((section.label for section in config.silos if section.label is not None), "label")
    for section in config.silos:
        if section.name == silo:
            sections.append(
                {**section.model_dump(exclude={"client", "hub"}), "clients": 1, "table": str(table.absolute())}
            )
            continue
        columns = _columns(section, len(reads.features or ()) or COLUMNS, len(rows), rng)
        has_labels = config.federation.labels in (None, section.name)
        file = folder / f"{section.name}.csv"
        texts = {"id": [*rows.ids], **columns, **({label: list(labels)} if has_labels else {})}
        pyarrow.csv.write_csv(pa.table(texts), file)
        named = {"label": label} if has_labels else {}
        categorical = [name for name in section.categorical if name in columns]
        sections.append(
            {"name": section.name, "table": str(file.absolute()), "features": [*columns], "categorical": categorical}
            | named
        )
    keys: dict[str, Any] = config.model_dump(exclude={"silos", "runtime", "network"})
    keys["data"] |= {"folder": str(table.absolute().parent), "align": True}
    keys["federation"] |= {"sizes": None}
    # A silo has one client here; blocks of one are not summed.
    keys["exchange"] |= {"protect_blocks": False}
    path = folder / "federation.toml"
    write_durably(path, toml_text({**keys, "silos": sections}).encode())
    return path, len(rows)


def _columns(section: SiloSection, count: int, rows: int, rng: np.random.Generator) -> dict[str, list[Any]]:
    """Random ones in place of a silo's."""
    names = [*dict.fromkeys([*section.features, *section.categorical])] if section.features else []
    names = names or [f"{section.name} {place + 1}" for place in range(count)]
    return {
        name: rng.choice(LEVELS, rows).tolist() if name in section.categorical else rng.normal(size=rows).tolist()
        for name in names
    }


def _labels(config: Config, rows: int, rng: np.random.Generator) -> list[Any]:
    """Random ones, of the kind that the loss takes."""
    if config.model.loss in ("squared", "huber"):
        return list(rng.normal(size=rows).tolist())
    if config.model.loss == "poisson":
        return list(rng.poisson(1.0, rows).tolist())
    return list(rng.choice([str(name) for name in config.federation.label_classes or CLASSES], rows).tolist())


def worst_of(figures: Sequence[AuditFigure]) -> list[AuditFigure]:
    """Of each attack, the one that closed most of the gap between the guess and everything."""
    worst: dict[str, AuditFigure] = {}
    for figure in figures:
        if figure.line not in worst or figure.gain > worst[figure.line].gain:
            worst[figure.line] = figure
    return [worst[line] for line in sorted(worst)]


class AuditHub:
    """A hub's side: take the clients' figures, and give the proposer's hub the worst of them."""

    def __init__(self, job: Job, silo: int, proposer: str) -> None:
        """No figures are here yet."""
        self.name, self.clients = job.hubs[silo], job.clients(silo)
        self._job, self._proposer = job, proposer
        self._others = job.peers(silo) if self.name == proposer else (proposer,)
        self.partners = (*self.clients, *self._others)
        self._figures: dict[str, list[AuditFigure]] = {}
        self._is_received = self.name == proposer

    @property
    def done(self) -> bool:
        """Whether all figures are where they belong."""
        return not self.missing()

    def missing(self) -> list[str]:
        """Who is being waited for."""
        awaited = self.partners if self.name == self._proposer else self.clients
        return [party for party in awaited if party not in self._figures] or [self._proposer] * (not self._is_received)

    @property
    def of_silos(self) -> dict[str, list[AuditFigure]]:
        """The figures of every silo that this hub has, by its hub."""
        own = [figure for client in self.clients for figure in self._figures.get(client, ())]
        others = {hub: self._figures[hub] for hub in self._others if hub in self._figures}
        return {hub: worst_of({self.name: own, **others}[hub]) for hub in self._job.hubs if hub in {self.name, *others}}

    def start(self) -> list[Message]:
        """Nothing: clients begin."""
        return []

    def receive(self, message: Message) -> list[Message]:
        """A client's figures, or a silo's, if this is the proposer's hub; or the receipt of that one."""
        figures = _checked(message)
        compare_settings(message.sender, figures.config, self.name, self._job)
        if message.sender == self._proposer:
            self._is_received = True
            return []
        self._figures[message.sender] = figures.figures
        out: list[Message] = [_figures(self.name, message.sender, (), self._job)]
        if self.name != self._proposer and all(client in self._figures for client in self.clients):
            out.append(_figures(self.name, self._proposer, self.of_silos[self.name], self._job))
        return out


class AuditClient:
    """A client's side: its figures go to its hub, which answers that it has them."""

    def __init__(self, job: Job, silo: int, name: str, figures: Sequence[AuditFigure]) -> None:
        """Take what was found."""
        self.name, self._hub = name, job.hubs[silo]
        self.partners: tuple[str, ...] = (self._hub,)
        self.done = False
        self._job, self._own = job, figures

    def missing(self) -> list[str]:
        """Who is being waited for."""
        return [] if self.done else [self._hub]

    def start(self) -> list[Message]:
        """The figures."""
        return [_figures(self.name, self._hub, self._own, self._job)]

    def receive(self, message: Message) -> list[Message]:
        """The receipt."""
        _checked(message)
        self.done = True
        return []


def _checked(message: Message) -> AuditFigures:
    if not isinstance(message, AuditFigures):
        raise RejectedMessage(f"'{message.kind}' was not requested")
    if not all(
        map(math.isfinite, (number for figure in message.figures for number in (figure.recovered, figure.guess)))
    ):
        raise RejectedMessage("'figures' has one that is not finite")
    return message


def _figures(sender: str, receiver: str, figures: Sequence[AuditFigure], job: Job) -> Message:
    """Figures; none of them is a receipt."""
    return AuditFigures(sender, receiver, figures=[*figures], config=job.shared)


def write_report(job: Job, of_silos: Mapping[str, Sequence[AuditFigure]], folder: Path) -> None:
    """The proposer's page, and its numbers."""
    head = ["attack", "measure", "recovered", "guess", "of the gap"]
    tables = {}
    for name in job.config.silo_names:
        rows = [
            [figure.line, figure.measure, f"{figure.recovered:.2f}", f"{figure.guess:.2f}", f"{figure.gain:.0%}"]
            for figure in of_silos[hub_of(name)]
        ]
        tables[name] = TextTable(head, rows)
    page = html.page(
        f"{job.config.title} · audit",
        html.header("tdcd audit", job.config.title, [counted(len(tables), "silo"), "a job"]),
        html.notice(WHAT_IT_IS),
        *(html.section(name, html.table(table.head, table.rows)) for name, table in tables.items()),
    )
    numbers = {name: [msgspec.structs.asdict(figure) for figure in figures] for name, figures in of_silos.items()}
    write_durably(folder / NUMBERS, (json.dumps(numbers, indent=1) + "\n").encode(), mode=PRIVATE)
    write_durably(folder / PAGE, page.encode(), mode=PRIVATE)
