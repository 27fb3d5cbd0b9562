"""What people ask of a model: RMSE and R2, or accuracy and AUC."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.core.losses import LOSSES, LossName


def metrics(
    loss: LossName, scores: NDArray[Any], labels: NDArray[Any], label_scale: float = 1.0
) -> dict[str, float | None]:
    """The figures that go with a loss, from the global model's scores.

    Args:
        scores: ``[rows, C]``, the silos' phi summed.
        label_scale: the labels' unit; RMSE is given in the data's own units.

    Returns:
        ``rmse`` and ``r2`` for amounts, ``accuracy`` and ``auc`` otherwise (for several classes, the mean of
        each class's AUC against the rest). None where a figure is undefined: a single class, or scores that
        are not finite.

    >>> metrics("logistic", np.array([[-1.0], [2.0]]), np.array([0, 1]))
    {'accuracy': 1.0, 'auc': 1.0}
    """
    scores = np.asarray(scores, np.float64)
    target, names = LOSSES[loss].target, metric_names(loss)
    if not np.isfinite(scores).all():
        return dict.fromkeys(names)
    if target == "amount":
        return dict(zip(names, _regression(scores[:, 0], np.asarray(labels, np.float64), label_scale), strict=True))
    if target == "binary":
        return {"accuracy": float(np.mean((scores[:, 0] > 0) == labels)), "auc": auc(scores[:, 0], labels == 1)}
    shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
    probabilities = shifted / shifted.sum(axis=1, keepdims=True)
    areas = [auc(probabilities[:, label], labels == label) for label in range(scores.shape[1])]
    known = [area for area in areas if area is not None]
    return {
        "accuracy": float(np.mean(scores.argmax(axis=1) == labels)),
        "auc": float(np.mean(known)) if known else None,
    }


def metric_names(loss: LossName) -> list[str]:
    """The names of these figures, in order."""
    return ["rmse", "r2"] if LOSSES[loss].target == "amount" else ["accuracy", "auc"]


def _regression(scores: NDArray[Any], labels: NDArray[Any], label_scale: float) -> tuple[float, float | None]:
    squares = float(np.sum((scores - labels) ** 2))
    total = float(np.sum((labels - labels.mean()) ** 2))
    return (squares / len(labels)) ** 0.5 * label_scale, 1 - squares / total if total else None


def auc(scores: NDArray[Any], positive: NDArray[np.bool_]) -> float | None:
    r"""The area under the ROC curve, by ranks: the chance that a positive scores above a negative, ties half.

    .. math:: \mathrm{AUC} = \frac{\sum_{i \in +} r_i - n_+ (n_+ + 1) / 2}{n_+ n_-}
    """
    num_positive = int(positive.sum())
    num_negative = len(positive) - num_positive
    if not num_positive or not num_negative:
        return None
    ordered = np.sort(scores)
    ranks = (np.searchsorted(ordered, scores, "left") + np.searchsorted(ordered, scores, "right") + 1) / 2
    return float((ranks[positive].sum() - num_positive * (num_positive + 1) / 2) / (num_positive * num_negative))
