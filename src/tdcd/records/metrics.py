"""What people ask of a model: RMSE and R2, or accuracy and AUC."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.core.losses import LOSSES, LossName
from tdcd.core.randomized import KEPT, Response


def metrics(
    loss: LossName,
    scores: NDArray[Any],
    labels: NDArray[Any],
    label_scale: float = 1.0,
    label_epsilon: float | None = None,
) -> dict[str, float | None]:
    """The figures that go with a loss, from the global model's scores.

    Args:
        scores: ``[rows, C]``, the silos' phi summed.
        label_scale: the labels' unit; RMSE is given in the data's own units.
        label_epsilon: of randomised labels. The figures are then estimates of those of the true labels: the mean of
            the accuracy over the noise is right, the AUC becomes so with many samples. Both can be above 1.

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
    response = KEPT if label_epsilon is None else Response.of(label_epsilon, max(2, scores.shape[1]))
    if target == "binary":
        hits = float(np.mean((scores[:, 0] > 0) == labels))
        return {"accuracy": _corrected(hits, response), "auc": auc(scores[:, 0], labels == 1, response)}
    shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
    probabilities = shifted / shifted.sum(axis=1, keepdims=True)
    areas = [auc(probabilities[:, label], labels == label, response) for label in range(scores.shape[1])]
    known = [area for area in areas if area is not None]
    return {
        "accuracy": _corrected(float(np.mean(scores.argmax(axis=1) == labels)), response),
        "auc": float(np.mean(known)) if known else None,
    }


def metric_names(loss: LossName) -> list[str]:
    """The names of these figures, in order."""
    return ["rmse", "r2"] if LOSSES[loss].target == "amount" else ["accuracy", "auc"]


def _regression(scores: NDArray[Any], labels: NDArray[Any], label_scale: float) -> tuple[float, float | None]:
    squares = float(np.sum((scores - labels) ** 2))
    total = float(np.sum((labels - labels.mean()) ** 2))
    return (squares / len(labels)) ** 0.5 * label_scale, 1 - squares / total if total else None


def _corrected(share: float, response: Response) -> float:
    """The share of true labels that are as predicted, from that of randomised ones, whose mean is r + (q - r) share."""
    return share if response is KEPT else (share - response.other) / response.slope


def auc(scores: NDArray[Any], positive: NDArray[np.bool_], response: Response = KEPT) -> float | None:
    r"""The area under the ROC curve, by ranks: the chance that a positive scores above a negative, ties half.

    .. math:: \mathrm{AUC} = \frac{\sum_{i \in +} r_i - n_+ (n_+ + 1) / 2}{n_+ n_-}

    Of randomised labels, positives and negatives are mixed. With a share :math:`\tilde\pi` of positives among them,
    and so :math:`\pi = (\tilde\pi - r) / (q - r)` among the true ones, the true labels' area is

    .. math:: \frac12 + \Big(\widetilde{\mathrm{AUC}} - \frac12\Big)
              \frac{\tilde\pi (1 - \tilde\pi)}{(q - r)\, \pi (1 - \pi)}
    """
    num_positive = int(positive.sum())
    num_negative = len(positive) - num_positive
    if not num_positive or not num_negative:
        return None
    ordered = np.sort(scores)
    ranks = (np.searchsorted(ordered, scores, "left") + np.searchsorted(ordered, scores, "right") + 1) / 2
    area = float((ranks[positive].sum() - num_positive * (num_positive + 1) / 2) / (num_positive * num_negative))
    if response is KEPT:
        return area
    noisy = num_positive / len(positive)
    share = (noisy - response.other) / response.slope
    if not 0 < share < 1:
        return None
    return 0.5 + (area - 0.5) * noisy * (1 - noisy) / (response.slope * share * (1 - share))
