"""The silos' files on several hosts: each reads the tables of its own clients, and tells the others what all must know.

That is ids, labels and weights of all rows, and the sums and counts that features are prepared by. Raw columns stay
where they were read, one table at a time.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.config import Config, SiloSection
from tdcd.federation.hosts import HostRows, Hosts
from tdcd.federation.partition import Rows
from tdcd.tables.client_table import read_as, row_numbers
from tdcd.tables.errors import TableError, caution
from tdcd.tables.preparation import Preparation
from tdcd.tables.reader import read_chunks, read_rows
from tdcd.tables.rows import Columns, RawRows
from tdcd.tables.summary import Summary, summarize


@dataclass(frozen=True)
class TablesApart:
    """The tables of a configuration, of which this process reads those of its own clients."""

    config: Config
    hosts: Hosts

    def known(self) -> dict[str, list[RawRows]]:
        """Every table without its columns: ids, labels and weights.

        A silo's only table, which its clients share, is read by all processes.
        """
        own = {section.name: self._own(section) for section in self.config.silos}
        read: dict[str, dict[int, RawRows]] = {}

        def spines() -> dict[str, Any]:
            errors: list[TableError] = []
            for section in self.config.silos:
                read[section.name] = {}
                for place, path in own[section.name].items():
                    try:
                        read[section.name][place] = self._spine(section, path)
                    except TableError as error:
                        errors.append(error)
            if errors:
                raise TableError.joined(errors)
            return {
                section.name: {place: _said(rows) for place, rows in read[section.name].items()}
                for section in self.config.silos
                if section.client
            }

        for told in self.hosts.tell(spines):
            for silo, tables in told.items():
                read[silo] |= {int(p): _heard(rows) for p, rows in tables.items() if int(p) not in read[silo]}
        return {silo: [rows for _, rows in sorted(tables.items())] for silo, tables in read.items()}

    def summaries(self, section: SiloSection, train: "Wanted") -> dict[str, Summary]:
        """Of every client of a silo, by name, in order: each process makes those of its own."""
        columns, bins = Columns.of(self.config, section), self.config.model.bins
        has = self.hosts.has(len(section.client_names))

        def made() -> dict[str, Any]:
            found: dict[str, Any] = {}
            for place, path in self._own(section).items():
                table = read_rows(path, columns)
                for sentence in row_numbers(table):
                    caution(f"{table.source}: {sentence}")
                for client in [place] if section.client else np.flatnonzero(has).tolist():
                    summary = summarize(table, np.isin(train.numbers[place], train.rows[client]), bins)
                    found[section.client_names[client]] = summary.to_json()
            return found

        told = {name: value for one in self.hosts.tell(made) for name, value in one.items()}
        return {name: Summary.from_json(told[name]) for name in section.client_names}

    def features(
        self, section: SiloSection, preparation: Preparation, kinds: Sequence["Wanted"], num_ones: int
    ) -> list[HostRows]:
        """The features of this process's rows: of the training samples, and of the held-out ones if there are some."""
        return self.hosts.together(lambda: self._features(section, preparation, kinds, num_ones))

    def _features(
        self, section: SiloSection, preparation: Preparation, kinds: Sequence["Wanted"], num_ones: int
    ) -> list[HostRows]:
        dtype, shape = self.config.dtype, (len(preparation.columns) + num_ones,)
        has = self.hosts.has(len(section.client_names))
        rooms = []
        for kind in kinds:
            here = [own for own, is_here in zip(kind.rows, has, strict=True) if is_here]
            numbers = np.concatenate([np.empty(0, np.int64), *here])
            rooms.append(HostRows(*HostRows.room(kind.total, shape, dtype, numbers)))
        for place, path in self._own(section).items():
            for start, chunk in self._chunks(section, path):
                for kind, room in zip(kinds, rooms, strict=True):
                    numbers = kind.numbers[place][start : start + len(chunk)]
                    places = np.where(numbers >= 0, room.places[numbers], -1)
                    wanted = np.flatnonzero(places >= 0)
                    room.rows[places[wanted]] = preparation.apply(chunk.take(wanted), dtype, num_ones)
        return rooms

    def _chunks(self, section: SiloSection, path: Path) -> Iterator[tuple[int, RawRows]]:
        """The rows of a table, some at a time, and how many were before them."""
        start = 0
        for chunk in read_chunks(path, Columns.of(self.config, section)):
            yield start, chunk
            start += len(chunk)

    def _own(self, section: SiloSection) -> dict[int, Path]:
        """The tables that this process reads, by their places among the silo's."""
        folder = Path(self.config.data.folder or "")
        if not section.client:
            return {0: folder / (section.table or "")}
        has = self.hosts.has(len(section.client))
        return {place: folder / (section.client[place].table or "") for place in np.flatnonzero(has).tolist()}

    def _spine(self, section: SiloSection, path: Path) -> RawRows:
        columns = replace(Columns.of(self.config, section), features=(), categorical=(), ignore=())
        return read_as(self.config, section, path, columns)


@dataclass(frozen=True)
class Wanted:
    """Samples of one kind, training or held out, of a silo."""

    total: int
    rows: Rows
    """The samples of each client."""
    numbers: Sequence[NDArray[np.int64]]
    """Of each table, the sample that each row is about; -1 for none."""

    @classmethod
    def held_out(cls, section: SiloSection, total: int, numbers: Sequence[NDArray[np.int64]]) -> "Wanted":
        """Each client has those in its table, or an even part of those in the silo's only one."""
        if section.client:
            return cls(total, tuple(np.sort(held[held >= 0]) for held in numbers), numbers)
        return cls(total, tuple(np.array_split(np.arange(total), len(section.client_names))), numbers)


def _said(rows: RawRows) -> dict[str, Any]:
    """A table without its columns, in values that JSON writes exactly."""
    labels, weights = rows.labels, rows.weights
    return {
        "source": rows.source,
        "ids": list(rows.ids),
        "labels": labels.tolist() if isinstance(labels, np.ndarray) else labels,
        "weights": None if weights is None else weights.tolist(),
    }


def _heard(said: Mapping[str, Any]) -> RawRows:
    """What :func:`_said` gave."""
    labels, weights = said["labels"], said["weights"]
    if labels is not None and not any(isinstance(label, str) for label in labels):
        labels = np.array(labels, np.float64)
    return RawRows(
        said["source"], said["ids"], {}, labels, weights=None if weights is None else np.array(weights, np.float64)
    )
