"""The softmax loss, of classes with one score each."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.core.lazy import Array, jax, library_of
from tdcd.core.losses import figures
from tdcd.core.losses.figures import Figures, Tallies
from tdcd.core.losses.loss import Loss
from tdcd.core.randomized import Response


@dataclass(frozen=True)
class Softmax(Loss):
    r""":math:`\log \sum_c e^{s_c} - s_y` of C scores s and a class y."""

    name = "softmax"
    is_convex = True
    target = "classes"
    labels = "whole numbers from 0 on"
    curvature = 1 / 2
    metric_names = ("accuracy", "auc")

    def losses(self, scores: Array, labels: Array) -> Array:
        """The loss of every sample."""
        return logsumexp(scores) - _picked(scores, labels)

    def slopes(self, scores: Array, labels: Array, response: Response) -> Array:
        """The chances of the classes, less 1 for the label's own."""
        library = library_of(scores)
        is_label = (library.arange(scores.shape[-1]) == labels[..., None]).astype(scores.dtype)
        slopes: Array = tilted(library.ones_like(scores), scores) - (is_label - response.other) / response.slope
        return slopes

    def corrected(self, scores: Array, labels: Array, response: Response) -> Array:
        """The label enters as a linear term: its mean is put right."""
        picked = _picked(scores, labels)
        return logsumexp(scores) - (picked - response.other * scores.sum(axis=-1)) / response.slope

    def change(self, slope: Array, change: Array, response: Response) -> Array:
        """The slope is p - 1 for the label's class, where alone it is negative, and p for the others; corrected too."""
        label = _label(slope, response)
        return log_mean(slope + label, change) - (label * change).sum(axis=-1)

    def change_slopes(self, slope: Array, change: Array, response: Response) -> Array:
        """The chances after the change, less 1 for the label's own."""
        label = _label(slope, response)
        return tilted(slope + label, change) - label

    def fits(self, labels: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether labels are 0, 1, 2, ..."""
        return np.asarray((labels >= 0) & (labels == np.round(labels)))

    def metrics(self, scores: NDArray[np.float64], labels: NDArray[Any], unit: float, response: Response) -> Figures:
        """Accuracy, and the mean of each class's AUC against the rest."""
        chances = self.inverse_link(scores)
        areas = [figures.auc(chances[:, label], labels == label, response) for label in range(scores.shape[1])]
        known = [area for area in areas if area is not None]
        hits = float(np.mean(scores.argmax(axis=1) == labels))
        return {"accuracy": figures.corrected(hits, response), "auc": float(np.mean(known)) if known else None}

    def sums(self, scores: NDArray[np.float64], labels: NDArray[Any]) -> Tallies:
        """Samples, hits, and every class's odds in bins."""
        chances = self.inverse_link(scores)
        # Near 1 chances have few bins, and odds as many as near 0.
        with np.errstate(divide="ignore"):
            odds = np.log(chances) - np.log1p(-chances)
        bins = np.stack([figures.binned(odds[:, label], labels == label) for label in range(scores.shape[1])])
        hits = np.count_nonzero(scores.argmax(axis=1) == labels)
        return {"count": np.array(float(len(labels))), "hits": np.array(float(hits)), "bins": bins}

    def metrics_of_sums(self, sums: Tallies, unit: float, response: Response) -> Figures:
        """Accuracy, and the mean of each class's AUC against the rest."""
        areas = [figures.auc_of_bins(own, response) for own in sums["bins"]]
        known = [area for area in areas if area is not None]
        hits = float(sums["hits"] / sums["count"])
        return {"accuracy": figures.corrected(hits, response), "auc": float(np.mean(known)) if known else None}


def _picked(scores: Array, labels: Array) -> Array:
    """The score of every sample's own class."""
    picked: Array = library_of(scores).take_along_axis(scores, labels[..., None].astype("int32"), axis=-1)[..., 0]
    return picked


def _label(slope: Array, response: Response) -> Array:
    """The label's class as 1 among zeros, corrected, ``[..., C]``: where alone the slope is negative."""
    library = library_of(slope)
    is_label = library.arange(slope.shape[-1]) == library.argmin(slope, axis=-1)[..., None]
    label: Array = (is_label.astype(slope.dtype) - response.other) / response.slope
    return label


def logsumexp(scores: Array, chances: Array | None = None) -> Array:
    """The logarithm of the sum of exp(score), or of chance times exp(score), over the last axis."""
    if library_of(scores) is not np:
        changes: Array = jax.nn.logsumexp(scores, axis=-1, b=chances)
        return changes
    top, parts = _parts(scores, chances)
    logarithm: Array = np.log(parts.sum(axis=-1)) + top[..., 0]
    return logarithm


def log_mean(chances: Array, change: Array) -> Array:
    """The logarithm of the mean of exp(change)."""
    # Rounding may leave a chance just below zero.
    return logsumexp(change, chances.clip(0))


def tilted(chances: Array, change: Array) -> Array:
    """Chances after their scores have changed: in proportion to chance times exp(change)."""
    _, parts = _parts(change, chances.clip(0))
    after: Array = parts / parts.sum(axis=-1, keepdims=True)
    return after


def _parts(scores: Any, chances: Any) -> tuple[Any, Any]:
    """The largest score, and what each adds to the sum of chance times exp(score), divided by exp of that one."""
    library = library_of(scores)
    if chances is None:
        top = scores.max(axis=-1, keepdims=True)
        return top, library.exp(scores - top)
    # One that has no chance may be as large as it likes.
    counted = library.where(chances > 0, scores, -library.inf)
    top = counted.max(axis=-1, keepdims=True)
    return top, chances * library.exp(counted - top)
