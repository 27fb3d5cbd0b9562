"""Attacks of the literature as small pure functions: on a silo's columns, and on labels.

Columns are found from phi, with or without its blocks, with or without rows that are known anyway; labels from slopes
of the loss and without them.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from tdcd.audit.recording import Floats
from tdcd.core.losses import Target
from tdcd.core.losses.figures import auc
from tdcd.core.objective import Tree
from tdcd.core.randomized import KEPT, Response

PENALTIES = np.logspace(-16, 2, 37)
"""Penalties of the ridge regressions, relative to the largest squared singular value."""
SMALLEST = 1e-12
"""Singular values below this part of the largest are rounding."""
LARGEST_DAMPING = 1e12
SOFTEST_END = 1e-5
"""How noisy phi counts in the last Gauss-Newton step at least, relative to its spread."""
TINY = 1e-30
NORMAL_SLOPE = 1.702
"""With it a logistic function is within 0.01 of the normal distribution's."""


def variance_explained(true: Floats, recovered: Floats) -> Floats:
    """The score of each column ``[rows, D]``: 1 if found exactly, 0 if its mean does as well; nan if it is constant.

    Below 0, an attacker would rather take the mean: such columns count as 0.
    """
    error = np.sum((true - recovered) ** 2, axis=0)
    total = np.sum((true - true.mean(axis=0)) ** 2, axis=0)
    explained = 1 - np.divide(error, total, out=np.full_like(total, np.nan), where=total > TINY * len(true))
    clipped: Floats = np.clip(explained, 0, 1)
    return clipped


def rows_of_linear(phi: Floats, thetas: Floats, noise: Floats, mean: Floats, spread: Floats) -> Floats:
    r"""The rows X behind :math:`\Phi_t = X \theta_t`, blocks known: least squares over moments.

    Every row is the most likely one if columns have this mean and spread and phi has this noise. Luo et al. 2021,
    "Feature inference attack on model predictions in vertical federated learning": with as many equations as columns
    the rows follow exactly.

    Args:
        phi: ``[R, T, C]``, nan where a row was not seen.
        thetas: ``[T, D, C]``.
        noise: ``[T]``, the standard deviation of errors in phi.
        mean: ``[D]``, which the attacker is assumed to know, as ``spread``.
    """
    rows = len(phi)
    scaled = thetas * spread[:, None] / np.maximum(noise, TINY)[:, None, None]
    equations = scaled.transpose(0, 2, 1).reshape(-1, len(mean))
    left = (phi - np.einsum("d,tdc->tc", mean, thetas)) / np.maximum(noise, TINY)[:, None]
    seen = (~np.isnan(left)).reshape(rows, -1)
    left = np.nan_to_num(left).reshape(rows, -1)
    standardized = np.empty((rows, len(mean)))
    for pattern in np.unique(seen, axis=0):
        alike = (seen == pattern).all(axis=1)
        system = np.vstack([equations[pattern], np.eye(len(mean))])
        known = np.hstack([left[alike][:, pattern], np.zeros((int(alike.sum()), len(mean)))])
        standardized[alike] = np.linalg.lstsq(system, known.T, rcond=None)[0].T
    return mean + spread * standardized


def rows_of_block(
    phi: Floats,
    blocks: Sequence[Tree],
    apply: Callable[[Tree, Array], Array],
    noise: Floats,
    mean: Floats,
    spread: Floats,
    shape: tuple[int, ...],
    steps: int = 60,
) -> Floats:
    """:func:`rows_of_linear` for any block: damped Gauss-Newton steps from the mean, which find a local optimum.

    Phi counts as very noisy at first and as what it is in the end: otherwise the first local optimum would be the last.
    Fredrikson et al. 2015, "Model inversion attacks that exploit confidence information".

    Args:
        shape: of one sample.
    """
    with jax.enable_x64(True):
        stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf, jnp.float64) for leaf in leaves]), *blocks)
        softness = jnp.geomspace(1, SOFTEST_END, steps)[:, None, None] * float(np.nanstd(phi))
        weights = 1 / jnp.maximum(softness, jnp.maximum(jnp.asarray(noise), TINY)[:, None])
        centre, scale = jnp.asarray(mean), jnp.asarray(spread)

        def residual(z: Array, weight: Array, seen: Array, wanted: Array) -> Array:
            row = (centre + scale * z).reshape(1, *shape)
            scores = jax.vmap(lambda block: apply(block, row)[0])(stacked)
            return jnp.concatenate([(jnp.where(seen, (scores - wanted) * weight, 0)).ravel(), z])

        def invert(pair: tuple[Array, Array]) -> Array:
            return _gauss_newton(partial(residual, seen=pair[0], wanted=pair[1]), len(mean), weights)

        seen = ~np.isnan(phi)
        standardized = jax.jit(lambda *arrays: jax.lax.map(invert, arrays, batch_size=32))(seen, np.nan_to_num(phi))
    rows: Floats = mean + spread * np.asarray(standardized)
    return rows


def _gauss_newton(residual: Callable[..., Array], size: int, weights: Array) -> Array:
    def step(carried: tuple[Array, Array], weight: Array) -> tuple[tuple[Array, Array], None]:
        z, damping = carried
        r, jacobian = residual(z, weight), jax.jacrev(residual)(z, weight)
        matrix = jacobian.T @ jacobian
        move = jnp.linalg.solve(matrix + damping * jnp.diag(jnp.diag(matrix)), jacobian.T @ r)
        better = jnp.sum(residual(z - move, weight) ** 2) < jnp.sum(r**2)
        damped = jnp.clip(jnp.where(better, damping / 4, damping * 4), 1e-9, LARGEST_DAMPING)
        return (jnp.where(better, z - move, z), damped), None

    (z, _), _ = jax.lax.scan(step, (jnp.zeros(size), jnp.asarray(1e-2)), weights)
    return z


def rows_by_known_rows(
    phi: Floats, known: NDArray[np.intp], columns: Floats, noise: Floats, mean: Floats, spread: Floats
) -> Floats:
    r"""The rows of a linear silo whose blocks are not known, from some rows that are: first the blocks, then all rows.

    With D known rows :math:`X_K`, phi of those rows gives :math:`\theta_t` at every moment; then
    :func:`rows_of_linear`. Weng et al. 2020, "Privacy leakage of real-world vertical federated learning".

    Args:
        known: ``[r]``, which rows.
        columns: ``[r, D]``, theirs.
    """
    enough = min(len(known), columns.shape[1])
    moments = [t for t in range(phi.shape[1]) if (~np.isnan(phi[known, t, 0])).sum() >= enough]
    if not moments or not len(known):
        return np.tile(mean, (len(phi), 1))
    thetas = []
    for t in moments:
        seen = ~np.isnan(phi[known, t, 0])
        thetas.append(np.linalg.lstsq(columns[seen], phi[known, t][seen], rcond=None)[0])
    return rows_of_linear(phi[:, moments], np.stack(thetas), noise[moments], mean, spread)


def rows_by_regression(features: Floats, known: NDArray[np.intp], columns: Floats) -> Floats:
    """All rows' columns, by a ridge regression on ``features`` ``[R, F]`` of the rows that are known.

    The penalty of each column is the one with the least leave-one-out error; the mean of the known rows, if none is
    better. It needs no model of what the features are: the phi of one silo, a sum of several, or other columns.
    """
    return _ridge(features, known, columns, PENALTIES)[0]


def _ridge(features: Floats, known: NDArray[np.intp], columns: Floats, penalties: Floats) -> tuple[Floats, Floats]:
    """:func:`rows_by_regression`, and the sum of the squared leave-one-out errors of every column.

    What a row's own weight in its prediction leaves to the others gets small with the penalty where there are as many
    features as known rows, and so does what is missed: their quotient is exact, since both are summed up, not
    subtracted from 1 and from what is wanted.
    """
    if not len(known):
        return np.full((len(features), columns.shape[1]), np.nan), np.full(columns.shape[1], np.inf)
    centre, average = features[known].mean(axis=0), columns.mean(axis=0)
    u, s, v = np.linalg.svd(features[known] - centre, full_matrices=False)
    wanted = columns - average
    least = np.sum(wanted**2, axis=0) * (len(known) / max(len(known) - 1, 1)) ** 2
    if not s.any() or len(known) < 3:
        return np.tile(average, (len(features), 1)), least
    used = s > SMALLEST * s[0]
    u, s, v = u[:, used], s[used], v[used]
    turned, factors = u.T @ wanted, np.zeros((len(s), columns.shape[1]))
    beyond, beyond_left = wanted - u @ turned, 1 - 1 / len(known) - np.sum(u**2, axis=1)
    if len(s) >= len(known) - 1:
        # Nothing is beyond all directions that there are.
        beyond, beyond_left = np.zeros_like(beyond), np.zeros_like(beyond_left)
    for penalty in penalties * s[0] ** 2:
        dropped = penalty / (s**2 + penalty)
        left = u**2 @ dropped + beyond_left
        missed = (u @ (dropped[:, None] * turned) + beyond) / np.maximum(left, TINY)[:, None]
        better = np.sum(missed**2, axis=0) < least
        factors[:, better] = (s / (s**2 + penalty))[:, None]
        least = np.where(better, np.sum(missed**2, axis=0), least)
    predicted: Floats = average + (features - centre) @ (v.T @ (factors * turned))
    return predicted, least


WIDTHS = (0.5, 1.0, 2.0)
"""Of the kernels of a learned inverse, relative to the median distance between known rows."""
KERNEL_PENALTIES = np.logspace(-8, 0, 17)


def rows_by_inverse(features: Floats, known: NDArray[np.intp], columns: Floats) -> tuple[Floats, Floats]:
    """All rows' columns, by an inverse of phi that is learned on rows that are known, and needs no model of phi.

    For each column the one of :func:`rows_by_regression` and of ridge regressions on radial kernels around the known
    rows that has the least leave-one-out error: an inverse that is not linear is found too. He et al. 2019, "Model
    inversion attacks against collaborative inference", train a network for it.

    Returns:
        The columns ``[R, D]``, and the standard deviation ``[D]`` of their leave-one-out errors.
    """
    predicted, least = _ridge(features, known, columns, PENALTIES)
    spread = features[known].std(axis=0)
    scaled = features[:, spread > 0] / spread[spread > 0]
    squares = _squared_distances(scaled, scaled[known])
    apart = squares[known][~np.eye(len(known), dtype=bool)]
    for width in WIDTHS if apart.any() else ():
        kernel = np.exp(-squares / (2 * width**2 * np.median(apart[apart > 0])))
        learned, missed = _ridge(_of_kernel(kernel, known), known, columns, KERNEL_PENALTIES)
        better = missed < least
        predicted[:, better], least = learned[:, better], np.minimum(missed, least)
    error: Floats = np.sqrt(least / len(known))
    return predicted, error


def _squared_distances(left: Floats, right: Floats) -> Floats:
    squares: Floats = np.maximum(np.sum(left**2, axis=1)[:, None] - 2 * left @ right.T + np.sum(right**2, axis=1), 0)
    return squares


def _of_kernel(kernel: Floats, known: NDArray[np.intp]) -> Floats:
    """Features of all rows whose inner products with known rows are the kernel ``[R, r]``."""
    values, vectors = np.linalg.eigh(kernel[known])
    large = values > 1e-10 * values[-1]
    features: Floats = kernel @ (vectors[:, large] / np.sqrt(values[large]))
    return features


def chance_above(estimates: Floats, error: Floats, level: Floats) -> Floats:
    """The chance that each of these columns ``[R, D]`` is above its level, if the estimates are off by ``error``."""
    chances: Floats = 1 / (
        1 + np.exp(np.clip(-NORMAL_SLOPE * (estimates - level) / np.maximum(error, TINY), -700, 700))
    )
    return chances


def found_in_groups(estimates: Floats, shares: Floats) -> float:
    """The AUC of telling the groups of rows whose share of a property is above the median, by an estimate of it each.

    Ateniese et al. 2015, "Hacking smart machines with smarter ones"; Melis et al. 2019, "Exploiting unintended feature
    leakage in collaborative learning". Over many rows errors of estimates cancel: a property of a group can be found
    where that of a row is not. One half if all groups have the same share.
    """
    return _area(estimates, shares > np.median(shares))


def _area(estimates: Floats, positive: NDArray[np.bool_]) -> float:
    """The AUC; one half if all are of one kind."""
    area = auc(estimates, positive)
    return 0.5 if area is None else area


def told_apart(phi: Floats, expected: Floats, precision: Floats) -> float:
    r"""How often an attacker who knows the blocks says right which of two rows a sample's phi comes from.

    The second is the row whose phi differs most at the moments at which the sample was seen. The likelier one of both
    is the answer, and no other has a smaller chance of being wrong (Neyman and Pearson 1933): phi is closer to its own.

    Args:
        phi: ``[R, T, C]``, nan where a sample was not seen.
        expected: ``[R, T, C]``, of every row by the blocks of every moment, without noise.
        precision: ``[R, T]``, one over the variance of the noise in phi; 0 where a sample was not seen.
    """
    weights = np.repeat(np.sqrt(precision), expected.shape[2], axis=1)
    seen, rows = np.nan_to_num(phi).reshape(len(phi), -1), expected.reshape(len(phi), -1)
    weighted = weights**2 * rows
    distance = np.sum(weighted * rows, axis=1)[:, None] - 2 * weighted @ rows.T + weights**2 @ (rows**2).T
    # A row that is the same is no second one.
    np.fill_diagonal(distance, -np.inf)
    second = rows[distance.argmax(axis=1)]
    likelier = np.sum(weights**2 * (seen - (rows + second) / 2) * (rows - second), axis=1)
    return float(np.mean(likelier > 0))


def features_of(phi: Floats, noise: Floats, known: NDArray[np.intp]) -> Floats:
    """``[R, T, C]`` phi as features ``[R, F]`` in units of the noise, for :func:`rows_by_regression` on ``known`` rows.

    Only moments at which all known rows were seen count. Where another row was not, it is filled in as the combination
    of known rows that it is at the other moments: exact if there are as many known rows as phi has dimensions.
    """
    usable = ~np.isnan(phi[known]).any(axis=(0, 2)) & (noise > 0)
    flat = (phi[:, usable] / noise[usable, None]).reshape(len(phi), -1)
    for row in np.flatnonzero(np.isnan(flat).any(axis=1)):
        seen = ~np.isnan(flat[row])
        combination = np.linalg.lstsq(flat[known][:, seen].T, flat[row, seen], rcond=None)[0]
        flat[row, ~seen] = combination @ flat[known][:, ~seen]
    return flat


def recovery(guesses: Floats, labels: NDArray[Any], target: Target) -> float:
    """How well labels were found: AUC of two classes, accuracy of several, squared correlation of amounts."""
    seen = ~np.isnan(guesses)
    guesses, labels = guesses[seen], labels[seen]
    if target == "binary":
        return _area(guesses, labels == 1)
    if target == "classes":
        return float(np.mean(guesses == labels))
    return float(np.corrcoef(guesses, labels)[0, 1] ** 2) if np.std(guesses) > 0 else 0.0


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
    guesses: Floats = classes[named[np.argsort(cluster)]][clusters].astype(np.float64)
    return guesses


def by_probe(features: Floats, known: NDArray[np.intp], labels: NDArray[Any]) -> Floats:
    """Labels by a linear model of ``features`` ``[R, F]``, fitted on a few rows whose labels are known.

    Fu et al. 2022 in its semi-supervised form. Returns a score for two classes and amounts, a class for several.
    """
    classes = np.unique(labels)
    spread = features.std(axis=0)
    scaled = features / np.where(spread > 0, spread, 1)
    if len(classes) <= 2 or labels.dtype.kind == "f":
        return rows_by_regression(scaled, known, labels[known].astype(np.float64)[:, None])[:, 0]
    hot = (labels[known][:, None] == classes).astype(np.float64)
    guesses: Floats = classes[np.argmax(rows_by_regression(scaled, known, hot), axis=1)].astype(np.float64)
    return guesses


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


MOST_NUMBERS = 1 << 25
"""Of the equations that gradients are: with more, the first rounds are taken."""


def labels_from_sums(minibatches: Sequence[NDArray[Any]], gradients: Sequence[Floats], features: Floats) -> Floats:
    r"""The slope of every sample, as far as gradients of a linear block say it: ``[M, C]``.

    A gradient :math:`\frac1B \sum_i x_i \delta_i` is D equations for the slopes of a minibatch, and who knows the
    features can solve them: of all slopes that fit every round's gradient, taken for the same in every round, these are
    the smallest. With as many equations as samples, they are the slopes but for what training changed of them.

    Args:
        minibatches: by round, the samples ``[B]``.
        gradients: by round, ``[D, C]``.
        features: ``[M, D]``.
    """
    rounds = max(1, min(len(gradients), MOST_NUMBERS // features.size))
    equations = np.zeros((rounds, features.shape[1], len(features)))
    for equation, ids in zip(equations, minibatches, strict=False):
        equation[:, ids] = features[ids].T / len(ids)
    rows, sums = equations.reshape(-1, len(features)), np.concatenate(gradients[:rounds])
    products = rows @ rows.T
    # Slopes change from round to round: what follows only from small differences does not follow.
    products += np.eye(len(rows)) * 1e-4 * np.trace(products) / len(rows)
    slopes: Floats = rows.T @ np.linalg.solve(products, sums)
    return slopes


def mean_slope(gradient: Floats, features: Floats) -> Floats:
    r"""The mean slope of a minibatch, as far as its gradient says it: ``[C]``; 0 where it says less than half of it.

    :math:`w^\top \frac1B \sum_i x_i \delta_i`, with the w for which :math:`w^\top x_i` is closest to 1. It is exact if
    one of the columns is constant, or if some of them add up to 1, as bins do.

    Args:
        gradient: ``[D, C]``.
        features: ``[B, D]``, of the minibatch.
    """
    weights = np.linalg.lstsq(features, np.ones(len(features)), rcond=None)[0]
    is_said = np.mean(features @ weights) > 0.5
    slope: Floats = weights @ gradient * is_said
    return slope


def expected(scores: Floats, loss: str) -> Floats:
    """What scores ``[..., C]`` say of the label: the chance of each class, the count or the amount."""
    means = scores
    if loss == "logistic":
        means = 1 / (1 + np.exp(-scores))
    elif loss == "softmax":
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        means = powers / powers.sum(axis=-1, keepdims=True)
    elif loss == "poisson":
        means = np.exp(scores)
    return means


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
    original: Floats = slopes + (labels - response.other) / response.slope - labels
    return original


def _first_seen(slopes: Floats) -> Floats:
    """``[R, C]``: each row at the first moment at which it was seen; nan if it never was."""
    seen = ~np.isnan(slopes[..., 0])
    first: Floats = slopes[np.arange(len(slopes)), seen.argmax(axis=1)]
    return first
