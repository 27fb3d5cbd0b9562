r"""How much each sample counts in the objective.

.. math:: \mathcal{L}(\theta) = \frac{1}{\sum_i w_i} \sum_i w_i\, f_i(\theta)
          + \frac{\lambda}{2} \sum_j \|\theta_{(j)}\|^2

A sample weighs what the data says times what its class weighs. Weights are scaled so that their mean over the training
samples is 1: then the objective is :math:`\frac1M \sum_i w_i f_i`, a client's gradient is
:math:`\frac{M}{n_k B} \sum w_i \nabla f_i`, and a step size means what it does without weights.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tdcd.data.table import numbers

ClassWeights = Literal["balanced"] | Mapping[Any, float]
"""``"balanced"``: every class has the same weight in all; or a weight by class, 1 for those that are not named."""
Numbers = NDArray[np.float64]


def check_weights(weights: NDArray[Any], what: str) -> None:
    """Refuse weights that are not numbers of at least 0, or all 0; ``what`` names them."""
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(f"{what}: that of row {row} is {weights[row]:g}; a weight is a number of at least 0")
    if len(weights) and not weights.any():
        raise ValueError(f"{what}: all are 0")


def checked(weights: Any, labels: NDArray[Any] | None, what: str, is_wanted: bool) -> NDArray[Any] | None:
    """The weights as an array, if there is one for each label; ``is_wanted`` says whether there must be any."""
    if (weights is None) == (is_wanted and labels is not None) or (
        labels is not None and is_wanted and len(weights) != len(labels)
    ):
        given = "none" if weights is None else str(len(weights))
        raise ValueError(f"{what}: there are {given}; give one per sample, training and held out, or none at all")
    if weights is None:
        return None
    values = numbers(weights, what)
    check_weights(values, what)
    return values


def by_class(
    given: ClassWeights, classes: Sequence[str], labels: NDArray[Any], weights: NDArray[Any] | None = None
) -> Numbers:
    """What each class weighs, ``[C]``, from the training samples' ``labels`` and what the data says that they weigh."""
    if (labels < 0).any() or (labels != np.floor(labels)).any():
        raise ValueError(f"class weights: a label is {labels.min():g}, so they are amounts, not numbers of classes")
    totals = np.bincount(labels.astype(np.int64), weights, minlength=len(classes))
    if given == "balanced":
        # A class without training samples weighs as much as the average sample.
        there = np.count_nonzero(totals)
        each: Numbers = np.divide(totals.sum() / there, totals, out=np.ones(len(totals)), where=totals > 0)
        return each
    assert not isinstance(given, str)
    named = {str(int(name) if isinstance(name, float) else name): float(weight) for name, weight in given.items()}
    strangers = [name for name in named if name not in classes]
    if strangers:
        raise ValueError(f"there is no class {strangers[0]!r}; there are {', '.join(map(repr, classes))}")
    check_weights(np.array([*named.values()]), "class weights")
    return np.array([named.get(name, 1.0) for name in classes])


def weigh(
    given: ClassWeights, classes: Sequence[str], labels: NDArray[Any], training: NDArray[np.bool_], weights: Any = None
) -> Numbers:
    """``[n]``: what samples weigh with their classes' weights, from all ``labels`` and which of them train."""
    own = np.ones(len(labels)) if weights is None else np.asarray(weights, np.float64)
    factors = by_class(given, classes, labels[training], own[training])
    weighed: Numbers = own * factors[labels.astype(np.int64)]
    return weighed


def weigh_apart(
    given: ClassWeights, classes: Sequence[str], labels: Sequence[Any], weights: Sequence[Any]
) -> tuple[Numbers, Numbers | None]:
    """The same for training samples and held-out ones separately; either may be missing."""
    there = [some for some in labels if some is not None]
    names = classes or tuple(str(number) for number in range(int(max(some.max() for some in there)) + 1))
    before = None if weights[0] is None else np.concatenate([some for some in weights if some is not None])
    count = len(there[0])
    every = np.concatenate(there)
    weighed = weigh(given, names, every, np.arange(len(every)) < count, before)
    return weighed[:count], None if labels[1] is None else weighed[count:]


def scaled(weights: NDArray[Any], training: NDArray[Any]) -> Numbers:
    """The weights so that those of the ``training`` samples have mean 1."""
    relative: Numbers = np.asarray(weights, np.float64) / np.mean(training, dtype=np.float64)
    return relative


def weighted_mean(losses: NDArray[Any], weights: NDArray[Any] | None) -> Numbers:
    """The mean over the last axis, summed in float64; the weights' scale does not matter."""
    if weights is None:
        mean: Numbers = np.mean(losses, axis=-1, dtype=np.float64)
        return mean
    means: Numbers = np.average(losses.astype(np.float64), axis=-1, weights=weights)
    return means
