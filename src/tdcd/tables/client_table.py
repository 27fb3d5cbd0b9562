"""The silos' own tables: read as they would be in the real federation, checked, and described for their owners."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdcd.config import Config, ConfigError, SiloSection
from tdcd.config.losses import chosen_loss
from tdcd.core.words import there_are
from tdcd.federation.silos import SiloIds
from tdcd.tables.cells import KIND_WORDS, CellKind, days_in_words
from tdcd.tables.dialect import Dialect
from tdcd.tables.errors import TableError
from tdcd.tables.label_privacy import EPSILON_COLUMN, classes_of, with_noise
from tdcd.tables.labels import FEW, canonical_label, encode, in_words
from tdcd.tables.overlap import (
    PresenceCounts,
    alignment,
    are_amounts,
    common_ids,
    held_twice,
    labelled_ids,
    left_out_by_spelling,
    presence_by_pattern,
)
from tdcd.tables.reader import read_rows
from tdcd.tables.rows import Category, Column, Columns, RawRows, spelt_otherwise, written_twice
from tdcd.tables.sample_list import SampleList
from tdcd.tables.source import Source, open_table
from tdcd.tables.summary import CategoryStats, NumericStats

LABELLED_ONLY = ", or leave those rows out with --ids FILE, the common ids that tdcd align writes"
SHOWN_IDS = 5
"""How many ids an error names."""
MANY_LEVELS = 50
"""More levels than this are pointed out."""


def find_silo(config: Config, silo: str, client: str) -> SiloSection:
    """The silo of this name, which must have a client of that name."""
    sections = {section.name: section for section in config.silos}
    if silo not in sections:
        raise ConfigError([f"there is no silo '{silo}'; there are {', '.join(sections) or 'none'}"])
    if client not in sections[silo].client_names:
        names = ", ".join(sections[silo].client_names)
        raise ConfigError([f"silo '{silo}' has no client '{client}'; there are {names}"])
    return sections[silo]


def read_labels(config: Config, silo: str, data: Path) -> RawRows:
    """The ids and true labels in a table of the silo that they come from, with the weights if it has any."""
    section = next((section for section in config.silos if section.name == silo), None)
    if section is None or section.label is None:
        known = ", ".join(section.name for section in config.silos if section.label is not None)
        raise ConfigError([f"silo '{silo}' has no label = \"...\"; silos that have: {known or 'none'}"])
    rows = _read_label_table(config, section, data, section.label, section.weight)
    if _epsilon_of(rows) is not None:
        raise TableError([f"{data}: its labels were randomised already; give the table of true ones"])
    return rows


def read_client(
    config: Config, silo: SiloSection, data: Path, labels: Path | None = None, ids: Path | None = None
) -> RawRows:
    """A client's rows with their labels, which are in the same file or in a second one; without, in a silo without.

    The label column is called as the silo says, or else as the first silo that names one.

    Args:
        ids: a text file of the ids to keep, one per line; rows about others are left out, and need no label.
    """
    weight = silo.weight or next((section.weight for section in config.silos if section.weight is not None), None)
    columns = replace(Columns.of(config, silo), weight=None)
    label = silo.label or next((section.label for section in config.silos if section.label is not None), None)
    if label is None:
        raise ConfigError(['silos: no silo has a label: name the column to predict, label = "...", in one of them'])
    if config.federation.labels not in (None, silo.name):
        if labels is not None:
            raise TableError([f"--labels {labels}: silo '{silo.name}' has none (federation.labels); leave it out"])
        with open_table(data, columns.row_id, columns.dialect) as table:
            refuse_label(config, table, label)
            return _chosen(read_rows(table, replace(columns, label=None)), ids, columns.dialect)
    if labels is None:
        with open_table(data, columns.row_id, columns.dialect) as table:
            refuse_randomised(table)
            return _chosen(read_rows(table, replace(columns, label=label, weight=weight)), ids, columns.dialect)
    rows = _chosen(read_rows(data, replace(columns, label=None)), ids, columns.dialect)
    known = _read_label_table(config, silo, labels, label, weight)
    places = {sample: place for place, sample in enumerate(known.ids)}
    absent = [sample for sample in rows.ids if sample not in places]
    if absent:
        shown = ", ".join(map(repr, absent[:SHOWN_IDS])) + (", ..." if len(absent) > SHOWN_IDS else "")
        advice = "add their labels" + (LABELLED_ONLY if ids is None else "")
        hint = spelt_otherwise(absent, str(data), known.ids, str(labels))
        problem = (
            f"{labels}: has no label for {len(absent)} of the {len(rows)} ids in {data}, such as {shown}: {advice}"
        )
        raise TableError([hint] * bool(hint) + [problem], 1)
    taken = known.take(np.array([places[sample] for sample in rows.ids], np.int64))
    return replace(rows, labels=taken.labels, weights=taken.weights, label_epsilon=_epsilon_of(known))


def tables_of(silo: SiloSection) -> list[str]:
    """The tables of a silo in a configuration: one of each client, or one for all."""
    return [client.table for client in silo.client] or [silo.table or ""]


def read_table(config: Config, silo: SiloSection, path: Path) -> RawRows:
    """A table of a configuration, as a simulation reads it: with labels if its silo names their column."""
    return read_as(config, silo, path, Columns.of(config, silo))


def read_as(config: Config, silo: SiloSection, path: Path, columns: Columns) -> RawRows:
    """These columns of a table of a configuration; refuses labels that it should not have."""
    owner = next((section for section in config.silos if section.name == config.federation.labels), None)
    with open_table(path, columns.row_id, columns.dialect) as table:
        if owner is not None and owner.name != silo.name:
            refuse_label(config, table, owner.label or "")
        if silo.label is not None:
            refuse_randomised(table)
        return read_rows(table, columns)


def _epsilon_of(labels: RawRows) -> float | None:
    """The epsilon in every row of a table of labels that were randomised; None of one of true labels."""
    if EPSILON_COLUMN not in labels.features:
        return None
    values: Any = np.unique(np.asarray(labels.features[EPSILON_COLUMN]))
    if len(values) != 1 or not values[0] > 0:
        raise TableError([f"{labels.source}: column '{EPSILON_COLUMN}' must have the same number in every row"])
    return float(values[0])


def refuse_label(config: Config, table: Source, label: str) -> None:
    """Refuse a table of a silo without labels that has the label column."""
    if label in table.header:
        only = f"only silo '{config.federation.labels}' may have it (federation.labels)"
        raise TableError([f"{table.name}: column '{label}' is the label, and {only}: remove the column"])


def refuse_randomised(table: Source) -> None:
    """Refuse a table of features whose labels were randomised: they would be once more, and epsilon be a feature."""
    if EPSILON_COLUMN in table.header:
        raise TableError(
            [
                f"{table.name}: column '{EPSILON_COLUMN}' says that its labels were randomised already: give ids, "
                "labels and this column as a table of their own with --labels FILE, or remove the column if the "
                "labels are true"
            ]
        )


def _chosen(rows: RawRows, ids: Path | None, dialect: Dialect) -> RawRows:
    """The rows about the ids in a text file, or in a hub's list of samples; all without one."""
    if ids is None:
        return rows
    is_list = ids.suffix == ".json"
    wanted = SampleList.read(ids).ids if is_list else ids.read_text(encoding="utf-8").splitlines()
    chosen = {*dialect.as_ids(wanted)}
    places = [place for place, sample in enumerate(rows.ids) if sample in chosen]
    if not places:
        hint = spelt_otherwise(rows.ids, rows.source, wanted, str(ids)) or "check that both are about the same samples"
        raise TableError([f"{rows.source}: has none of the ids in {ids}, of which {there_are(len(chosen))}: {hint}"])
    return rows.take(np.array(places, np.int64))


def _read_label_table(config: Config, silo: SiloSection, path: Path, label: str, weight: str | None) -> RawRows:
    """The ids, labels and weights in a table of labels."""
    with open_table(path, silo.id, Dialect.of(config)) as table:
        columns = _columns_of_labels(config, silo, table.header, label, weight)
        return read_rows(table, replace(columns, weight=weight, aggregate=(), key=None, link=None, repeat_advice=""))


def _columns_of_labels(
    config: Config, silo: SiloSection, header: Sequence[str], label: str, weight: str | None
) -> Columns:
    """The id and the label of a table of labels with this header.

    Its id column is the silo's, a labelled silo's, or the only column besides the labels.
    """
    named = [silo.id, *(section.id for section in config.silos if section.label is not None)]
    others = [name for name in header if name not in (label, weight, EPSILON_COLUMN)]
    return replace(
        Columns.of(config, silo).only([EPSILON_COLUMN] if EPSILON_COLUMN in header else ()),
        id=next((name for name in named if name in others), others[0] if len(others) == 1 else silo.id),
        label=label,
        id_advice=f"; it must have the ids: rename their column to '{silo.id}', which is id = \"...\" of silo "
        f"'{silo.name}', or leave only ids and labels in the table",
        label_advice='; it must have the labels: write the name of their column as label = "..." under silo '
        f"'{silo.name}'",
    )


def taken_for(config: Config, rows: RawRows) -> str:
    """How a client's labels are interpreted, in words; refuses labels that do not fit ``model.loss``."""
    if rows.labels is None:
        return f"none here; silo '{config.federation.labels}' has them"
    try:
        encoded = encode(rows.labels, chosen_loss(config.model), partly=True)
    except ValueError as error:
        raise TableError([f"the labels of {rows.source}: {error}"]) from None
    words = in_words(encoded, config.model.loss, partly=True)
    return with_noise(config, words, len(classes_of(config)))


class ColumnFacts(NamedTuple):
    """One feature, in words."""

    name: str
    kind: str
    blank: int
    values: str


def describe(rows: RawRows) -> list[ColumnFacts]:
    """What each feature of the rows is."""
    return [_described(name, column, rows.kinds.get(name, "number")) for name, column in rows.features.items()]


def label_balance(rows: RawRows) -> str:
    """How the labels are spread."""
    assert rows.labels is not None
    counts = Counter(canonical_label(label) for label in np.asarray(rows.labels).tolist())
    if len(counts) <= FEW or isinstance(rows.labels, list):
        return _most_frequent(counts)
    return _spread(rows.labels)


def cautions(rows: RawRows) -> Sequence[str]:
    """What is allowed, but may be a mistake."""
    sentences = []
    for name, column in rows.features.items():
        if isinstance(column, Category):
            if len(column.levels) > MANY_LEVELS:
                sentences.append(f"column '{name}' has {len(column.levels)} levels: is it an id, or an amount?")
            continue
        figures = NumericStats.of(column)
        if not figures.known:
            sentences.append(f"column '{name}' is all blank: leave it out")
        elif not figures.squares:
            sentences.append(f"column '{name}' is the same in every row: it says nothing here")
        elif figures.missing > len(rows) / 2:
            sentences.append(f"column '{name}' is blank in most rows")
    sentences += row_numbers(rows)
    zeros = next(
        (sample for sample in rows.ids if sample.isdecimal() and len(sample) > 1 and sample.startswith("0")), None
    )
    if zeros is not None:
        exact = f"ids are compared as exact texts: others must write {zeros!r} with its zeros too"
        sentences.append(f"{exact}, or all set data.ids = 'plain'")
    if alike := written_twice(rows.ids):
        sentences.append(alike)
    if rows.labels is not None and len({canonical_label(label) for label in np.asarray(rows.labels).tolist()}) == 1:
        sentences.append("every label is the same here; other clients must have others")
    return sentences


def row_numbers(rows: RawRows) -> list[str]:
    """Warnings of columns that count the rows of their file: as features they give away the rows' order."""
    return [
        f"column '{name}' only counts the rows: if it is not a measurement, leave it out with ignore = [\"{name}\"]"
        for name in rows.counters
    ]


def _described(name: str, column: Column, kind: CellKind) -> ColumnFacts:
    if isinstance(column, Category):
        names = CategoryStats.of(column)
        count = f"{len(names.levels)} level" + ("s" if len(names.levels) != 1 else "")
        return ColumnFacts(name, f"names, {count}", names.missing, _most_frequent(Counter(names.levels)))
    blank = int(np.isnan(column).sum())
    return ColumnFacts(name, KIND_WORDS[kind], blank, _spread(column[~np.isnan(column)], kind))


def _spread(values: NDArray[Any], kind: CellKind = "number") -> str:
    if not len(values):
        return ""
    figures = NumericStats.of(values)
    if kind == "date":
        first, last, mean = (days_in_words(days) for days in (values.min(), values.max(), figures.mean))
        return f"{first} to {last}, mean {mean}, deviation {figures.deviation:.6g} days"
    least, most = (_figure(value) for value in (values.min(), values.max()))
    return f"{least} to {most}, mean {_figure(figures.mean)}, deviation {figures.deviation:.6g}"


def _figure(value: float) -> str:
    """A number in few digits; a large one with all before the point, since times and dates would look alike."""
    return f"{value:.6g}" if abs(value) < 1e6 or abs(value) >= 1e15 else f"{value:.0f}"


def _most_frequent(counts: Counter[str]) -> str:
    total = counts.total()
    shown = [f"{name} {count / total:.1%}" for name, count in counts.most_common(5)]
    return ", ".join(shown) + (", ..." if len(counts) > 5 else "")


@dataclass(frozen=True)
class TableState:
    """A table that a configuration names."""

    silo: str
    client: str
    """The client that it is of; how many there are, if they share it."""
    path: Path
    is_here: bool
    rows: RawRows | None = None
    """None if it is not here, or cannot be used."""

    @property
    def labels(self) -> str:
        """How its labels are spread."""
        return "" if self.rows is None or self.rows.labels is None else label_balance(self.rows)


@dataclass(frozen=True)
class Readiness:
    """Which tables of a federation are ready, and what is wrong with them."""

    tables: Sequence[TableState]
    problems: Sequence[str] = ()
    cautions: Sequence[str] = ()
    """What is allowed, but may be a mistake."""
    overlap: dict[str, SiloIds] = field(default_factory=dict)
    """The common ids of each silo with a table here."""
    presence: PresenceCounts | None = None
    """Which silos have which ids, of those with a table here."""

    @property
    def absent(self) -> int:
        """How many tables are not on this machine."""
        return sum(not table.is_here for table in self.tables)


def check_tables(config: Config) -> Readiness:
    """Read every table of a configuration that is on this machine, as a simulation does, and compare their ids."""
    if config.data.source != "files":
        raise ConfigError([f"data.source = {config.data.source!r}: has no tables of the silos to check"])
    states, errors, warnings = [], list[TableError](), list[str]()
    held: dict[str, list[RawRows]] = {}
    for section in config.silos:
        shared = f"{len(section.client_names)} clients" if len(section.client_names) > 1 else section.client_names[0]
        names = [client.name for client in section.client] or [shared]
        for name, table in zip(names, tables_of(section), strict=True):
            path = Path(config.data.folder or "") / table
            state = TableState(section.name, name, path, bool(table) and path.exists())
            if state.is_here:
                try:
                    rows = read_table(config, section, path)
                    if rows.labels is not None:
                        taken_for(config, rows)
                    state = TableState(section.name, name, path, True, rows)
                    held.setdefault(section.name, []).append(rows)
                    warnings += [f"{path}: {sentence}" for sentence in cautions(rows)]
                except TableError as error:
                    errors.append(error)
            states.append(state)
    if not any(state.is_here for state in states):
        named = ", ".join(str(state.path) for state in states[:3]) + (", ..." if len(states) > 3 else "")
        raise ConfigError([f"no table of the silos is on this machine, such as {named}; give --silo, --client, --data"])
    errors += [error for section in config.silos for error in held_twice(section, held.get(section.name, []))]
    overlap: dict[str, SiloIds] = {}
    presence: PresenceCounts | None = None
    if len(held) > 1 and not errors:
        everywhere = set.intersection(*({sample for part in parts for sample in part.ids} for parts in held.values()))
        amounts = are_amounts(config, [part for parts in held.values() for part in parts])
        overlap = alignment(held, everywhere, amounts=amounts)
        presence = presence_by_pattern(held, amounts=amounts)
        if presence.selection:
            warnings.append(presence.selection)
        if all(state.is_here for state in states):
            try:
                (labelled_ids if config.data.samples == "all" else common_ids)(config, held)
                warnings += left_out_by_spelling(config, held)
            except TableError as error:
                errors.append(error)
    problems = [problem for error in errors for problem in error.problems]
    return Readiness(states, problems, warnings, overlap, presence)
