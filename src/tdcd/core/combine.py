r"""From sums to scores: how the sum of the silos' phi becomes what the loss is of.

The paper's objective is :math:`f(\sum_j \Phi_j, y)`. With :class:`Sum`, the default, the sum is the score, and a model
is additive over silos: it cannot see that columns of two silos matter together. A head is a function of the sum
without parameters, so nothing new is exchanged or kept in step; phi is wider than the score.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tdcd.core.lazy import Array, library_of


class Combine(Protocol):
    """How the sum of all silos' phi, ``[..., W]``, becomes scores ``[..., C]``; for NumPy and JAX alike."""

    @property
    def is_additive(self) -> bool:
        """Whether the scores are the sum itself."""
        ...

    @property
    def keys(self) -> dict[str, Any]:
        """The keys of ``[model]`` that choose it."""
        ...

    def width(self, num_outputs: int) -> int:
        """W, the numbers of phi for C scores."""
        ...

    def num_outputs(self, width: int) -> int:
        """C, the scores of phi with W numbers."""
        ...

    def scores(self, total: Any) -> Any:
        """``[..., W]`` to ``[..., C]``."""
        ...

    def pull_back(self, total: Array, slopes: Array) -> Array:
        """The derivative of a loss by the sum, ``[..., W]``, from that by the scores, ``[..., C]``."""
        ...


@dataclass(frozen=True)
class Sum:
    """The sum is the score: Algorithm 1."""

    @property
    def is_additive(self) -> bool:
        """Always."""
        return True

    @property
    def keys(self) -> dict[str, Any]:
        """None: it is the default."""
        return {}

    def width(self, num_outputs: int) -> int:
        """As many as scores."""
        return num_outputs

    def num_outputs(self, width: int) -> int:
        """As many as numbers of phi."""
        return width

    def scores(self, total: Any) -> Any:
        """The sum."""
        return total

    def pull_back(self, total: Array, slopes: Array) -> Array:
        """The same."""
        return slopes


SUM = Sum()


@dataclass(frozen=True)
class Hidden:
    r"""One hidden layer on the sum: :math:`s = z_0 + \sum_{h=1}^{H} (-1)^{h+1} \max(0, z_h)`, with z the sum.

    Each score has H units of its own. The signs are fixed: a unit's size is that of its inputs, since
    :math:`a \max(0, z) = \max(0, a z)` for a > 0.

    >>> Hidden(2).scores(np.array([1.0, 3.0, -2.0])), Hidden(2).scores(np.array([1.0, 3.0, 2.0]))
    (array([4.]), array([2.]))
    """

    units: int = 8
    """H."""

    def __post_init__(self) -> None:
        """Refuse a layer without units."""
        if self.units < 1:
            raise ValueError(f"a hidden layer has at least 1 unit, not {self.units}")

    @property
    def is_additive(self) -> bool:
        """Never."""
        return False

    @property
    def keys(self) -> dict[str, Any]:
        """The head and its size."""
        return {"head": "hidden", "head_units": self.units}

    def width(self, num_outputs: int) -> int:
        """The linear part and H units of every score."""
        return num_outputs * (1 + self.units)

    def num_outputs(self, width: int) -> int:
        """One of 1 + H."""
        return width // (1 + self.units)

    def scores(self, total: Any) -> Any:
        """The linear part and the units, which count with alternating signs."""
        linear, units = self._parts(total)
        found: Array = linear + (library_of(total).maximum(units, 0) * self._signs(total)).sum(axis=-2)
        return found

    def pull_back(self, total: Array, slopes: Array) -> Array:
        """Through every unit that is above 0."""
        library, (_, units) = library_of(total), self._parts(total)
        through = library.where(units > 0, slopes[..., None, :] * self._signs(total), 0)
        both: Array = library.concatenate([slopes, through.reshape(*total.shape[:-1], -1)], axis=-1)
        return both

    def _parts(self, total: Array) -> tuple[Array, Array]:
        """``[..., C]`` and ``[..., H, C]``."""
        outputs = self.num_outputs(total.shape[-1])
        return total[..., :outputs], total[..., outputs:].reshape(*total.shape[:-1], self.units, outputs)

    def _signs(self, total: Array) -> Array:
        signs = np.where(np.arange(self.units) % 2 == 0, 1, -1)[:, None]
        found: Array = library_of(total).asarray(signs, dtype=total.dtype)
        return found
