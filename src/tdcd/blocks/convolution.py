"""Convolution and pooling as matrix products and elementwise steps, fast even if each client has its own weights.

Short filters go by the method of Cook and Toom: outputs of a filter from fewer products than outputs times taps. Two
polynomials with m and r coefficients are multiplied by their values at m + r - 1 points. Filtering is the transpose of
that (Winograd, "Arithmetic complexity of computations", 1980), so m outputs of r taps take m + r - 1 products, not m r,
and some sums.
"""

from functools import lru_cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from tdcd.core.objective import Tree

FilterMatrix = tuple[tuple[float, ...], ...]
"""Rows of numbers: unlike an array, it can be part of the key of a compiled program."""

POINTS = (0.0, 1.0, -1.0, 2.0, -2.0)
"""Where polynomials are evaluated, besides infinity: with these, float32 rounds about twice as much as sums of products
do; with more points it would round far more."""


class ShortFilter(NamedTuple):
    r"""A filter w that slides along a row x is y = outputs ((taps w) * (inputs x)).

    A row is cut into T tiles of m outputs each. Each of the n = m + r - 1 products is one of all tiles.
    """

    taps: FilterMatrix
    """``[n, r]``."""
    inputs: FilterMatrix
    """``[n T, width]``."""
    outputs: FilterMatrix
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


def _rows(matrix: NDArray[np.float64]) -> FilterMatrix:
    # Inverting leaves rounding where there should be nothing to add.
    return tuple(tuple(row) for row in np.where(abs(matrix) < 1e-12, 0, matrix).tolist())


def plain_layers(convolutions: list[Tree], images: Array) -> Array:
    """Convolutions, each with pooling, bias and ReLU, by operations that every processor has.

    Args:
        convolutions: of each layer ``weight`` ``[height, width, inputs, outputs]`` and ``bias`` ``[outputs]``.
        images: ``[P, height, width, channels]``.
    """
    for layer in convolutions:
        images = jax.nn.relu(pool(convolve(images, layer["weight"])) + layer["bias"])
    return images


def convolve(images: Array, weight: Array) -> Array:
    """Convolution as products of unfolded images with the weights.

    Every client has its own weights. Mapped over clients these are batched matrix products, whereas
    ``lax.conv_general_dilated`` becomes a grouped convolution, which is several times slower.
    """
    kernel_width, outputs, width = weight.shape[1], weight.shape[3], images.shape[2]
    places, patch = width - kernel_width + 1, weight.size // outputs
    if jax.default_backend() == "cpu":
        if patch <= _FEW_INPUTS_ON_CPU:
            return _convolve_rows(images, weight, min(places, max(1, _MANY_OUTPUTS // outputs)))
        short = short_filter(width, kernel_width)
        return _convolve_strips(images, weight) if short is None else _convolve_short(images, weight, short)
    # Repeated weights are more arithmetic for less memory traffic. Only products in TF32 or bfloat16 are that cheap.
    exact = jax.config.jax_default_matmul_precision == "float32"  # type: ignore[attr-defined]
    if not exact and weight.size // kernel_width * width * places <= _FEW_WEIGHTS:
        return _convolve_rows(images, weight, places)
    return (_convolve_patches if patch <= _FEW_INPUTS else _convolve_strips)(images, weight)


_FEW_INPUTS, _FEW_INPUTS_ON_CPU = 1 << 10, 1 << 6
"""Up to this many numbers per patch, unfolding whole patches is cheap."""
_FEW_WEIGHTS = 1 << 20
"""Up to this many numbers, weights may be repeated for every place along an image's row."""
_MANY_OUTPUTS = 32
"""Products with narrower matrices leave a CPU idle."""


def _convolve_rows(images: Array, weight: Array, at_once: int) -> Array:
    """Some places along a row at a time, times a matrix with the weights once for each of them.

    The more at once, the more of that matrix are zeros, but the less is unfolded and the wider the products are.
    """
    kernel_height, kernel_width, inputs, outputs = weight.shape
    places, wide = images.shape[2] - kernel_width + 1, at_once + kernel_width - 1
    tiles = -(-places // at_once)
    images = jnp.pad(images, [(0, 0), (0, 0), (0, tiles * at_once - places), (0, 0)])
    tiled = jnp.stack([images[:, :, i : i + wide] for i in range(0, tiles * at_once, at_once)], axis=2)
    # Products of rows that are a multiple of 16 bytes long are several times faster.
    spare = -kernel_height * wide * inputs % 4
    unfolded = _unfold(tiled.reshape(*tiled.shape[:3], -1), kernel_height, axis=1, spare=spare)
    shifted = [jnp.pad(weight, [(0, 0), (i, at_once - 1 - i), (0, 0), (0, 0)]) for i in range(at_once)]
    repeated = jnp.stack(shifted, axis=3).reshape(-1, at_once * outputs)
    rows = _product(unfolded, jnp.pad(repeated, [(0, spare), (0, 0)]))
    return rows.reshape(*rows.shape[:2], -1, outputs)[:, :, :places]


def _convolve_patches(images: Array, weight: Array) -> Array:
    """A patch for every place, as one product."""
    return _product(_unfold(_unfold(images, weight.shape[1], axis=2), weight.shape[0], axis=1), weight)


def _convolve_strips(images: Array, weight: Array) -> Array:
    """Patches as high as a pixel; the products of the kernel's rows are added up, which takes less memory."""
    height = images.shape[1] - len(weight) + 1
    unfolded = _unfold(images, weight.shape[1], axis=2)
    by_row = [_product(unfolded[:, i : i + height], row) for i, row in enumerate(weight)]
    return sum(by_row[1:], start=by_row[0])


def _convolve_short(images: Array, weight: Array, short: ShortFilter) -> Array:
    """Short filters along the width: half the products, for a kernel three wide.

    They round more than sums of products do, which is too much with an accelerator's short factors.
    """
    kernel_height, kernel_width, inputs, outputs = weight.shape
    unfolded = _unfold(_combine(short.inputs, images, 2, 0), kernel_height, axis=2)
    weights = _combine(short.taps, weight, 1, 0).reshape(len(short.taps), kernel_height * inputs, outputs)
    products = unfolded.reshape(len(weights), -1, weights.shape[1]) @ weights
    convolved = _combine(short.outputs, products.reshape(*unfolded.shape[:-1], outputs), 0, 2)
    # For a blank patch, sums of products are zero, where a ReLU has no slope. This matters, since biases start at zero.
    inked = jnp.any(images != 0, axis=-1, keepdims=True)
    inked = jnp.any(_unfold(_unfold(inked, kernel_width, axis=2), kernel_height, axis=1), axis=-1, keepdims=True)
    return convolved - jax.lax.stop_gradient(jnp.where(inked, 0, convolved))


@partial(jax.custom_vjp, nondiff_argnums=(0, 2, 3))
def _combine(matrix: FilterMatrix, array: Array, axis: int, to: int) -> Array:
    """The matrix times one axis of an array, which becomes axis ``to``.

    A compiler turns a product with so few numbers into sums only if asked to, and copies if it has to transpose it.
    """
    parts = [jax.lax.index_in_dim(array, index, axis, keepdims=False) for index in range(array.shape[axis])]
    nothing = jnp.zeros_like(parts[0])
    sums = [sum((n * part for n, part in zip(row, parts, strict=True) if n), start=nothing) for row in matrix]
    return jnp.stack(sums, axis=to)


def _combine_and_forget(matrix: FilterMatrix, array: Array, axis: int, to: int) -> tuple[Array, None]:
    return _combine(matrix, array, axis, to), None


def _combine_back(matrix: FilterMatrix, axis: int, to: int, _: None, slopes: Array) -> tuple[Array]:
    return (_combine(tuple(zip(*matrix, strict=True)), slopes, to, axis),)


_combine.defvjp(_combine_and_forget, _combine_back)


def _product(images: Array, weight: Array) -> Array:
    """Every pixel's channels times the weights, as one product of two matrices."""
    outputs = weight.shape[-1]
    flat = images.reshape(-1, images.shape[-1]) @ weight.reshape(-1, outputs)
    return flat.reshape(*images.shape[:-1], outputs)


def _unfold(images: Array, size: int, axis: int, spare: int = 0) -> Array:
    """``size`` neighbours along ``axis`` side by side as channels, and ``spare`` zeros."""
    length = images.shape[axis] - size + 1
    shifted = [jax.lax.slice_in_dim(images, i, i + length, axis=axis) for i in range(size)]
    return jnp.concatenate([*shifted, jnp.zeros((*shifted[0].shape[:-1], spare), images.dtype)], axis=-1)


def pool(images: Array) -> Array:
    """The largest of every 2 x 2 pixels; its gradient goes to the first of equal ones."""
    return _pool_even(images[:, : images.shape[1] // 2 * 2, : images.shape[2] // 2 * 2])


@jax.custom_vjp
def _pool_even(images: Array) -> Array:
    return _largest(images)[0]


def _largest(images: Array) -> tuple[Array, Array]:
    """The largest of every 2 x 2 pixels, and which of the four it is, row by row."""
    top, bottom = images[:, ::2], images[:, 1::2]
    (upper, right), (lower, lower_right) = (_larger(half[:, :, ::2], half[:, :, 1::2]) for half in (top, bottom))
    largest, below = _larger(upper, lower)
    return largest, jnp.where(below, 2 + lower_right.astype(jnp.uint8), right.astype(jnp.uint8))


def _larger(first: Array, second: Array) -> tuple[Array, Array]:
    """The larger one, and whether it is the second."""
    is_second = ~(first >= second)
    return jnp.where(is_second, second, first), is_second


def _spread(chosen: Array, slopes: Array) -> tuple[Array]:
    """Each of ``slopes`` at its chosen pixel: a quarter of the memory that looking for the largest again would take."""
    rows, height, width, channels = slopes.shape
    pixels = jnp.arange(4, dtype=chosen.dtype).reshape(2, 1, 2, 1)
    spread = jnp.where(chosen[:, :, None, :, None] == pixels, slopes[:, :, None, :, None], 0)
    return (spread.reshape(rows, 2 * height, 2 * width, channels),)


_pool_even.defvjp(_largest, _spread)
