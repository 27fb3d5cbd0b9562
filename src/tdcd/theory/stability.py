r"""Where rounds of ridge regression are stable: the map that a round makes of the error, and its spectral radius.

With the squared loss the objective has one Hessian H everywhere. In a round, silo j takes Q gradient steps on its block
while the others stay as they were, so in expectation over fresh minibatches (and of shards alike) the error
:math:`e = \theta - \theta^*` becomes

.. math:: e \leftarrow (I - S H)\, e, \qquad
          S = \mathrm{diag}_j\Big(\eta \sum_{s<Q} (I - \eta H_{jj})^s\Big)

Rounds are stable where no eigenvalue of that map is outside the unit circle. This is exact, while the conditions of
Theorem 1 are sufficient at best.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tdcd.federation.silos import Federation
from tdcd.theory.smoothness import Constants

SquareMatrix = NDArray[np.float64]


@dataclass(frozen=True)
class RoundMap:
    """What a round of ridge regression makes of the error, for any step size and number of local steps."""

    hessian: SquareMatrix
    """``[D, D]``."""
    blocks: tuple[slice, ...]
    """The coordinates of each silo."""

    @classmethod
    def of(cls, federation: Federation, l2: float) -> Self:
        """The map of linear blocks with the squared loss on the training rows of a federation."""
        parts = [np.asarray(silo.features, np.float64).reshape(len(silo.features), -1) for silo in federation.silos]
        features = np.concatenate(parts, axis=1)
        ends = np.cumsum([part.shape[1] for part in parts]).tolist()
        hessian = features.T @ features / len(features) + l2 * np.eye(features.shape[1])
        return cls(hessian, tuple(slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)))

    @property
    def constants(self) -> Constants:
        """L and L_j of Theorem 1, which the Hessian has as norms."""
        per_silo = tuple(float(np.linalg.norm(self.hessian[block], 2)) for block in self.blocks)
        return Constants(float(np.linalg.norm(self.hessian, 2)), per_silo, "exact", "")

    def _factors(self) -> tuple[SquareMatrix, Sequence[tuple[slice, SquareMatrix, SquareMatrix]]]:
        """A triangular root of the Hessian, and every silo's own part of it as eigenvalues and eigenvectors."""
        root = np.linalg.cholesky(self.hessian).astype(np.float64)
        return root, [(block, *np.linalg.eigh(self.hessian[block, block])) for block in self.blocks]

    def radius(self, step_size: float, local_steps: int) -> float:
        """The spectral radius: by what factor the error of a round grows or falls, in the end.

        >>> two = RoundMap(np.array([[1.0, 1.0], [1.0, 1.0]]) + 1e-9 * np.eye(2), (slice(0, 1), slice(1, 2)))
        >>> round(two.radius(step_size=0.5, local_steps=1), 6), round(two.radius(step_size=1.0, local_steps=9), 6)
        (1.0, 1.0)
        """
        return _radius(*self._factors(), step_size, local_steps)

    def largest_stable(self, local_steps: int, start: float) -> float:
        """The first step size above ``start``, at which rounds are stable, from which on they are not."""
        root, own = self._factors()
        if not _radius(root, own, start, local_steps) <= 1:
            raise ValueError(f"rounds of {local_steps} local steps are not stable at the step size {start:g}")
        low, high = start, start
        while _radius(root, own, high, local_steps) <= 1:
            low, high = high, 1.02 * high
        while high - low > 1e-6 * low:
            middle = (low + high) / 2
            low, high = (middle, high) if _radius(root, own, middle, local_steps) <= 1 else (low, middle)
        return low


def _radius(
    root: SquareMatrix, own: Sequence[tuple[slice, SquareMatrix, SquareMatrix]], step_size: float, local_steps: int
) -> float:
    """S H has the eigenvalues of R' S R, which is symmetric, where H = R R'."""
    moved = np.empty_like(root)
    for block, values, vectors in own:
        # The sum of the powers of 1 - eta h.
        sums = (1 - (1 - step_size * values) ** local_steps) / values
        moved[block] = vectors * sums @ (vectors.T @ root[block])
    return float(np.abs(1 - np.linalg.eigvalsh(root.T @ moved)).max())
