r"""Weight of evidence and information value of bins and levels, where labels are known.

With g_i of all G rows of the favoured class and b_i of all B rows of the other one in bin i,

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

from tdcd.prediction.model import Model
from tdcd.tables.encodings import Binned, ColumnEncoding
from tdcd.tables.labels import canonical_label
from tdcd.tables.reader import read_rows
from tdcd.tables.rows import RawRows
from tdcd.tables.source import Frame, arrow_of, open_table

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
    found = []
    for good, bad in zip(favoured, others, strict=True):
        if not good and not bad:
            found.append(Evidence(0, 0, None, 0.0))
            continue
        shares = (good or HALF) / totals[0], (bad or HALF) / totals[1]
        woe = math.log(shares[0] / shares[1])
        found.append(Evidence(good, bad, woe, (shares[0] - shares[1]) * woe))
    return found


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
    found = {}
    for silo, rows in read.items():
        places = np.array([place for place, one in enumerate(rows.ids) if one in of_id], np.int64)
        if not len(places):
            raise ValueError(f"--data: no row of silo '{silo}' has a label: the ids differ")
        is_good = np.array([of_id[rows.ids[place]] for place in places])
        known = rows.take(places)
        for column, encoding in model.part(silo).preparation.parts.items():
            counts = _counts(encoding, column, known, is_good)
            found[silo, column] = evidence(counts[0].tolist(), counts[1].tolist())
    return found


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
        raise ValueError(f"'{column}' has no bins: weight of evidence needs a run with model.bins")
    features = np.zeros((len(rows), len(encoding.names(column))))
    encoding.apply(rows.features[column], features)
    # A blank of a column that had none in training is in no bin; a level that has no feature is in the last cell.
    is_in = (features == 1).any(axis=1)
    place = np.where(is_in, features.argmax(axis=1), cells - 1)
    kept = is_in if isinstance(encoding, Binned) else np.ones(len(rows), np.bool_)
    return np.stack([np.bincount(place[kept & chosen], minlength=cells) for chosen in (is_good, ~is_good)])
