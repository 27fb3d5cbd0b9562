"""A table of samples: features, labels and what they mean."""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tdcd.core.losses import LOSSES, LabelUnit, Task
from tdcd.core.words import counted

ROWS_AT_ONCE = 1 << 12
"""Rows are standardised so many at a time, to need little memory in addition to the result."""


@dataclass(frozen=True, eq=False)
class Scaling:
    """How raw features became those of a table: ``(raw - mean) / scale``, with a number of each per feature."""

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]

    def after(self, earlier: "Scaling | None") -> "Scaling":
        """Both in one, where the raw features had been scaled before."""
        if earlier is None:
            return self
        return Scaling(earlier.mean + earlier.scale * self.mean, earlier.scale * self.scale)


@dataclass(frozen=True, eq=False)
class Table:
    """Samples in memory: a feature matrix or a pile of images, and one label per sample."""

    name: str
    features: NDArray[Any]
    """``[n, D]``, or ``[n, height, width]`` for images; as exact as the source gives them."""
    labels: NDArray[Any]
    """``[n]``: real numbers, 0 / 1, or classes 0 .. C-1."""
    task: Task
    columns: tuple[str, ...] = ()
    """One name per feature; empty for images."""
    label_scale: float = 1.0
    """What one unit of the labels is in the data's own units."""
    label_mean: float = 0.0
    """What a label of 0 is in the data's own units: there, it is label * label_scale + label_mean."""
    held_out: NDArray[np.bool_] | None = None
    """``[n]``: the samples that the source itself keeps for testing, where it does."""
    scaling: Scaling | None = None
    """How the features were standardised, so that a model can take raw ones; None if they are raw."""
    classes: tuple[str, ...] = ()
    """The classes' names by number; empty if they are called by their numbers."""
    value_bytes: int | None = None
    """The bytes of a raw value in the source, such as 1 for a pixel; None if it is an ordinary number."""

    def __post_init__(self) -> None:
        """Refuse shapes and values that no model could train on."""
        for name in ("features", "labels"):
            object.__setattr__(self, name, numbers(getattr(self, name), f"table '{self.name}': {name}"))
        if self.features.ndim < 2:
            raise ValueError(
                f"table '{self.name}': features have shape {self.features.shape}, not [rows, columns], or "
                "[rows, height, width] for images"
            )
        check_one_each(self.labels, f"table '{self.name}': labels")
        if len(self.features) != len(self.labels):
            raise ValueError(
                f"table '{self.name}' has {counted(len(self.features), 'row')} and {counted(len(self.labels), 'label')}"
            )
        if not len(self.labels):
            raise ValueError(f"table '{self.name}' has no rows")
        if self.columns and len(self.columns) != self.features.shape[1]:
            raise ValueError(
                f"table '{self.name}' has {counted(self.features.shape[1], 'column')} and "
                f"{counted(len(self.columns), 'column name')}"
            )
        if not np.isfinite(self.features).all():
            row, column = np.argwhere(~np.isfinite(self.features))[0][:2]
            name = self.columns[column] if self.columns else str(column)
            raise ValueError(f"table '{self.name}': column '{name}' of row {row} is not a finite number")
        fit, wanted = _fitting(self.labels, self.task)
        if not fit.all():
            row = int(np.argmin(fit))
            raise ValueError(f"table '{self.name}': the label of row {row} is {self.labels[row]}, not {wanted}")

    @property
    def is_images(self) -> bool:
        """Whether a sample is a picture rather than a row."""
        return self.features.ndim == 3

    @property
    def num_classes(self) -> int:
        """C for classes, 1 for scores."""
        return int(self.labels.max()) + 1 if self.task == "multiclass" else 1

    def take(self, rows: NDArray[Any]) -> Self:
        """The samples at ``rows``."""
        held_out = None if self.held_out is None else self.held_out[rows]
        return replace(self, features=self.features[rows], labels=self.labels[rows], held_out=held_out)

    def rounded(self, dtype: DTypeLike) -> Self:
        """The same with features in this precision; whole numbers stay whole."""
        if self.features.dtype.kind != "f":
            return self
        return replace(self, features=self.features.astype(dtype, copy=False))

    def split(self, holdout: float = 0.0, seed: int = 0, *, stratify: bool = False) -> tuple[Self, Self | None]:
        """Training samples and held-out ones, each in the table's order; no second table if none are held out.

        A table with ``held_out`` samples of its own (MNIST) is split there, whatever the arguments. Of any other, the
        fraction ``holdout`` is drawn at random; of every class the same fraction, if it is to ``stratify``.
        """
        total, held_out = len(self.labels), self.held_out
        if held_out is None:
            held_out = holdout_mask(total, holdout, seed, strata(self.task, self.labels) if stratify else None)
        if held_out.all():
            raise ValueError(f"table '{self.name}': all of its {total} rows are held out, none are left for training")
        whole = replace(self, held_out=None)
        return (whole.take(~held_out), whole.take(held_out)) if held_out.any() else (whole, None)


def numbers(values: Any, what: str) -> NDArray[Any]:
    """An array of numbers, lists of them turned into one; text is refused, and ``what`` it is named."""
    array: NDArray[Any] = np.asanyarray(values)
    if array.dtype.kind not in "biuf":
        example = f", such as {array.item(0)!r}" if array.size else ""
        raise ValueError(
            f"{what} are of type {array.dtype}{example}, not numbers: number categories from 0 on, for example with "
            "numpy.unique(values, return_inverse=True)[1]"
        )
    return array


def check_one_each(labels: NDArray[Any], what: str) -> None:
    """Refuse labels that are not one number per sample."""
    if labels.ndim != 1:
        raise ValueError(f"{what} have shape {labels.shape}, not one number per sample: try labels.ravel()")


def holdout_mask(total: int, fraction: float, seed: int, classes: NDArray[np.int64] | None = None) -> NDArray[np.bool_]:
    """``[total]``: which samples are held out, ``fraction`` of them drawn at random.

    Args:
        classes: ``[total]``, see :func:`strata`: hold out ``fraction`` of each, to within one sample.

    >>> int(holdout_mask(10, 0.2, seed=0).sum())
    2
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"the held-out fraction must be at least 0 and below 1, not {fraction}")
    mask, wanted = np.zeros(total, np.bool_), round(fraction * total)
    drawn = np.random.default_rng([seed, 1000]).permutation(total)
    if classes is None:
        mask[drawn[:wanted]] = True
        return mask
    exact = fraction * np.bincount(classes)
    counts = np.floor(exact).astype(np.int64)
    # What rounding leaves goes to the classes that lost most by it.
    counts[np.argsort(counts - exact, kind="stable")[: wanted - counts.sum()]] += 1
    for label, count in enumerate(counts):
        mask[drawn[classes[drawn] == label][:count]] = True
    return mask


def strata(task: Task, labels: NDArray[Any]) -> NDArray[np.int64]:
    """``[n]``: the class of each sample, for a holdout that keeps their shares; refuses amounts, which have none."""
    if task == "regression":
        raise ValueError("evaluate.stratify = true: the labels are amounts, not classes: leave it out")
    return labels.astype(np.int64)


def _fitting(labels: NDArray[Any], task: Task) -> tuple[NDArray[np.bool_], str]:
    """``[n]``: which labels fit the task, and what fitting ones are, in words."""
    if task == "regression":
        return np.isfinite(labels), "a finite number"
    if task == "binary":
        return (labels == 0) | (labels == 1), "0 or 1"
    return (labels >= 0) & (labels == np.floor(labels)), "a class number 0, 1, ..."


def standardize(
    train: Table, test: Table | None = None, dtype: DTypeLike | None = None, *, labels: bool | LabelUnit = True
) -> tuple[Table, Table | None]:
    """Every feature to mean 0 and variance 1 over the training samples, the held-out ones by the same figures.

    The labels of a regression are treated alike; ``label_scale`` and ``label_mean`` lead back. Constant columns become
    0. The result remembers the figures (:attr:`Table.scaling`), so that a trained model takes raw rows.

    Args:
        dtype: of the features; by default theirs, or float32 if they are whole numbers. Only the result is rounded.
        labels: those of a regression too, or in which unit: :meth:`tdcd.Loss.unit` of a loss. Counts, for the Poisson
            loss, must not get a mean of 0.
    """
    given = train.features.dtype
    wanted = dtype or (given if given.kind == "f" else np.float32)
    mean, scale = _mean_and_deviation(train.features)
    scale[scale == 0] = 1
    scaling = Scaling(mean, scale).after(train.scaling)
    label_mean, label_scale = 0.0, 1.0
    scaled = labels and train.task == "regression"
    if scaled:
        label_mean, label_scale = (labels if callable(labels) else LOSSES["squared"].unit)(train.labels)

    def apply(table: Table) -> Table:
        features = np.empty(table.features.shape, wanted)
        for rows in _chunks(len(features)):
            features[rows] = (table.features[rows] - mean) / scale
        amounts = (table.labels - label_mean) / label_scale if scaled else table.labels
        return replace(
            table,
            features=features,
            labels=amounts,
            label_scale=table.label_scale * label_scale,
            label_mean=table.label_mean + table.label_scale * label_mean,
            scaling=scaling,
        )

    return apply(train), None if test is None else apply(test)


def _mean_and_deviation(features: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of every feature, in float64."""
    count, first = len(features), features[0].astype(np.float64)
    # Around the first row: the deviations of a constant are then exactly 0.
    mean = first + sum((features[rows] - first).sum(axis=0) for rows in _chunks(count)) / count
    squares = sum(np.square(features[rows] - mean).sum(axis=0) for rows in _chunks(count))
    return mean, np.sqrt(np.asarray(squares) / count)


def _chunks(count: int) -> list[slice]:
    return [slice(start, start + ROWS_AT_ONCE) for start in range(0, count, ROWS_AT_ONCE)]
