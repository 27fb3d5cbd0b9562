"""What kernels are made of: tiles of pixels, their products, and the program that a kernel is launched as.

Numbers are float16, one or the sum of two, times powers of two that bring them into its range without rounding.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from tdcd.blocks.kernels.geometry import Layer

Halves = tuple[Array, ...]
"""Numbers as float16: 11 bits of each, or two arrays whose sum they are, 22 bits."""
TOP, MOST = 15, 60
"""Scaled numbers stay below 2 ** ``TOP``; no scale is beyond 2 ** ``MOST``, so that two of them can be multiplied."""


def scale_for(bound: Array) -> Array:
    """The power of two that brings numbers up to ``bound`` below 2 ** TOP, which float16 still has.

    >>> scale_for(jnp.float32(3.0)), scale_for(jnp.float32(0.0)) == 2.0**MOST
    (Array(8192., dtype=float32), Array(True, dtype=bool))
    """
    # A float32's exponent is in its bits; one of b says that the number is below 2 ** (b - 126).
    exponent = jax.lax.bitcast_convert_type(bound.astype(jnp.float32), jnp.int32) >> 23
    return jax.lax.bitcast_convert_type(jnp.clip(127 + TOP + 126 - exponent, 1, 127 + MOST) << 23, jnp.float32)


def largest(array: Array) -> Array:
    """The largest magnitude."""
    return jnp.max(jnp.abs(array))


def halved(number: Array, halves: int) -> Halves:
    """A float32 as the nearest float16 and, with two halves, another for what that leaves out.

    >>> one, rest = halved(jnp.float32(1 + 2**-12), 2)
    >>> float(one), float(rest) == 2**-12
    (1.0, True)
    """
    if halves == 1:
        return (number.astype(jnp.float16),)
    # Rounded among its bits, since a compiler may take a cast and its way back for nothing.
    bits = jax.lax.bitcast_convert_type(number, jnp.int32)
    nearest = jax.lax.bitcast_convert_type((bits + (1 << 12)) & ~((1 << 13) - 1), jnp.float32)
    return nearest.astype(jnp.float16), (number - nearest).astype(jnp.float16)


def scaled(array: Array, scale: Array, halves: int) -> Halves:
    """Numbers times a scale, as float16."""
    return halved(array * scale, halves)


def reshaped(array: Halves, *shape: int) -> Halves:
    """Every half in another shape."""
    return tuple(half.reshape(*shape) for half in array)


OFF = 4
"""The code of a pixel whose activation is zero; below it, the code says which of 2 x 2 places was the largest."""


FEW_ROWS = 128
"""With fewer images than this, a client's work is cut smaller, so that all multiprocessors have some."""


MOST_CHANNELS = 128
"""Of a product; more of them are cut into chunks of as many."""


PRODUCTS = {1: ((0, 0),), 2: ((0, 1), (1, 0), (0, 0))}
"""Which halves of two factors are multiplied, by how many there are."""


class Tile(NamedTuple):
    """How a kernel's work is cut up."""

    size: int
    """Rows of the products of one program, or of one pass of its loop."""
    warps: int
    """A GPU's groups of 32 threads per program."""
    stages: int
    """How many passes of the loop are loaded ahead."""

    def with_channels(self, layer: Layer) -> "Tile":
        """Smaller for many channels, to fit into a multiprocessor's memory."""
        return self if max(layer.inputs, layer.outputs) <= 64 else Tile(self.size // 2, self.warps, 2)


def chunk_size(channels: int) -> int:
    """How many of a layer's channels a program works on."""
    return min(channels, MOST_CHANNELS)


def num_chunks(channels: int) -> int:
    """The number of chunks that it works on."""
    return channels // chunk_size(channels)


def own_chunk(channels: int, axis: int) -> Any:
    """The first channel of a program's chunk, which the grid's ``axis`` numbers."""
    return 0 if channels <= MOST_CHANNELS else pl.program_id(axis) * MOST_CHANNELS


def launch(
    kernel: Callable[..., None],
    arguments: Sequence[Any],
    made: Sequence[tuple[tuple[int, int], Sequence[Any]]],
    *,
    grid: tuple[int, ...],
    tile: Tile,
    name: str,
    interpret: bool,
) -> list[tuple[Array, ...]]:
    """What a kernel makes: groups of arrays of a shape, with these types."""
    call: Callable[..., list[tuple[Array, ...]]] = pl.pallas_call(
        kernel,
        out_shape=[
            tuple(jax.ShapeDtypeStruct(shape, kind) for kind in kinds)  # type: ignore[no-untyped-call]
            for shape, kinds in made
        ],
        grid=grid,
        compiler_params=plt.CompilerParams(num_warps=tile.warps, num_stages=tile.stages),
        interpret=interpret,
        name=name,
    )
    return call(*arguments)


def numbers(size: int) -> Array:
    """0, 1, 2 ... in 32 bits, whatever JAX's default is."""
    return jnp.arange(size, dtype=jnp.int32)


def divided(number: Array, by: int | Array) -> tuple[Array, Array]:
    """Quotient and remainder of numbers that are not negative; ``//`` and ``%`` would take more instructions."""
    divisor = jnp.full_like(number, by)
    return jax.lax.div(number, divisor), jax.lax.rem(number, divisor)


def parted(pixel: Array, height: int, width: int) -> tuple[Array, Array, Array]:
    """Image, row and column of pixels that are numbered through."""
    row, x = divided(pixel, width)
    image, y = divided(row, height)
    return image, y, x


def corners(pixel: Array, layer: Layer) -> Array:
    """For pooled pixels of all images, the first input of each one's window, as a number among all pixels."""
    image, y, x = parted(pixel, *layer.pooled)
    return (image * layer.height + 2 * y) * layer.width + 2 * x


def add_product(
    total: Array, a: Sequence[Array], b: Sequence[Array], *, turn_a: bool = False, turn_b: bool = False
) -> Array:
    """A total and the product of two matrices, each in as many halves.

    The product of both second halves is left out: it is 2 ** -22 of the whole, no more than halves leave out anyway.
    The sum of the others is a number of its own before it is added, since tensor cores do not round what they add up,
    but cut it off.
    """
    products = (multiply(a[half], b[other], turn_a=turn_a, turn_b=turn_b) for half, other in PRODUCTS[len(a)])
    return total + reduce(add, products)


def multiply(a: Array, b: Array, *, turn_a: bool = False, turn_b: bool = False) -> Array:
    """A product of float16 matrices in float32; ``turn_a`` and ``turn_b`` transpose a factor first."""
    # Named, since the precision of a run is not that of a kernel.
    product: Array = plt.dot(a, b, trans_a=turn_a, trans_b=turn_b, precision=jax.lax.Precision.DEFAULT)
    return product


def choose_largest(four: tuple[Array, Array, Array, Array]) -> tuple[Array, Array]:
    """The largest of the 2 x 2 places, given row by row, and which of them it is: the first of equal ones."""
    pairs = []
    for first, second in (four[:2], four[2:]):
        is_second = ~(first >= second)
        pairs.append((jnp.where(is_second, second, first), is_second.astype(jnp.int32)))
    (upper, right), (lower, lower_right) = pairs
    below = ~(upper >= lower)
    return jnp.where(below, lower, upper), jnp.where(below, 2 + lower_right, right)


def activate(largest: Array, places: Array, bias: Array) -> tuple[Array, Array]:
    """The activation, and its code, from the scaled back ``largest`` ``[n, C]``; not a number stays not a number."""
    shifted = largest + bias[None, :]
    off = shifted <= 0
    return jnp.where(off, 0.0, shifted), jnp.where(off, OFF, places).astype(jnp.uint8)


def kinds_made(halves: int, *, last: bool, codes: bool) -> list[list[Any]]:
    """Types of what a forward pass makes: activations and codes."""
    return [[jnp.float32] if last else [jnp.float16] * halves, [jnp.uint8] * codes]


def stored(number: Array, arrays: Sequence[Any]) -> Halves:
    """Float32 as these arrays hold it: one as it is, or halves."""
    return (number,) if arrays[0].dtype == jnp.float32 else halved(number, len(arrays))


def rows_of(array: Any, rows: Array, channel: Any) -> Any:
    """Where some rows ``[n]`` of an array ``[rows, channels]`` are, as ``[n, C]``: a chunk from ``channel`` on."""
    shape = (len(rows), chunk_size(array.shape[1]))
    channels = channel + numbers(shape[1])
    return array.at[jnp.broadcast_to(rows[:, None], shape), jnp.broadcast_to(channels[None, :], shape)]


def over(mask: Array, channels: int) -> Array:
    """A mask of pixels for a chunk of their channels."""
    return jnp.broadcast_to(mask[:, None], (len(mask), chunk_size(channels)))


def put(arrays: Sequence[Any], rows: Array, channel: Any, parts: Sequence[Array], mask: Array) -> None:
    """Store the parts ``[n, C]`` in these rows of one array each, from ``channel`` on."""
    for array, part in zip(arrays, parts, strict=True):
        plt.store(rows_of(array, rows, channel), part, mask=mask)
