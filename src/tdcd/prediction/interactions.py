r"""Do columns of two silos matter together? A test on the phi of an additive model, for whoever has the labels.

After training, a hub with labels knows every silo's phi of the held-out samples, and the residuals
:math:`r = -\partial f / \partial s`. If the model misses nothing that two silos know together, products of functions of
:math:`\phi_j` and of :math:`\phi_k` do not explain r. Phi becomes ranks, u in (-1, 1), and the functions are the first
two Legendre polynomials of u: four products z for each pair of silos. What z has in common with functions of one silo's
phi alone is taken away, by a regression weighted by the loss's curvature: so a model that is a little off inside a silo
does not look like an interaction. Then

.. math:: T = U^\top V^{-1} U, \qquad U = \sum_i r_i z_i, \qquad V = \sum_i r_i^2 z_i z_i^\top

is :math:`\chi^2` with four degrees of freedom for many samples if there is none. With several classes every class has
its own test. P-values are multiplied by the number of tests (Bonferroni).

The test cannot see what phi does not show: the exclusive or of two columns leaves nothing for an additive model to
learn, so that phi is noise. A few rounds with a head can: see docs/interactions.md.
"""

import math
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdcd.core.losses import metrics
from tdcd.core.objective import Objective
from tdcd.core.words import counted
from tdcd.prediction.subsets import GroupPhi, Phis

FEWEST = 200
"""With fewer held-out samples than these, chi-squared would not be close."""
LEVEL = 0.01
"""A smaller p-value is reported as an interaction."""
STEP = 1e-4
"""Of scores, for the curvature of a loss by differences of its slopes."""
SIZES = (1.0, 0.5, 0.25, 0.1, 0.0)
"""Of a step by Newton's method, which may go too far."""
LEAST = 0.0005
"""A smaller gain is not worth a head."""
BETTER = ("auc", "r2", "d2", "accuracy")
"""Metrics that a gain is reported in: the first that there is."""

Floats = NDArray[np.float64]


class HeldOut(NamedTuple):
    """What is known of held-out samples, besides phi."""

    labels: NDArray[Any]
    """``[m]``."""
    weights: NDArray[Any] | None = None
    """What each sample counts; by default all the same."""
    label_scale: float = 1.0
    """The labels' unit."""


def interactions_of(phis: Phis, held_out: HeldOut, objective: Objective, *, only_sums: bool = False) -> dict[str, Any]:
    """The entry ``interactions`` of ``subsets.json``: what :func:`describe_interactions` finds or why there is no test,
    and in ``words`` the sentence that is shown.

    Args:
        only_sums: hubs know no other silo's phi, but sums of several.
    """
    reason = _why_untested(phis, objective, only_sums=only_sums)
    facts = {"reason": reason} if reason else describe_interactions(phis.measured, held_out, objective)
    return {**facts, "words": in_words(facts)}


def _why_untested(phis: Phis, objective: Objective, *, only_sums: bool) -> str:
    if not objective.combine.is_additive:
        return "the model has a head"
    if len(phis.silos) < 2:
        return "there is one silo"
    if only_sums or any(len(group) > 1 for group in phis.measured) or not phis.measured:
        return "masks: hubs know only sums of the silos' phi, not each silo's"
    if phis.samples != "test":
        return "no samples are held out, and residuals of training samples are too small"
    if objective.kind.slopes is None:
        return f"the {objective.kind.name} loss has no slopes written out"
    return ""


def describe_interactions(phi: GroupPhi, held_out: HeldOut, objective: Objective) -> dict[str, Any]:
    """The test of every two silos, as ``subsets.json`` has it.

    Args:
        phi: of the held-out samples ``[m, C]``, by silo.

    Returns:
        ``p``, of all pairs together, and ``pairs``: the silos, ``p`` and ``gain``, an estimate of what the products
        would add to the loss and to each metric, by fits on one half of the samples that are judged on the other; or
        ``reason``, why there is no test.
    """
    weights, label_scale = held_out.weights, held_out.label_scale
    labels: Any = np.asarray(held_out.labels, objective.label_dtype("float64"))
    parts = {silos[0]: np.asarray(numbers, np.float64) for silos, numbers in phi.items()}
    scores: Any = sum(parts.values(), start=np.zeros_like(next(iter(parts.values()))))
    count = len(scores)
    if count < FEWEST:
        return {"reason": f"{counted(count, 'sample')} are held out, and the test takes {FEWEST}"}
    if not np.isfinite(scores).all():
        return {"reason": "scores are not finite"}
    each = np.ones(count) if weights is None else np.asarray(weights, np.float64) / np.mean(weights)
    residuals, curvatures = (each[:, None] * part for part in _derivatives(objective, scores, labels))
    outputs = range(scores.shape[1])
    names = [name for name, numbers in parts.items() if all(np.ptp(numbers[:, out]) > 0 for out in outputs)]
    if len(names) < 2:
        return {"reason": "fewer than two silos have a phi that differs between samples"}
    shapes = {name: [_polynomials(parts[name][:, out]) for out in outputs] for name in names}
    main = [np.concatenate([np.ones((count, 1)), *(shapes[name][out] for name in names)], axis=1) for out in outputs]

    def judged(scores: Any) -> dict[str, float | None]:
        losses = float(np.mean(each * objective.losses(scores, labels)))
        own = metrics(objective.loss, scores, labels, label_scale, objective.label_epsilon)
        return {"loss": losses, **own}

    before = judged(scores)
    pairs: list[dict[str, Any]] = []
    for first, second in combinations(names, 2):
        products = np.stack([_products(shapes[first][out], shapes[second][out]) for out in outputs])
        for out in outputs:
            products[out] -= main[out] @ _regression(main[out], products[out], curvatures[:, out])
        chances = [_p_value(residuals[:, out], products[out]) for out in outputs]
        correction = np.empty_like(scores)
        for half in (np.arange(count) % 2 == 0, np.arange(count) % 2 == 1):
            step = _newton_step(products, residuals, curvatures, ~half)
            falls = [float(np.mean((each * objective.losses(scores + size * step, labels))[~half])) for size in SIZES]
            correction[half] = SIZES[int(np.argmin(falls))] * step[half]
        after = judged(scores + correction)
        gains = {name: _difference(after[name], value) for name, value in before.items()}
        p = min(1.0, len(chances) * min(chances))
        pairs.append({"silos": [first, second], "p": p, "gain": gains})
    return {"p": min(1.0, len(pairs) * min(pair["p"] for pair in pairs)), "samples": count, "pairs": pairs}


def in_words(facts: Mapping[str, Any]) -> str:
    """One sentence, or one per pair of silos, on what :func:`describe_interactions` found."""
    if "reason" in facts:
        return f"Interactions between silos were not tested: {facts['reason']}."
    pairs = sorted(facts["pairs"], key=lambda pair: float(pair["p"]))
    clear = [pair for pair in pairs if len(pairs) * pair["p"] < LEVEL]
    if not clear:
        return f"No interaction between silos was found that a head could use (p = {facts['p']:.2g})."
    return " ".join(_sentence(pair, min(1.0, len(pairs) * pair["p"])) for pair in clear)


def _sentence(pair: Mapping[str, Any], p: float) -> str:
    first, second = pair["silos"]
    name = next((name for name in BETTER if pair["gain"].get(name) is not None), None)
    gain = -pair["gain"]["loss"] if name is None else pair["gain"][name]
    what = "in the loss" if name is None else f"of {name.upper() if name != 'accuracy' else name}"
    if gain < LEAST:
        return f"Columns of {first} and {second} may interact (p = {p:.1g}), but a head would gain little."
    return f"Columns of {first} and {second} interact (p = {p:.1g}): a head may gain about {gain:.2g} {what}."


def _derivatives(objective: Objective, scores: Any, labels: Any) -> Iterator[Floats]:
    """``[m, C]`` each: the residuals, and the curvature of the loss by every score alone."""
    yield -np.asarray(objective.slopes(scores, labels), np.float64)
    curvature = np.empty_like(scores)
    for out in range(scores.shape[1]):
        moved = np.zeros(scores.shape[1])
        moved[out] = STEP
        rise = objective.slopes(scores + moved, labels) - objective.slopes(scores - moved, labels)
        curvature[:, out] = np.asarray(rise)[:, out] / (2 * STEP)
    yield np.maximum(curvature, 0)


def _polynomials(phi: Floats) -> Floats:
    """``[m, 3]``: the first Legendre polynomials of the ranks, ties in the middle; of variance about 1."""
    ordered, count = np.sort(phi), len(phi)
    ranks = (np.searchsorted(ordered, phi, "left") + np.searchsorted(ordered, phi, "right")) / 2
    u = 2 * ranks / count - 1
    return np.stack([3**0.5 * u, 5**0.5 * (3 * u**2 - 1) / 2, 7**0.5 * (5 * u**3 - 3 * u) / 2], axis=1)


def _products(first: Floats, second: Floats) -> Floats:
    """``[m, 4]``: every one of the first two polynomials of a silo times every one of another's."""
    return (first[:, :2, None] * second[:, None, :2]).reshape(len(first), -1)


def _regression(main: Floats, products: Floats, weights: Floats) -> Floats:
    """The coefficients of weighted least squares; of columns that say the same, the shortest ones."""
    weighted = main * weights[:, None]
    return np.linalg.pinv(weighted.T @ main, hermitian=True) @ (weighted.T @ products)


def _p_value(residuals: Floats, products: Floats) -> float:
    contributions = residuals[:, None] * products
    total = contributions.sum(axis=0)
    statistic = float(total @ np.linalg.pinv(contributions.T @ contributions, hermitian=True) @ total)
    # The tail of chi-squared with four degrees of freedom.
    return math.exp(-statistic / 2) * (1 + statistic / 2)


def _newton_step(products: Floats, residuals: Floats, curvatures: Floats, rows: NDArray[np.bool_]) -> Any:
    """``[m, C]``: what the products ``[C, m, 4]`` add to the scores of all samples, by a fit on some of them."""
    step = np.empty_like(residuals)
    for out, own in enumerate(products):
        weighted = own[rows] * curvatures[rows, out, None]
        inverse = np.linalg.pinv(weighted.T @ own[rows], hermitian=True)
        step[:, out] = own @ (inverse @ (own[rows].T @ residuals[rows, out]))
    return step


def _difference(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else after - before
