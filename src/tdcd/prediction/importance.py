r"""Permutation importance of columns and of silos: how much worse the model is with a column's values at other rows.

Silo j shuffles its own column c of its own rows. Scores are made of sums over silos, so that nothing but its phi
changes, and no column has to move:

.. math:: s' = s - \phi_j(x) + \phi_j(x \text{ with column } c \text{ shuffled})

Whoever has the labels needs phi_j once per column and shuffle. So between real parties a column costs what an
evaluation of that silo's phi costs, times the number of shuffles. It is not offered there: every further phi of the
same rows is an equation about them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from tdcd.core.losses import metrics
from tdcd.core.notebook import summary_html
from tdcd.core.objective import Objective
from tdcd.core.words import counted
from tdcd.prediction.subsets import Scorer
from tdcd.tables.effects import column_slices
from tdcd.tables.labels import LabelEncoding, canonical_label
from tdcd.tables.rows import RawRows

if TYPE_CHECKING:
    from tdcd.prediction.model import Model


class SiloRows(NamedTuple):
    """The rows of one silo, and what its part of the model makes of them."""

    features: NDArray[Any]
    """``[m, W]``."""
    phi: Callable[[NDArray[Any]], NDArray[Any]]
    """``[n, C]`` from features."""
    columns: Mapping[str, slice]
    """Where each raw column's features are."""


class Importance(NamedTuple):
    """What shuffling changes, on average over the shuffles."""

    silo: str
    column: str
    """Empty for all columns of the silo at once."""
    loss: float
    """How much larger the loss is."""
    metrics: Mapping[str, float | None]
    """How much each metric changes."""


class Importances(NamedTuple):
    """The importances of a model's columns, see :func:`importances_of`."""

    rows: Sequence[Importance]
    """Silo by silo: first all its columns at once, then each, the one that matters most first."""

    def __repr__(self) -> str:
        """One line: how many there are."""
        return f"Importances {self._in_words}"

    def _repr_html_(self) -> str:
        """What a notebook shows: one row per column."""
        names = [*self.rows[0].metrics]
        lines = [(row.silo, row.column or "(all columns)", *_figures(row, names)) for row in self.rows]
        return summary_html("Importances", self._in_words, ("silo", "column", "loss", *names), lines)

    @property
    def _in_words(self) -> str:
        silos = {row.silo: None for row in self.rows}
        columns = sum(bool(row.column) for row in self.rows)
        return f"of {counted(columns, 'column')} of {counted(len(silos), 'silo')} ({', '.join(silos)})"


def shuffled(silos: Mapping[str, SiloRows], measure: Scorer, repeats: int, seed: int) -> list[Importance]:
    """The importance of every silo and of every column.

    Args:
        silos: all of them, their rows in one order.
        measure: loss and metrics of the sums of phi ``[m, C]``.
        repeats: how many shuffles there are; all columns have the same.
        seed: what they are drawn from.
    """
    phis = {silo: np.asarray(own.phi(own.features)) for silo, own in silos.items()}
    first, *others = phis.values()
    total = np.asarray(sum(others, start=first))
    before = measure(total)
    orders = [np.random.default_rng([seed, repeat]).permutation(len(total)) for repeat in range(repeats)]
    importances = []
    for silo, own in silos.items():
        rest = total - phis[silo]
        importances.append(_changed(silo, "", before, [measure(rest + phis[silo][order]) for order in orders]))
        columns = []
        for column, place in own.columns.items():
            after = []
            for order in orders:
                features = own.features.copy()
                features[:, place] = own.features[order, place]
                after.append(measure(rest + own.phi(features)))
            columns.append(_changed(silo, column, before, after))
        importances += sorted(columns, key=lambda row: -row.loss)
    return importances


def _changed(silo: str, column: str, before: Any, after: Sequence[Any]) -> Importance:
    names = [name for name in before[1] if before[1][name] is not None and all(m[name] is not None for _, m in after)]
    changes = {name: float(np.mean([m[name] for _, m in after]) - before[1][name]) for name in names}
    return Importance(silo, column, float(np.mean([loss for loss, _ in after]) - before[0]), changes)


def importances_of(
    model: "Model", rows: Mapping[str, RawRows], labels: Sequence[Any] | NDArray[Any], repeats: int, seed: int
) -> Importances:
    """The importances of a model's columns on some rows with labels, in the labels' order."""
    model.check_meaning()
    model.check_complete("permutation importance")
    lacking = [silo for silo in model.silos if silo not in rows]
    if lacking:
        raise ValueError(
            f"the table of silo '{lacking[0]}' is missing: permutation importance takes those of all silos, "
            f"{', '.join(model.silos)}. Between real parties it is not offered"
        )
    if repeats < 1:
        raise ValueError(f"repeats = {repeats}: shuffle at least once")
    ids = rows[model.silos[0]].ids
    if len(labels) != len(ids):
        raise ValueError(f"there are {counted(len(labels), 'label')} for {counted(len(ids), 'row')}: give one per row")
    silos = {}
    for silo in model.silos:
        part, own = model.part(silo), rows[silo]
        if len(part.feature_shape) > 1:
            raise ValueError(f"silo '{silo}' has images: permutation importance is of columns")
        places = {sample: place for place, sample in enumerate(own.ids)}
        apart = {*places} ^ {*ids}
        if apart:
            raise ValueError(f"id {min(apart)!r} is not in all tables: leave it out, or add what is missing")
        dtype = jax.tree.leaves(part.parameters)[0].dtype
        ordered = own.take(np.array([places[sample] for sample in ids], np.int64))
        silos[silo] = SiloRows(part.preparation.apply(ordered, dtype), part.phi_of, column_slices(part.preparation))
    objective = Objective(model.loss, combine=model.head)
    numbers = numbers_of(labels, model.label_encoding)

    def measure(phi: NDArray[Any]) -> tuple[float, dict[str, float | None]]:
        scores: Any = np.asarray(model.head.scores(np.asarray(phi, np.float64)))
        known: Any = np.asarray(numbers, objective.label_dtype("float64"))
        with jax.enable_x64(True):
            losses = np.asarray(model.loss.losses(scores, known))
        return float(np.mean(losses)), metrics(model.loss, scores, numbers, model.label_encoding.scale)

    return Importances(shuffled(silos, measure, repeats, seed))


def numbers_of(labels: Sequence[Any] | NDArray[Any], encoding: LabelEncoding) -> NDArray[np.float64]:
    """Labels as the model's loss takes them."""
    listed = np.asarray(labels).tolist()
    if not encoding.classes:
        return (np.asarray(listed, np.float64) - encoding.mean) / encoding.scale
    codes = {name: float(code) for code, name in enumerate(encoding.classes)}
    unknown = next((label for label in listed if canonical_label(label) not in codes), None)
    if unknown is not None:
        raise ValueError(f"label {unknown!r} is none of the model's classes: {', '.join(encoding.classes)}")
    return np.array([codes[canonical_label(label)] for label in listed])


def describe_importances(importances: Sequence[Importance], rows: int) -> dict[str, Any]:
    """The entry ``importance`` of ``subsets.json``: what one shuffle of so many rows changes."""
    listed = [
        {"silo": row.silo, "column": row.column, "loss": row.loss, "metrics": dict(row.metrics)} for row in importances
    ]
    return {"rows": rows, "changes": listed}


def _figures(row: Importance, names: Sequence[str]) -> Iterator[str]:
    yield f"{row.loss:.4g}"
    for name in names:
        value = row.metrics.get(name)
        yield "" if value is None else f"{value:.4g}"


def importances_table(importances: Importances) -> dict[str, list[Any]]:
    """Columns of a table: ``silo``, ``column`` (empty for the whole silo), and how loss and metrics change."""
    columns: dict[str, list[Any]] = {
        "silo": [row.silo for row in importances.rows],
        "column": [row.column for row in importances.rows],
        "loss": [row.loss for row in importances.rows],
    }
    names = importances.rows[0].metrics
    return columns | {name: [row.metrics.get(name) for row in importances.rows] for name in names}


def labels_in(model: "Model", tables: Mapping[str, Path], label: str) -> list[Any]:
    """The labels in the first table that has the column, in the order of the first silo's rows."""
    from tdcd.tables.reader import read_rows  # noqa: PLC0415  (not after training)
    from tdcd.tables.source import open_table  # noqa: PLC0415

    for silo, path in tables.items():
        columns = model.part(silo).columns
        with open_table(path, columns.id, columns.dialect) as table:
            if label not in table.header:
                continue
            rows = read_rows(table, columns.only(()).with_label(label))
        first = model.silos[0]
        is_first = silo == first or first not in tables
        order = rows.ids if is_first else read_rows(tables[first], model.part(first).columns.only(())).ids
        known = dict(zip(rows.ids, np.asarray(rows.labels).tolist(), strict=True))
        lacking = [sample for sample in order if sample not in known]
        if lacking:
            raise ValueError(f"{path} has no row with the id {lacking[0]!r}, and the table of silo '{first}' has")
        return [known[sample] for sample in order]
    raise ValueError(f"no table of --data has the column '{label}': give the labels' column as --label COLUMN")
