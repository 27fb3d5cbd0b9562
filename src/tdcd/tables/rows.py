"""One client's rows as they were read: ids, labels and raw feature columns."""

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from tdcd.tables.cells import CellKind
from tdcd.tables.dialect import DEFAULT, Dialect, plain_id
from tdcd.tables.errors import TableError

if TYPE_CHECKING:
    from tdcd.config import Config, SiloSection
    from tdcd.tables.source import Source

_WHOLE = re.compile(r"-?[0-9]{1,100}")
_INDEX = re.compile(r"\s*|Unnamed: [0-9]+|__index_level_[0-9]+__")
"""What pandas calls a column that has no name."""
LABEL_ADVICE = (
    '; the labels must be in it: write the column\'s name as label = "..." under the silo, or give tdcd check and '
    "tdcd client a second table with ids and labels, --labels FILE"
)
WEIGHT_ADVICE = '; it must be where the labels are: write its name as weight = "..." under the silo'
ID_ADVICE = '; write the name of the column with the ids as id = "..." under the silo'
KEY_ADVICE = '; write the name of the column that the table shares with the link table as key = "..." under the silo'
REPEAT_ADVICE = '; or set aggregate = ["sum", "mean", "count"] under the silo, where a sample may have several rows'
PLACE = " place"
"""The id column of a frame whose rows are known by their places only."""
COUNT = "count()"
"""The feature that counts the rows of an id, where it has several."""
_FIGURE = re.compile(r"(?:sum|mean|min|max|mode)\((.*)\)", re.DOTALL)
"""Any other feature of an id with several rows: a figure of a column."""
SHOWN_COLUMNS = 10
"""How many columns an error names that lists what there is."""


class Category(NamedTuple):
    """A column of names."""

    codes: NDArray[np.int32]
    """``[n]``: indices into ``levels``; -1 where blank."""
    levels: tuple[str, ...]


Column = NDArray[np.floating[Any]] | Category
"""A column of amounts, NaN where blank, or of names. Amounts are as exact as the file gives them, in float64 or, where
that is the same, in float32."""


@dataclass(frozen=True, eq=False)
class RawRows:
    """Rows of one table, in its order."""

    source: str
    """The file they come from."""
    ids: Sequence[str]
    """``[n]``: texts, each once, as the dialect says."""
    features: Mapping[str, Column]
    """The columns by name, in the order of the configuration or else of the file."""
    labels: NDArray[np.float64] | list[str] | None = None
    """``[n]``, never blank: numbers, or texts if one of them is not a number."""
    kinds: Mapping[str, CellKind] = field(default_factory=dict)
    """What the cells of each column of amounts are; nothing of one that is all blank."""
    counters: tuple[str, ...] = ()
    """The columns of the file that only count its rows: 0, 1, 2, ... or 1, 2, 3, ..."""
    weights: NDArray[np.float64] | None = None
    """``[n]``, of at least 0: how much each row counts, where the table says so."""
    shared: NDArray[np.int64] | None = None
    """``[n]``: which row of its table each is, where one belongs to many samples."""
    label_epsilon: float | None = None
    """The labels come from a table that says that they were randomised with this epsilon."""

    def __len__(self) -> int:
        """The number of rows, n."""
        return len(self.ids)

    def places(self, numbers: Mapping[str, int]) -> NDArray[np.int64]:
        """``[n]``: which sample each row is about, by the samples' numbers; -1 if none."""
        return np.array([numbers.get(sample, -1) for sample in self.ids], np.int64)

    def take(self, rows: NDArray[np.int64]) -> Self:
        """The rows at these places, in this order."""

        def taken(column: Any) -> Any:
            if isinstance(column, list):
                return [column[row] for row in rows]
            return Category(column.codes[rows], column.levels) if isinstance(column, Category) else column[rows]

        return replace(
            self,
            ids=[self.ids[row] for row in rows],
            features={name: taken(column) for name, column in self.features.items()},
            labels=None if self.labels is None else taken(self.labels),
            weights=None if self.weights is None else taken(self.weights),
            shared=None if self.shared is None else taken(self.shared),
        )


def id_order(ids: Sequence[str]) -> NDArray[np.int64]:
    """Where each sample of the federation is in ``ids``, first to last.

    Samples are sorted by id: by size if every id is a whole number, else by characters. So give all of them.

    >>> id_order(["10", "9", "1"]).tolist(), id_order(["10", "9", "x"]).tolist()
    ([2, 1, 0], [0, 1, 2])
    """
    order = sorted(range(len(ids)), key=ids.__getitem__)
    if all(_WHOLE.fullmatch(sample) for sample in ids):
        order.sort(key=lambda place: int(ids[place]))
    return np.array(order, np.int64)


WRITE_ALIKE = "write them alike, or set data.ids = 'plain'"


def spelt_otherwise(
    ours: Collection[str], our_place: str, theirs: Collection[str], their_place: str, advice: str = WRITE_ALIKE
) -> str:
    """A hint where two places seem to write the same ids in different ways, such as 001 and 1; else nothing.

    >>> spelt_otherwise(["001", "x"], "a.csv", ["1", "x"], "b.csv")
    "ids are compared as exact texts: '001' in a.csv is not '1' in b.csv; write them alike, or set data.ids = 'plain'"
    """
    known, others = set(ours), set(theirs)
    plain = {plain_id(sample): sample for sample in theirs if sample not in known}
    for sample in sorted(ours):
        other = plain.get(plain_id(sample))
        if sample not in others and other is not None:
            differ = f"{sample!r} in {our_place} is not {other!r} in {their_place}"
            return f"ids are compared as exact texts: {differ}; {advice}"
    return ""


def written_otherwise(held: Mapping[str, Collection[str]], advice: str = WRITE_ALIKE) -> list[str]:
    """Hints of ids by silo that the first silo seems to write in another way."""
    (first, ours), *others = held.items()
    hints = [spelt_otherwise(ours, f"silo '{first}'", ids, f"silo '{name}'", advice) for name, ids in others]
    return [hint for hint in hints if hint]


def written_twice(ids: Sequence[str]) -> str:
    """A caution where a table has ids that differ only as spreadsheets make them differ; else nothing.

    >>> written_twice(["001", "1"])
    "ids are compared as exact texts: '001' and '1' are two samples; set data.ids = 'plain' if they are one"
    """
    first: dict[str, str] = {}
    for sample in ids:
        other = first.setdefault(plain_id(sample), sample)
        if other != sample:
            exact = f"ids are compared as exact texts: {other!r} and {sample!r} are two samples"
            return f"{exact}; set data.ids = 'plain' if they are one"
    return ""


@dataclass(frozen=True)
class Columns:
    """Which columns of a table to read, and as what."""

    id: str = "id"
    label: str | None = None
    features: tuple[str, ...] | None = None
    """The columns to learn from; all others by default."""
    categorical: tuple[str, ...] = ()
    """The features that are names rather than amounts."""
    ignored: tuple[str, ...] = ()
    """Never among "all others": the labels and weights of other silos."""
    ignore: tuple[str, ...] = ()
    """Columns of the table that are not features."""
    blanks: bool = True
    """Whether features may be blank."""
    dialect: Dialect = DEFAULT
    id_advice: str = ""
    """What to do where there is no such id column."""
    label_advice: str = ""
    """What to do where there is no such label column."""
    weight: str | None = None
    """The column that says how much a row counts."""
    aggregate: tuple[str, ...] = ()
    """The figures that become one row of the rows of an id; by default an id has one row."""
    key: str | None = None
    """The column that rows are known by, where one belongs to many samples; by default rows have the samples' ids."""
    link: "Path | Source | None" = None
    """With ``key``, the table that says which key each sample has; it has the labels and weights."""
    repeat_advice: str = ""
    """What to do about an id that has several rows."""
    takes_joined: bool = False
    """With ``key``, whether the table may have a row for each sample with its id instead."""

    @classmethod
    def of(cls, config: "Config", silo: "SiloSection") -> Self:
        """What the configuration says about one silo's tables."""
        return cls(
            id=silo.id,
            label=silo.label,
            weight=silo.weight,
            features=None if silo.features is None else tuple(silo.features),
            categorical=tuple(silo.categorical),
            ignored=tuple(name for other in config.silos for name in (other.label, other.weight) if name is not None),
            ignore=tuple(silo.ignore),
            blanks=config.data.missing != "refuse",
            dialect=Dialect.of(config),
            id_advice=ID_ADVICE,
            label_advice=LABEL_ADVICE,
            aggregate=tuple(silo.aggregate or ()),
            key=silo.key,
            link=None if silo.link is None else Path(config.data.folder or "") / silo.link,
            repeat_advice=REPEAT_ADVICE,
        )

    @classmethod
    def read_as(cls, id_column: str, reading: Mapping[str, Any]) -> Self:
        """Tables that are read as :attr:`reading` says."""
        dialect = Dialect(
            reading.get("delimiter"),
            reading.get("encoding", DEFAULT.encoding),
            reading.get("decimal", DEFAULT.decimal),
            (*DEFAULT.blank, *reading.get("blank", ())),
            reading.get("ids", DEFAULT.ids),
        )
        aggregate = tuple(reading.get("aggregate", ()))
        blanks = reading.get("missing") != "refuse"
        return cls(id_column, blanks=blanks, dialect=dialect, aggregate=aggregate, key=reading.get("key"))

    @property
    def reading(self) -> dict[str, Any]:
        """How tables are read, in the keys of ``[data]`` and ``[[silos]]``; only what differs from the default."""
        dialect, plain = self.dialect, DEFAULT
        settings: dict[str, Any] = {
            key: getattr(dialect, key)
            for key in ("delimiter", "encoding", "decimal", "ids")
            if getattr(dialect, key) != getattr(plain, key)
        }
        if blank := dialect.blank[len(plain.blank) :]:
            settings["blank"] = [*blank]
        if self.aggregate:
            settings["aggregate"] = [*self.aggregate]
        if self.key is not None:
            settings["key"] = self.key
        return settings if self.blanks else {**settings, "missing": "refuse"}

    def only(self, features: Sequence[str], categorical: Sequence[str] = ()) -> Self:
        """The same silo's tables, but of the columns only the id and these features."""
        chosen, names = tuple(features), tuple(categorical)
        return replace(self, label=None, weight=None, features=chosen, categorical=names, ignore=())

    @property
    def row_id(self) -> str:
        """The column of the table that says which row is which: its key, or the samples' ids."""
        return self.key or self.id

    def new_rows(self, features: Sequence[str], categorical: Sequence[str]) -> Self:
        """Tables of new samples, of which these features are made: with their ids or, as in training, with keys."""
        if self.aggregate:
            features, categorical = raw_columns(features), raw_columns(categorical)
        advice = f"; or give rows by '{self.key}', as in training" if self.key else ""
        return replace(self.only(features, categorical), id_advice=advice, takes_joined=self.key is not None)

    def linked(self, link: "Path | Source") -> Self:
        """The same with this table in place of the link table, so that rows are known by their keys."""
        return replace(self, link=link, takes_joined=False)

    def is_keyed(self, header: Collection[str]) -> bool:
        """Whether the rows of a table with these columns are known by keys."""
        return self.key is not None and not (self.takes_joined and (self.id in header or self.key not in header))

    def with_label(self, label: str) -> Self:
        """The same columns and the labels."""
        return replace(self, label=label, ignored=tuple(name for name in self.ignored if name != label))

    def among(self, path: Path | str, header: Sequence[str]) -> Self:
        """The same with every feature by name, for a file with this header; refuses columns that it lacks."""
        kept = {self.id, self.label, self.weight, *self.ignored, *self.ignore}
        features = (
            tuple(dict.fromkeys(name for name in header if name not in kept))
            if self.features is None
            else self.features
        )
        given = [self.id, *(name for name in (self.label, self.weight) if name is not None), *features]
        advice = {self.weight: WEIGHT_ADVICE, self.label: self.label_advice, self.id: self.id_advice}
        problems = [
            _absent(name, [column for column in header if column != PLACE]) + advice.get(name, "")
            for name in dict.fromkeys([*given, *self.categorical, *self.ignore])
            if name not in header
        ]
        if self.features is None:
            problems += [_nameless(name, header) for name in features if _INDEX.fullmatch(name)]
        problems += [f"column '{name}' is in the header twice: rename one" for name in _twice(header) if name in given]
        problems += [
            f"column '{name}' can only be one of id, label, weight and feature, and once" for name in _twice(given)
        ]
        problems += [
            f"column '{name}' is categorical but not among the features: add it there"
            for name in self.categorical
            if name in header and name not in features
        ]
        if self.features is None and not features and not problems:
            problems.append("has no features, only the id and labels")
        if problems:
            raise TableError([f"{path}: {problem}" for problem in problems])
        return replace(self, features=features)


def raw_columns(features: Iterable[str]) -> tuple[str, ...]:
    """The columns that these figures of several rows are made of.

    >>> raw_columns(["count()", "sum(price)", "mean(price)", "mode(shop)"])
    ('price', 'shop')
    """
    matches = (_FIGURE.fullmatch(feature) for feature in features if feature != COUNT)
    return tuple(dict.fromkeys(match[1] for match in matches if match is not None))


def _nameless(name: str, header: Sequence[str]) -> str:
    """What to do about a column without a name: row numbers would show the model what it should not know."""
    called = f"is called '{name}'" if name.strip() else "has no name"
    return (
        f"column {header.index(name) + 1} {called}, like the row numbers that pandas adds: write the table without it "
        f'(index=False), or list it as ignore = ["{name}"], or under features if it is one'
    )


def _absent(name: str, header: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, header, n=1)
    if len(header) == 1:
        hint = f"its only column is {header[0]!r}: if that should be several, set data.delimiter"
    elif near:
        hint = f"did you mean '{near[0]}'?"
    else:
        shown = ", ".join(f"'{column}'" for column in header[:SHOWN_COLUMNS])
        hint = f"there are {shown}" + (", ..." if len(header) > SHOWN_COLUMNS else "")
    return f"has no column '{name}'; {hint}"


def _twice(names: Sequence[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if names.count(name) > 1]
