"""Kernels of a layer with many channels in and out: forward, and slopes to its input and to its weights.

Rows of a product are pixels: those that one place of the kernel falls on, gathered from the images, times the weights
of that place.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from tdcd.blocks.kernels.geometry import Layer
from tdcd.blocks.kernels.tiles import (
    Tile,
    activate,
    choose_largest,
    corners,
    divided,
    launch,
    multiply,
    numbers,
    over,
    parted,
    rows_of,
)

FORWARD = Tile(64, warps=4, stages=2)
"""Of pooled pixels, with four places each."""
BACK = Tile(128, warps=4, stages=3)
"""Of pixels, four of each image."""
WEIGHT = Tile(64, warps=4, stages=4)
"""Of pixels that are added up in one pass."""


def forward(
    images: Array,
    weight: Array,
    bias: Array,
    factors: Array,
    count: Array,
    *,
    layer: Layer,
    dtype: Any,
    codes: bool,
    interpret: bool,
) -> list[Array]:
    """The layer's activations, and their codes if asked for.

    Args:
        images: ``[P * height * width, inputs]``, float16.
        weight: ``[taps * inputs, outputs]``, float16.
        bias: ``[outputs]``.
        factors: ``[2]``: what sums are multiplied by before the bias is added, and activations after it.
        count: ``[1]``, how many of the P images there are; of the others, the output is anything in float16, and
            finite in float32.

    Returns:
        ``[P * pixels, outputs]`` of ``dtype``, and uint8 codes of that shape.
    """
    size = layer.rows * layer.pixels
    return launch(
        partial(_forward, layer=layer),
        (images, weight, bias, factors, count),
        [((size, layer.outputs), kind) for kind in (dtype, jnp.uint8)[: 1 + codes]],
        grid=(pl.cdiv(size, FORWARD.size),),
        tile=FORWARD,
        name="convolve",
        interpret=interpret,
    )


def _forward(
    images: Any, weight: Any, bias: Any, factors: Any, count: Any, values: Any, *codes: Any, layer: Layer
) -> None:
    first = pl.program_id(0) * FORWARD.size
    limit = count[0] * layer.pixels
    pixels = first + numbers(FORWARD.size)
    exists = over(pixels < layer.rows * layer.pixels, layer.outputs)

    @pl.when(first < limit)
    def _() -> None:
        start = corners(jnp.minimum(pixels, limit - 1), layer)

        def add_tap(tap: Array, sums: tuple[Array, ...]) -> tuple[Array, ...]:
            down, right = divided(tap, layer.kernel_width)
            here = start + down * layer.width + right
            factor = plt.load(weight.at[pl.ds(tap * layer.inputs, layer.inputs), :])
            places = (here, here + 1, here + layer.width, here + layer.width + 1)
            return tuple(
                total + multiply(plt.load(rows_of(images, place)), factor)
                for total, place in zip(sums, places, strict=True)
            )

        nothing = jnp.zeros((FORWARD.size, layer.outputs), jnp.float32)
        largest, places = choose_largest(jax.lax.fori_loop(0, layer.taps, add_tap, (nothing,) * 4))
        active, found = activate(largest * factors[0], places, bias[:])
        plt.store(rows_of(values, pixels), (active * factors[1]).astype(values.dtype), mask=exists)
        for code in codes:
            plt.store(rows_of(code, pixels), found, mask=exists)

    if values.dtype == jnp.float32:

        @pl.when(first >= limit)
        def _() -> None:
            plt.store(rows_of(values, pixels), jnp.zeros((FORWARD.size, layer.outputs), jnp.float32), mask=exists)


def input_slopes(slopes: Array, weight: Array, factor: Array, count: Array, *, layer: Layer, interpret: bool) -> Array:
    """The slopes to a layer's input.

    A program works on two by two pixels of many images, and only on the places of the kernel that reach them.

    Args:
        slopes: ``[P * 4 pixels, outputs]``, float16: those to the layer's sums, before pooling.
        weight: as in :func:`forward`.
        factor: ``[1]``, of what it returns.

    Returns:
        ``[P * height * width, inputs]``, float16; anything beyond ``count`` images.
    """
    blocks = pl.cdiv(layer.height, 2) * pl.cdiv(layer.width, 2)
    (found,) = launch(
        partial(_input_slopes, layer=layer),
        (slopes, weight, factor, count),
        [((layer.rows * layer.height * layer.width, layer.inputs), jnp.float16)],
        grid=(pl.cdiv(layer.rows, BACK.size // 4), blocks),
        tile=BACK,
        name="convolve_input_slopes",
        interpret=interpret,
    )
    return found


def _input_slopes(slopes: Any, weight: Any, factor: Any, count: Any, found: Any, *, layer: Layer) -> None:
    first, block = pl.program_id(0) * (BACK.size // 4), pl.program_id(1)
    across = pl.cdiv(layer.width, 2)
    top, left = (2 * part for part in divided(block, across))
    height, width = (2 * side for side in layer.pooled)

    @pl.when(first < count[0])
    def _() -> None:
        image, y, x = parted(numbers(BACK.size), 2, 2)
        image, y, x = first + image, top + y, left + x
        here = jnp.minimum(image, count[0] - 1) * (height * width)
        above, before = jnp.maximum(0, top - height + 1), jnp.maximum(0, left - width + 1)
        rows = jnp.minimum(layer.kernel_height, top + 2) - above
        columns = jnp.minimum(layer.kernel_width, left + 2) - before

        def add_tap(number: Array, total: Array) -> Array:
            down, right = divided(number, columns)
            down, right = above + down, before + right
            from_y, from_x = y - down, x - right
            reached = (from_y >= 0) & (from_y < height) & (from_x >= 0) & (from_x < width)
            tile = plt.load(
                rows_of(slopes, here + from_y * width + from_x), mask=over(reached, layer.outputs), other=0.0
            )
            tap = down * layer.kernel_width + right
            return total + multiply(tile, plt.load(weight.at[pl.ds(tap * layer.inputs, layer.inputs), :]), turn_b=True)

        nothing = jnp.zeros((BACK.size, layer.inputs), jnp.float32)
        total = jax.lax.fori_loop(0, rows * columns, add_tap, nothing)
        exists = over((image < count[0]) & (y < layer.height) & (x < layer.width), layer.inputs)
        to = (image * layer.height + y) * layer.width + x
        plt.store(rows_of(found, to), (total * factor[0]).astype(jnp.float16), mask=exists)


def weight_slopes(images: Array, slopes: Array, count: Array, *, layer: Layer, interpret: bool) -> Array:
    """The slopes to a layer's weights, still scaled as its images and slopes are.

    A program adds up over all pixels, for one place of the kernel.

    Args:
        images: as in :func:`forward`.
        slopes: as in :func:`input_slopes`.

    Returns:
        ``[taps * inputs, outputs]``.
    """
    (found,) = launch(
        partial(_weight_slopes, layer=layer),
        (images, slopes, count),
        [((layer.taps * layer.inputs, layer.outputs), jnp.float32)],
        grid=(layer.taps,),
        tile=WEIGHT,
        name="convolve_weight_slopes",
        interpret=interpret,
    )
    return found


def _weight_slopes(images: Any, slopes: Any, count: Any, found: Any, *, layer: Layer) -> None:
    tap = pl.program_id(0)
    down, right = divided(tap, layer.kernel_width)
    height, width = (2 * side for side in layer.pooled)
    limit = count[0] * (height * width)

    def add_pixels(number: Array, total: Array) -> Array:
        pixel = number * WEIGHT.size + numbers(WEIGHT.size)
        tile = plt.load(rows_of(slopes, pixel), mask=over(pixel < limit, layer.outputs), other=0.0)
        image, y, x = parted(jnp.minimum(pixel, limit - 1), height, width)
        at = (image * layer.height + y + down) * layer.width + x + right
        return total + multiply(plt.load(rows_of(images, at)), tile, turn_a=True)

    nothing = jnp.zeros((layer.inputs, layer.outputs), jnp.float32)
    total = jax.lax.fori_loop(0, pl.cdiv(limit, WEIGHT.size), add_pixels, nothing)
    plt.store(found.at[pl.ds(tap * layer.inputs, layer.inputs), :], total)
