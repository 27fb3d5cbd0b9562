"""Finding the ids that every silo has, over the federation's own links.

A client sends its hub its ids, as it does for training; the hubs run an :class:`~tdcd.alignment.Alignment`; every
client is sent those of its ids that remain.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from tdcd.alignment import Alignment, Method, ristretto
from tdcd.alignment.messages import Outgoing
from tdcd.config import Config, ConfigError, SiloSection
from tdcd.federation import client_of
from tdcd.federation.silos import SiloIds
from tdcd.runtime.job import IncompatibleParties, Job, compare_settings
from tdcd.runtime.machine.instructions import RunOutcome
from tdcd.runtime.messages.messages import AlignCommon, AlignHello, AlignIds, AlignRows
from tdcd.runtime.messages.structure import Array, Message
from tdcd.runtime.messages.validation import take
from tdcd.runtime.messages.wire import RejectedMessage
from tdcd.runtime.process.dialogue import Waiting, converse
from tdcd.runtime.process.party import PartySection, open_transport, secret_of
from tdcd.tables.client_table import find_silo
from tdcd.tables.errors import TableError
from tdcd.tables.overlap import are_amounts, ids_of
from tdcd.tables.reader import read_rows
from tdcd.tables.rows import Columns, RawRows
from tdcd.tables.source import open_table


class AlignHub:
    """A hub's side."""

    def __init__(
        self,
        job: Job,
        silo: int,
        method: Method,
        secret: bytes,
        ids: Mapping[str, Sequence[str]] | None,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        """Take the ids of the silo's clients, or None to receive them from the clients themselves."""
        self.job, self.name, self.peers = job, job.hubs[silo], job.peers(silo)
        self.clients = () if ids is not None else job.clients(silo)
        self.partners = (*self.clients, *self.peers)
        self.common: list[str] = []
        self._silo, self._method, self._secret, self._progress = silo, method, secret, progress
        self._ids: dict[str, Sequence[str]] = dict(ids or {})
        self._alignment: Alignment | None = None
        self._early: list[AlignRows] = []
        self._met: set[str] = set()

    @property
    def num_ids(self) -> int:
        """How many the silo has."""
        return sum(len(ids) for ids in self._ids.values())

    @property
    def done(self) -> bool:
        """Whether the common ids are known."""
        return self._alignment is not None and self._alignment.done

    def missing(self) -> list[str]:
        """Who is being waited for."""
        if self.done:
            return []
        return [c for c in self.clients if c not in self._ids] or [p for p in self.peers if p not in self._met]

    def start(self) -> list[Message]:
        """Greet the other hubs; begin at once if the ids are here."""
        hello = AlignHello(self.name, "", method=self._method, config=self.job.shared)
        return [*(hello.to(peer) for peer in self.peers), *self._begin()]

    def receive(self, message: Message) -> list[Message]:
        """A client's ids, or another hub's part of the alignment."""
        if message.sender in self.clients and isinstance(message, AlignIds):
            compare_settings(message.sender, message.config, self.name, self.job)
            self._ids[message.sender] = message.ids
            return self._begin()
        if message.sender not in self.peers:
            raise RejectedMessage(f"nobody asked for '{message.kind}'")
        if not isinstance(message, AlignHello | AlignRows):
            raise RejectedMessage(f"a hub was not to send '{message.kind}'")
        self._met.add(message.sender)
        if isinstance(message, AlignHello):
            compare_settings(message.sender, message.config, self.name, self.job)
            if message.method != self._method:
                theirs = message.method
                raise IncompatibleParties(
                    f"{message.sender} aligns by {theirs} and {self.name} by {self._method}: choose one"
                )
            return []
        if self._alignment is None:
            self._early.append(message)
            return []
        rows = take(message.rows, "rows", np.uint8, [None, None])
        return self._to_messages(self._alignment.receive(self.job.hubs.index(message.sender), message.step, rows))

    def _begin(self) -> list[Message]:
        if any(client not in self._ids for client in self.clients):
            return []
        holder: dict[str, str] = {}
        for source in self.clients or self._ids:
            for sample in self._ids[source]:
                if sample in holder:
                    raise IncompatibleParties(f"id '{sample}' is held by {holder[sample]} and by {source}")
                holder[sample] = source
        number = len(self.job.hubs)
        self._alignment = Alignment(self._silo, number, [*holder], self._method, self._secret, progress=self._progress)
        out = self._to_messages(self._alignment.start())
        early, self._early = self._early, []
        for message in early:
            out += self.receive(message)
        return out

    def _to_messages(self, outgoing: Sequence[Outgoing]) -> list[Message]:
        out: list[Message] = [
            AlignRows(self.name, self.job.hubs[message.receiver], step=message.kind, rows=Array.of(message.payload))
            for message in outgoing
        ]
        if self.done and not self.common:
            assert self._alignment is not None
            self.common = self._alignment.common
            chosen = set(self.common)
            for client in self.clients:
                kept = [sample for sample in self._ids[client] if sample in chosen]
                out.append(AlignCommon(self.name, client, ids=kept))
        return out


class AlignClient:
    """A client's side: send the ids, receive which remain."""

    def __init__(self, job: Job, silo: int, name: str, ids: Sequence[str]) -> None:
        self.name, self.hub = name, job.hubs[silo]
        self.partners: tuple[str, ...] = (self.hub,)
        self.common: list[str] = []
        self.done = False
        self._job, self._ids = job, ids

    def missing(self) -> list[str]:
        """Who is being waited for."""
        return [] if self.done else [self.hub]

    def start(self) -> list[Message]:
        """The client's ids."""
        return [AlignIds(self.name, self.hub, ids=[*self._ids], config=self._job.shared)]

    def receive(self, message: Message) -> list[Message]:
        """Which of them every silo has."""
        if not isinstance(message, AlignCommon) or not set(message.ids) <= set(self._ids):
            raise RejectedMessage("it is not a choice of this client's ids")
        self.common, self.done = message.ids, True
        return []


def align_as_hub(
    job: Job, silo: str, tables: Sequence[Path], method: Method, own: PartySection, waiting: Waiting
) -> tuple[RunOutcome, list[str], SiloIds]:
    """Take a hub's part; how it ended, the common ids, and what the silo loses by keeping to them."""
    if method == "psi":
        try:
            ristretto.require()
        except ImportError as error:
            raise ConfigError([f"--psi: {error}; or use --digests among silos that trust each other"]) from None
    index = job.silo_index(silo)
    rows = [ids_in(path, job.config, job.config.silos[index]) for path in tables]
    held = {part.source: part.ids for part in rows} if tables else None
    hub = AlignHub(job, index, method, secret_of(job, own), held, waiting.progress)
    with open_transport(job, hub.name, [*hub.partners], own, "align") as transport:
        outcome = converse(hub, transport, waiting.show, waiting.should_stop)
    lost = _lost(job.config, rows, hub.common) if rows else SiloIds(hub.num_ids, len(hub.common))
    return outcome, hub.common, lost


def align_as_client(
    job: Job, silo: str, name: str, tables: Sequence[Path], own: PartySection, waiting: Waiting
) -> tuple[RunOutcome, list[str], SiloIds]:
    """Take a client's part; how it ended, which of its ids are common, and what it loses by keeping to them."""
    section = find_silo(job.config, silo, name)
    if not tables:
        raise ConfigError(["--data: is missing; a client needs the tables with its ids"])
    rows = [ids_in(path, job.config, section) for path in tables]
    client = AlignClient(
        job, job.silo_index(silo), client_of(silo, name), [sample for part in rows for sample in part.ids]
    )
    with open_transport(job, client.name, [*client.partners], own, "align") as transport:
        outcome = converse(client, transport, waiting.show, waiting.should_stop)
    return outcome, client.common, _lost(job.config, rows, client.common)


def ids_in(path: Path, config: Config, silo: SiloSection) -> RawRows:
    """The ids in a silo's table, and the labels if it has them; rows that others lack may have none."""
    columns = Columns.of(config, silo).only(())
    with open_table(path, silo.id, columns.dialect) as table:
        if silo.label in table.header:
            with suppress(TableError):
                return read_rows(table, replace(columns, label=silo.label))
        return read_rows(table, columns)


def _lost(config: Config, rows: Sequence[RawRows], common: Sequence[str]) -> SiloIds:
    """What a party's tables lose; labels that do not fit ``model.loss`` are reported elsewhere."""
    return ids_of(rows, {*common}, amounts=are_amounts(config, rows))
