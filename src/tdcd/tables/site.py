"""One client's own data: read as it would be in the real federation, and described for its owner."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tdcd.config import Config, ConfigError, SiloSection
from tdcd.tables.errors import TableError
from tdcd.tables.labels import FEW, encode, in_words, spelling
from tdcd.tables.preparation import Amounts, Names
from tdcd.tables.reading import read_header, read_rows
from tdcd.tables.rows import Category, Column, Columns, RawRows

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


def read_client(config: Config, silo: SiloSection, data: Path, labels: Path | None = None) -> RawRows:
    """A client's rows with their labels, which are in the same file or in a second one.

    The label column is called as the silo says, or else as the first silo that names one.
    """
    columns = Columns.of(config, silo)
    label = silo.label or next((section.label for section in config.silos if section.label is not None), None)
    if label is None:
        raise ConfigError(['silos: no silo has a label: name the column to predict, label = "...", in one of them'])
    if labels is None:
        return read_rows(data, replace(columns, label=label))
    rows = read_rows(data, replace(columns, label=None))
    known = read_rows(labels, Columns(id=_id_of_labels(config, silo, labels, label), label=label, features=()))
    places = {one: place for place, one in enumerate(known.ids)}
    absent = [one for one in rows.ids if one not in places]
    if absent:
        raise TableError([f"{labels}: has no label for the id {one!r}, which is in {data}: add it" for one in absent])
    return replace(rows, labels=known.take(np.array([places[one] for one in rows.ids], np.int64)).labels)


def _id_of_labels(config: Config, silo: SiloSection, path: Path, label: str) -> str:
    """The id column of a table of labels: the silo's, a labelled silo's, or the only column beside the labels."""
    header = read_header(path)
    named = [silo.id, *(section.id for section in config.silos if section.label is not None)]
    others = [name for name in header if name != label]
    return next((name for name in named if name in others), others[0] if len(others) == 1 else silo.id)


def taken_for(config: Config, rows: RawRows) -> str:
    """What a client's labels are taken for, in words; refuses labels that do not fit ``model.loss``."""
    assert rows.labels is not None
    try:
        encoded = encode(rows.labels, config.model.loss, partly=True)
    except ValueError as error:
        raise TableError([f"the labels of {rows.source}: {error}"]) from None
    return in_words(encoded, config.model.loss, partly=True)


class ColumnFacts(NamedTuple):
    """One feature, in words."""

    name: str
    kind: str
    blank: int
    values: str


def describe(rows: RawRows) -> list[ColumnFacts]:
    """What each feature of the rows is."""
    return [_described(name, column) for name, column in rows.features.items()]


def label_balance(rows: RawRows) -> str:
    """How the labels are spread."""
    assert rows.labels is not None
    counts = Counter(spelling(label) for label in np.asarray(rows.labels).tolist())
    if len(counts) <= FEW or isinstance(rows.labels, list):
        return _most_frequent(counts)
    return _spread(rows.labels)


def cautions(rows: RawRows) -> Sequence[str]:
    """What is allowed, but may not be meant."""
    found = []
    for name, column in rows.features.items():
        if isinstance(column, Category):
            if len(column.levels) > MANY_LEVELS:
                found.append(f"column '{name}' has {len(column.levels)} levels: is it an id, or an amount?")
            continue
        figures = Amounts.of(column)
        if not figures.known:
            found.append(f"column '{name}' is all blank: leave it out")
        elif not figures.squares:
            found.append(f"column '{name}' is the same in every row: it tells nothing here")
        elif figures.missing > len(rows) / 2:
            found.append(f"column '{name}' is blank in most rows")
    if len({spelling(label) for label in np.asarray(rows.labels).tolist()}) == 1:
        found.append("every label is the same here; other clients must have others")
    return found


def _described(name: str, column: Column) -> ColumnFacts:
    if isinstance(column, Category):
        names = Names.of(column)
        count = f"{len(names.levels)} level" + ("s" if len(names.levels) != 1 else "")
        return ColumnFacts(name, f"names, {count}", names.missing, _most_frequent(Counter(names.levels)))
    blank = int(np.isnan(column).sum())
    return ColumnFacts(name, "amount", blank, _spread(column[~np.isnan(column)]))


def _spread(values: np.ndarray) -> str:
    if not len(values):
        return ""
    figures = Amounts.of(values)
    return f"{values.min():.6g} to {values.max():.6g}, mean {figures.mean:.6g}, deviation {figures.deviation:.6g}"


def _most_frequent(counts: Counter[str]) -> str:
    total = counts.total()
    shown = [f"{name} {count / total:.1%}" for name, count in counts.most_common(5)]
    return ", ".join(shown) + (", ..." if len(counts) > 5 else "")
