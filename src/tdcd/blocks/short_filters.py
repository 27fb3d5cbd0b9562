"""Short filters by the method of Cook and Toom: outputs of a filter from fewer products than outputs times taps.

Two polynomials with m and r coefficients are multiplied by their values at m + r - 1 points. Filtering is the transpose
of that (Winograd, "Arithmetic complexity of computations", 1980), so m outputs of r taps take m + r - 1 products, not
m r, and some sums.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Matrix = tuple[tuple[float, ...], ...]
"""Rows of numbers: unlike an array, it can be part of the key of a compiled program."""

POINTS = (0.0, 1.0, -1.0, 2.0, -2.0)
"""Where polynomials are evaluated, besides infinity: with these, float32 rounds about twice as much as sums of products
do; with more points it would round far more."""


class ShortFilter(NamedTuple):
    r"""A filter w that slides along a row x is y = outputs ((taps w) * (inputs x)).

    A row is cut into T tiles of m outputs each. Each of the n = m + r - 1 products is one of all tiles.
    """

    taps: Matrix
    """``[n, r]``."""
    inputs: Matrix
    """``[n T, width]``."""
    outputs: Matrix
    """``[width - r + 1, n T]``."""


@lru_cache
def short_filter(width: int, taps: int) -> ShortFilter | None:
    """The fewest products for a row of this width; None if that is no fewer than outputs times taps.

    >>> found = short_filter(6, 3)
    >>> len(found.taps), len(found.outputs)
    (6, 4)
    """
    places = width - taps + 1
    sizes = range(1, max(1, len(POINTS) + 2 - taps) + 1)
    size = min(sizes, key=lambda size: -(-places // size) * (size + taps - 1))
    if size == 1:
        return None
    tiles, products = -(-places // size), size + taps - 1
    inputs = np.zeros((products, tiles, tiles * size + taps - 1))
    outputs = np.zeros((tiles * size, products, tiles))
    for tile in range(tiles):
        begin = tile * size
        inputs[:, tile, begin : begin + products] = np.linalg.inv(_values(products, products)).T
        outputs[begin : begin + size, :, tile] = _values(products, size).T
    return ShortFilter(
        _rows(_values(products, taps)),
        _rows(inputs.reshape(products * tiles, -1)[:, :width]),
        _rows(outputs.reshape(tiles * size, -1)[:places]),
    )


def _values(points: int, coefficients: int) -> NDArray[np.float64]:
    """The matrix from a polynomial's coefficients to its values, the last of them at infinity."""
    values = np.vander(POINTS[: points - 1], coefficients, increasing=True)
    return np.vstack([values, np.eye(coefficients)[-1]])


def _rows(matrix: NDArray[np.float64]) -> Matrix:
    # Inverting leaves rounding where there should be nothing to add.
    return tuple(tuple(row) for row in np.where(abs(matrix) < 1e-12, 0, matrix).tolist())
