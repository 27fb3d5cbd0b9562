"""What people ask of predictions: RMSE and R2 of amounts, deviance of counts, accuracy and AUC of classes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.core.randomized import KEPT, Response

Figures = dict[str, float | None]
"""By name; None where a figure is undefined."""


def of_amounts(predictions: NDArray[Any], labels: NDArray[Any], unit: float) -> Figures:
    """RMSE in the labels' own unit, and R2, which is undefined if all labels are alike."""
    squares = float(np.sum((predictions - labels) ** 2))
    total = float(np.sum((labels - labels.mean()) ** 2))
    return {"rmse": (squares / len(labels)) ** 0.5 * unit, "r2": 1 - squares / total if total else None}


def of_counts(scores: NDArray[Any], labels: NDArray[Any], unit: float = 1.0) -> Figures:
    r"""The mean Poisson deviance, D2 and the mean absolute error of the expected counts :math:`e^s`.

    .. math:: D = \frac2n \sum_i \Big(y_i \log \frac{y_i}{\mu_i} - y_i + \mu_i\Big), \qquad D^2 = 1 - D / D_0

    with :math:`D_0` the deviance of the labels' own mean; it is zero, and D2 undefined, if all labels are alike.

    Args:
        unit: what 1 is in counts; the deviance of counts that are so many times as large is so many times as large.
    """
    with np.errstate(over="ignore"):
        expected = np.exp(scores)
    deviance, mean = _deviance(scores, expected, labels), float(labels.mean())
    known = np.full(len(labels), mean)
    null = _deviance(np.log(known), known, labels) if mean > 0 else 0.0
    explained = 1 - deviance / null if null > 0 and np.isfinite(deviance) else None
    return {
        "deviance": unit * deviance if np.isfinite(deviance) else None,
        "d2": explained,
        "mae": unit * float(np.mean(np.abs(expected - labels))) if np.isfinite(deviance) else None,
    }


def _deviance(scores: NDArray[Any], expected: NDArray[Any], labels: NDArray[Any]) -> float:
    logs = labels * np.log(np.where(labels > 0, labels, 1))
    return float(2 * np.mean(logs - labels * scores - labels + expected))


def corrected(share: float, response: Response) -> float:
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
