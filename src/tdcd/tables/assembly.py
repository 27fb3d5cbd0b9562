"""A federation put together from the silos' files by the steps that real hubs and clients take.

In one process, or on several hosts: each then reads the tables of its own clients, and sends the others what all must
know. That is ids, labels and weights of all rows, and the sums and counts that features are prepared by. Raw columns
stay where they were read, one table at a time.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from tdcd.config import Config, ConfigError, SiloSection
from tdcd.config.losses import chosen_loss, label_unit
from tdcd.core.settings import Dtype
from tdcd.core.words import counted
from tdcd.data.randomized import trial_key
from tdcd.federation.hosts import HostRows, Hosts, held_of
from tdcd.federation.partition import Rows, aligned_empty, sizes_of, split_rows
from tdcd.federation.silos import ONES, Federation, Silo, Terms
from tdcd.tables.client_table import read_as, read_table, row_numbers, tables_of
from tdcd.tables.errors import TableError, caution
from tdcd.tables.label_privacy import check_all_classes, randomized_labels, with_noise
from tdcd.tables.labels import LabelEncoding, Labels, canonical_label, choose_held_out, encode, in_words, standardized
from tdcd.tables.overlap import (
    alignment,
    common_ids,
    held_twice,
    labelled_ids,
    left_out_by_spelling,
    presence_by_pattern,
)
from tdcd.tables.preparation import Preparation, without_use
from tdcd.tables.reader import give_back_memory, read_chunks, read_rows
from tdcd.tables.rows import Columns, RawRows
from tdcd.tables.sample_list import SampleList
from tdcd.tables.summary import Summary, merge_summaries, summarize
from tdcd.tables.weighting import raw_weights

ROWS_AT_ONCE = 1 << 15
"""Rows are prepared so many at a time, to need little memory in addition to the features."""


class Assembled(NamedTuple):
    """A federation, and what it takes to use its model on other rows."""

    federation: Federation
    label_encoding: LabelEncoding
    preparations: Mapping[str, Preparation]
    """The preparation of each silo."""
    ids: Sequence[str]
    """``[M]``: of the training samples."""
    test_ids: Sequence[str]
    """``[m]``: of the held-out ones."""
    test_labels: Sequence[str | float]
    """``[m]``: their labels, as the tables have them."""
    lists: Mapping[str, SampleList] = MappingProxyType({})
    """What each silo knows of the list of samples, where silos may lack some."""


class _SampleNumbers(NamedTuple):
    """The samples in the federation's order."""

    numbers: Mapping[str, int]
    """The number of each sample by id, in order."""
    held_out: NDArray[np.bool_]
    labels: NDArray[Any]


@dataclass(frozen=True)
class SampleSet:
    """The training samples of a silo, or its held-out ones."""

    total: int
    rows: Rows
    """The samples of each client."""
    numbers: Sequence[NDArray[np.int64]]
    """The sample that each row of each table is about; -1 for none."""

    @classmethod
    def held_out(cls, section: SiloSection, total: int, numbers: Sequence[NDArray[np.int64]]) -> Self:
        """Each client has those in its table, or an even part of those in the silo's only one."""
        if section.client:
            return cls(total, tuple(np.sort(held[held >= 0]) for held in numbers), numbers)
        return cls(total, tuple(np.array_split(_known(numbers), len(section.client_names))), numbers)


@dataclass(frozen=True)
class DistributedTables:
    """The tables of a configuration on several hosts: this process reads those of its own clients."""

    config: Config
    hosts: Hosts

    def known(self) -> dict[str, list[RawRows]]:
        """Every table without its columns: ids, labels and weights.

        A silo's only table, which its clients share, is read by all processes.
        """
        own = {section.name: self._own(section) for section in self.config.silos}
        read: dict[str, dict[int, RawRows]] = {}

        def indexes() -> dict[str, Any]:
            errors: list[TableError] = []
            for section in self.config.silos:
                read[section.name] = {}
                for place, path in own[section.name].items():
                    try:
                        read[section.name][place] = self._index(section, path)
                    except TableError as error:
                        errors.append(error)
            if errors:
                raise TableError.joined(errors)
            return {
                section.name: {place: _to_json(rows) for place, rows in read[section.name].items()}
                for section in self.config.silos
                if section.client
            }

        for others in self.hosts.gather(indexes):
            for silo, tables in others.items():
                read[silo] |= {int(p): _from_json(rows) for p, rows in tables.items() if int(p) not in read[silo]}
        return {silo: [rows for _, rows in sorted(tables.items())] for silo, tables in read.items()}

    def summaries(self, section: SiloSection, train: SampleSet) -> dict[str, Summary]:
        """The summary of every client of a silo, by name, in order: each process makes those of its own."""
        columns, bins = Columns.of(self.config, section), self.config.model.num_bins
        has = self.hosts.has(len(section.client_names))

        def made() -> dict[str, Any]:
            by_client: dict[str, Any] = {}
            for place, path in self._own(section).items():
                table = read_rows(path, columns)
                for sentence in row_numbers(table):
                    caution(f"{table.source}: {sentence}")
                for client in [place] if section.client else np.flatnonzero(has).tolist():
                    summary = summarize(table, np.isin(train.numbers[place], train.rows[client]), bins)
                    by_client[section.client_names[client]] = summary.to_json()
            return by_client

        gathered = {name: value for own in self.hosts.gather(made) for name, value in own.items()}
        return {name: Summary.from_json(gathered[name]) for name in section.client_names}

    def features(
        self, section: SiloSection, preparation: Preparation, kinds: Sequence[SampleSet], num_ones: int
    ) -> list[HostRows]:
        """The features of this process's rows: of the training samples, and of the held-out ones if there are some."""
        return self.hosts.together(lambda: self._features(section, preparation, kinds, num_ones))

    def _features(
        self, section: SiloSection, preparation: Preparation, kinds: Sequence[SampleSet], num_ones: int
    ) -> list[HostRows]:
        dtype, shape = self.config.dtype, (len(preparation.columns) + num_ones,)
        has = self.hosts.has(len(section.client_names))
        rooms = []
        for kind in kinds:
            held = held_of(kind.rows, has)
            rooms.append(HostRows(HostRows.room(shape, dtype, held), held, kind.total))
        for place, path in self._own(section).items():
            for start, chunk in self._chunks(section, path):
                for kind, room in zip(kinds, rooms, strict=True):
                    numbers = kind.numbers[place][start : start + len(chunk)]
                    places = room.held.places(numbers)
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

    def _index(self, section: SiloSection, path: Path) -> RawRows:
        columns = replace(Columns.of(self.config, section), features=(), categorical=(), ignore=())
        return read_as(self.config, section, path, columns)


def assemble(
    config: Config, tables: dict[str, list[RawRows]] | None = None, *, bias: int | None, hosts: Hosts | None = None
) -> Assembled:
    """Read the silos' files and make a federation of them.

    Args:
        tables: of every silo, one or one per client, if they are at hand; they are taken out of it one by one.
        bias: give the silo of this number a column of ones.
        hosts: the processes that do this together, each with the features of its own clients; none by default.
    """
    takes_all = config.data.samples == "all"
    if takes_all and hosts is not None:
        raise ConfigError(["data.samples = 'all': several hosts train on samples that every silo has; use 'common'"])
    distributed = None if hosts is None else DistributedTables(config, hosts)
    if tables is None:
        _check(config)
        tables = _read(config) if distributed is None else distributed.known()
        if twice := [error for section in config.silos for error in held_twice(section, tables[section.name])]:
            raise TableError.joined(twice)
    for rows in (rows for parts in tables.values() for rows in parts):
        for sentence in row_numbers(rows):
            caution(f"{rows.source}: {sentence}")
    ids = labelled_ids(config, tables) if takes_all else common_ids(config, tables)
    for sentence in left_out_by_spelling(config, tables):
        caution(sentence)
    numbers = {sample: number for number, sample in enumerate(ids)}
    # From here on there are randomised labels only, if the file asks for them.
    encoded = _labels(config, tables, numbers)
    held_out = choose_held_out(encoded, config.evaluate.holdout, config.data.seed, stratify=config.evaluate.stratify)
    if held_out.all():
        raise TableError([f"all of the {len(ids)} samples are held out: lower evaluate.holdout, or add samples"])
    labels, mean, scale = standardized(encoded, ~held_out, label_unit(config))
    samples = _SampleNumbers(numbers, held_out, labels)
    weights = raw_weights(config, tables, numbers)
    # Randomised labels are left out: those of the other ids were never drawn.
    amounts = None if config.federation.label_epsilon is not None else encoded.task == "regression"
    aligned = alignment(tables, numbers.keys(), amounts=amounts) if config.data.align else {}
    if takes_all or any(ids.lost for ids in aligned.values()):
        presence = presence_by_pattern(tables, amounts=amounts)
        if takes_all and presence.in_words:
            caution(f"data.samples = 'all': ids by the silos that have them: {presence.in_words}")
        if presence.selection:
            caution(presence.selection)
    label_encoding = LabelEncoding(encoded.task, encoded.classes, mean, scale)
    lists = SampleList.of_tables(config, tables, ids) if takes_all else {}
    made = []
    for index, section in enumerate(config.silos):
        # Taken out, so that a silo's raw columns are freed when its features are there.
        made.append(_silo(config, index, tables.pop(section.name), samples, bias == index, distributed))
    give_back_memory()
    preparations = {silo.name: preparation for silo, preparation in made}
    federation = Federation(
        tuple(silo for silo, _ in made),
        labels[~held_out],
        labels[held_out] if held_out.any() else None,
        label_encoding.scale,
        name=config.title,
        weights=None if weights is None else weights[~held_out],
        test_weights=weights[held_out] if weights is not None and held_out.any() else None,
        labels_in_words=with_noise(config, in_words(encoded, config.model.loss), len(encoded.classes)),
        label_mean=label_encoding.mean,
        classes=label_encoding.classes,
        alignment=aligned,
        terms=Terms(config.federation.labels, samples="all", standin=config.data.standin) if takes_all else Terms(),
    )
    named = np.array(ids, object)
    ids, test_ids = named[~held_out].tolist(), named[held_out].tolist()
    return Assembled(federation, label_encoding, preparations, ids, test_ids, encoded.of(held_out), lists)


def _check(config: Config) -> None:
    """Refuse a configuration that a simulation cannot use, though hubs and clients can."""
    problems = [
        f"silo '{section.name}': give it a table, or [[silos.client]] entries with tables"
        for section in config.silos
        if not section.table and not section.client
    ]
    if all(section.label is None for section in config.silos):
        problems.append('silos: no silo has a label: name the column to predict, label = "...", in one of them')
    if problems:
        raise ConfigError(problems)


def _read(config: Config) -> dict[str, list[RawRows]]:
    """The tables of every silo: one, or one per client. What is wrong with any of them is reported at once."""
    folder = Path(config.data.folder or "")
    tables: dict[str, list[RawRows]] = {}
    errors: list[TableError] = []
    for section in config.silos:
        tables[section.name] = []
        for path in tables_of(section):
            try:
                tables[section.name].append(read_table(config, section, folder / path))
            except TableError as error:
                errors.append(error)
    if errors:
        raise TableError.joined(errors)
    return tables


def _labels(config: Config, tables: Mapping[str, Sequence[RawRows]], numbers: Mapping[str, int]) -> Labels:
    """The labels of all samples, from the silos that have them."""
    by_silo = {
        section.name: _raw_labels(tables[section.name], numbers)
        for section in config.silos
        if section.label is not None
    }
    (first, (values, known)), *others = by_silo.items()
    for name, (given, also) in others:
        values, theirs = _alike(values, given)
        shared = np.flatnonzero(known & also)
        _check_agreement([*numbers], first, values, name, theirs, shared)
        values, known = np.where(known, values, theirs), known | also
    if config.federation.label_epsilon is not None:
        key = trial_key(config.data.seed)
        values = np.asarray(randomized_labels(config, values, [*numbers], key, f"silo '{first}'"))
    try:
        encoded = encode(values, chosen_loss(config.model))
        check_all_classes(config, encoded)
        return encoded
    except ValueError as error:
        raise TableError([f"the labels of silo '{first}': {error}"]) from None


def _raw_labels(parts: Sequence[RawRows], numbers: Mapping[str, int]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """``[total]``: a silo's labels in sample order, texts if any client's are; and which samples it has."""
    named = any(isinstance(part.labels, list) for part in parts)
    labels, held = np.zeros(len(numbers), object if named else np.float64), np.zeros(len(numbers), bool)
    for part in parts:
        places = part.places(numbers)
        known = places >= 0
        values = [canonical_label(label) for label in part.labels or ()] if named else part.labels
        labels[places[known]] = np.asarray(values, labels.dtype)[known]
        held[places[known]] = True
    return (labels.astype(str) if named else labels), held


def _alike(*labels: NDArray[Any]) -> list[NDArray[Any]]:
    """Labels of several silos: numbers in all, or texts in all."""
    if len({values.dtype.kind for values in labels}) == 1:
        return [*labels]
    return [np.array([canonical_label(label) for label in values.tolist()]) for values in labels]


def _check_agreement(
    ids: Sequence[str],
    first: str,
    labels: NDArray[Any],
    second: str,
    others: NDArray[Any],
    shared: NDArray[np.int64],
) -> None:
    differ = shared[labels[shared] != others[shared]]
    if len(differ):
        place = differ[0]
        ours, other = canonical_label(labels[place]), canonical_label(others[place])
        raise TableError(
            [
                f"the silos' labels differ for {counted(len(differ), 'sample')}: id {ids[place]!r} is {ours!r} in silo "
                f"'{first}' and {other!r} in silo '{second}': correct one, or drop a label"
            ]
        )


def _silo(
    config: Config,
    index: int,
    parts: list[RawRows],
    samples: _SampleNumbers,
    bias: bool,
    distributed: DistributedTables | None,
) -> tuple[Silo, Preparation]:
    """One silo: its preparation, from its clients' summaries, and its features."""
    section, held_out = config.silos[index], samples.held_out
    # A row that is not a sample, -1, finds the last entry.
    train_number = np.append(np.where(held_out, -1, np.cumsum(~held_out) - 1), -1)
    test_number = np.append(np.where(held_out, np.cumsum(held_out) - 1, -1), -1)
    numbers = [part.places(samples.numbers) for part in parts]
    train, test = [train_number[number] for number in numbers], [test_number[number] for number in numbers]
    try:
        rows = _rows(config, index, train, samples.labels[~held_out])
        kinds = [SampleSet(int((~held_out).sum()), rows, train)]
        if held_out.any():
            kinds.append(SampleSet.held_out(section, int(held_out.sum()), test))
        if distributed is not None:
            summaries = distributed.summaries(section, kinds[0])
        else:
            # Every client has a table, or all share one.
            copies = 1 if section.client else len(section.client_names)
            summaries = {
                name: summarize(part, np.isin(numbers, held), config.model.num_bins)
                for name, held, part, numbers in zip(
                    section.client_names, rows, parts * copies, train * copies, strict=True
                )
            }
        preparation = Preparation.of_clients(summaries, config)
    except ValueError as error:
        raise TableError([f"silo '{section.name}': {error}"]) from None
    if distributed is None or not distributed.hosts.here:
        for column, sentence in without_use(merge_summaries(summaries), preparation, config.data.rare).items():
            caution(f"silo '{section.name}', column '{column}': {sentence}")
    features: list[Any]
    if distributed is None:
        features = [_features(parts, kind, preparation, int(bias), config.dtype) for kind in kinds]
    else:
        features = distributed.features(section, preparation, kinds, int(bias))
    columns = preparation.columns + (ONES,) * bias
    called, reading = section.client_names, Columns.of(config, section).reading
    held = Silo(section.name, features[0], rows, columns, None, called, preparation, section.id, reading)
    held = replace(held, shared=_shared(parts, kinds[0]))
    if held_out.any():
        test_shared = _shared(parts, kinds[1])
        held = replace(held, test_features=features[1], test_rows=kinds[1].rows, test_shared=test_shared)
    return held, preparation


def _shared(parts: Sequence[RawRows], wanted: SampleSet) -> NDArray[np.int64] | None:
    """``[total]``: a number of each sample's row, where one belongs to many samples; None if each has its own."""
    shared, before = np.full(wanted.total, -1, np.int64), 0
    for part, number in zip(parts, wanted.numbers, strict=True):
        if part.shared is None:
            return None
        known = number >= 0
        shared[number[known]] = before + part.shared[known]
        before += int(part.shared.max(initial=-1)) + 1
    return shared


def _rows(config: Config, index: int, numbers: Sequence[NDArray[np.int64]], labels: NDArray[Any]) -> Rows:
    """The training samples of each client: those in its table, or its part of the silo's one table."""
    section, chosen = config.silos[index], config.federation
    if section.client:
        return tuple(np.sort(held[held >= 0]) for held in numbers)
    rng = np.random.default_rng([config.seed, 0 if chosen.aligned else index])
    sizes, known = sizes_of(chosen.sizes, index), _known(numbers)
    split = split_rows(labels[known], len(section.client_names), sizes, chosen.rows, chosen.alpha, rng)
    return tuple(known[part] for part in split)


def _known(numbers: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """The samples that a silo's tables have, in order."""
    held = np.concatenate([*numbers])
    return np.sort(held[held >= 0])


def _features(
    parts: Sequence[RawRows], wanted: SampleSet, preparation: Preparation, num_ones: int, dtype: Dtype
) -> NDArray[Any]:
    """``[total, D + ones]``: the features of these samples."""
    features = aligned_empty((wanted.total, len(preparation.columns) + num_ones), dtype)
    if sum(len(rows) for rows in wanted.rows) < wanted.total:
        features[...] = 0
    for part, number in zip(parts, wanted.numbers, strict=True):
        known = np.flatnonzero(number >= 0)
        for start in range(0, len(known), ROWS_AT_ONCE):
            rows = known[start : start + ROWS_AT_ONCE]
            features[number[rows]] = preparation.apply(part.take(rows), dtype, num_ones)
    return features


def _to_json(rows: RawRows) -> dict[str, Any]:
    """A table without its columns, in values that JSON writes exactly."""
    labels, weights = rows.labels, rows.weights
    return {
        "source": rows.source,
        "ids": list(rows.ids),
        "labels": labels.tolist() if isinstance(labels, np.ndarray) else labels,
        "weights": None if weights is None else weights.tolist(),
        "shared": None if rows.shared is None else rows.shared.tolist(),
    }


def _from_json(value: Mapping[str, Any]) -> RawRows:
    """What :func:`_to_json` gave."""
    labels, weights, shared = value["labels"], value["weights"], value["shared"]
    if labels is not None and not any(isinstance(label, str) for label in labels):
        labels = np.array(labels, np.float64)
    return RawRows(
        value["source"],
        value["ids"],
        {},
        labels,
        weights=None if weights is None else np.array(weights, np.float64),
        shared=None if shared is None else np.array(shared, np.int64),
    )
