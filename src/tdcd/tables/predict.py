"""Predictions for new rows: every silo scores its columns, and the scores are summed."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdcd.choices import Loss
from tdcd.runfolder import write_durably
from tdcd.tables.errors import SHOWN, TableError
from tdcd.tables.labels import Meaning
from tdcd.tables.reading import read_rows
from tdcd.tables.rows import id_order
from tdcd.tables.trained import Trained

ROWS_AT_ONCE = 1 << 13
"""Rows are prepared and scored so many at a time, to need little memory beside the table."""


class SiloScores(NamedTuple):
    """What one silo's columns add to the scores of some samples."""

    ids: Sequence[str]
    """``[n]``: each once."""
    phi: NDArray[Any]
    """``[n, C]``."""


class Predictions(NamedTuple):
    """The scores of samples, in the order of their ids."""

    ids: Sequence[str]
    """``[n]``."""
    scores: NDArray[Any]
    """``[n, C]``: the silos' phi summed."""
    missing: Sequence[Sequence[str]]
    """``[n]``: the silos that lack each sample, and so add nothing to its score."""


def silo_scores(folder: Path, silo: str, table: Path) -> SiloScores:
    """Score a table of new rows with one silo's part of the model in a run folder.

    The table needs the silo's id column and features; other columns, such as the label, are ignored.
    """
    part = Trained.open(folder).part(silo)
    rows = read_rows(table, part.columns)
    starts = range(0, len(rows), ROWS_AT_ONCE)
    chunks = [part.phi(rows.take(np.arange(start, min(start + ROWS_AT_ONCE, len(rows))))) for start in starts]
    return SiloScores(rows.ids, np.concatenate(chunks))


def no_scores(trained: Trained) -> SiloScores:
    """Of a silo that has none of the samples."""
    return SiloScores((), np.zeros((0, trained.num_outputs), trained.config.dtype))


def combine(parts: Mapping[str, SiloScores], allow_missing: bool = False) -> Predictions:
    """Sum the silos' scores by id, silo after silo.

    Args:
        parts: by silo.
        allow_missing: score an id that a silo lacks without that silo's part; otherwise it is an error.
    """
    known = list(dict.fromkeys(one for part in parts.values() for one in part.ids))
    ids = [known[place] for place in id_order(known)]
    places = {one: place for place, one in enumerate(ids)}
    first = next(iter(parts.values())).phi
    scores = np.zeros((len(ids), first.shape[1]), first.dtype)
    missing: list[list[str]] = [[] for _ in ids]
    for silo, part in parts.items():
        scores[[places[one] for one in part.ids]] += part.phi
        for one in places.keys() - set(part.ids):
            missing[places[one]].append(silo)
    if not allow_missing and any(missing):
        raise TableError([_lacks(silo, ids, missing) for silo in parts if any(silo in lacking for lacking in missing)])
    return Predictions(ids, scores, missing)


def _lacks(silo: str, ids: Sequence[str], missing: Sequence[Sequence[str]]) -> str:
    absent = [one for one, lacking in zip(ids, missing, strict=True) if silo in lacking]
    shown = ", ".join(map(repr, absent[:SHOWN])) + (", ..." if len(absent) > SHOWN else "")
    return (
        f"silo '{silo}' lacks {len(absent)} of {len(ids)} ids: {shown}: add them to its table, or score them without "
        "its part with --allow-missing"
    )


def write_predictions(
    path: Path, predictions: Predictions, meaning: Meaning, loss: Loss, *, mark_missing: bool = False
) -> None:
    """Write predictions as CSV: ``id``, ``prediction`` and, for classes, their probabilities.

    An amount is in the labels' own unit. Of two classes with the logistic loss there is ``probability_CLASS`` of the
    second one; with the softmax loss there is one such column a class.

    Args:
        mark_missing: add the column ``missing``, with the silos that lack the id, separated by blanks.
    """
    names = [f"probability_{name}" for name in _shown_classes(meaning, loss)]
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["id", "prediction", *names, *["missing"] * mark_missing])
    for one, lacking, cells in zip(
        predictions.ids, predictions.missing, _cells(predictions.scores, meaning, loss), strict=True
    ):
        writer.writerow([one, *cells, *[" ".join(lacking)] * mark_missing])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, text.getvalue().encode())


def probabilities(scores: NDArray[Any], loss: Loss) -> NDArray[np.float64]:
    """``[n, C]``: of every class from softmax scores, or ``[n, 1]`` of the second class from logistic ones."""
    scores = np.asarray(scores, np.float64)
    if loss == "logistic":
        # Equal to 1 / (1 + exp(-score)), which overflows.
        return np.asarray((1 + np.tanh(scores / 2)) / 2)
    shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


def _shown_classes(meaning: Meaning, loss: Loss) -> Sequence[str]:
    return {"squared": (), "logistic": meaning.classes[1:], "softmax": meaning.classes}[loss]


def _cells(scores: NDArray[Any], meaning: Meaning, loss: Loss) -> Iterator[list[Any]]:
    """Every row's prediction and probabilities."""
    if loss == "squared":
        yield from ([amount] for amount in (scores[:, 0].astype(np.float64) * meaning.scale + meaning.mean).tolist())
        return
    winners = scores.argmax(axis=1) if loss == "softmax" else (scores[:, 0] > 0).astype(int)
    for winner, chances in zip(winners.tolist(), probabilities(scores, loss).tolist(), strict=True):
        yield [meaning.classes[winner], *chances]
