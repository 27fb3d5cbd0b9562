r"""An additive model as a scorecard: points for every bin and level, in the columns' own units.

Where labels are known, with weight of evidence and information value. With g_i of all G rows of the favoured class and
b_i of all B rows of the other one in bin i,

.. math:: \mathrm{WoE}_i = \log \frac{g_i / G}{b_i / B}, \qquad
          \mathrm{IV} = \sum_i \Big(\frac{g_i}{G} - \frac{b_i}{B}\Big) \mathrm{WoE}_i

A count of 0 counts as a half where the other one is not 0.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdcd.blocks import Linear
from tdcd.core.losses import LOSSES, Poisson
from tdcd.prediction.model import Model, SiloModel
from tdcd.tables.encodings import Binned, Cell, ColumnEncoding
from tdcd.tables.labels import canonical_label
from tdcd.tables.reader import read_rows
from tdcd.tables.rows import RawRows
from tdcd.tables.source import Frame, arrow_of, open_table
from tdcd.tables.writing import write_table

HALF = 0.5


class Evidence(NamedTuple):
    """The labels' distribution in one bin or level."""

    favoured: int
    """Rows of the favoured class."""
    others: int
    woe: float | None
    """None if no row is in it."""
    iv: float
    """What it adds to the column's information value."""


def evidence(favoured: Sequence[int], others: Sequence[int]) -> list[Evidence]:
    """The evidence of every bin, from the rows of both classes in each.

    >>> [round(one.iv, 4) for one in evidence([30, 10], [10, 30])]
    [0.5493, 0.5493]
    """
    totals = sum(favoured), sum(others)
    if not all(totals):
        raise ValueError("the tables have rows of one class only: weight of evidence needs both")
    cells = []
    for good, bad in zip(favoured, others, strict=True):
        if not good and not bad:
            cells.append(Evidence(0, 0, None, 0.0))
            continue
        shares = (good or HALF) / totals[0], (bad or HALF) / totals[1]
        woe = math.log(shares[0] / shares[1])
        cells.append(Evidence(good, bad, woe, (shares[0] - shares[1]) * woe))
    return cells


def evidence_of(
    model: Model, tables: Mapping[str, Any], label: str, favoured: str
) -> dict[tuple[str, str], list[Evidence]]:
    """The evidence of every cell of a column's encoding, by silo and column.

    Args:
        tables: by silo: files, or frames with an id column. Rows are put together by id. Silos without a table, and
            rows without a label, are left out.
        label: the column with the labels, in one of the tables.
        favoured: a class.
    """
    model.check_meaning()
    read = {silo: _rows(model, silo, table, label) for silo, table in tables.items()}
    holder = next((rows for rows in read.values() if rows.labels is not None), None)
    if holder is None or holder.labels is None:
        raise ValueError(f"--data: none of the tables has the column '{label}' with the labels")
    classes = model.label_encoding.classes
    names = [canonical_label(value) for value in holder.labels]
    unknown = next((name for name in names if name not in classes), None)
    if unknown is not None:
        raise ValueError(f"--data: the label {unknown!r} is not one of the model's classes {', '.join(classes)}")
    of_id = dict(zip(holder.ids, (name == favoured for name in names), strict=True))
    by_column = {}
    for silo, rows in read.items():
        places = np.array([place for place, sample in enumerate(rows.ids) if sample in of_id], np.int64)
        if not len(places):
            raise ValueError(f"--data: no row of silo '{silo}' has a label: the ids differ")
        is_good = np.array([of_id[rows.ids[place]] for place in places])
        known = rows.take(places)
        for column, encoding in model.part(silo).preparation.parts.items():
            counts = _counts(encoding, column, known, is_good)
            by_column[silo, column] = evidence(counts[0].tolist(), counts[1].tolist())
    return by_column


def _rows(model: Model, silo: str, table: Any, label: str) -> RawRows:
    columns = model.part(silo).columns
    if isinstance(table, str | Path):
        with open_table(Path(table), columns.id, columns.dialect) as source:
            own = columns.with_label(label) if label in source.header else columns
            return read_rows(source, own)
    frame = arrow_of(table, f"table '{silo}'", [*model.part(silo).preparation.parts])
    own = columns.with_label(label) if label in frame.column_names else columns
    return read_rows(Frame(frame, f"table '{silo}'"), own)


def _counts(encoding: ColumnEncoding, column: str, rows: RawRows, is_good: NDArray[np.bool_]) -> NDArray[np.int64]:
    """``[2, cells]``: the rows of the favoured class and of the other one in each cell."""
    cells = len(encoding.cells())
    if not cells:
        raise ValueError(f"'{column}' has no bins: weight of evidence needs a run with model.encoding = 'bins'")
    features = np.zeros((len(rows), len(encoding.names(column))))
    encoding.apply(rows.features[column], features)
    # A blank of a column that had none in training is in no bin; a level that has no feature is in the last cell.
    is_in = (features == 1).any(axis=1)
    place = np.where(is_in, features.argmax(axis=1), cells - 1)
    kept = is_in if isinstance(encoding, Binned) else np.ones(len(rows), np.bool_)
    return np.stack([np.bincount(place[kept & chosen], minlength=cells) for chosen in (is_good, ~is_good)])


BASE = "base"
"""The line that every row gets."""


class PointScale(NamedTuple):
    """What points mean: a row with ``points`` has odds of ``odds`` to 1, and ``double`` more points double them."""

    points: float = 600.0
    odds: float = 1.0
    double: float = 20.0
    favours: str | None = None
    """The class whose odds these are; by default the first, which is not the one that the model gives chances of."""


class ScorecardLine(NamedTuple):
    """The points of one bin or level."""

    silo: str
    """Empty for the base."""
    column: str
    cell: Cell
    value: float
    evidence: Evidence | None = None
    """Its weight of evidence and information value, where labels were given."""


class Scorecard(NamedTuple):
    """An additive model, see :func:`scorecard`."""

    unit: str
    """``points``, or ``contribution`` to an amount in the labels' unit."""
    lines: Sequence[ScorecardLine]
    """The first one is the base."""
    meaning: str
    """What the sum is, in words."""
    is_logarithm: bool
    """Whether the sum is a logarithm: each line also multiplies what is predicted by a factor."""
    absent: Sequence[str]
    """The silos whose part is not in it, because it is not in the run folder."""

    @property
    def has_evidence(self) -> bool:
        """Whether labels were given."""
        return any(line.evidence is not None for line in self.lines)

    @property
    def information(self) -> dict[tuple[str, str], float]:
        """The information value of every column by silo and name, where labels were given; the largest first."""
        values: dict[tuple[str, str], float] = {}
        for line in self.lines:
            if line.evidence is not None:
                values[line.silo, line.column] = values.get((line.silo, line.column), 0.0) + line.evidence.iv
        return dict(sorted(values.items(), key=lambda item: -item[1]))


class _LinearScore(NamedTuple):
    """What a sum of lines is: ``offset + factor * score``."""

    factor: float
    offset: float
    unit: str
    meaning: str
    is_logarithm: bool = False


def scorecard(
    model: Model,
    scale: PointScale | None = None,
    tables: Mapping[str, Any] | None = None,
    label: str | None = None,
) -> Scorecard:
    """The points of every bin of a model of linear blocks that was trained with ``model.bins``.

    A row's points are those of the base plus, for each column, those of the bin or level that it is in. They are a
    linear function of the logarithm of the odds; of a regression, contributions add up to the predicted amount. The
    lines of a column have mean zero over the training rows, as far as their shares are known, and the base is what an
    average row gets. A level that has no line counts as "other"; a blank without one as other too, or as an average
    row where the column is in bins.

    Args:
        tables: by silo, for weight of evidence and information value, see :func:`evidence_of`.
        label: the column of the tables that has the labels.
    """
    model.check_additive("a scorecard")
    model.check_complete("a scorecard")
    silos = [*model.parts]
    if not silos:
        raise FileNotFoundError(
            f"{model.where} holds no model: let the run end, or stop it with Ctrl-C after its first rounds"
        )
    scale = scale or PointScale()
    linear = _meaning(model, scale)
    known: Mapping[tuple[str, str], Sequence[Evidence]] = {}
    if tables:
        if model.loss.target != "binary" or label is None:
            missing = "two classes" if label is not None else "the column of the labels: --label COLUMN"
            raise ValueError(f"--data: weight of evidence needs {missing}")
        known = evidence_of(model, tables, label, scale.favours or model.label_encoding.classes[0])
    # The first silo's part takes the offset, so that parts which were exported one by one add up to the model.
    base = linear.offset if silos[0] == model.silos[0] else 0.0
    lines: list[ScorecardLine] = []
    for silo in silos:
        part = model.part(silo)
        weights = _weights(silo, part) * linear.factor
        base += float(weights[len(part.preparation.columns) :].sum())
        start = 0
        for column, of in part.preparation.parts.items():
            cells, width = of.cells(), len(of.names(column))
            if not cells:
                raise ValueError(
                    f"silo '{silo}': '{column}' has no bins: a scorecard needs a run with model.encoding = 'bins'"
                )
            own = np.append(weights[start : start + width], np.zeros(len(cells) - width))
            mean = float(np.array([cell.share for cell in cells]) @ own)
            base += mean
            of_labels = known.get((silo, column), [None] * len(cells))
            lines += [
                ScorecardLine(silo, column, cell, float(value) - mean, known)
                for cell, value, known in zip(cells, own, of_labels, strict=True)
            ]
            start += width
    absent = [silo for silo in model.silos if silo not in silos]
    every = [ScorecardLine("", BASE, Cell(share=1.0), base), *lines]
    return Scorecard(linear.unit, every, linear.meaning, linear.is_logarithm, absent)


def _meaning(model: Model, scale: PointScale) -> _LinearScore:
    """What the sum of a row's lines is to be."""
    target, encoding = model.loss.target, model.label_encoding
    if target == "classes":
        raise ValueError(
            f"{model.where} has the softmax loss: a scorecard is of two classes with model.loss = 'logistic', or of "
            "amounts; tdcd export without --scorecard gives coefficients per class"
        )
    if model.loss.name not in LOSSES:
        raise ValueError(
            f"{model.where} has a loss of your own, {model.loss.name}: what its scores mean is not known here"
        )
    if isinstance(model.loss, Poisson):
        known = encoding.num_outputs is None
        meaning = "The sum of a row's contributions is the logarithm of the expected count" + (
            "." if known else f", as a multiple of the labels' mean, which silo '{model.label_silo}' alone knows."
        )
        return _LinearScore(1.0, math.log(encoding.scale), "contribution", meaning, is_logarithm=True)
    if target == "amount":
        # A hub without labels does not know their unit.
        known = encoding.num_outputs is None
        meaning = "The sum of a row's contributions is the predicted amount" + (
            "." if known else f", in deviations of the labels, which silo '{model.label_silo}' alone knows."
        )
        return _LinearScore(encoding.scale, encoding.mean, "contribution", meaning)
    if not (scale.odds > 0 and scale.double > 0 and math.isfinite(scale.points + scale.odds + scale.double)):
        raise ValueError("--odds and --double must be above zero, and all three finite")
    # A hub without labels does not know the classes' names, but that there are two.
    first, second = encoding.classes or ("the first class", "the second class")
    good = first if scale.favours is None else scale.favours
    if good not in (first, second):
        raise ValueError(f"--favours {good}: the classes are {first} and {second}")
    rise = scale.double / math.log(2)
    meaning = (
        f"{scale.points:g} points are odds of {scale.odds:g} to 1 in favour of '{good}', and every {scale.double:g} "
        f"points more double them."
    )
    return _LinearScore(
        rise if good == second else -rise, scale.points - rise * math.log(scale.odds), "points", meaning
    )


def _weights(silo: str, part: SiloModel) -> NDArray[np.float64]:
    """``[D + ones]``: of a linear block with one output."""
    if not isinstance(part.block, Linear):
        name = type(part.block).__name__.lower()
        raise ValueError(f"silo '{silo}' has a block of kind '{name}': a scorecard is of linear ones")
    return np.asarray(part.parameters["weight"], np.float64)[:, 0]


def write_scorecard(path: Path, card: Scorecard) -> None:
    """Write the table: ``silo``, ``column``, ``from``, ``to``, ``level``, the points and the ``share`` of rows.

    Of counts there is also ``factor``: the product of a row's factors is the expected count. Where labels were given,
    there are also ``rows``, those of the ``favoured`` class, ``woe`` and ``iv``. Dates are written as dates.
    """
    ends: list[tuple[Any, Any]] = [(line.cell.above, line.cell.up_to) for line in card.lines]
    if any(line.cell.is_date for line in card.lines):
        # A column of a table has one type: with dates, numbers are texts too.
        ends = [line.cell.ends for line in card.lines]
    columns: dict[str, Sequence[Any]] = {
        "silo": [line.silo for line in card.lines],
        "column": [line.column for line in card.lines],
        "from": [above for above, _ in ends],
        "to": [up_to for _, up_to in ends],
        "level": [line.cell.level for line in card.lines],
        card.unit: [line.value for line in card.lines],
        "share": [line.cell.share for line in card.lines],
    }
    if card.is_logarithm:
        columns["factor"] = [math.exp(line.value) for line in card.lines]
    if card.has_evidence:
        evidence = [line.evidence for line in card.lines]
        columns["rows"] = [None if cell is None else cell.favoured + cell.others for cell in evidence]
        columns["favoured"] = [None if cell is None else cell.favoured for cell in evidence]
        columns["woe"] = [None if cell is None else cell.woe for cell in evidence]
        columns["iv"] = [None if cell is None else cell.iv for cell in evidence]
    write_table(path, columns)
