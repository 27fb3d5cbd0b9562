"""Kernels of a layer with many channels in and out: forward, and slopes to its input and to its weights.

Rows of a product are pixels: those that one place of the kernel falls on, gathered from the images, times the weights
of that place. Many channels are cut into chunks: a program has one of what it makes, and goes through all of the rest.
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
    FEW_ROWS,
    Halves,
    Tile,
    activate,
    add_product,
    chunk_size,
    corners,
    divided,
    kinds_made,
    launch,
    num_chunks,
    numbers,
    over,
    own_chunk,
    parted,
    put,
    rows_of,
    stored,
)

FORWARD = {1: Tile(32, warps=4, stages=3), 2: Tile(32, warps=4, stages=2)}
"""Of pooled pixels, with four places each; by the halves of a number."""
BACK = Tile(128, warps=4, stages=2)
"""Of pixels, four of each image."""
WEIGHT = Tile(64, warps=4, stages=3)
"""Of pixels that are added up in one pass."""
MOST_SUMS = 1 << 14
"""Numbers that a program of the slopes to the weights adds up; with more, registers would not hold them."""


def forward(
    images: Halves,
    weight: Halves,
    bias: Array,
    factors: Array,
    count: Array,
    *,
    layer: Layer,
    last: bool,
    codes: bool,
    interpret: bool,
) -> list[tuple[Array, ...]]:
    """The layer's activations, and their codes if asked for.

    Args:
        images: ``[P * height * width, inputs]``.
        weight: ``[taps * inputs, outputs]``.
        bias: ``[outputs]``.
        factors: ``[2]``: what sums are multiplied by before the bias is added, and activations after it.
        count: ``[1]``, how many of the P images there are; of the others, the output is anything in float16, and
            finite in float32.

    Returns:
        ``[P * pixels, outputs]``, in halves or, of the ``last`` layer, one float32; and of that shape the codes, uint8.
    """
    size, tile = layer.rows * layer.pixels, FORWARD[len(images)].with_channels(layer)
    return launch(
        partial(_forward, layer=layer, size=tile.size),
        (images, weight, bias, factors, count),
        [((size, layer.outputs), kinds) for kinds in kinds_made(len(images), last=last, codes=codes)],
        grid=(pl.cdiv(size, tile.size), num_chunks(layer.outputs)),
        tile=tile,
        name="convolve",
        interpret=interpret,
    )


def _forward(
    images: Any, weight: Any, bias: Any, factors: Any, count: Any, values: Any, codes: Any, *, layer: Layer, size: int
) -> None:
    first, channel, width = pl.program_id(0) * size, own_chunk(layer.outputs, 1), chunk_size(layer.outputs)
    limit = count[0] * layer.pixels
    pixels = first + numbers(size)
    exists = over(pixels < layer.rows * layer.pixels, layer.outputs)

    @pl.when(first < limit)
    def _() -> None:
        # The four places of eight pixels are in rows that the same thread has sums of, so that it can compare them:
        # row = 2 size * lower + 16 * (pixel / 8) + 8 * right + pixel % 8.
        lower, rest = divided(numbers(4 * size), 2 * size)
        eighth, rest = divided(rest, 16)
        right, rest = divided(rest, 8)
        start = corners(jnp.minimum(first + 8 * eighth + rest, limit - 1), layer) + lower * layer.width + right

        def add_tap(number: Array, total: Array) -> Array:
            tap, source = tap_and_channel(number, layer.inputs)
            y, x = divided(tap, layer.kernel_width)
            tile = [plt.load(rows_of(half, start + y * layer.width + x, source)) for half in images]
            return add_product(total, tile, weights_of(weight, tap, source, channel, layer))

        products = layer.taps * num_chunks(layer.inputs)
        total = jax.lax.fori_loop(0, products, add_tap, jnp.zeros((4 * size, width), jnp.float32))
        largest, places = _largest_of_rows(total.reshape(2, size // 8, 2, 8, width))
        largest, places = (part.reshape(size, width) for part in (largest, places))
        active, chosen = activate(largest * (factors[0] * factors[1]), places, bias[pl.ds(channel, width)] * factors[1])
        put(values, pixels, channel, stored(active, values), exists)
        put(codes, pixels, channel, [chosen] * len(codes), exists)

    if values[0].dtype == jnp.float32:

        @pl.when(first >= limit)
        def _() -> None:
            put(values, pixels, channel, (jnp.zeros((size, width), jnp.float32),), exists)


def tap_and_channel(number: Array, channels: int) -> tuple[Array, Any]:
    """Place of the kernel and first channel of a chunk, of all that are added up: the chunks of a place in turn."""
    if (chunks := num_chunks(channels)) == 1:
        return number, 0
    tap, chunk = divided(number, chunks)
    return tap, chunk * chunk_size(channels)


def _largest_of_rows(sums: Array) -> tuple[Array, Array]:
    """The largest of the 2 x 2 places, axes 0 and 2 of ``sums``, and which of them it is: the first of equal ones."""
    largest_in_row, right = jnp.max(sums, axis=2), jnp.argmax(sums, axis=2)
    below = jnp.argmax(largest_in_row, axis=0)
    row = jnp.broadcast_to(numbers(2).reshape(2, 1, 1, 1), right.shape)
    chosen = jnp.where(row == jnp.broadcast_to(below[None], right.shape), right, 0)
    return jnp.max(largest_in_row, axis=0), 2 * below + jnp.sum(chosen, axis=0)


def input_slopes(
    slopes: Halves, weight: Halves, factor: Array, count: Array, *, layer: Layer, interpret: bool
) -> Halves:
    """The slopes to a layer's input.

    A program works on two by two pixels of many images, and only on the places of the kernel that reach them.

    Args:
        slopes: ``[P * 4 pixels, outputs]``: those to the layer's sums, before pooling.
        weight: as in :func:`forward`.
        factor: ``[1]``, of what it returns.

    Returns:
        ``[P * height * width, inputs]``; anything beyond ``count`` images.
    """
    blocks = pl.cdiv(layer.height, 2) * pl.cdiv(layer.width, 2)
    tile = (BACK if layer.rows >= FEW_ROWS else BACK._replace(size=BACK.size // 2)).with_channels(layer)
    (arriving,) = launch(
        partial(_input_slopes, layer=layer, size=tile.size),
        (slopes, weight, factor, count),
        [((layer.rows * layer.height * layer.width, layer.inputs), [jnp.float16] * len(slopes))],
        grid=(pl.cdiv(layer.rows, tile.size // 4), blocks, num_chunks(layer.inputs)),
        tile=tile,
        name="convolve_input_slopes",
        interpret=interpret,
    )
    return arriving


def _input_slopes(slopes: Any, weight: Any, factor: Any, count: Any, target: Any, *, layer: Layer, size: int) -> None:
    first, block = pl.program_id(0) * (size // 4), pl.program_id(1)
    channel = own_chunk(layer.inputs, 2)
    across = pl.cdiv(layer.width, 2)
    top, left = (2 * part for part in divided(block, across))
    height, width = (2 * side for side in layer.pooled)

    @pl.when(first < count[0])
    def _() -> None:
        image, y, x = parted(numbers(size), 2, 2)
        image, y, x = first + image, top + y, left + x
        here = jnp.minimum(image, count[0] - 1) * (height * width)
        above, before = jnp.maximum(0, top - height + 1), jnp.maximum(0, left - width + 1)
        rows = jnp.minimum(layer.kernel_height, top + 2) - above
        columns = jnp.minimum(layer.kernel_width, left + 2) - before

        def add_tap(number: Array, total: Array) -> Array:
            place, source = tap_and_channel(number, layer.outputs)
            down, right = divided(place, columns)
            down, right = above + down, before + right
            from_y, from_x = y - down, x - right
            reached = (from_y >= 0) & (from_y < height) & (from_x >= 0) & (from_x < width)
            at, reached = here + from_y * width + from_x, over(reached, layer.outputs)
            tile = [plt.load(rows_of(half, at, source), mask=reached, other=0.0) for half in slopes]
            tap = down * layer.kernel_width + right
            return add_product(total, tile, weights_of(weight, tap, channel, source, layer), turn_b=True)

        nothing = jnp.zeros((size, chunk_size(layer.inputs)), jnp.float32)
        total = jax.lax.fori_loop(0, rows * columns * num_chunks(layer.outputs), add_tap, nothing)
        exists = over((image < count[0]) & (y < layer.height) & (x < layer.width), layer.inputs)
        to = (image * layer.height + y) * layer.width + x
        put(target, to, channel, stored(total * factor[0], target), exists)


def weights_of(weight: Any, tap: Array, source: Any, target: Any, layer: Layer) -> list[Array]:
    """One place of the kernel, in halves: a chunk of inputs from ``source`` on, and one of outputs from ``target``."""
    inputs = pl.ds(tap * layer.inputs + source, chunk_size(layer.inputs))
    return [plt.load(half.at[inputs, pl.ds(target, chunk_size(layer.outputs))]) for half in weight]


def weight_slopes(images: Halves, slopes: Halves, count: Array, *, layer: Layer, interpret: bool) -> Array:
    """The slopes to a layer's weights, still scaled as its images and slopes are.

    A program adds up over all pixels, for one place of the kernel, or for all along its width.

    Args:
        images: as in :func:`forward`.
        slopes: as in :func:`input_slopes`.

    Returns:
        ``[taps * inputs, outputs]``.
    """
    sums = chunk_size(layer.inputs) * chunk_size(layer.outputs)
    along = layer.kernel_width if layer.kernel_width * sums <= MOST_SUMS else 1
    halved = len(images) == 2 and layer.rows >= FEW_ROWS
    tile = (WEIGHT._replace(size=WEIGHT.size // 2) if halved else WEIGHT).with_channels(layer)
    ((weight_sums,),) = launch(
        partial(_weight_slopes, layer=layer, along=along, size=tile.size),
        (images, slopes, count),
        [((layer.taps * layer.inputs, layer.outputs), [jnp.float32])],
        grid=(layer.taps // along, num_chunks(layer.inputs), num_chunks(layer.outputs)),
        tile=tile,
        name="convolve_weight_slopes",
        interpret=interpret,
    )
    return weight_sums


def _weight_slopes(images: Any, slopes: Any, count: Any, output: Any, *, layer: Layer, along: int, size: int) -> None:
    tap, source, target = pl.program_id(0) * along, own_chunk(layer.inputs, 1), own_chunk(layer.outputs, 2)
    down, right = divided(tap, layer.kernel_width)
    height, width = (2 * side for side in layer.pooled)
    limit = count[0] * (height * width)

    def add_pixels(number: Array, totals: tuple[Array, ...]) -> tuple[Array, ...]:
        pixel = number * size + numbers(size)
        exists = over(pixel < limit, layer.outputs)
        tile = [plt.load(rows_of(half, pixel, target), mask=exists, other=0.0) for half in slopes]
        image, y, x = parted(jnp.minimum(pixel, limit - 1), height, width)
        at = (image * layer.height + y + down) * layer.width + x + right
        return tuple(
            add_product(total, [plt.load(rows_of(half, at + shift, source)) for half in images], tile, turn_a=True)
            for shift, total in enumerate(totals)
        )

    inputs, outputs = chunk_size(layer.inputs), chunk_size(layer.outputs)
    nothing = jnp.zeros((inputs, outputs), jnp.float32)
    totals = jax.lax.fori_loop(0, pl.cdiv(limit, size), add_pixels, (nothing,) * along)
    for shift, total in enumerate(totals):
        place = pl.ds((tap + shift) * layer.inputs + source, inputs)
        plt.store(output[0].at[place, pl.ds(target, outputs)], total)
