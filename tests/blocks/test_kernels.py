"""The kernels' numbers are those of plain convolutions; on a CPU they are interpreted.

With whole numbers, no factor or sum is rounded: results are equal to the last bit, also where places are equally large.
"""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tdcd.blocks import Cnn
from tdcd.blocks.convolution import pool
from tdcd.blocks.kernels.geometry import halves_for, layers_of
from tdcd.blocks.kernels.stack import convolve_layers
from tdcd.blocks.kernels.tiles import scale_for

ROWS, COUNTS = 5, (3, 5)
SHAPE = (11, 12)
"""An odd side, of which pooling drops a row."""


def plainly(layers, images, _):
    """Every tap's product added up, as a convolution is defined."""
    for layer in layers:
        weight = layer["weight"]
        height, width = images.shape[1] - weight.shape[0] + 1, images.shape[2] - weight.shape[1] + 1
        taps = [(y, x) for y in range(weight.shape[0]) for x in range(weight.shape[1])]
        summed = sum(images[:, y : y + height, x : x + width] @ weight[y, x] for y, x in taps)
        images = jax.nn.relu(pool(summed) + layer["bias"])
    return images


@cache
def program(halves):
    """The outputs of two clients, and the slopes of a weighted sum of those of their real rows."""
    convolve = partial(convolve_layers, halves=halves, interpret=True) if halves else plainly

    def one(layers, images, count, towards):
        real = (jnp.arange(ROWS) < count)[:, None, None, None]

        def total(layers):
            active = convolve(layers, images, count)
            return jnp.sum(jnp.where(real, active * towards, 0)), active

        slopes, active = jax.grad(total, has_aux=True)(layers)
        return active, slopes

    return jax.jit(jax.vmap(one))


@pytest.mark.parametrize("halves", [1, 2])
@pytest.mark.parametrize(("power", "channels"), [(0, (16, 32)), (-20, (16, 32)), (0, (256, 512))])
def test_kernels_give_the_plain_numbers(power, channels, halves):
    """Also where float16 alone would have nothing left of them, and where channels are cut into chunks."""
    rng, scale, (first, last) = np.random.default_rng(0), 2.0**power, channels

    def whole(most, shape):
        return rng.integers(-most, most + 1, (2, *shape)).astype(np.float32)

    layers = [
        {"weight": scale * whole(3, (3, 3, 1, first)), "bias": scale * whole(2, (first,))},
        {"weight": scale * whole(1, (3, 3, first, last)), "bias": scale**2 * whole(2, (last,))},
    ]
    problem = layers, abs(whole(3, (ROWS, *SHAPE, 1))), np.array(COUNTS, np.int32), whole(3, (ROWS, 1, 1, last))
    found, slopes = program(halves)(*problem)
    expected, plain_slopes = program(0)(*problem)
    assert np.isfinite(found).all()
    for client, count in enumerate(COUNTS):
        np.testing.assert_array_equal(found[client, :count], expected[client, :count])
    assert all(np.any(leaf) for leaf in jax.tree.leaves(plain_slopes))
    jax.tree.map(np.testing.assert_array_equal, slopes, plain_slopes)


def errors_of(layers, halves, rng):
    """Of outputs and slopes, for images and slopes that are drawn, next to those in float64."""
    images = rng.standard_normal((2, ROWS, *SHAPE, 1)).astype(np.float32)
    towards = rng.standard_normal((2, ROWS, 1, 1, layers[-1]["bias"].shape[1])).astype(np.float32)
    problem = layers, images, np.full(2, ROWS, np.int32), towards
    with jax.enable_x64(True):
        exact = jax.device_get(program(0)(*jax.tree.map(lambda part: part.astype(np.float64), problem)))
    found = jax.device_get(program(halves)(*problem))
    both = zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True)
    return [np.linalg.norm(one - wanted) / np.linalg.norm(wanted) for one, wanted in both]


def drawn(rng, *shapes):
    """Layers of two clients."""
    weights = [rng.standard_normal((2, *shape)).astype(np.float32) for shape in shapes]
    return [{"weight": one, "bias": rng.standard_normal((2, one.shape[-1])).astype(np.float32)} for one in weights]


def test_two_halves_are_as_exact_as_float32():
    """Rounding float32 numbers and sums leaves errors of this size, and one float16 errors a thousand times larger."""
    rng = np.random.default_rng(1)
    layers = drawn(rng, (3, 3, 1, 16), (3, 3, 16, 32))
    assert max(errors_of(layers, 2, rng)) < 5e-7
    assert min(errors_of(layers, 1, rng)) > 1e-4


def test_so_they_are_after_layers_with_a_large_weight():
    """Most sums of such a layer are far below what they would be if all of its weights were as large."""
    rng = np.random.default_rng(1)
    layers = drawn(rng, (1, 1, 1, 64), (1, 1, 64, 64), (1, 1, 64, 64))
    for channel, layer in enumerate(layers[1:]):
        layer["weight"][:, 0, 0, channel, channel] = 1000
    assert max(errors_of(layers, 2, rng)) < 5e-7


@pytest.mark.parametrize("bound", [0.0, 1e-30, 1.0, 65504.0, 1e30, np.inf])
def test_scaled_numbers_fit_into_float16(bound):
    scale = np.float32(scale_for(jnp.float32(bound)))
    assert np.log2(scale) % 1 == 0
    if np.isfinite(bound):
        assert np.isfinite(np.float16(np.float32(bound) * scale))


def test_a_cpu_keeps_to_plain_convolutions():
    block = jax.eval_shape(lambda: Cnn((16, 16), kernel=(3, 3), embedding=8).init(jax.random.key(0), SHAPE, 2))
    assert not halves_for(layers_of(block["convolutions"], np.zeros((2, *SHAPE, 1))), "float32")
