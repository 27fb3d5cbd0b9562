r"""Calibrated probabilities: one temperature, fitted on the held-out samples by whoever has labels and scores.

Networks that are trained until the held-out loss rises give probabilities that are too sure, or not sure enough. A
temperature T divides all scores, so that no prediction changes but its probability (Guo et al., 2017):

.. math:: \hat T = \arg\min_T \sum_i w_i\, \ell(s_i / T, y_i)

with the logistic or softmax loss :math:`\ell`. It is convex in 1/T, and needs nothing but the sums of the silos' phi.
Every hub with labels has them at the end of a run, so nothing more is sent. What it gains is judged by halves: the
temperature of every other sample is judged on the samples between.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdcd.core.objective import Objective
from tdcd.core.words import counted

FEWEST = 100
"""With fewer held-out samples than these, a temperature would be noise."""
LIMITS = (0.2, 5.0)
"""Of a temperature: where every held-out sample is right, there is no best one."""
HALVINGS = 50
NUM_BINS = 10
"""Of a calibration error, with equally many samples each."""

Floats = NDArray[np.float64]


class Judged(NamedTuple):
    """Held-out samples: what there is to judge probabilities by."""

    scores: Floats
    """``[m, C]``."""
    labels: NDArray[Any]
    """``[m]``, the classes' numbers."""
    weights: Floats
    """``[m]``."""

    def take(self, rows: slice) -> "Judged":
        """Some of them."""
        return Judged(self.scores[rows], self.labels[rows], self.weights[rows])


def describe_calibration(
    scores: NDArray[Any] | None, labels: NDArray[Any] | None, weights: NDArray[Any] | None, objective: Objective
) -> dict[str, Any]:
    """The entry ``calibration`` of ``subsets.json``: the temperature with the figures before and after, or the reason
    why there is none; and in ``words`` the sentence that is shown.

    Args:
        scores: ``[m, C]`` of the held-out samples; None if there are none. NaN for samples that were not scored.
        labels: ``[m]`` of them.
        weights: what each of them counts; by default all the same.
    """
    facts = _facts(scores, labels, weights, objective)
    return {**facts, "words": in_words(facts)}


def _facts(
    scores: NDArray[Any] | None, labels: NDArray[Any] | None, weights: NDArray[Any] | None, objective: Objective
) -> dict[str, Any]:
    if scores is None or labels is None:
        return {"reason": "no samples are held out"}
    if objective.label_epsilon is not None:
        return {"reason": "labels are randomised"}
    known = np.isfinite(scores).all(axis=1)
    count = int(known.sum())
    if count < FEWEST:
        return {"reason": f"{counted(count, 'sample')} held out, and it takes {FEWEST}"}
    each = np.ones(len(scores)) if weights is None else np.asarray(weights, np.float64)
    rows = Judged(np.asarray(scores, np.float64)[known], np.asarray(labels)[known].astype(np.int64), each[known])
    halves = [slice(0, None, 2), slice(1, None, 2)]
    fitted = np.empty(count)
    for own, other in (halves, halves[::-1]):
        fitted[own] = temperature(rows.take(other))
    after = rows._replace(scores=rows.scores / fitted[:, None])
    return {
        "temperature": temperature(rows),
        "samples": count,
        "before": _figures(rows),
        "after": _figures(after),
    }


def in_words(facts: Mapping[str, Any]) -> str:
    """One sentence on the entry ``calibration``."""
    if "reason" in facts:
        return f"Probabilities were not calibrated: {facts['reason']}."
    before, after = facts["before"], facts["after"]
    return (
        f"Probabilities are calibrated by a temperature of {facts['temperature']:.3g}: held-out log loss "
        f"{before['log_loss']:.4g} before, {after['log_loss']:.4g} after; calibration error "
        f"{before['calibration_error']:.3g} before, {after['calibration_error']:.3g} after."
    )


def temperature(rows: Judged) -> float:
    """The temperature that minimises the log loss, within :data:`LIMITS`.

    >>> scores = np.array([[4.0]] * 4)
    >>> round(temperature(Judged(scores, np.array([1, 1, 1, 0]), np.ones(4))), 3)  # 4 / log(3)
    3.641
    """
    low, high = (float(np.log(1 / limit)) for limit in reversed(LIMITS))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if _rise(rows, float(np.exp(middle))) > 0 else (middle, high)
    return float(np.exp(-(low + high) / 2))


def log_losses(scores: NDArray[Any], labels: NDArray[Any]) -> Floats:
    """``[m]``: minus the logarithm of the probability of each sample's class, from its scores ``[m, C]``."""
    log_chances = _log_chances(np.asarray(scores, np.float64))
    return -log_chances[np.arange(len(labels)), np.asarray(labels, np.int64)]


def calibration_error(probabilities: Floats, labels: NDArray[Any], weights: Floats) -> float:
    """The expected calibration error, over :data:`NUM_BINS` groups of samples with similar probabilities.

    Args:
        probabilities: ``[m, classes]``. Of two classes that of the second is compared with how often it occurs; of
            more, that of the likeliest with how often it is right.
        labels: ``[m]``.
        weights: ``[m]``, what samples count.
    """
    if probabilities.shape[1] == 2:
        claimed, true = probabilities[:, 1], labels == 1
    else:
        claimed, true = probabilities.max(axis=1), labels == probabilities.argmax(axis=1)
    error = 0.0
    for group in np.array_split(np.argsort(claimed, kind="stable"), NUM_BINS):
        if weights[group].sum() > 0:
            error += abs(float(np.sum(weights[group] * (claimed[group] - true[group]))))
    return error / float(weights.sum())


def _figures(rows: Judged) -> dict[str, float]:
    probabilities = np.exp(_log_chances(rows.scores))
    log_loss = float(np.average(log_losses(rows.scores, rows.labels), weights=rows.weights))
    error = calibration_error(probabilities, rows.labels, rows.weights)
    return {"log_loss": log_loss, "calibration_error": error}


def _log_chances(scores: Floats) -> Floats:
    """``[m, classes]``; one score is that of the second of two classes."""
    if scores.shape[1] == 1:
        scores = np.hstack([np.zeros_like(scores), scores])
    shifted = scores - scores.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def _rise(rows: Judged, factor: float) -> float:
    """The derivative of the log loss by 1/T."""
    scores = np.hstack([np.zeros_like(rows.scores), rows.scores]) if rows.scores.shape[1] == 1 else rows.scores
    chances = np.exp(_log_chances(factor * scores))
    expected = np.sum(chances * scores, axis=1)
    return float(np.sum(rows.weights * (expected - scores[np.arange(len(scores)), rows.labels])))
