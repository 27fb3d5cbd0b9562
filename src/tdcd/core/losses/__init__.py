r"""Losses: one file each, with everything that the rest of the package needs to know of it.

========== ================================================ ======================= =========
loss       f(s, y)                                          labels                  outputs C
========== ================================================ ======================= =========
squared    (s - y)^2 / 2                                    real numbers            1
logistic   log(1 + exp(s)) - y s                            0 or 1                  1
softmax    log(sum_c exp(s_c)) - s_y                        0 .. C-1                C classes
poisson    exp(s) - y s + y log y - y                       counts, 0 or more       1
huber      r^2 / 2 up to r = delta, then linear; r = |s-y|  real numbers            1
========== ================================================ ======================= =========

A score s is the sum of the silos' phi. A new loss is a new file here, and its name in :data:`LossName` and
:data:`LOSSES`; one of the user's own is any :class:`Loss`. Those with slopes are
for NumPy and JAX alike.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tdcd.core.losses.figures import Figures
from tdcd.core.losses.huber import Huber
from tdcd.core.losses.logistic import Logistic
from tdcd.core.losses.loss import LabelUnit, Loss, Target, Task
from tdcd.core.losses.poisson import Poisson
from tdcd.core.losses.softmax import Softmax
from tdcd.core.losses.squared import Squared
from tdcd.core.randomized import KEPT, Response

__all__ = [
    "LOSSES",
    "Huber",
    "LabelUnit",
    "Loss",
    "LossName",
    "Poisson",
    "Target",
    "Task",
    "fitting",
    "loss_of",
    "metrics",
    "needs_labels",
    "no_curvature",
    "outputs_of",
]

LossName = Literal["squared", "logistic", "softmax", "poisson", "huber"]

LOSSES: Mapping[str, Loss] = {loss.name: loss for loss in (Squared(), Logistic(), Softmax(), Poisson(), Huber())}
"""By name."""


def loss_of(loss: str | Loss) -> Loss:
    """The loss of this name, or the very one that is given."""
    if not isinstance(loss, str):
        return loss
    if loss not in LOSSES:
        raise ValueError(f"loss must be one of {', '.join(LOSSES)}, or a tdcd.Loss of your own, not '{loss}'")
    return LOSSES[loss]


def outputs_of(loss: Loss, labels: Sequence[NDArray[Any] | None]) -> int:
    """C, the scores of a sample, by the loss's own word, for all labels that there are; amounts have no classes.

    >>> outputs_of(loss_of("softmax"), [np.array([0, 2]), np.array([3])])
    4
    """
    classes = {"amount": 0, "binary": 2}.get(loss.target)
    if classes is None:
        classes = int(max(part.max() for part in labels if part is not None and len(part))) + 1
    return loss.num_outputs(classes)


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


def needs_labels(loss: Loss) -> str:
    """Why every silo must have the labels; empty if one is enough."""
    if loss.change is not None:
        return ""
    return f"the {loss.name} loss has no `change` to follow it from its slope, so every silo needs the labels"


def no_curvature(loss: Loss) -> str:
    """Why Theorem 1 says nothing of it; empty if it can."""
    if loss.curvature is not None:
        return ""
    return f"the {loss.name} loss has no known bound of its second derivative, and Theorem 1 rests on one"


def fitting(task: Task) -> tuple[str, ...]:
    """The losses that fit a task, the default first.

    >>> fitting("binary"), fitting("multiclass")
    (('logistic', 'softmax'), ('softmax',))
    """
    names = [name for name, loss in LOSSES.items() if task in loss.tasks]
    return tuple(sorted(names, key=lambda name: LOSSES[name].tasks[0] != task))
