"""Heads: functions of the sum of the silos' phi, without parameters, so that nothing new is exchanged."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tdcd.core.lazy import Array, library_of


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
        """One score for every 1 + H numbers of phi."""
        return width // (1 + self.units)

    def scores(self, total: Any) -> Any:
        """The linear part and the units, which count with alternating signs."""
        linear, units = self._parts(total)
        scores: Array = linear + (library_of(total).maximum(units, 0) * self._signs(total)).sum(axis=-2)
        return scores

    def pull_back(self, total: Array, slopes: Array) -> Array:
        """Through every unit that is above 0."""
        library, (_, units) = library_of(total), self._parts(total)
        through = library.where(units > 0, slopes[..., None, :] * self._signs(total), 0)
        gradient: Array = library.concatenate([slopes, through.reshape(*total.shape[:-1], -1)], axis=-1)
        return gradient

    def _parts(self, total: Array) -> tuple[Array, Array]:
        """``[..., C]`` and ``[..., H, C]``."""
        outputs = self.num_outputs(total.shape[-1])
        return total[..., :outputs], total[..., outputs:].reshape(*total.shape[:-1], self.units, outputs)

    def _signs(self, total: Array) -> Array:
        signs = np.where(np.arange(self.units) % 2 == 0, 1, -1)[:, None]
        alternating: Array = library_of(total).asarray(signs, dtype=total.dtype)
        return alternating
