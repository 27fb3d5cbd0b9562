"""Attacks on labels that need no slopes, and how good a guess of labels is."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.audit.recording import Floats
from tdcd.core.losses import Target
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
