"""What figures about predictions show, as numbers: confusion, ROC, calibration, errors."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

BINS = 10
"""Of calibration and of deciles."""


class Bins(NamedTuple):
    """Samples in groups of about equal size, from the smallest prediction to the largest."""

    predicted: Numbers
    """The mean prediction of each group."""
    true: Numbers
    """The mean of what was true."""
    counts: NDArray[np.int64]

    @property
    def error(self) -> float:
        """How far the means are apart, averaged over the samples: of probabilities, the expected calibration error."""
        return float(np.sum(self.counts * np.abs(self.predicted - self.true)) / self.counts.sum())


class Errors(NamedTuple):
    """Of predicted amounts, in their unit."""

    mean: float
    """True minus predicted, on average."""
    absolute: float
    """Its size, on average."""
    usual: float
    """Nine of ten errors are at most this large."""


def confusion(true: NDArray[np.int64], predicted: NDArray[np.int64], num_classes: int) -> NDArray[np.int64]:
    """``[true, predicted]``: how many samples of each class were predicted to be of each."""
    return np.bincount(true * num_classes + predicted, minlength=num_classes**2).reshape(num_classes, num_classes)


def roc(scores: Numbers, positive: NDArray[np.bool_]) -> tuple[Numbers, Numbers]:
    """False and true positive rate for every threshold, from (0, 0) to (1, 1), without points inside straight lines."""
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(positive[order])
    # Samples with the same score cross a threshold together.
    ends = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))
    hits, misses = hits[ends], ends + 1 - hits[ends]
    if len(hits) > 2:
        bends = (np.diff(hits, 2) != 0) | (np.diff(misses, 2) != 0)
        kept = np.flatnonzero(np.concatenate([[True], bends, [True]]))
        hits, misses = hits[kept], misses[kept]
    true_rate, false_rate = hits / max(hits[-1], 1), misses / max(misses[-1], 1)
    return np.append(0.0, false_rate), np.append(0.0, true_rate)


def grouped(predicted: Numbers, true: Numbers) -> Bins:
    """Groups between the predictions' deciles; equal predictions stay together, and empty groups are left out."""
    edges = np.quantile(predicted, np.linspace(0, 1, BINS + 1))[1:-1]
    group = np.searchsorted(edges, predicted)
    counts = np.bincount(group, minlength=BINS)
    sums = [np.bincount(group, weights, minlength=BINS) for weights in (predicted, true)]
    filled = counts > 0
    means = [total[filled] / counts[filled] for total in sums]
    return Bins(means[0], means[1], counts[filled])


def brier(chances: Numbers, true: NDArray[np.int64]) -> float:
    """The mean squared error of the probabilities; of more than two classes, summed over them."""
    outcomes = np.eye(chances.shape[1])[true]
    if chances.shape[1] == 2:
        return float(np.mean((chances[:, 1] - outcomes[:, 1]) ** 2))
    return float(np.mean(np.sum((chances - outcomes) ** 2, axis=1)))


def errors(true: Numbers, predicted: Numbers) -> Errors:
    """Of predicted amounts."""
    off = true - predicted
    sizes = np.abs(off)
    return Errors(float(off.mean()), float(sizes.mean()), float(np.quantile(sizes, 0.9)))
