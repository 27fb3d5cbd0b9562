"""Heads: functions of the sum of the silos' phi, without parameters, so that nothing new is exchanged."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tdcd.core.combine import Combine
from tdcd.core.lazy import Array, library_of

if TYPE_CHECKING:
    from tdcd.core.variant import Variant


@dataclass(frozen=True)
class Hidden(Combine):
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
        """False: the scores are no sums over silos."""
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


@dataclass(frozen=True)
class Pairs(Combine):
    r"""A factorisation machine over silos: :math:`\sum_j s_j + \sum_{j<k} \langle e_j, e_k \rangle`.

    A silo's block gives :math:`(s_j, \sqrt r\, e_j)`, with r numbers of e for each score, and its phi is
    :math:`(s_j, e_j, |e_j|^2)`. The root keeps products of the same size at every rank, and small when training begins.
    Sums of phi are enough, since

    .. math:: \sum_{j<k} \langle e_j, e_k \rangle = \tfrac12 \Big(\Big|\sum_j e_j\Big|^2 - \sum_j |e_j|^2\Big)

    >>> head = Pairs(4)
    >>> total = head.phi(np.array([1.0, 6, -4, 0, 0])) + head.phi(np.array([0.5, 2, 2, 0, 2]))
    >>> total, head.scores(total)
    (array([ 1.5,  4. , -1. ,  0. ,  1. , 16. ]), array([2.5]))
    """

    rank: int = 8
    """r."""

    def __post_init__(self) -> None:
        """Refuse pairs without numbers to multiply."""
        if self.rank < 1:
            raise ValueError(f"pairs have a rank of at least 1, not {self.rank}")

    @property
    def is_additive(self) -> bool:
        """False: the scores are no sums over silos."""
        return False

    @property
    def keys(self) -> dict[str, Any]:
        """The head and its size."""
        return {"head": "pairs", "head_rank": self.rank}

    def width(self, num_outputs: int) -> int:
        """2 + r numbers per score: s, e and :math:`|e|^2`."""
        return num_outputs * (2 + self.rank)

    def num_outputs(self, width: int) -> int:
        """C, of phi that has 2 + r numbers per output."""
        return width // (2 + self.rank)

    @property
    def extends_phi(self) -> bool:
        """True: the squared lengths of the vectors are added to phi."""
        return True

    def block_width(self, num_outputs: int) -> int:
        """1 + r numbers per score: s and e."""
        return num_outputs * (1 + self.rank)

    def phi(self, given: Array) -> Array:
        """From what the block gives, s and e, and the squared length of e."""
        outputs, shape = given.shape[-1] // (1 + self.rank), given.shape[:-1]
        embedded = given[..., outputs:].reshape(*shape, self.rank, outputs) * self.rank**-0.5
        parts = [given[..., :outputs], embedded.reshape(*shape, -1), (embedded**2).sum(axis=-2)]
        extended: Array = library_of(given).concatenate(parts, axis=-1)
        return extended

    def scores(self, total: Any) -> Any:
        """The linear part, and half of what the square of the sum has beyond the sum of squares."""
        linear, embedded, squares = self._parts(total)
        return linear + ((embedded**2).sum(axis=-2) - squares) / 2

    def pull_back(self, total: Array, slopes: Array) -> Array:
        """Through the products; a block's chain rule through its squares takes the silo's own part away again."""
        _, embedded, _ = self._parts(total)
        through = (slopes[..., None, :] * embedded).reshape(*total.shape[:-1], -1)
        gradient: Array = library_of(total).concatenate([slopes, through, -slopes / 2], axis=-1)
        return gradient

    def stand_in(self, phi: NDArray[Any]) -> NDArray[np.float64]:
        r"""The phi that gives every row the mean score over all rows of the missing silo.

        The mean of :math:`|e|^2` would take more away than the mean of e adds. So the last part is
        :math:`|\bar e|^2`, less what the silos have among themselves, if the phi is of several.
        """
        linear, embedded, squares = self._parts(np.asarray(phi, np.float64))
        mean = embedded.mean(axis=0)
        among = ((embedded**2).sum(axis=-2) - squares).mean(axis=0)
        return np.concatenate([linear.mean(axis=0), mean.reshape(-1), (mean**2).sum(axis=-2) - among])

    def excludes(self, variant: "Variant", num_silos: int) -> Iterator[tuple[str, str]]:
        """Noise on clipped phi: what is sent of e and of its squared length would not belong together."""
        if variant.is_private:
            yield "exchange", "it changes e and its squared length apart, and their difference would be noise squared"

    def _parts(self, total: Any) -> tuple[Any, Any, Any]:
        """``[..., C]``, ``[..., r, C]`` and ``[..., C]``."""
        outputs = self.num_outputs(total.shape[-1])
        embedded = total[..., outputs:-outputs].reshape(*total.shape[:-1], self.rank, outputs)
        return total[..., :outputs], embedded, total[..., -outputs:]
