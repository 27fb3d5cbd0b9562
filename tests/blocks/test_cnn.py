"""The convolutional block against XLA's own convolution and pooling, in float64."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support import oracle
from tdcd.blocks import Cnn
from tdcd.blocks.convolution import _convolve_patches, _convolve_rows, _convolve_short, _convolve_strips, short_filter
from tdcd.core.objective import Objective
from tdcd.core.settings import Settings
from tdcd.federation.partition import shuffled_rows
from tdcd.federation.silos import Federation, Silo
from tdcd.simulation.simulate import Simulation

SMALL = Cnn(channels=(2, 3), kernel=(3, 2), embedding=5)
CASES = [
    (SMALL, (12, 8)),
    (Cnn(channels=(3, 4), kernel=(3, 3), embedding=5), (11, 10, 2)),
    (Cnn(channels=(3,), kernel=(2, 5), embedding=4), (6, 9)),
]


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def reference(block, features):
    """The textbook order: convolution, bias, ReLU, 2 x 2 max pooling."""
    images = features if features.ndim == 4 else features[..., None]
    for layer in block["convolutions"]:
        images = jax.lax.conv_general_dilated(
            images, layer["weight"], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        images = jax.nn.relu(images + layer["bias"])
        images = jax.lax.reduce_window(images, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    embedding = block["embedding"]
    flat = images.reshape(len(images), -1)
    return jax.nn.relu(flat @ embedding["weight"] + embedding["bias"]) @ block["slice"]


def random_block(cnn, shape, rng, num_outputs=3):
    """Normal numbers in the block's own shapes, biases included."""
    start = cnn.init(jax.random.key(0), shape, num_outputs)
    return jax.tree.map(lambda leaf: leaf + 0.1 * rng.normal(size=leaf.shape), start)


@partial(jax.jit, static_argnums=0)
def value_and_slopes(phi, block, features, slopes):
    """phi, and the gradient of the sum of ``slopes`` times phi."""
    value, pull = jax.vjp(lambda block: phi(block, features), block)
    return value, pull(slopes)[0]


def assert_close(one, other, tolerance=1e-10):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * float(jnp.max(jnp.abs(b))))


@pytest.mark.parametrize(("cnn", "shape"), CASES)
def test_phi_and_its_gradient_are_those_of_a_convolution(cnn, shape):
    rng = np.random.default_rng(1)
    block, features = random_block(cnn, shape, rng), rng.normal(size=(7, *shape))
    slopes = rng.normal(size=(7, 3))
    got, expected = (value_and_slopes(phi, block, features, slopes) for phi in (cnn.phi, reference))
    assert float(jnp.max(jnp.abs(expected[0]))) > 0.1
    assert_close(got, expected)


def convolve_whole_rows(images, weight):
    return _convolve_rows(images, weight, images.shape[2] - weight.shape[1] + 1)


def convolve_three_places(images, weight):
    return _convolve_rows(images, weight, 3)


def convolve_short(images, weight):
    return _convolve_short(images, weight, short_filter(images.shape[2], weight.shape[1]))


WAYS = [convolve_whole_rows, convolve_three_places, convolve_short, _convolve_patches, _convolve_strips]


@pytest.mark.parametrize("unfolded", WAYS)
@pytest.mark.parametrize(("cnn", "shape"), CASES)
def test_products_of_unfolded_images_are_a_convolution(cnn, shape, unfolded):
    """Whichever way suits the processor, the precision and the sizes."""
    rng = np.random.default_rng(1)
    weight = random_block(cnn, shape, rng)["convolutions"][0]["weight"]
    images = rng.normal(size=(7, *(*shape, 1)[:3]))
    size = (7, shape[0] - cnn.kernel[0] + 1, shape[1] - cnn.kernel[1] + 1, cnn.channels[0])
    slopes = rng.normal(size=size)

    def convolve(weight, images):
        return jax.lax.conv_general_dilated(images, weight, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    for wanted in (weight, images):
        ways = (lambda w, x: unfolded(x, w), convolve)
        swapped = [way if wanted is weight else partial(lambda way, x, w: way(w, x), way) for way in ways]
        other = images if wanted is weight else weight
        got, expected = (value_and_slopes(way, wanted, other, slopes) for way in swapped)
        assert_close(got, expected)


@pytest.mark.parametrize(("precision", "more"), [("float32", 1), ("default", 2.2), ("BF16_BF16_F32", 2.2)])
def test_an_accelerator_does_more_arithmetic_only_where_it_is_cheap(monkeypatch, precision, more):
    images, block = jnp.zeros((10, 28, 14)), Cnn().init(jax.random.key(0), (28, 14), 10)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with jax.default_matmul_precision(precision):
        cost = jax.jit(Cnn().phi).lower(block, images).cost_analysis()
    least = 2 * len(images) * (24 * 12 * 15 * 64 + 8 * 4 * 960 * 64 + 512 * 256 + 256 * 10)
    assert cost["flops"] / least == pytest.approx(more, rel=0.05)


def test_a_cpu_does_less_arithmetic_for_many_channels():
    images, block = jnp.zeros((10, 28, 14)), Cnn().init(jax.random.key(0), (28, 14), 10)
    cost = jax.jit(Cnn().phi).lower(block, images).cost_analysis()
    assert cost["flops"] < 0.65 * 2 * len(images) * (24 * 12 * 15 * 64 + 8 * 4 * 960 * 64 + 512 * 256 + 256 * 10)


def test_short_filters_round_little_in_float32():
    rng = np.random.default_rng(1)
    images, weight = rng.random(size=(7, 12, 9, 64)), rng.normal(size=(5, 3, 64, 8))
    exact = convolve_short(images, weight)
    rounded = convolve_short(images.astype(np.float32), weight.astype(np.float32))
    assert rounded.dtype == jnp.float32
    assert float(jnp.max(jnp.abs(rounded - exact))) < 1e-5 * float(jnp.std(exact))


def test_short_filters_of_a_blank_patch_are_zero_and_have_its_gradient():
    """Biases start at zero: rounding there would switch on what a ReLU keeps off."""
    rng = np.random.default_rng(1)
    images, weight = rng.normal(size=(7, 12, 9, 20)), rng.normal(size=(5, 3, 20, 8))
    images[:, :, 6:] = 0
    got, expected = (jax.vjp(way, images, weight) for way in (convolve_short, _convolve_strips))
    assert np.count_nonzero(expected[0] == 0) == expected[0][:, :, 6:].size
    np.testing.assert_array_equal(got[0] == 0, expected[0] == 0)
    assert_close(got[1](jnp.ones_like(got[0])), expected[1](jnp.ones_like(got[0])))


def test_the_gradient_of_equal_pixels_goes_to_the_first():
    # Whole numbers make different patches tie, where every rule of sharing a gradient gives another result.
    rng = np.random.default_rng(2)
    block = jax.tree.map(lambda leaf: rng.integers(-1, 2, leaf.shape) * 1.0, SMALL.init(jax.random.key(0), (12, 8), 3))
    features = rng.integers(0, 3, (40, 12, 8)) * 1.0
    slopes = rng.integers(-3, 4, (40, 3)) * 1.0
    got, expected = (value_and_slopes(phi, block, features, slopes) for phi in (SMALL.phi, reference))
    assert float(jnp.max(jnp.abs(expected[1]["convolutions"][0]["weight"]))) > 1
    assert_close(got, expected, tolerance=0)


def test_clients_with_weights_of_their_own_are_mapped_at_once():
    rng = np.random.default_rng(3)
    blocks = [random_block(SMALL, (12, 8), rng) for _ in range(4)]
    features, slopes = rng.normal(size=(4, 7, 12, 8)), rng.normal(size=(4, 7, 3))
    together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *blocks)
    got = jax.vmap(partial(value_and_slopes, SMALL.phi))(together, features, slopes)
    each = [value_and_slopes(reference, *client) for client in zip(blocks, features, slopes, strict=True)]
    assert_close(got, jax.tree.map(lambda *leaves: jnp.stack(leaves), *each))


class ReferenceModel:
    """The reference, in the oracle's terms."""

    def __init__(self, shape):
        tree = jax.eval_shape(lambda: SMALL.init(jax.random.key(0), shape, 3))
        self.structure = jax.tree.structure(tree)

    def phi(self, block, x):
        return self._run(block, x, np.zeros(3))[0]

    def gradient(self, block, x, slope):
        return self._run(block, x, slope(self.phi(block, x)))[1]

    def _run(self, block, x, slope):
        tree = jax.tree.unflatten(self.structure, block)
        value, gradient = value_and_slopes(reference, tree, x[None], slope[None])
        return np.array(value[0]), [np.asarray(leaf) for leaf in jax.tree.leaves(gradient)]


def test_training_is_algorithm_1_in_plain_loops():
    rng = np.random.default_rng(4)
    num_samples, shapes = 20, ((12, 8), (10, 10))
    labels = np.concatenate([np.arange(3), rng.integers(0, 3, num_samples - 3)])
    silos = [
        Silo(f"silo{j}", rng.normal(size=(num_samples, *shape)), shuffled_rows(num_samples, sizes, rng))
        for j, (shape, sizes) in enumerate(zip(shapes, ([9, 6, 5], [15, 5]), strict=True))
    ]
    settings = Settings(local_steps=2, batch_size=6, step_size=0.3, seed=5, dtype="float64")
    simulation = Simulation(Federation(tuple(silos), labels), (SMALL, SMALL), Objective("softmax", l2=0.01), settings)
    start = [random_block(SMALL, shape, rng) for shape in shapes]
    got = simulation.advance(simulation.state_of(start), 0, 2).blocks
    expected = oracle.train(
        [oracle.Silo(ReferenceModel(silo.feature_shape), silo.features, silo.rows) for silo in silos],
        labels,
        [[np.asarray(leaf) for leaf in jax.tree.leaves(block)] for block in start],
        loss="softmax",
        l2=0.01,
        num_rounds=2,
        local_steps=settings.local_steps,
        batch_size=settings.batch_size,
        step_size=settings.step_size,
        minibatches="fresh",
        gradient="unbiased",
        seed=settings.seed,
    )
    assert_close(got, expected)
    for before, after in zip(jax.tree.leaves(start), jax.tree.leaves(got), strict=True):
        assert float(jnp.max(jnp.abs(after - before))) > 1e-2


def test_the_defaults_have_the_documented_size():
    block = jax.eval_shape(lambda: Cnn().init(jax.random.key(0), (28, 14), 10))
    assert sum(leaf.size for leaf in jax.tree.leaves(block)) == 193_856 + 2_560
    assert block["slice"].size == 2_560


def test_weights_start_with_variance_two_over_fan_in():
    block = Cnn().init(jax.random.key(0), (28, 14), 10)
    layers = [*block["convolutions"], block["embedding"]]
    for layer, fan_in in zip(layers, (15, 960, 512), strict=True):
        assert float(jnp.std(layer["weight"])) == pytest.approx((2 / fan_in) ** 0.5, rel=0.1)
        assert not jnp.any(layer["bias"])
    assert float(jnp.std(block["slice"])) == pytest.approx((1 / 256) ** 0.5, rel=0.1)


@pytest.mark.parametrize("shape", [(28, 9), (15, 14), (1, 1)])
def test_an_image_too_small_is_refused(shape):
    message = (
        f"an image of shape {shape} is too small for 2 convolutions with kernel (5, 3), "
        "each followed by 2 x 2 pooling: use a smaller kernel, fewer channels or larger images"
    )
    with pytest.raises(ValueError, match="too small") as caught:
        Cnn().init(jax.random.key(0), shape, 10)
    assert str(caught.value) == message
    Cnn().init(jax.random.key(0), (16, 10), 10)


def test_columns_are_refused():
    with pytest.raises(ValueError, match=r"Cnn needs images of shape .*, not \(30,\): use Mlp for columns"):
        Cnn().init(jax.random.key(0), (30,), 10)


@pytest.mark.parametrize("wrong", [{"channels": (64, 0)}, {"channels": ()}, {"kernel": (0, 3)}, {"embedding": 0}])
def test_sizes_below_one_are_refused(wrong):
    (name, value), *_ = wrong.items()
    with pytest.raises(ValueError, match="must be 1 or more everywhere") as caught:
        Cnn(**wrong)
    assert str(caught.value) == f"{name} must be 1 or more everywhere, not {value}"
