"""Kernels of a first layer with one channel in: forward, and slopes to its weights.

A row of a product is the whole window of a pooled pixel: all inputs of its 2 x 2 places. The weights are shifted to
each of these places in advance, with zeros around them.
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
    choose_largest,
    chunk_size,
    corners,
    divided,
    kinds_made,
    launch,
    num_chunks,
    numbers,
    over,
    own_chunk,
    put,
    rows_of,
    stored,
)

FORWARD = Tile(64, warps=4, stages=1)
"""Of pooled pixels. A program works on several tiles, and loads one while it computes another; so in ``WEIGHT``."""
TILES = 8
"""Tiles of a program."""
WEIGHT = Tile(32, warps=4, stages=1)
"""Of pooled pixels."""
PARTS = 8
"""Programs of a client over which its tiles are spread in the slopes to the weights."""
FEW_SUMS = 1 << 11
"""With more numbers in a window's product with the weights, twice as many threads hold the sums."""


def window_size(layer: Layer) -> int:
    """Columns of a window: its inputs, a one for the bias, and zeros up to a power of two."""
    return max(16, pl.next_power_of_2(layer.window + 1))


def enough_warps(tile: Tile, layer: Layer) -> Tile:
    """The tile with threads for all sums."""
    return tile if window_size(layer) * chunk_size(layer.outputs) <= FEW_SUMS else tile._replace(warps=2 * tile.warps)


def shifted(weight: Halves, layer: Layer) -> Halves:
    """``[4 * window, outputs]``: the weights ``[height, width, 1, outputs]`` at each of the 2 x 2 places."""
    return tuple(_shifted(half, layer) for half in weight)


def _shifted(weight: Array, layer: Layer) -> Array:
    places = [(0, 0), (0, 1), (1, 0), (1, 1)]
    room = [jnp.pad(weight[:, :, 0], [(y, 1 - y), (x, 1 - x), (0, 0)]) for y, x in places]
    flat = jnp.stack(room).reshape(4, -1, layer.outputs)
    return jnp.pad(flat, [(0, 0), (0, window_size(layer) - flat.shape[1]), (0, 0)]).reshape(-1, layer.outputs)


def shifted_back(slopes: Array, layer: Layer) -> tuple[Array, Array]:
    """The slopes to weights and bias, from those ``[parts, 4, window, outputs]`` to the :func:`shifted` ones."""
    height, width = layer.kernel_height, layer.kernel_width
    places = slopes.sum(axis=0)
    windows = places[:, : layer.window].reshape(2, 2, height + 1, width + 1, layer.outputs)
    weight = sum(windows[y, x, y : y + height, x : x + width] for y in (0, 1) for x in (0, 1))
    return jnp.asarray(weight)[:, :, None], places[:, layer.window].sum(axis=0)


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
    """The layer's activations, and their codes if asked for; as :func:`tdcd.blocks.kernels.later.forward`.

    Args:
        images: ``[P * height * width]``.
        weight: ``[4 * window, outputs]``, :func:`shifted`.
    """
    size, tiles = layer.rows * layer.pixels, TILES if layer.rows >= FEW_ROWS else TILES // 2
    return launch(
        partial(_forward, layer=layer, tiles=tiles),
        (images, weight, bias, factors, count),
        [((size, layer.outputs), kinds) for kinds in kinds_made(len(images), last=last, codes=codes)],
        grid=(pl.cdiv(size, FORWARD.size * tiles), num_chunks(layer.outputs)),
        tile=enough_warps(FORWARD, layer),
        name="convolve_first",
        interpret=interpret,
    )


def _windows(images: Any, pixels: Array, layer: Layer) -> Halves:
    """``[pixels, window]``: the inputs of every pixel's four places, a one, and zeros."""
    column = numbers(window_size(layer))
    down, right = divided(column, layer.kernel_width + 1)
    at = corners(pixels, layer)[:, None] + (down * layer.width + right)[None, :]
    inside = jnp.broadcast_to((column < layer.window)[None, :], at.shape)
    loaded, *rest = (plt.load(half.at[at], mask=inside, other=0.0) for half in images)
    is_bias = jnp.broadcast_to((column == layer.window)[None, :], at.shape)
    return jnp.where(is_bias, jnp.ones_like(loaded), loaded), *rest


def _forward(
    images: Any, weight: Any, bias: Any, factors: Any, count: Any, values: Any, codes: Any, *, layer: Layer, tiles: int
) -> None:
    first, size = pl.program_id(0) * tiles, window_size(layer)
    channel, width = own_chunk(layer.outputs, 1), chunk_size(layer.outputs)
    limit = count[0] * layer.pixels

    def load(number: Array) -> Halves:
        return _windows(images, jnp.minimum(number * FORWARD.size + numbers(FORWARD.size), limit - 1), layer)

    def put_tile(number: Array, arrays: Any, parts: Any) -> None:
        pixels = number * FORWARD.size + numbers(FORWARD.size)
        put(arrays, pixels, channel, parts, over(pixels < layer.rows * layer.pixels, layer.outputs))

    @pl.when(first * FORWARD.size < limit)
    def _() -> None:
        its = pl.ds(channel, width)
        shifts = [[plt.load(half.at[pl.ds(place * size, size), its]) for half in weight] for place in range(4)]
        nothing = jnp.zeros((FORWARD.size, width), jnp.float32)
        factor, shift = factors[0] * factors[1], bias[its] * factors[1]

        def work(number: Array, windows: Halves) -> Halves:
            following = load(number + 1)
            a, b, c, d = (add_product(nothing, windows, shifted) for shifted in shifts)
            largest, places = choose_largest((a, b, c, d))
            active, chosen = activate(largest * factor, places, shift)
            put_tile(number, values, stored(active, values))
            put_tile(number, codes, [chosen] * len(codes))
            return following

        last = jnp.minimum(first + tiles, pl.cdiv(limit, FORWARD.size))
        jax.lax.fori_loop(first, last, work, load(first))

    if values[0].dtype == jnp.float32:

        def clear(number: Array, _: Array) -> Array:
            put_tile(number, values, (jnp.zeros((FORWARD.size, width), jnp.float32),))
            return _

        begin = jnp.maximum(first, pl.cdiv(limit, FORWARD.size))
        jax.lax.fori_loop(begin, first + tiles, clear, jnp.int32(0))


def weight_slopes(
    images: Halves, slopes: Halves, codes: Array, count: Array, *, layer: Layer, interpret: bool
) -> Array:
    """The slopes to the :func:`shifted` weights, still scaled as images and slopes are.

    Args:
        images: as in :func:`forward`.
        slopes: ``[P * pixels, outputs]``: those to the layer's activations.
        codes: of that shape, from :func:`forward`.

    Returns:
        ``[parts, 4, window, outputs]``: sums over a part of the pixels each. The row after the inputs is the bias's.
    """
    size = window_size(layer)
    ((sums,),) = launch(
        partial(_weight_slopes, layer=layer),
        (images, slopes, codes, count),
        [((PARTS * 4 * size, layer.outputs), [jnp.float32])],
        grid=(PARTS, num_chunks(layer.outputs)),
        tile=enough_warps(WEIGHT, layer),
        name="convolve_first_weight_slopes",
        interpret=interpret,
    )
    return sums.reshape(PARTS, 4, size, layer.outputs)


def _weight_slopes(images: Any, slopes: Any, codes: Any, count: Any, target: Any, *, layer: Layer) -> None:
    part, size = pl.program_id(0), window_size(layer)
    channel, width = own_chunk(layer.outputs, 1), chunk_size(layer.outputs)
    limit = count[0] * layer.pixels
    tiles = pl.cdiv(limit, WEIGHT.size)
    each = pl.cdiv(tiles, PARTS)

    def load(number: Array) -> tuple[Halves, Array, Halves]:
        pixels = number * WEIGHT.size + numbers(WEIGHT.size)
        exists = over(pixels < limit, layer.outputs)
        slope = tuple(plt.load(rows_of(half, pixels, channel), mask=exists, other=0.0) for half in slopes)
        code = plt.load(rows_of(codes, pixels, channel), mask=exists, other=0)
        return slope, code, _windows(images, jnp.minimum(pixels, jnp.maximum(limit - 1, 0)), layer)

    def add_pixels(number: Array, loaded_and_sums: Any) -> Any:
        (slope, code, windows), sums = loaded_and_sums
        following, code, nothing = load(number + 1), code.astype(jnp.int32), jnp.zeros_like(slope[0])
        return following, tuple(
            add_product(total, [jnp.where(code == place, half, nothing) for half in slope], windows, turn_a=True)
            for place, total in enumerate(sums)
        )

    first, nothing = part * each, jnp.zeros((width, size), jnp.float32)
    last = jnp.minimum(first + each, tiles)
    _, sums = jax.lax.fori_loop(first, last, add_pixels, (load(first), (nothing,) * 4))
    for place, total in enumerate(sums):
        plt.store(target[0].at[pl.ds((part * 4 + place) * size, size), pl.ds(channel, width)], total.T)
