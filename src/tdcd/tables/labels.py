"""From raw labels to numbers that a loss can take: two classes, several, or amounts."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdcd.choices import Loss
from tdcd.data.table import Task

FEW, SMALL = 20, 100
"""At most so many different whole numbers, from 0 to below that, are classes unless the loss says otherwise."""


class Labels(NamedTuple):
    """Labels as numbers, and what they mean."""

    task: Task
    numbers: NDArray[np.float64]
    """``[n]``: amounts, or numbers of classes."""
    classes: tuple[str, ...] = ()
    """The classes' names by number; none in a regression."""


class Meaning(NamedTuple):
    """What the labels are."""

    task: Task
    classes: tuple[str, ...] = ()
    """The classes' names by number; none in a regression."""
    mean: float = 0.0
    scale: float = 1.0
    """In a regression, label = number * scale + mean."""


def encode(values: NDArray[Any] | Sequence[str], loss: Loss | None = None) -> Labels:
    """Labels as numbers.

    Two different values are classes, as are names and a few small whole numbers; anything else is an amount. Classes
    are numbered by size if they are numbers, else by letters: ``no`` is 0 and ``yes`` is 1.

    Args:
        values: ``[n]`` numbers or names.
        loss: decides where both classes and amounts are possible.

    >>> encode(["yes", "no", "yes"])
    Labels(task='binary', numbers=array([1., 0., 1.]), classes=('no', 'yes'))
    """
    different, places = np.unique(np.asarray(values), return_inverse=True)
    numeric = different.dtype.kind == "f"
    if loss == "squared" or (loss is None and numeric and not _are_classes(different)):
        if not numeric:
            raise ValueError(f"model.loss = 'squared': the labels must be numbers, but one is {_name_in(different)!r}")
        return Labels("regression", np.asarray(values, np.float64))
    if numeric and len(different) > 2 and (different != np.floor(different)).any():
        raise ValueError(f"model.loss = {loss!r}: the labels are amounts, not classes: use 'squared'")
    names = [spelling(value) for value in different.tolist()]
    classes = sorted(set(names), key=_sort_key(names))
    if len(classes) < 2:
        raise ValueError(f"every label is {classes[0]!r}: there is nothing to learn")
    if loss == "logistic" and len(classes) > 2:
        raise ValueError(f"model.loss = 'logistic': there are {len(classes)} different labels, not two")
    codes = {name: float(code) for code, name in enumerate(classes)}
    numbers = np.array([codes[name] for name in names])[places]
    return Labels("binary" if len(classes) == 2 else "multiclass", numbers, tuple(classes))


def standardized(labels: Labels, training: NDArray[np.bool_], wanted: bool = True) -> tuple[NDArray[Any], float, float]:
    """The numbers of a regression with mean 0 and variance 1 over the training samples, and their mean and scale.

    Classes, and amounts if it is not ``wanted``, stay as they are. The samples must be in the federation's order: the
    figures are then the same for every party, to the last bit.
    """
    if labels.task != "regression" or not wanted:
        return labels.numbers, 0.0, 1.0
    known = labels.numbers[training]
    mean, scale = float(known.mean()), float(known.std()) or 1.0
    return (labels.numbers - mean) / scale, mean, scale


def _are_classes(different: NDArray[Any]) -> bool:
    whole = (different == np.floor(different)).all()
    return len(different) <= 2 or bool(whole and len(different) <= FEW and different[0] >= 0 and different[-1] < SMALL)


def spelling(label: float | str) -> str:
    """A class's name; one that is a number is spelt the same wherever it was read as one.

    >>> spelling(1.0), spelling("1.0"), spelling("one")
    ('1', '1', 'one')
    """
    number = _number(label)
    if number is None:
        return str(label)
    return str(int(number)) if number.is_integer() else repr(number)


def _number(label: float | str) -> float | None:
    try:
        number = float(label)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _name_in(labels: NDArray[Any]) -> str:
    return next(str(label) for label in labels.tolist() if _number(label) is None)


def _sort_key(names: Sequence[str]) -> Any:
    return str if any(_number(name) is None for name in names) else float
