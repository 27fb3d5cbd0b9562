"""From raw labels to numbers that a loss can take: two classes, several, or amounts."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdcd.core.losses import LabelUnit, Loss, Task, fitting, loss_of
from tdcd.data.table import holdout_mask, strata

FEW, SMALL = 20, 100
"""At most so many different whole numbers, from 0 to below that, are classes unless the loss says otherwise."""

SHOWN_CLASSES = 5
"""How many classes a sentence names."""


class Labels(NamedTuple):
    """Labels as numbers, and what they mean."""

    task: Task
    numbers: NDArray[np.float64]
    """``[n]``: amounts, or numbers of classes."""
    classes: tuple[str, ...] = ()
    """The classes' names by number; none in a regression."""

    def of(self, chosen: NDArray[np.bool_]) -> list[str | float]:
        """The chosen labels as tables have them: the classes' names, or amounts in their own unit."""
        numbers = self.numbers[chosen].tolist()
        return [self.classes[int(number)] for number in numbers] if self.classes else numbers


class LabelEncoding(NamedTuple):
    """How labels become numbers, and back."""

    task: Task
    classes: tuple[str, ...] = ()
    """The classes' names by number; none in a regression."""
    mean: float = 0.0
    scale: float = 1.0
    """In a regression, label = number * scale + mean."""
    num_outputs: int | None = None
    """The scores of a sample, in a silo that knows nothing else of the labels."""


def encode(values: NDArray[Any] | Sequence[str], loss: str | Loss | None = None, *, partly: bool = False) -> Labels:
    """Labels as numbers.

    Two different values are classes, as are names and a few small whole numbers; anything else is an amount. Classes
    are numbered by size if they are numbers, else by letters: ``no`` is 0 and ``yes`` is 1.

    Args:
        values: ``[n]`` numbers or names.
        loss: decides where classes and amounts are possible.
        partly: these are the labels of one client; they may all be of one class, since others have others.

    >>> encode(["yes", "no", "yes"])
    Labels(task='binary', numbers=array([1., 0., 1.]), classes=('no', 'yes'))
    """
    given = np.asarray(values)
    different = np.unique(given)
    numeric = different.dtype.kind == "f"
    kind = None if loss is None else loss_of(loss)
    target, where = (None, "") if kind is None else (kind.target, f"model.loss = {kind.name!r}: ")
    if target == "amount" or (loss is None and numeric and not _are_classes(different)):
        if not numeric:
            raise ValueError(f"{where}the labels must be numbers, but one is {_name_in(different)!r}")
        if kind is not None and not (fits := kind.fits(different)).all():
            raise ValueError(f"{where}takes labels that are {kind.labels}, not {different[~fits][0]:g}")
        return Labels("regression", np.asarray(given, np.float64))
    if numeric and len(different) > 2 and (different != np.floor(different)).any():
        raise ValueError(f"{where}the labels are amounts, not classes: use 'squared'")
    if loss is None and not numeric:
        _refuse_odd_amounts(different)
    names = [canonical_label(value) for value in different.tolist()]
    classes = sorted(set(names), key=_sort_key(names))
    if len(classes) < 2 and not partly:
        raise ValueError(f"every label is {classes[0]!r}: there is nothing to learn")
    if target == "binary" and len(classes) > 2:
        raise ValueError(f"{where}there are {len(classes)} different labels, not two")
    codes = {name: float(code) for code, name in enumerate(classes)}
    # Not by the places that `unique` gives, for which it takes four times the memory of the labels.
    numbers = np.array([codes[name] for name in names])[np.searchsorted(different, given)]
    return Labels("binary" if len(classes) <= 2 else "multiclass", numbers, tuple(classes))


def _refuse_odd_amounts(different: NDArray[Any]) -> None:
    """Refuse labels that are amounts but for a few: a typing error must not make a class of every amount."""
    if len(different) <= FEW:
        return
    odd = [text for text in different.tolist() if not _is_number(text)]
    if len(odd) * 2 > len(different):
        commas = sum(_is_number(text.replace(",", ".", 1)) for text in odd)
        if commas * 2 < len(different):
            return
        example, remedy = odd[0], 'set data.decimal = "," if they are numbers'
    else:
        example, remedy = odd[0], "correct it if they are numbers"
    raise ValueError(
        f"there are {len(different)} different labels that look like amounts, but {example!r} is not a number: {remedy}"
        ', or set model.loss = "softmax" if they are names of classes'
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def in_words(labels: Labels, loss: str | None, *, partly: bool = False) -> str:
    """How labels were interpreted, what decided it, and which key changes that.

    Args:
        loss: the name of what was given to :func:`encode`, as was ``partly``.

    >>> in_words(encode(np.array([0.0, 1.0, 2.0])), None)
    '3 classes 0 to 2 (model.loss = "softmax" decided from the values; set model.loss = "squared" to predict amounts)'
    >>> in_words(encode(["yes", "no"]), "softmax")
    '2 classes no, yes (model.loss = "softmax")'
    """
    if loss is not None:
        return f'{_what(labels)} (model.loss = "{loss}")'
    where = "here; all clients' together count in training" if partly else ""
    decided = f'model.loss = "{fitting(labels.task)[0]}" decided from the values{where and " " + where}'
    return f"{_what(labels)} ({decided}{_otherwise(labels)})"


def _what(labels: Labels) -> str:
    if labels.task == "regression":
        return f"amounts {labels.numbers.min():.6g} to {labels.numbers.max():.6g}"
    names = labels.classes
    count = f"{len(names)} class" + ("es" if len(names) != 1 else "")
    first = _number(names[0])
    if (
        len(names) > 2
        and first is not None
        and names == tuple(canonical_label(first + place) for place in range(len(names)))
    ):
        return f"{count} {names[0]} to {names[-1]}"
    return f"{count} {', '.join(names[:SHOWN_CLASSES])}" + (", ..." if len(names) > SHOWN_CLASSES else "")


def _otherwise(labels: Labels) -> str:
    """The setting that takes the labels for something else, if there is one."""
    if labels.task != "regression":
        numeric = all(_number(name) is not None for name in labels.classes)
        return '; set model.loss = "squared" to predict amounts' if numeric else ""
    different = np.unique(labels.numbers)
    possible = len(different) <= SMALL and (different == np.floor(different)).all()
    return '; set model.loss = "softmax" to predict classes' if possible else ""


def choose_held_out(labels: Labels, fraction: float, seed: int, *, stratify: bool) -> NDArray[np.bool_]:
    """``[n]``: the held-out samples, from the labels of all of them in the federation's order.

    Args:
        stratify: hold out the same fraction of every class.
    """
    classes = strata(labels.task, labels.numbers) if stratify else None
    return holdout_mask(len(labels.numbers), fraction, seed, classes)


def standardized(labels: Labels, training: NDArray[np.bool_], unit: LabelUnit) -> tuple[NDArray[Any], float, float]:
    """The numbers of a regression in the unit of the training samples, and what was taken off and divided by.

    Classes stay as they are. The samples must be in the federation's order: the
    figures are then the same for every party, to the last bit.
    """
    if labels.task != "regression":
        return labels.numbers, 0.0, 1.0
    mean, scale = unit(labels.numbers[training])
    return (labels.numbers - mean) / scale, mean, scale


def _are_classes(different: NDArray[Any]) -> bool:
    whole = (different == np.floor(different)).all()
    return len(different) <= 2 or bool(whole and len(different) <= FEW and different[0] >= 0 and different[-1] < SMALL)


def canonical_label(label: float | str) -> str:
    """A class's name; one that is a number is spelt the same wherever it was read as one.

    >>> canonical_label(1.0), canonical_label("1.0"), canonical_label("one")
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
