"""Predictions for new rows: every silo scores its columns, and the scores are summed."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdcd.core.combine import SUM, Combine
from tdcd.core.losses import Loss
from tdcd.prediction.held_out import predicted, unlike
from tdcd.prediction.missing import StandIns
from tdcd.prediction.model import Model
from tdcd.prediction.scores import SiloScores
from tdcd.tables.errors import SHOWN, TableError
from tdcd.tables.labels import LabelEncoding
from tdcd.tables.writing import write_table


class Predictions(NamedTuple):
    """The scores of samples, in the order of the rows that they are about."""

    ids: Sequence[str]
    """``[n]``."""
    scores: NDArray[Any]
    """``[n, C]``: the silos' phi summed."""
    missing: Sequence[Sequence[str]]
    """``[n]``: the silos that lack each sample."""


def no_scores(model: Model) -> SiloScores:
    """Of a silo that has none of the samples."""
    return SiloScores((), np.zeros((0, model.phi_width), model.dtype))


def combine(
    parts: Mapping[str, SiloScores],
    allow_missing: bool = False,
    *,
    common_only: bool = False,
    without: Collection[str] = (),
    stand_ins: StandIns = StandIns(),  # noqa: B008  (it cannot change)
    in_order_of: str | None = None,
    head: Combine = SUM,
) -> Predictions:
    """Sum the silos' scores by id, silo after silo.

    Args:
        parts: by silo.
        allow_missing: score an id that a silo lacks without that silo's part; otherwise it is an error.
        common_only: leave such ids out instead.
        without: silos that lack all ids, and may.
        stand_ins: what takes the place of the part of a silo that lacks an id.
        in_order_of: the silo whose rows come first, as they are in its table; by default the first. Ids that it lacks
            follow, as the next silos have them.
        head: what makes scores of the sums.
    """
    if common_only:
        parts = {**parts, **_in_common({silo: part for silo, part in parts.items() if silo not in without})}
    leading = [] if in_order_of is None else [parts[in_order_of]]
    ids = list(dict.fromkeys(one for part in (*leading, *parts.values()) for one in part.ids))
    places = {one: place for place, one in enumerate(ids)}
    first = next(iter(parts.values())).phi
    scores = np.zeros((len(ids), first.shape[1]), first.dtype)
    missing: list[list[str]] = [[] for _ in ids]
    for silo, part in parts.items():
        scores[[places[one] for one in part.ids]] += part.phi
        lacking = [places[one] for one in places.keys() - set(part.ids)]
        scores[lacking] += stand_ins.of(silo, scores.dtype)
        for place in lacking:
            missing[place].append(silo)
    refused = () if allow_missing else [silo for silo in parts if silo not in without]
    problems = [_lacks(silo, ids, missing) for silo in refused if any(silo in lacking for lacking in missing)]
    if problems:
        raise TableError(problems)
    return Predictions(ids, np.asarray(head.scores(scores)), missing)


def _in_common(parts: Mapping[str, SiloScores]) -> dict[str, SiloScores]:
    """The scores of the ids that every silo has."""
    common = set.intersection(*(set(part.ids) for part in parts.values()))
    if not common:
        raise TableError(["no id is in the tables of all silos: check that their id columns mean the same"])
    found = {}
    for silo, part in parts.items():
        rows = [row for row, one in enumerate(part.ids) if one in common]
        found[silo] = SiloScores([part.ids[row] for row in rows], part.phi[rows])
    return found


def _lacks(silo: str, ids: Sequence[str], missing: Sequence[Sequence[str]]) -> str:
    absent = [one for one, lacking in zip(ids, missing, strict=True) if silo in lacking]
    shown = ", ".join(map(repr, absent[:SHOWN])) + (", ..." if len(absent) > SHOWN else "")
    return (
        f"silo '{silo}' lacks {len(absent)} of {len(ids)} ids: {shown}: add them to its table, score them without "
        "its part with --allow-missing, or leave them out with --common"
    )


def write_predictions(
    path: Path,
    predictions: Predictions,
    label_encoding: LabelEncoding,
    loss: Loss,
    *,
    id_column: str = "id",
    mark_missing: bool = False,
) -> None:
    """Write predictions as CSV or Parquet: the ids, ``prediction`` and, for classes, their probabilities.

    An amount is in the labels' own unit. Of two classes with the logistic loss there is ``probability_CLASS`` of the
    second one; with the softmax loss there is one such column per class.

    Args:
        mark_missing: add the column ``missing``, with the silos that lack the id, separated by blanks.
    """
    columns = predicted(predictions.scores, label_encoding, loss)
    if mark_missing:
        columns["missing"] = [" ".join(lacking) for lacking in predictions.missing]
    write_table(path, {unlike(id_column, columns): predictions.ids} | columns)
