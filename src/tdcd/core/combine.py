r"""From sums to scores: how the sum of the silos' phi becomes what the loss is of.

The paper's objective is :math:`f(\sum_j \Phi_j, y)`. With :class:`Sum`, the default, the sum is the score, and a model
is additive over silos: it cannot see that columns of two silos matter together. Heads do: see
:mod:`tdcd.core.family.heads`.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from tdcd.core.lazy import Array


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
        """As many numbers of phi as there are scores."""
        return num_outputs

    def num_outputs(self, width: int) -> int:
        """As many scores as phi has numbers."""
        return width

    def scores(self, total: Any) -> Any:
        """The sum."""
        return total

    def pull_back(self, total: Array, slopes: Array) -> Array:
        """The same."""
        return slopes


SUM = Sum()
