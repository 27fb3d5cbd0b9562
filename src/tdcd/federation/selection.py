r"""Are labels alike among samples that different silos have? A test for rows that are not missing at random.

Whom a partner knows is rarely a matter of chance. If labels differ between the patterns of presence, by more than
chance, what is learned from one group of samples need not hold for another: users are warned before training, and
after.

For classes, Pearson's statistic of the table of patterns and classes:

.. math:: \chi^2 = \sum_{p, c} \frac{(n_{pc} - n_p n_c / n)^2}{n_p n_c / n}

with (P - 1)(C - 1) degrees of freedom. For amounts, that of Kruskal and Wallis, on ranks r, with P - 1:

.. math:: H = (n - 1) \frac{\sum_p n_p (\bar r_p - \bar r)^2}{\sum_i (r_i - \bar r)^2}
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.federation.silos import Federation, LabelFigures

FEWEST = 20
"""Patterns with fewer samples are left out of the test."""
LEAST_EXPECTED = 5.0
"""Classes of which fewer samples are expected in some pattern count as one."""
LEVEL = 0.01
"""A smaller p-value is reported."""

Pattern = tuple[str, ...]
"""The silos that have some samples."""


def label_test(groups: Sequence[NDArray[np.float64]], *, amounts: bool) -> float | None:
    """The p-value of labels being alike in all groups; None if there is too little to say.

    Args:
        groups: the labels of each, numbers of classes or amounts.
    """
    large = [group for group in groups if len(group) >= FEWEST]
    if len(large) < 2:
        return None
    statistic, freedom = _of_ranks(large) if amounts else _of_counts(large)
    if not freedom:
        return None
    from scipy.special import chdtrc  # noqa: PLC0415  (slow to import)

    return float(chdtrc(freedom, statistic))


def label_figures(federation: Federation, labels: NDArray[Any], *, amounts: bool) -> LabelFigures:
    """The mean of some labels of a federation in their own unit, or the share of every class."""
    if amounts:
        return float(np.mean(labels)) * federation.label_scale + federation.label_mean
    codes = np.unique(federation.labels).tolist()
    names = federation.classes or tuple(str(int(code)) for code in range(int(max(codes)) + 1))
    return {name: float(np.mean(labels == code)) for code, name in enumerate(names)}


def selection_in_words(groups: Mapping[Pattern, NDArray[np.float64]], num_silos: int, *, amounts: bool) -> str:
    """What the test says, if labels differ by more than chance; else nothing."""
    p = label_test([*groups.values()], amounts=amounts)
    if p is None or p >= LEVEL:
        return ""
    all_silos = "both" if num_silos == 2 else "all"
    return (
        f"labels differ between samples that {all_silos} silos have and those that some lack, by more than chance "
        f"(p = {max(p, 1e-300):.1g}): rows are not missing at random. What is learned from one group need not hold for "
        "another: look at the figures of each, and be careful with samples of a kind that was rare"
    )


def _of_ranks(groups: Sequence[NDArray[np.float64]]) -> tuple[float, int]:
    every = np.concatenate(groups)
    ordered = np.sort(every)
    ranks = (np.searchsorted(ordered, every, "left") + np.searchsorted(ordered, every, "right")) / 2
    off = ranks - ranks.mean()
    total = float(off @ off)
    ends = np.cumsum([0, *map(len, groups)])
    between = sum(off[start:end].sum() ** 2 / (end - start) for start, end in pairwise(ends))
    return ((len(every) - 1) * float(between) / total, len(groups) - 1) if total else (0.0, 0)


def _of_counts(groups: Sequence[NDArray[np.float64]]) -> tuple[float, int]:
    classes = np.unique(np.concatenate(groups))
    counts = np.array([[np.sum(group == code) for code in classes] for group in groups], np.float64)
    shares = counts.sum(axis=1) / counts.sum()
    is_rare = counts.sum(axis=0) * shares.min() < LEAST_EXPECTED
    pooled = counts[:, is_rare].sum(axis=1, keepdims=True)
    kept = [counts[:, ~is_rare], pooled] if pooled.sum() * shares.min() >= LEAST_EXPECTED else [counts[:, ~is_rare]]
    table = np.concatenate(kept, axis=1)
    if table.shape[1] < 2:
        return 0.0, 0
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
    statistic = float(np.sum(np.square(table - expected) / expected))
    return statistic, (table.shape[0] - 1) * (table.shape[1] - 1)
