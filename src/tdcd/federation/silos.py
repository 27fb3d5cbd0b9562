"""The federation: which silo holds which columns, and which client of it holds which rows."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from typing import Any, Literal, Protocol, Self, get_args

import numpy as np
from numpy.typing import NDArray

from tdcd.blocks.base import Block
from tdcd.blocks.start import FormerBlock, start_block
from tdcd.core.choices import StandInKind
from tdcd.core.combine import SUM, Combine
from tdcd.core.losses import Loss, Task
from tdcd.core.objective import Tree
from tdcd.core.settings import Dtype, Settings
from tdcd.core.shared_rows import SharedCounts
from tdcd.core.words import counted, there_are
from tdcd.data.table import Scaling, Table, check_one_each, numbers
from tdcd.federation.hosts import HostRows, mapped_rows
from tdcd.federation.partition import (
    RowRule,
    Rows,
    clients_of,
    column_groups,
    scaling_of,
    shares_of,
    sizes_of,
    split_rows,
    take,
)
from tdcd.federation.placement import Holders, smallest
from tdcd.federation.weights import ClassWeights, checked, weigh_apart

ONES = "bias"
"""The name of a column of ones."""


class Preparing(Protocol):
    """How raw columns become features: a :class:`tdcd.tables.preparation.Preparation`."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The features' names."""
        ...


@dataclass(frozen=True, eq=False)
class Silo:
    """One organisation: its columns of all samples, and the row numbers that each of its clients holds."""

    name: str
    features: Any
    """``[M, ...]``: the silo's columns of the training samples, in the federation's sample order. An array, or in one
    of several processes :class:`tdcd.federation.hosts.HostRows`."""
    rows: Rows
    """Per client its sample numbers: an array, or a range."""
    columns: tuple[str, ...] = ()
    """The columns' names; empty for images."""
    test_features: Any = None
    """``[m, ...]``: the same columns of the held-out samples."""
    clients: tuple[str, ...] = ()
    """The clients' names, as many as ``rows``; c1, c2, ... by default."""
    preparation: Preparing | Scaling | None = None
    """How raw rows became these features, without a column of ones at their end; None if these are the raw ones."""
    id_column: str = ""
    """The id column's name in the silo's tables; empty where rows have none."""
    reading: Mapping[str, Any] = field(default_factory=dict)
    """Options for reading its tables: texts that mean a missing value, decimal marks; keys of ``[data]``."""
    test_rows: Rows = ()
    """Which held-out samples are in each client's table; dealt out evenly by default."""
    marks: Any = None
    """What its features say of silos that lack rows, if any do: a :class:`tdcd.blocks.absent.Marks`."""
    shared: NDArray[np.int64] | None = None
    """``[M]``: a number of each sample's row, where one belongs to many; samples of a client with the same number have
    the same features."""
    test_shared: NDArray[np.int64] | None = None
    """``[m]``, of the held-out samples."""
    value_bytes: int | None = None
    """What a raw value takes up in its source; None if that is as much as a number."""
    former: FormerBlock | None = None
    """The block of a former run from which its block starts; by default it is drawn from the seed."""

    def __post_init__(self) -> None:
        """Name the clients that have no names; lists become arrays."""
        for name in ("features", "test_features"):
            if not isinstance(getattr(self, name), HostRows | None):
                object.__setattr__(self, name, numbers(getattr(self, name), f"silo '{self.name}': {name}"))
        given = (rows if isinstance(rows, range) and rows.step == 1 else np.asarray(rows) for rows in self.rows)
        object.__setattr__(self, "rows", tuple(given))
        if not self.clients:
            object.__setattr__(self, "clients", tuple(f"c{index + 1}" for index in range(len(self.rows))))
        if self.rows and len(self.test_rows) != len(self.rows) and self.test_features is not None:
            dealt = np.array_split(np.arange(len(self.test_features)), len(self.rows))
            object.__setattr__(self, "test_rows", tuple(dealt))

    @property
    def num_clients(self) -> int:
        """K, the silo's clients."""
        return len(self.rows)

    @property
    def feature_shape(self) -> tuple[int, ...]:
        """The shape of one sample here: ``(D_j,)``, or ``(height, width)``."""
        shape: tuple[int, ...] = self.features.shape[1:]
        return shape

    @property
    def rows_held(self) -> NDArray[np.int64]:
        """``[K]``: n_k, how many rows each client holds."""
        return np.array([len(rows) for rows in self.rows], np.int64)

    @property
    def shares(self) -> NDArray[np.float64]:
        """``[K]``: n_k / M_j, the clients' weights in the hub's average; M_j is M in a silo that has all samples."""
        return shares_of(self.rows_held)

    @property
    def num_rows(self) -> int:
        """M_j: the training samples that the silo has."""
        return int(self.rows_held.sum())

    @property
    def num_test_rows(self) -> int:
        """The held-out samples that the silo has."""
        return sum(len(rows) for rows in self.test_rows)

    def shared_counts(self, num_samples: int, drawn: int) -> SharedCounts | None:
        """Its clients' distinct rows, of training samples and in a round of ``drawn`` samples; None if each has one."""
        if self.shared is None:
            return None
        train = [self.shared[rows] for rows in self.rows]
        test = [] if self.test_shared is None else [self.test_shared[rows] for rows in self.test_rows]
        return SharedCounts.of(train, test, num_samples, drawn)

    @cached_property
    def holders(self) -> Holders:
        """Which client holds each sample, in little memory."""
        return Holders.of(self.rows, len(self.features))

    def owner(self) -> NDArray[np.int32]:
        """``[M]``: which client holds each sample; -1 where the silo lacks it."""
        owner = np.full(len(self.features), -1, np.int32)
        for client, rows in enumerate(self.rows):
            owner[np.asarray(rows)] = client
        return owner

    def with_ones(self) -> Self:
        """The silo with a column of ones, the last one."""

        def extended(features: NDArray[Any]) -> NDArray[Any]:
            flat = features.reshape(len(features), -1)
            return np.concatenate([flat, np.ones((len(flat), 1), flat.dtype)], axis=1)

        return self._with_columns(extended, (*self.columns, ONES) if self.columns else ())

    def without_ones(self) -> Self:
        """The silo without its last column, which is of ones."""
        return self._with_columns(lambda features: features[:, :-1], self.columns[:-1])

    def _with_columns(self, function: Callable[[NDArray[Any]], NDArray[Any]], columns: tuple[str, ...]) -> Self:
        held_out = None if self.test_features is None else mapped_rows(self.test_features, function)
        return replace(self, features=mapped_rows(self.features, function), columns=columns, test_features=held_out)


LabelFigures = dict[str, float] | float
"""The share of every class, or the mean of labels that are amounts."""


@dataclass(frozen=True)
class SiloIds:
    """How many samples a silo knows, and what is left of them where only those count that all silos know."""

    ids: int
    common: int
    """How many of them all silos have."""
    labels_before: LabelFigures | None = None
    """Over all of the silo's rows; None where it has no labels."""
    labels_after: LabelFigures | None = None
    """Over the common ones."""

    @property
    def lost(self) -> int:
        """The rows that are left out."""
        return self.ids - self.common


@dataclass(frozen=True)
class Terms:
    """What was settled when a federation was made, and its training keeps to."""

    label_silo: str | None = None
    """The only silo whose clients have labels; None if all have them."""
    label_epsilon: float | None = None
    """The labels were randomised with this epsilon."""
    task: Task | None = None
    """How the labels were interpreted; None if training decides it."""
    loss: Loss | None = None
    """The loss that they were prepared for; None if it was left open."""
    dtype: Dtype | None = None
    """The precision that features were rounded to; None if training decides it."""
    samples: Literal["common", "all"] = "common"
    """Whether silos may lack samples: rows of a silo that are held by none of its clients."""
    standin: StandInKind = "function"
    """What stands in for a silo that lacks a sample, see :mod:`tdcd.blocks.absent`."""


@dataclass(frozen=True, eq=False)
class Federation:
    """N silos over the same M samples, and the samples' labels. Refuses a partition that is not one.

    Build it from your own :class:`Silo` list, or cut one table with :meth:`cut`.
    """

    silos: tuple[Silo, ...]
    labels: Any
    """``[M]``. An array, or in the simulation of one of several processes :class:`tdcd.federation.hosts.HostLabels`."""
    test_labels: NDArray[Any] | None = None
    """``[m]``, of the held-out samples."""
    label_scale: float = 1.0
    """What one unit of the labels is in the data's own units; errors are reported in those."""
    label_mean: float = field(default=0.0, kw_only=True)
    """What a label of 0 is in the data's own units: there, it is label * label_scale + label_mean."""
    name: str = field(default="table", kw_only=True)
    weights: NDArray[Any] | None = field(default=None, kw_only=True)
    """``[M]``: how much each sample counts, to any scale; all alike by default."""
    test_weights: NDArray[Any] | None = field(default=None, kw_only=True)
    """``[m]``: the same of the held-out samples."""
    labels_in_words: str = field(default="", kw_only=True)
    """How the labels were interpreted, where that was decided from a table's values."""
    classes: tuple[str, ...] = field(default=(), kw_only=True)
    """The classes' names by number; empty if they are called by their numbers."""
    alignment: Mapping[str, SiloIds] = field(default_factory=dict, kw_only=True)
    """By silo, where samples that one of them lacks were left out (``data.align``)."""
    terms: Terms = field(default=Terms(), kw_only=True)
    """What :func:`tdcd.train` has to keep to; of a federation of frames, what its sections say."""

    def __post_init__(self) -> None:
        """Check that the rows form partitions; the error names the culprit."""
        if not self.silos:
            raise ValueError("a federation needs at least one silo")
        for key in ("labels", "test_labels"):
            if not isinstance(getattr(self, key), HostRows | None):
                object.__setattr__(self, key, numbers(getattr(self, key), key))
                check_one_each(getattr(self, key), key)
        is_weighted = self.weights is not None
        for key, labels in (("weights", self.labels), ("test_weights", self.test_labels)):
            object.__setattr__(self, key, checked(getattr(self, key), labels, key, is_weighted))
        names: set[str] = set()
        for silo in self.silos:
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", silo.name):
                raise ValueError(f"'{silo.name}' cannot name a silo: use letters, digits, '_', '.' and '-'")
            if silo.name in names:
                raise ValueError(f"two silos are called '{silo.name}'")
            names.add(silo.name)
            num_test = None if self.test_labels is None else len(self.test_labels)
            _check_silo(silo, self.num_samples, num_test, may_lack=self.terms.samples == "all")
        if self.terms.samples == "all":
            owners = np.stack([silo.owner() for silo in self.silos])
            if not (known := (owners >= 0).any(axis=0)).all():
                raise ValueError(f"row {int(np.argmin(known))} is held by no client of any silo")

    def class_weighted(self, given: ClassWeights) -> Self:
        """The same federation with sample weights multiplied by class weights.

        Args:
            given: ``"balanced"``, so that every class weighs the same in all; or weights by class, which go by their
                names in :attr:`classes` or else by their numbers.
        """
        labels, weights = (self.labels, self.test_labels), (self.weights, self.test_weights)
        train, test = weigh_apart(given, self.classes, labels, weights)
        return replace(self, weights=train, test_weights=test)

    @property
    def num_samples(self) -> int:
        """M, the training samples."""
        return len(self.labels)

    @property
    def num_silos(self) -> int:
        """N, the silos."""
        return len(self.silos)

    @property
    def is_complete(self) -> bool:
        """Whether every silo has every sample, the held-out ones too."""
        if self.terms.samples == "common":
            return True
        num_test = 0 if self.test_labels is None else len(self.test_labels)
        held = [(silo.num_rows, silo.num_test_rows) for silo in self.silos]
        return all(each == (self.num_samples, num_test) for each in held)

    def check_complete(self, what: str) -> None:
        """Refuse samples that some silos lack, for what is not made for them."""
        if not self.is_complete:
            raise ValueError(f"data.samples = 'all': {what} takes samples that every silo has; use 'common'")

    @classmethod
    def cut(
        cls,
        table: Table,
        test: Table | None = None,
        *,
        silos: int | Sequence[str] | Mapping[str, Sequence[str]] = 2,
        clients: int | Sequence[int | Sequence[str]] = 1,
        rows: RowRule = "shuffled",
        sizes: Sequence[float] | Sequence[Sequence[float]] | None = None,
        alpha: float = 1.0,
        aligned: bool = False,
        strips: bool | None = None,
        bias: bool | str = False,
        seed: int = 0,
    ) -> Self:
        """Cut one table into silos by columns and clients by rows.

        Args:
            test: held-out samples, with the same columns.
            silos: how many, or their names, or the column names of each: ``{"bank": ["income"], "clinic": ["age"]}``.
            clients: how many per silo, or for each silo a number or the clients' names.
            rows: ``"contiguous"``, ``"shuffled"``, or ``"dirichlet"`` for label skew with ``alpha``.
            sizes: relative shard sizes, one per client (the same for all silos), or one such list per silo.
            aligned: every silo splits the rows alike; otherwise each in its own way.
            strips: cut images into upright strips (the default) rather than into runs of pixels, row by row.
            bias: give the first silo a column of ones, or the one of this name.

        >>> from tdcd.data import load
        >>> Federation.cut(load("breast_cancer"), silos=3, clients=[4, 2, 1])
        Federation of 'breast_cancer': 569 samples, 3 silos (silo1: 10 columns, 4 clients; ...)
        """
        if test is not None and test.features.shape[1:] != table.features.shape[1:]:
            shapes = f"{test.features.shape[1:]}, but those of '{table.name}' have {table.features.shape[1:]}"
            raise ValueError(f"the held-out samples of '{test.name}' have shape {shapes}")
        names, parts, columns = column_groups(table, silos, strips)
        if rows not in get_args(RowRule):
            raise ValueError(f"rows must be one of {', '.join(get_args(RowRule))}, not '{rows}'")
        members = []
        for index, given in enumerate(clients_of(clients, names, sizes, aligned)):
            rng = np.random.default_rng([seed, 0 if aligned else index])
            count = given if isinstance(given, int) else len(given)
            try:
                split = split_rows(table.labels, count, sizes_of(sizes, index), rows, alpha, rng)
            except ValueError as error:
                raise ValueError(f"silo '{names[index]}': {error}") from None
            with_bias = names[index] == bias if isinstance(bias, str) else bias and index == 0
            features = take(table, parts[index], with_bias)
            held_out = None if test is None else take(test, parts[index], with_bias)
            own_columns, called = columns[index] + (ONES,) * with_bias, () if isinstance(given, int) else tuple(given)
            scaling = scaling_of(table, parts[index])
            own = Silo(names[index], features, split, own_columns, held_out, called, scaling)
            members.append(replace(own, value_bytes=table.value_bytes))
        labels, test_labels = table.labels, None if test is None else test.labels
        scale, mean = table.label_scale, table.label_mean
        cut = cls(tuple(members), labels, test_labels, scale, label_mean=mean, name=table.name)
        return replace(cut, classes=table.classes)

    @classmethod
    def from_frames(
        cls,
        frames: Mapping[str, Any],
        *,
        label: str,
        weight: str | None = None,
        id: str | Mapping[str, str] | None = None,
        clients: int | Sequence[int | Sequence[str]] = 1,
        holdout: float = 0.2,
        bias: bool = True,
        aggregate: Mapping[str, Sequence[str]] | None = None,
        link: Mapping[str, tuple[Any, str]] | None = None,
        **keys: Mapping[str, Any],
    ) -> "Federation":
        """A federation of frames that are apart already: pandas, Polars or Arrow, one per silo.

        Columns are read as those of CSV files: amounts are standardised, also where they are texts, as are dates;
        other texts, and categorical columns, become categories; blanks are filled. All by figures of the silo alone.
        The model of a run predicts from such frames again.

        Args:
            frames: by silo.
            label: the column to predict, in at least one of them.
            weight: the column that says how much samples count, next to the label; all alike by default.
            id: the column that says which sample a row is about, or this column of each silo; by default rows with the
                same place are the same.
            clients: how many per silo, or for each silo a number or the clients' names.
            holdout: the fraction of samples that are not trained on.
            bias: give the first silo a column of ones.
            aggregate: the figures that become one row of the several rows of an id, by silo: some of "count", "sum",
                "mean", "min" and "max".
            link: where a row belongs to many samples, by silo, a frame with the id of each sample and the column by
                which the silo's frame knows rows, and the name of that column: ``{"shop": (members, "household")}``.
            keys: sections of a configuration that say more, such as ``data={"rare": 5}`` or
                ``federation={"labels": "bank"}``. :func:`tdcd.train` keeps to what they say of labels, loss and
                precision. A key that says nothing of a federation of frames is refused.
        """
        from tdcd.tables.from_frames import federation_from_frames  # noqa: PLC0415 - a higher layer makes it

        keys = {**keys, "evaluate": {"holdout": holdout, **keys.get("evaluate", {})}}
        return federation_from_frames(
            frames,
            id_column=id,
            label=label,
            weight=weight,
            clients=clients,
            bias=bias,
            aggregate=aggregate or {},
            link=link or {},
            **keys,
        )

    def __repr__(self) -> str:
        """One line: the first silo in words."""
        first = self.silos[0]
        unit = "columns" if len(first.feature_shape) == 1 else "pixels"
        shown = f"{first.name}: {_shape(first)} {unit}, {counted(first.num_clients, 'client')}"
        return f"Federation of '{self.name}': {self._size} ({shown}{'; ...' if self.num_silos > 1 else ''})"

    def _repr_html_(self) -> str:
        """What a notebook shows: one row per silo."""
        from tdcd.core.notebook import summary_html  # noqa: PLC0415 - only notebooks need it

        rows = [
            (silo.name, _shape(silo), f"{silo.num_clients:,}", _span(silo.rows_held), self._has_labels(silo))
            for silo in self.silos
        ]
        held_out = "" if self.test_labels is None else f", {counted(len(self.test_labels), 'sample')} held out"
        sentence = f"of '{self.name}': {self._size}{held_out}"
        return summary_html("Federation", sentence, ("silo", "features", "clients", "rows per client", "labels"), rows)

    @property
    def _size(self) -> str:
        return f"{counted(self.num_samples, 'sample')}, {counted(self.num_silos, 'silo')}"

    def _has_labels(self, silo: Silo) -> str:
        return "yes" if self.terms.label_silo in (None, silo.name) else "no"


def _shape(silo: Silo) -> str:
    return "x".join(str(size) for size in silo.feature_shape)


def _span(counts: NDArray[np.int64]) -> str:
    low, high = int(counts.min()), int(counts.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _check_silo(silo: Silo, num_samples: int, num_test: int | None, *, may_lack: bool) -> None:
    where = f"silo '{silo.name}'"
    if len(silo.features) != num_samples:
        raise ValueError(
            f"{where} has {counted(len(silo.features), 'row')} of features for {counted(num_samples, 'label')}"
        )
    if num_test is not None and (silo.test_features is None or len(silo.test_features) != num_test):
        raise ValueError(f"{where} must hold its columns of the {num_test} held-out samples")
    if silo.test_features is not None and silo.test_features.shape[1:] != silo.feature_shape:
        shapes = f"{silo.feature_shape} in training and {silo.test_features.shape[1:]} held out"
        raise ValueError(f"{where}: a sample has shape {shapes}")
    if not silo.rows:
        raise ValueError(f"{where} has no clients")
    bounds = [(rows.start, rows.stop) for rows in silo.rows if isinstance(rows, range)]
    if len(bounds) == len(silo.rows):
        _check_ranges(where, bounds, num_samples, may_lack=may_lack)
        return
    owner = np.full(num_samples, -1, smallest(len(silo.rows)))
    for client, rows in enumerate(map(np.asarray, silo.rows)):
        if not len(rows):
            raise ValueError(f"{where}: client {client} holds no rows")
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise ValueError(f"{where}: the rows of client {client} must be row numbers, not {rows.dtype} {rows.shape}")
        outside = rows[(rows < 0) | (rows >= num_samples)]
        if len(outside):
            raise ValueError(f"{where}: client {client} holds row {outside[0]}; {there_are(num_samples, 'sample')}")
        if len(np.unique(rows)) != len(rows):
            values, counts = np.unique(rows, return_counts=True)
            raise ValueError(f"{where}: client {client} holds row {values[counts > 1][0]} twice")
        taken = rows[owner[rows] >= 0]
        if len(taken):
            raise ValueError(f"{where}: row {taken[0]} is held by client {owner[taken[0]]} and by client {client}")
        owner[rows] = client
    if (owner < 0).any() and not may_lack:
        raise ValueError(f"{where}: row {int(np.argmin(owner))} is held by no client")


def _check_ranges(where: str, bounds: Sequence[tuple[int, int]], num_samples: int, *, may_lack: bool) -> None:
    """Refuse clients' ranges of samples that are no partition."""
    before, last = 0, 0
    for client, (start, stop) in sorted(enumerate(bounds), key=itemgetter(1)):
        if start >= stop:
            raise ValueError(f"{where}: client {client} holds no rows")
        if start < 0 or stop > num_samples:
            row = start if start < 0 else max(start, num_samples)
            raise ValueError(f"{where}: client {client} holds row {row}; {there_are(num_samples, 'sample')}")
        if start < before:
            raise ValueError(f"{where}: row {start} is held by client {last} and by client {client}")
        if start > before and not may_lack:
            raise ValueError(f"{where}: row {before} is held by no client")
        before, last = stop, client
    if before < num_samples and not may_lack:
        raise ValueError(f"{where}: row {before} is held by no client")


def start_blocks(
    federation: Federation, blocks: Sequence[Block], num_outputs: int, settings: Settings, combine: Combine = SUM
) -> list[Tree]:
    """The hub blocks before round 0. A block that does not fit its silo's samples is refused by the silo's name."""
    return [
        start_block(block, settings, index, silo.feature_shape, num_outputs, silo.name, combine, silo.former)
        for index, (silo, block) in enumerate(zip(federation.silos, blocks, strict=True))
    ]
