"""Finding the ids that every silo has, or numbering all samples, over the federation's own links.

A client sends its hub its ids, as it does for training; the hubs run an :class:`~tdcd.alignment.Alignment`; every
client is sent those of its ids that remain. Where silos may lack samples (``data.samples = "all"``), those that remain
are the ones with a label somewhere, and a hub gets the list of them. Where only counts are asked for, all clients are
sent none.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdcd.alignment import Alignment, Answer
from tdcd.alignment.alignment import comparison_of
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
from tdcd.tables.sample_list import SampleList, compared_with, labelled_silos
from tdcd.tables.source import open_table


class AlignHub:
    """A hub's side."""

    def __init__(
        self,
        job: Job,
        silo: int,
        secret: bytes,
        ids: Mapping[str, Sequence[str]] | None,
        *,
        answer: Answer = "ids",
        known: Sequence[str] | SampleList = (),
        progress: Callable[[float], None] | None = None,
    ) -> None:
        """Take the ids of the silo's clients, or None to receive them from the clients themselves.

        Args:
            answer: whether hubs learn which ids are common, or only how many.
            known: what a former alignment found, which is not compared again: the common ids or the list of samples.
        """
        self.job, self.name, self.peers = job, job.hubs[silo], job.peers(silo)
        self.clients = () if ids is not None else job.clients(silo)
        self.partners = (*self.clients, *self.peers)
        self.common: list[str] = []
        """The ids of this silo that training uses."""
        self.listed: SampleList | None = None
        """The list of samples, where silos may lack some."""
        self.counts: dict[str, int] = {}
        """How many of this silo's ids each other silo has, by its hub."""
        self._silo, self._answer, self._known = silo, answer, known
        self._secret, self._progress = secret, progress
        self._ids: dict[str, Sequence[str]] = dict(ids or {})
        self._alignment: Alignment | None = None
        self._early: dict[tuple[str, str], AlignRows] = {}
        """By hub and step: what came before the ids of this hub's clients."""
        self._met: set[str] = set()
        self._points: dict[tuple[str, str], NDArray[np.uint8]] = {}
        """By sender and receiver: the ids that the one has sent the other, blinded."""

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
        hello = AlignHello(self.name, "", answer=self._answer, config=self.job.shared)
        return [*(hello.to(peer) for peer in self.peers), *self._begin()]

    def receive(self, message: Message) -> list[Message]:
        """A client's ids, or another hub's part of the alignment."""
        if message.sender in self.clients and isinstance(message, AlignIds):
            compare_settings(message.sender, message.config, self.name, self.job)
            self._compare_answers(message)
            if self._alignment is None:
                self._ids[message.sender] = message.ids
                return self._begin()
            if self._ids[message.sender] != message.ids:
                raise IncompatibleParties(
                    f"{message.sender} came back with other ids than before: start the alignment again at all parties"
                )
            return []
        if message.sender not in self.peers:
            raise RejectedMessage(f"'{message.kind}' was not requested")
        if not isinstance(message, AlignHello | AlignRows):
            raise RejectedMessage(f"a hub was not to send '{message.kind}'")
        self._met.add(message.sender)
        if isinstance(message, AlignHello):
            compare_settings(message.sender, message.config, self.name, self.job)
            self._compare_answers(message)
            return []
        rows = take(message.rows, "rows", np.uint8, [None, None])
        if message.step not in {"announced", "blinded"} and message.run != self._comparison_with(message.sender):
            raise RejectedMessage("it is about ids that were compared before one of the hubs came back")
        if self._alignment is None:
            self._early[message.sender, message.step] = message
            return []
        if message.step == "blinded":
            self._points[message.sender, self.name] = rows
        return self._to_messages(self._alignment.receive(self.job.hubs.index(message.sender), message.step, rows))

    def _compare_answers(self, message: AlignHello | AlignIds) -> None:
        if message.answer != self._answer:
            raise IncompatibleParties(
                f"{message.sender} asks for {message.answer} and {self.name} for {self._answer}: give all parties "
                "--counts, or none"
            )

    def _begin(self) -> list[Message]:
        if any(client not in self._ids for client in self.clients):
            return []
        holder: dict[str, str] = {}
        for source in self.clients or self._ids:
            for sample in self._ids[source]:
                if sample in holder:
                    raise IncompatibleParties(f"id '{sample}' is held by {holder[sample]} and by {source}")
                holder[sample] = source
        names, is_union = self.job.config.silo_names, self.job.may_lack_samples
        own, known = names[self._silo], self._known
        by_silo: dict[int, Sequence[str]]
        if isinstance(known, SampleList):
            by_silo = {names.index(silo): ids for silo, ids in known.shared().items() if silo in names}
        else:
            by_silo = {silo: known for silo in range(len(names)) if silo != self._silo}
        self._alignment = Alignment(
            self._silo,
            len(self.job.hubs),
            [*holder],
            self._secret,
            answer=self._answer,
            known=by_silo,
            compared=[names.index(silo) for silo in compared_with(self.job.config, own)] if is_union else None,
            labelled=labelled_silos(self.job.config) if is_union else (),
            progress=self._progress,
        )
        out = self._to_messages(self._alignment.start())
        early = [*self._early.values()]
        self._early.clear()
        for message in early:
            out += self.receive(message)
        return out

    def _comparison_with(self, peer: str) -> str | None:
        """Its name; None as long as points are not here, which no answer is about."""
        points = [self._points.get(link) for link in ((self.name, peer), (peer, self.name))]
        known = [rows for rows in points if rows is not None]
        return comparison_of(*known) if len(known) == len(points) else None

    def _to_messages(self, outgoing: Sequence[Outgoing]) -> list[Message]:
        out: list[Message] = []
        for message in outgoing:
            peer, step, rows = self.job.hubs[message.receiver], message.step, message.payload
            if step == "blinded":
                self._points[self.name, peer] = rows
            run = self._comparison_with(peer) if step in {"returned", "numbered"} else None
            out.append(AlignRows(self.name, peer, run=run or "", step=step, rows=Array.of(rows)))
        if self.done and not self.counts:
            assert self._alignment is not None
            self.counts = {self.job.hubs[silo]: count for silo, count in self._alignment.counts.items()}
            if self._answer == "ids" and self.job.may_lack_samples:
                self.listed = self._alignment.samples(self.job.config.silo_names)
                self.common = [*self.listed.ids]
            elif self._answer == "ids":
                self.common = self._alignment.common
            chosen = set(self.common)
            for client in self.clients:
                kept = [sample for sample in self._ids[client] if sample in chosen]
                out.append(AlignCommon(self.name, client, ids=kept))
        return out


class AlignClient:
    """A client's side: send the ids, receive which remain."""

    def __init__(self, job: Job, silo: int, name: str, ids: Sequence[str], answer: Answer = "ids") -> None:
        self.name, self.hub = name, job.hubs[silo]
        self.partners: tuple[str, ...] = (self.hub,)
        self.common: list[str] = []
        self.done = False
        self._job, self._ids, self._answer = job, ids, answer

    def missing(self) -> list[str]:
        """Who is being waited for."""
        return [] if self.done else [self.hub]

    def start(self) -> list[Message]:
        """The client's ids."""
        return [AlignIds(self.name, self.hub, answer=self._answer, ids=[*self._ids], config=self._job.shared)]

    def receive(self, message: Message) -> list[Message]:
        """Which of them every silo has."""
        if not isinstance(message, AlignCommon) or not set(message.ids) <= set(self._ids):
            raise RejectedMessage("it is not a choice of this client's ids")
        self.common, self.done = message.ids, True
        return []


class Aligned(NamedTuple):
    """How a party's alignment ended.

    Attributes:
        common: the ids to train on, those of the party if it is a client; none where only counts were asked for.
        lost: what the party loses by keeping to them.
        counts: of a hub: how many of the silo's ids each other silo has that it was compared with.
        listed: of a hub: the list of samples, where silos may lack some.
    """

    outcome: RunOutcome
    common: list[str]
    lost: SiloIds
    counts: Mapping[str, int]
    listed: SampleList | None = None

    def write(self, path: Path) -> None:
        """Write the ids to train on, one per line; of a hub that may lack samples, its list of them."""
        if self.listed is not None:
            self.listed.write(path)
        else:
            path.write_text("".join(f"{sample}\n" for sample in self.common), encoding="utf-8")


def align_as_hub(
    job: Job,
    silo: str,
    tables: Sequence[Path],
    own: PartySection,
    waiting: Waiting,
    *,
    answer: Answer = "ids",
    known: Path | None = None,
) -> Aligned:
    """Take a hub's part; ``known`` is the file of a former alignment, whose ids are not compared again."""
    index = job.silo_index(silo)
    rows = [ids_in(path, job.config, job.config.silos[index]) for path in tables]
    held = {part.source: part.ids for part in rows} if tables else None
    before: Sequence[str] | SampleList = ()
    if known is not None:
        is_list = job.may_lack_samples
        before = SampleList.read(known) if is_list else known.read_text(encoding="utf-8").splitlines()
    hub = AlignHub(job, index, secret_of(job, own), held, answer=answer, known=before, progress=waiting.progress)
    with open_transport(job, hub.name, [*hub.partners], own, "align") as transport:
        outcome = converse(hub, transport, waiting.show, waiting.should_stop)
    lost = _lost(job.config, rows, hub.common) if rows else SiloIds(hub.num_ids, len(hub.common))
    counts = {peer.removeprefix("hub."): count for peer, count in hub.counts.items()}
    return Aligned(outcome, hub.common, lost, counts, hub.listed)


def align_as_client(
    job: Job,
    silo: str,
    name: str,
    tables: Sequence[Path],
    own: PartySection,
    waiting: Waiting,
    *,
    answer: Answer = "ids",
) -> Aligned:
    """Take a client's part."""
    section = find_silo(job.config, silo, name)
    if not tables:
        raise ConfigError(["--data: is missing; a client needs the tables with its ids"])
    rows = [ids_in(path, job.config, section) for path in tables]
    ids = [sample for part in rows for sample in part.ids]
    client = AlignClient(job, job.silo_index(silo), client_of(silo, name), ids, answer)
    with open_transport(job, client.name, [*client.partners], own, "align") as transport:
        outcome = converse(client, transport, waiting.show, waiting.should_stop)
    return Aligned(outcome, client.common, _lost(job.config, rows, client.common), {})


def ids_in(path: Path, config: Config, silo: SiloSection) -> RawRows:
    """The ids in a silo's table, and the labels if it has them; rows that others lack may have none."""
    columns = Columns.of(config, silo).only(())
    with open_table(path, columns.row_id, columns.dialect) as table:
        if silo.label in table.header:
            with suppress(TableError):
                return read_rows(table, replace(columns, label=silo.label))
        return read_rows(table, columns)


def _lost(config: Config, rows: Sequence[RawRows], common: Sequence[str]) -> SiloIds:
    """What a party's tables lose; labels that do not fit ``model.loss`` are reported elsewhere."""
    return ids_of(rows, {*common}, amounts=are_amounts(config, rows))
