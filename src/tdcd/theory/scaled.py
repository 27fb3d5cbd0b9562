r"""Steps scaled by each silo's own curvature: Theorem 1 after a linear change of variables.

.. math:: \theta_{(j)} \leftarrow \theta_{(j)} - \eta A_j^{-1} g, \qquad A_j = c\,X_j^T X_j / M + (\lambda + \epsilon) I

With :math:`w_{(j)} = A_j^{1/2} \theta_{(j)}` these are plain steps on the objective as a function of w, whose linear
blocks have the features :math:`X_j A_j^{-1/2}`. There no silo curves by more than 1, and the whole by no more than N.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import sqrt
from typing import Self

import numpy as np

from tdcd.core.objective import Objective, Tree
from tdcd.federation.silos import Federation, Silo
from tdcd.theory.full_objective import ROWS_AT_ONCE, Matrix, flat_rows
from tdcd.theory.smoothness import NARROW, Constants
from tdcd.theory.stability import RoundMap

ROUNDING = 1e-12
"""An eigenvalue that is so much smaller than the largest is taken for 0."""


@dataclass(frozen=True, eq=False)
class StepScaling:
    """The change of variables that makes scaled steps plain ones."""

    inverse_roots: tuple[Matrix, ...]
    r"""``[D_j, D_j]`` per silo: :math:`A_j^{-1/2}`, symmetric."""

    @classmethod
    def of(cls, scales: Sequence[Matrix]) -> Self:
        r"""The scaling from :math:`A_j` ``[D_j, D_j]`` per silo, which must be positive definite."""
        return cls(tuple(map(_inverse_root, scales)))

    def model(self, hub_blocks: Sequence[Tree]) -> list[Tree]:
        """The hub blocks in the new variables."""
        return [
            {"weight": np.linalg.solve(root, np.asarray(block["weight"], np.float64))}
            for root, block in zip(self.inverse_roots, hub_blocks, strict=True)
        ]

    def federation(self, federation: Federation) -> Federation:
        """The same samples with scaled features, in float64."""
        silos = tuple(
            replace(silo, features=flat_rows(silo, slice(None)) @ root, test_features=None, test_rows=())
            for silo, root in zip(federation.silos, self.inverse_roots, strict=True)
        )
        return replace(federation, silos=silos, test_labels=None, test_weights=None)

    def ridges(self, l2: float) -> list[float]:
        """How much the regulariser curves each silo's block, in the new variables."""
        return [l2 * float(np.linalg.norm(root, 2)) ** 2 for root in self.inverse_roots]


def own_curvature(silo: Silo, curvature: float, ridge: float) -> Matrix:
    r""":math:`A_j = c\,X_j^T X_j / M + r I` of a silo with linear blocks, ``[D_j, D_j]``.

    Args:
        curvature: c, the most that the loss curves by.
        ridge: r, the regulariser's lambda plus what keeps the matrix away from singular.
    """
    total = len(silo.features)
    chunks = (flat_rows(silo, slice(begin, begin + ROWS_AT_ONCE)) for begin in range(0, total, ROWS_AT_ONCE))
    gram: Matrix = sum(chunk.T @ chunk for chunk in chunks)  # type: ignore[assignment]
    return curvature * gram / total + ridge * np.eye(len(gram))


def _inverse_root(scale: Matrix) -> Matrix:
    values, vectors = np.linalg.eigh(scale)
    if not values[0] > 0:
        raise ValueError(f"a silo's curvature must be positive definite, and its least eigenvalue is {values[0]:.3g}")
    return np.asarray((vectors / np.sqrt(values)) @ vectors.T)


def scaled_map(federation: Federation, scaling: StepScaling, objective: Objective) -> RoundMap:
    """What a round of scaled steps makes of the error; for the squared loss, and else with the most that a loss curves.

    Of linear blocks. The map is that of the new variables; its spectral radius is the same in both.
    """
    parts = [flat_rows(silo, slice(None)) @ root for silo, root in _pairs(federation, scaling)]
    features = np.concatenate(parts, axis=1)
    edges = np.cumsum([0, *(part.shape[1] for part in parts)]).tolist()
    blocks = tuple(slice(begin, end) for begin, end in pairwise(edges))
    hessian = objective.curvature * features.T @ features / federation.num_samples
    for block, root in zip(blocks, scaling.inverse_roots, strict=True):
        hessian[block, block] += objective.l2 * root @ root
    return RoundMap(hessian, blocks)


def scaled_constants(federation: Federation, scaling: StepScaling, objective: Objective) -> Constants:
    r"""L and :math:`L_j` of linear blocks in the new variables.

    They are norms of :math:`P = A^{-1/2} (c H + \lambda I) A^{-1/2}` and of its rows for the squared loss. A positive
    matrix is at most N times its diagonal blocks, and none of these is above 1: :math:`L \le N` and, as
    :math:`L_j \le \sqrt{L \|P_{jj}\|}`, :math:`L_j \le \sqrt{N}`. Beyond 1,024 columns, :math:`\sum_j \|P_{jj}\|` is
    used as L; there, and for other losses, the bound of :math:`L_j` stands for it.
    """
    if sum(map(len, scaling.inverse_roots)) > NARROW:
        own = [
            float(np.linalg.norm(root @ own_curvature(silo, objective.curvature, objective.l2) @ root, 2))
            for silo, root in _pairs(federation, scaling)
        ]
        whole = sum(own)
        note = "at most the sum of the silos' own, which are at most 1 each after scaling"
        return Constants(whole, tuple(sqrt(whole * each) for each in own), "upper bound", note)
    round_map = scaled_map(federation, scaling, objective)
    exact = round_map.constants
    if objective.kind.is_quadratic:
        return replace(exact, note="norms of the Hessian after scaling, which is the same everywhere")
    own = [float(np.linalg.norm(round_map.hessian[block, block], 2)) for block in round_map.blocks]
    per_silo = tuple(min(exact.L, sqrt(exact.L * each)) for each in own)
    note = f"after scaling; the {objective.kind.name} loss curves by {objective.curvature:g} at most"
    return Constants(exact.L, per_silo, "upper bound", note)


def strong_convexity(federation: Federation, scaling: StepScaling, objective: Objective) -> float:
    r"""How much the objective of linear blocks curves at least, in the new variables; 0 where it may be flat.

    The regulariser alone curves by :math:`\lambda / \|A_j\|`. Of the squared loss it is the least eigenvalue of the
    Hessian, up to 1,024 columns.
    """
    least = min(objective.l2 / float(np.linalg.norm(np.linalg.inv(root), 2)) ** 2 for root in scaling.inverse_roots)
    if objective.kind.is_quadratic and sum(map(len, scaling.inverse_roots)) <= NARROW:
        values = np.linalg.eigvalsh(scaled_map(federation, scaling, objective).hessian)
        # Below this, a flat direction is rounding's.
        least = max(least, float(values[0])) if values[0] > ROUNDING * values[-1] else least
    return least


def largest_with_momentum(curvature: float, momentum: float) -> float:
    r"""Up to which step size gradient steps with Nesterov's momentum are stable on a quadratic of this curvature.

    .. math:: \eta < \frac{2 + 2 \beta}{(1 + 2 \beta)\, L}

    >>> largest_with_momentum(1.0, 0.0), round(largest_with_momentum(4.0, 0.9), 4)
    (2.0, 0.3393)
    """
    return (2 + 2 * momentum) / ((1 + 2 * momentum) * curvature)


def _pairs(federation: Federation, scaling: StepScaling) -> list[tuple[Silo, Matrix]]:
    return list(zip(federation.silos, scaling.inverse_roots, strict=True))
