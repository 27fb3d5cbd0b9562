"""Predictions as columns that people read: of new rows, and of held-out samples, ``held-out.csv`` in a run folder."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from tdcd.blocks import Block
from tdcd.core.lazy import jax
from tdcd.core.losses import Loss, loss_of
from tdcd.core.objective import Tree
from tdcd.federation.silos import Federation
from tdcd.prediction.scores import Predictions, SiloScores, combine, no_scores
from tdcd.records.files import PRIVATE, SHARED
from tdcd.records.run_folder import RunFolder
from tdcd.tables.labels import LabelEncoding
from tdcd.tables.writing import write_table

if TYPE_CHECKING:
    from tdcd.prediction.model import Model

ROWS_AT_ONCE = 1 << 13
"""Rows are scored so many at a time, to need little memory in addition to the features."""
MOST_NUMBERED = 100_000
"""The most samples without ids that are written, evenly spread."""
SAMPLE = "sample"
"""The column of samples without ids: their numbers, those of the training samples counted first."""


class Named(NamedTuple):
    """The names of held-out samples and of their labels."""

    id_column: str
    ids: Sequence[str]
    """``[m]``."""
    labels: Sequence[str | float]
    """``[m]``, as the tables have them."""
    encoding: LabelEncoding

    @classmethod
    def by_number(cls, ids: Sequence[str], labels: NDArray[Any], encoding: LabelEncoding, outputs: int) -> Self:
        """Samples that have numbers for ids, and so do classes without names.

        Args:
            labels: ``[m]``, those of training.
            outputs: C.
        """
        if encoding.task != "regression":
            names = encoding.classes or tuple(str(number) for number in range(max(2, outputs)))
            return cls(SAMPLE, ids, [names[int(label)] for label in labels], encoding._replace(classes=names))
        amounts = (np.asarray(labels, np.float64) * encoding.scale + encoding.mean).tolist()
        # Training rounded them to float32 or not; more figures than these would be noise.
        return cls(SAMPLE, ids, _to_float32(amounts), encoding)


def scores_of(federation: Federation, blocks: Sequence[Block], hub_blocks: Sequence[Tree]) -> NDArray[Any]:
    """``[m, C]``: the model's scores of the held-out samples."""
    total = 0 if federation.test_labels is None else len(federation.test_labels)
    dtype = jax.tree.leaves(hub_blocks)[0].dtype
    chunks = []
    with jax.enable_x64(dtype == np.float64):
        for start in range(0, total, ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            phi = [
                np.asarray(block.phi(own, jax.numpy.asarray(silo.test_features[rows], dtype)))
                for block, own, silo in zip(blocks, hub_blocks, federation.silos, strict=True)
                if silo.test_features is not None
            ]
            chunks.append(sum(phi[1:], start=phi[0]))
    return np.concatenate(chunks)


def write_held_out(
    folder: Path,
    named: Named,
    scores: NDArray[Any],
    loss: str | Loss,
    *,
    randomized: bool = False,
    temperature: float = 1.0,
) -> None:
    """Write ``held-out.csv`` into a run folder: ids, ``label``, and the predictions of the run's model.

    Args:
        scores: ``[m, C]``; not a number for samples that were not scored. Of float32 scores, numbers are written to
            as many figures as they have.
        randomized: the labels are randomised ones; their column is called ``randomised_label``.
        temperature: of the probabilities.
    """
    # A client that was absent left no scores of its samples.
    known = np.flatnonzero(np.isfinite(scores).all(axis=1))
    if named.id_column == SAMPLE and len(known) > MOST_NUMBERED:
        known = known[np.linspace(0, len(known) - 1, MOST_NUMBERED).astype(int)]
    rows = known.tolist()
    figures = predicted(scores[known], named.encoding, loss, temperature)
    if scores.dtype == np.float32:
        figures = {name: _to_float32(values) for name, values in figures.items()}
    columns = {"randomised_label" if randomized else "label": [named.labels[row] for row in rows], **figures}
    path = RunFolder(folder).held_out_file
    write_table(path, {unlike(named.id_column, columns): [named.ids[row] for row in rows]} | columns, PRIVATE)


def _to_float32(values: Sequence[Any]) -> Sequence[Any]:
    """Numbers to the seven figures of float32; names as they are."""
    return [float(f"{value:.7g}") if isinstance(value, float) else value for value in values]


def unlike(id_column: str, columns: Collection[str]) -> str:
    """The id column's own name, unless another column has it."""
    return id_column if id_column not in columns else "id"


def predicted(
    scores: NDArray[Any], label_encoding: LabelEncoding, loss: str | Loss, temperature: float = 1.0
) -> dict[str, Sequence[Any]]:
    """``prediction`` and the probabilities at a temperature, by column."""
    kind = loss_of(loss)
    target, means = kind.target, kind.inverse_link(np.asarray(scores, np.float64) / temperature)
    if target == "amount":
        return {"prediction": (means[:, 0] * label_encoding.scale + label_encoding.mean).tolist()}
    winners = scores.argmax(axis=1) if target == "classes" else (scores[:, 0] > 0).astype(int)
    shown = label_encoding.classes[1:] if target == "binary" else label_encoding.classes
    columns: dict[str, Sequence[Any]] = {"prediction": [label_encoding.classes[winner] for winner in winners]}
    return columns | {f"probability_{name}": means[:, place].tolist() for place, name in enumerate(shown)}


def write_sums(
    path: Path,
    model: "Model",
    parts: Mapping[str, SiloScores],
    *,
    allow_missing: bool = False,
    common: bool = False,
    without: Collection[str] = (),
    in_order_of: str | None = None,
    mode: int = SHARED,
) -> tuple[Predictions, dict[str, SiloScores]]:
    """Add up what silos' columns add to the scores, and write the predictions.

    Args:
        parts: by silo.
        allow_missing: score ids that a silo lacks without its part.
        common: leave them out instead.
        without: silos that are missing.
        in_order_of: the silo whose rows come first, and whose id column the file has.
        mode: who may read the file.

    Returns:
        The predictions, and the parts of all silos in the model's order.
    """
    allow_missing = allow_missing or (model.stand_ins.knows_absence and not common)
    ordered = {name: parts[name] if name not in without else no_scores(model) for name in model.silos}
    predictions = combine(
        ordered,
        allow_missing,
        common_only=common,
        without=without,
        stand_ins=model.stand_ins,
        in_order_of=in_order_of,
        head=model.head,
    )
    first = next(name for name in model.silos if name not in without)
    write_predictions(
        path,
        predictions,
        model.label_encoding,
        model.loss,
        id_column=model.part(in_order_of or first).columns.id,
        mark_missing=allow_missing or bool(without),
        temperature=model.temperature,
        mode=mode,
    )
    return predictions, ordered


def write_predictions(
    path: Path,
    predictions: Predictions,
    label_encoding: LabelEncoding,
    loss: Loss,
    *,
    id_column: str = "id",
    mark_missing: bool = False,
    temperature: float = 1.0,
    mode: int = SHARED,
) -> None:
    """Write predictions as CSV or Parquet: the ids, ``prediction`` and, for classes, their probabilities.

    An amount is in the labels' own unit. Of two classes with the logistic loss there is ``probability_CLASS`` of the
    second one; with the softmax loss there is one such column per class.

    Args:
        mark_missing: add the column ``missing``, with the silos that lack the id, separated by blanks.
        temperature: of the probabilities, :attr:`tdcd.Model.temperature`.
        mode: who may read the file; by default as of any file that a person asks for by its name.
    """
    columns = predicted(predictions.scores, label_encoding, loss, temperature)
    if mark_missing:
        columns["missing"] = [" ".join(lacking) for lacking in predictions.missing]
    write_table(path, {unlike(id_column, columns): predictions.ids} | columns, mode)
