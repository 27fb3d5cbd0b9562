r"""From sums to scores: how the sum of the silos' phi becomes what the loss is of.

The paper's objective is :math:`f(\sum_j \Phi_j, y)`. With :class:`Sum`, the default, the sum is the score, and a model
is additive over silos: it cannot see that columns of two silos matter together. Heads do: see
:mod:`tdcd.core.family.heads`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tdcd.core.lazy import Array

if TYPE_CHECKING:
    from tdcd.core.variant import Variant


class Combine(Protocol):
    """How the sum of all silos' phi, ``[..., W]``, becomes scores ``[..., C]``; for NumPy and JAX alike.

    One of your own inherits from this.
    """

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

    @property
    def extends_phi(self) -> bool:
        """Whether phi has more numbers than a block gives: see :meth:`phi`."""
        return False

    def block_width(self, num_outputs: int) -> int:
        """The numbers that a block gives for C scores: all of phi, unless :attr:`extends_phi`."""
        return self.width(num_outputs)

    def phi(self, given: Array) -> Array:
        """What a silo adds to the sum, ``[..., W]``, from what its block gives; row by row."""
        return given

    def scores(self, total: Any) -> Any:
        """``[..., C]`` scores of the silos' summed phi ``[..., W]``."""
        ...

    def pull_back(self, total: Array, slopes: Array) -> Array:
        """The derivative of a loss by the sum, ``[..., W]``, from that by the scores, ``[..., C]``."""
        ...

    def stand_in(self, phi: NDArray[Any]) -> NDArray[np.float64]:
        """What takes the place of a missing silo, ``[W]``, from its phi of the training rows ``[n, W]``: the mean."""
        mean: NDArray[np.float64] = phi.mean(axis=0, dtype=np.float64)
        return mean

    def excludes(self, variant: "Variant", num_silos: int) -> Iterator[tuple[str, str]]:
        """The parts of a variant that it does not go with, each with the reason."""
        yield from ()


@dataclass(frozen=True)
class Sum(Combine):
    """The sum is the score: Algorithm 1."""

    @property
    def is_additive(self) -> bool:
        """True: the sum of the silos' phi is the score."""
        return True

    @property
    def keys(self) -> dict[str, Any]:
        """No keys: it is the default."""
        return {}

    def width(self, num_outputs: int) -> int:
        """As many numbers of phi as there are scores."""
        return num_outputs

    def num_outputs(self, width: int) -> int:
        """As many scores as phi has numbers."""
        return width

    def scores(self, total: Any) -> Any:
        """The sum itself."""
        return total

    def pull_back(self, total: Array, slopes: Array) -> Array:
        """The slopes of the score are those of the sum."""
        return slopes


SUM = Sum()
