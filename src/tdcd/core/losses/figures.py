"""What people ask of predictions: RMSE and R2 of amounts, deviance of counts, accuracy and AUC of classes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.core.randomized import KEPT, Response

Figures = dict[str, float | None]
"""By name; None where a figure is undefined."""

Tallies = dict[str, NDArray[np.float64]]
"""By name, what is added up over samples of several hosts, and figures follow from."""

ROUNDING = 1e-12
"""A difference of sums that is at most so small a part of them is taken for 0."""

BINS = 1 << 16
"""Scores are counted in so many bins, by the first bits of a number of 32 bits: sign, exponent, and 7 bits after the
leading one."""


def of_amounts(predictions: NDArray[Any], labels: NDArray[Any], unit: float) -> Figures:
    """RMSE in the labels' own unit, and R2, which is undefined if all labels are alike."""
    squares = float(np.sum((predictions - labels) ** 2))
    total = float(np.sum((labels - labels.mean()) ** 2))
    return {"rmse": (squares / len(labels)) ** 0.5 * unit, "r2": 1 - squares / total if total else None}


def sums_of_amounts(predictions: NDArray[Any], labels: NDArray[Any]) -> Tallies:
    """What :func:`amounts_of_sums` takes."""
    squares = np.sum((predictions - labels) ** 2)
    return _added(count=len(labels), squares=squares, labels=labels.sum(), labels_squared=np.sum(labels**2))


def amounts_of_sums(sums: Tallies, unit: float) -> Figures:
    """:func:`of_amounts`, from sums."""
    count, squares, labels, labels_squared = (
        float(sums[name]) for name in ("count", "squares", "labels", "labels_squared")
    )
    total = labels_squared - labels**2 / count
    # What is left of equal squares is rounding.
    is_alike = total <= ROUNDING * labels_squared
    return {"rmse": (squares / count) ** 0.5 * unit, "r2": None if is_alike else 1 - squares / total}


def _added(**values: Any) -> Tallies:
    return {name: np.asarray(value, np.float64) for name, value in values.items()}


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


def sums_of_counts(scores: NDArray[Any], labels: NDArray[Any]) -> Tallies:
    """What :func:`counts_of_sums` takes."""
    with np.errstate(over="ignore"):
        expected = np.exp(scores)
    logs = labels * np.log(np.where(labels > 0, labels, 1))
    return _added(
        count=len(labels),
        labels=labels.sum(),
        logs=logs.sum(),
        deviance=2 * np.sum(logs - labels * scores - labels + expected),
        errors=np.sum(np.abs(expected - labels)),
    )


def counts_of_sums(sums: Tallies, unit: float = 1.0) -> Figures:
    """:func:`of_counts`, from sums."""
    count, labels, logs, total, errors = (
        float(sums[name]) for name in ("count", "labels", "logs", "deviance", "errors")
    )
    deviance, mean = total / count, labels / count
    null = 2 * (logs - np.log(mean) * labels) / count if mean > 0 else 0.0
    is_alike = null <= ROUNDING * abs(logs) / count
    return {
        "deviance": unit * deviance if np.isfinite(deviance) else None,
        "d2": None if is_alike or not np.isfinite(deviance) else 1 - deviance / null,
        "mae": unit * errors / count if np.isfinite(deviance) else None,
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
    return _true_area(area, num_positive / len(positive), response)


def _true_area(area: float, noisy: float, response: Response) -> float | None:
    """The area of the true labels, from that of randomised ones and their share of positives; see :func:`auc`."""
    if response is KEPT:
        return area
    share = (noisy - response.other) / response.slope
    if not 0 < share < 1:
        return None
    return 0.5 + (area - 0.5) * noisy * (1 - noisy) / (response.slope * share * (1 - share))


def binned(scores: NDArray[Any], positive: NDArray[np.bool_]) -> NDArray[np.float64]:
    """``[2, BINS]``: how many negatives and positives have a score in each bin; bins are in the scores' order.

    >>> counts = binned(np.array([-1.0, 2.0, 2.001]), np.array([False, True, False]))
    >>> [int(np.count_nonzero(own)) for own in counts], auc_of_bins(counts)
    ([2, 1], 0.75)
    """
    with np.errstate(over="ignore"):
        # Zeros of both signs are one number.
        bits = (np.asarray(scores, np.float32) + np.float32(0)).view(np.uint32)
    ordered = np.where(bits >> np.uint32(31), ~bits, bits | np.uint32(1 << 31)) >> np.uint32(32 - 16)
    return np.stack([np.bincount(ordered[positive == kind], minlength=BINS) for kind in (False, True)]).astype(float)


def auc_of_bins(counts: NDArray[np.float64], response: Response = KEPT) -> float | None:
    """:func:`auc` of :func:`binned` scores: those in one bin count as ties."""
    negative, positive = counts.sum(axis=1)
    if not negative or not positive:
        return None
    below = np.cumsum(counts[0]) - counts[0] / 2
    area = float(counts[1] @ below / (negative * positive))
    return _true_area(area, float(positive / (negative + positive)), response)
