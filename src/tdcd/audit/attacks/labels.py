"""Attacks on labels, from slopes of the loss and without them, and how good a guess of labels is."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.audit.recording import Floats
from tdcd.core.losses import Target
from tdcd.core.randomized import KEPT, Response
from tdcd.records.metrics import auc


def recovery(found: Floats, labels: NDArray[Any], target: Target) -> float:
    """How well labels were found: AUC of two classes, accuracy of several, squared correlation of amounts."""
    seen = ~np.isnan(found)
    found, labels = found[seen], labels[seen]
    if target == "binary":
        return auc(found, labels == 1) or 0.5
    if target == "classes":
        return float(np.mean(found == labels))
    return float(np.corrcoef(found, labels)[0, 1] ** 2) if np.std(found) > 0 else 0.0


def by_clusters(features: Floats, labels: NDArray[Any], seed: int) -> Floats:
    """Labels by k-means with as many clusters as there are classes, the clusters named in the best possible way.

    Fu et al. 2022, "Label inference attacks against vertical federated learning", in its unsupervised form: an attacker
    who knows one member of each cluster can name them.

    Args:
        labels: ``[R]``, only to name the clusters.
    """
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415  (slow to import)
    from sklearn.cluster import KMeans  # noqa: PLC0415

    classes, numbers = np.unique(labels, return_inverse=True)
    spread = features.std(axis=0)
    clusters = KMeans(len(classes), n_init=5, random_state=seed).fit_predict(features / np.where(spread > 0, spread, 1))
    counts = np.zeros((len(classes), len(classes)))
    np.add.at(counts, (clusters, numbers), 1)
    cluster, named = linear_sum_assignment(-counts)
    found: Floats = classes[named[np.argsort(cluster)]][clusters].astype(np.float64)
    return found


def by_probe(features: Floats, known: NDArray[np.intp], labels: NDArray[Any]) -> Floats:
    """Labels by a linear model of ``features`` ``[R, F]``, fitted on a few rows whose labels are known.

    Fu et al. 2022 in its semi-supervised form. Returns a score for two classes and amounts, a class for several.
    """
    from tdcd.audit.attacks.columns import rows_by_regression  # noqa: PLC0415

    classes = np.unique(labels)
    spread = features.std(axis=0)
    scaled = features / np.where(spread > 0, spread, 1)
    if len(classes) <= 2 or labels.dtype.kind == "f":
        return rows_by_regression(scaled, known, labels[known].astype(np.float64)[:, None])[:, 0]
    hot = (labels[known][:, None] == classes).astype(np.float64)
    found: Floats = classes[np.argmax(rows_by_regression(scaled, known, hot), axis=1)].astype(np.float64)
    return found


def labels_from_slopes(slopes: Floats, loss: str) -> Floats:
    r"""An estimate of every label from what parties without labels receive of the loss, ``[R, T, W]`` to ``[R]``.

    Logistic: :math:`\delta = \sigma(s) - y` is negative if and only if y = 1. Softmax: the only negative coordinate is
    the label's. Squared: :math:`\delta = s - y`, and before training the score of a linear model is 0; so with the
    residual that is sent for the Huber loss. Poisson: the expected count is sent with :math:`\delta = \mu - y`, so
    both together are the label. Li et al. 2022, "Label leakage and protection in two-party split learning"; Zhao et
    al. 2020, "iDLG".
    """
    first = _first_seen(slopes)
    if loss == "poisson":
        counts: Floats = first[:, 1] - first[:, 0]
        return counts
    if loss == "softmax":
        classes: Floats = np.argmin(np.nan_to_num(first), axis=1).astype(np.float64)
        return classes
    # For the logistic loss any round reveals the label; the first is as good as the others.
    return (first[:, 0] < 0).astype(np.float64) if loss == "logistic" else -first[:, 0]


def scores_from_slopes(slopes: Floats, loss: str, resolution: float) -> tuple[Floats, Floats]:
    r"""The scores that slopes ``[R, T, W]`` come from, and the error that rounding causes in each.

    The inverse of the loss's derivative at the label that :func:`labels_from_slopes` finds: logistic
    :math:`\operatorname{logit}(\delta + y)`, softmax :math:`\log(\delta + e_y)` less its mean, squared
    :math:`\delta + y` up to a constant per row, Huber likewise; Poisson: the logarithm of the expected count. Where the
    loss is flat, the error is large.

    Args:
        resolution: the rounding error of slopes.
    """
    if loss == "poisson":
        scores = np.log(np.maximum(slopes[..., 1:], np.finfo(np.float32).tiny))
        return scores, np.full_like(scores, resolution)
    labels = labels_from_slopes(slopes, loss)
    if loss in ("squared", "huber"):
        return slopes + labels[:, None, None], np.full_like(slopes, resolution)
    if loss == "logistic":
        chance = np.clip(slopes + labels[:, None, None], resolution, 1 - resolution)
        return np.log(chance / (1 - chance)), resolution / (chance * (1 - chance))
    hot = np.eye(slopes.shape[-1])[labels.astype(int)][:, None, :]
    chance = np.clip(slopes + hot, resolution, 1)
    logs = np.log(chance)
    return logs - logs.mean(axis=-1, keepdims=True), resolution / chance


def uncorrected(slopes: Floats, loss: str, response: Response) -> Floats:
    """The slopes that the randomised labels would have without the correction: whoever knows epsilon can undo it."""
    if response == KEPT:
        return slopes
    if loss == "logistic":
        labels = (slopes < 0).astype(np.float64)
    else:
        labels = (np.arange(slopes.shape[-1]) == np.argmin(slopes, axis=-1)[..., None]).astype(np.float64)
    found: Floats = slopes + (labels - response.other) / response.slope - labels
    return found


def _first_seen(slopes: Floats) -> Floats:
    """``[R, C]``: each row at the first moment at which it was seen; nan if it never was."""
    seen = ~np.isnan(slopes[..., 0])
    found: Floats = slopes[np.arange(len(slopes)), seen.argmax(axis=1)]
    return found
