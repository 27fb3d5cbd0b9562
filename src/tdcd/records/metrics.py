"""What people ask of a model: RMSE and R2, deviance, or accuracy and AUC."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.core.losses import Loss, loss_of
from tdcd.core.losses.figures import Figures, auc
from tdcd.core.randomized import KEPT, Response

__all__ = ["auc", "metric_names", "metrics"]


def metrics(
    loss: str | Loss,
    scores: NDArray[Any],
    labels: NDArray[Any],
    label_scale: float = 1.0,
    label_epsilon: float | None = None,
) -> Figures:
    """The figures that go with a loss, from the global model's scores.

    Args:
        scores: ``[rows, C]``, the silos' phi summed.
        label_scale: the labels' unit; RMSE is given in the data's own units.
        label_epsilon: of randomised labels. The figures are then estimates of those of the true labels: the mean of
            the accuracy over the noise is right, the AUC becomes so with many samples. Both can be above 1.

    Returns:
        ``rmse`` and ``r2`` for amounts; ``deviance``, ``d2`` and ``mae`` for counts; ``accuracy`` and ``auc`` for
        classes (for several, the mean of each class's AUC against the rest); for a loss of the user's own what that
        says. None where a figure is undefined: a single class, or scores that are not finite.

    >>> metrics("logistic", np.array([[-1.0], [2.0]]), np.array([0, 1]))
    {'accuracy': 1.0, 'auc': 1.0}
    """
    kind, scores = loss_of(loss), np.asarray(scores, np.float64)
    if not np.isfinite(scores).all():
        return dict.fromkeys(kind.metric_names)
    if kind.target == "amount":
        labels = np.asarray(labels, np.float64)
    response = KEPT if label_epsilon is None else Response.of(label_epsilon, max(2, scores.shape[1]))
    return kind.metrics(scores, labels, label_scale, response)


def metric_names(loss: str | Loss) -> list[str]:
    """The names of these figures, in order."""
    return [*loss_of(loss).metric_names]
