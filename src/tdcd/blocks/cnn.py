"""The convolutional block."""

from dataclasses import dataclass
from math import prod

import jax
import jax.numpy as jnp
from jax import Array

from tdcd.objective import Tree


@dataclass(frozen=True)
class Cnn:
    r"""Convolutions on the silo's part of the image, a dense embedding, then its slice of the shared classifier.

    .. math:: \Phi = \max(0, \mathrm{flat}(h_L) W_e + b_e)\, W, \quad
              h_i = \max(0, \mathrm{pool}(h_{i-1} * W_i) + b_i), \quad h_0 = X_{(j)}

    Convolutions are not padded; pooling takes the largest of every 2 x 2 outputs and drops an odd last row or column.
    It comes before bias and ReLU, which gives the same numbers as after them for a quarter of the work. The slice has
    no bias: the silos' phi must add up to the scores of one classifier. Weights start normal with variance 2 / fan-in
    (He et al., 2015; 1 / fan-in for the slice), biases at zero.

    The defaults follow the paper (section 5: two convolutions, a 256-wide embedding). On a 28 x 14 half of a digit they
    have 193,856 parameters up to the embedding, and 2,560 more in a slice for ten classes.

    Attributes:
        channels: outputs of each convolution layer.
        kernel: height and width of every convolution.
        embedding: width of the dense layer.
    """

    channels: tuple[int, ...] = (64, 64)
    kernel: tuple[int, int] = (5, 3)
    embedding: int = 256

    def __post_init__(self) -> None:
        """Refuse sizes that no layer can have."""
        for name, sizes in {"channels": self.channels, "kernel": self.kernel, "embedding": (self.embedding,)}.items():
            if min(sizes, default=0) < 1:
                raise ValueError(f"{name} must be 1 or more everywhere, not {getattr(self, name)}")

    def init(self, key: Array, feature_shape: tuple[int, ...], num_outputs: int) -> Tree:
        """Weights drawn from ``key``, for images ``(height, width)`` or ``(height, width, channels)``.

        A ``weight`` and a ``bias`` a convolution (``[height, width, inputs, outputs]``) and for the ``embedding``, and
        the ``slice`` ``[embedding, C]``.
        """
        if len(feature_shape) not in (2, 3):
            raise ValueError(
                f"Cnn needs images of shape (height, width) or (height, width, channels), not {feature_shape}: "
                "use Mlp for columns"
            )
        keys = iter(jax.random.split(key, len(self.channels) + 2))
        height, width, inputs = (*feature_shape, 1)[:3]
        convolutions = []
        for outputs in self.channels:
            convolutions.append(_he_normal(next(keys), (*self.kernel, inputs, outputs)))
            height, width, inputs = (height - self.kernel[0] + 1) // 2, (width - self.kernel[1] + 1) // 2, outputs
        if height < 1 or width < 1:
            raise ValueError(
                f"an image of shape {feature_shape} is too small for {len(self.channels)} convolutions with kernel "
                f"{self.kernel}, each followed by 2 x 2 pooling: use a smaller kernel, fewer channels or larger images"
            )
        return {
            "convolutions": convolutions,
            "embedding": _he_normal(next(keys), (height * width * inputs, self.embedding)),
            "slice": jax.random.normal(next(keys), (self.embedding, num_outputs)) / self.embedding**0.5,
        }

    def phi(self, block: Tree, features: Array) -> Array:
        """``[rows, height, width]`` or ``[rows, height, width, channels]`` images to ``[rows, C]``."""
        images = features.reshape(*features.shape[:3], -1)
        for layer in block["convolutions"]:
            images = jax.nn.relu(_pool(_convolve(images, layer["weight"])) + layer["bias"])
        rows = images.reshape(images.shape[0], -1)
        rows = jax.nn.relu(rows @ block["embedding"]["weight"] + block["embedding"]["bias"])
        return jnp.matmul(rows, block["slice"])


def _he_normal(key: Array, shape: tuple[int, ...]) -> Tree:
    fan_in = prod(shape[:-1])
    return {"weight": jax.random.normal(key, shape) * (2 / fan_in) ** 0.5, "bias": jnp.zeros(shape[-1])}


def _convolve(images: Array, weight: Array) -> Array:
    """Convolution as products of unfolded images with the weights.

    Clients have weights of their own. Mapped over them these are batched matrix products, whereas
    ``lax.conv_general_dilated`` becomes a grouped convolution, which is several times slower.
    """
    few_weights, few_inputs = _few()
    if weight.size * images.shape[2] * (images.shape[2] - weight.shape[1] + 1) // weight.shape[1] <= few_weights:
        return _convolve_rows(images, weight)
    if prod(weight.shape[:3]) <= few_inputs:
        return _convolve_patches(images, weight)
    return _convolve_strips(images, weight)


def _few() -> tuple[int, int]:
    """Up to how many numbers weights may be repeated for every place along an image's row, and a patch is unfolded."""
    if jax.default_backend() == "cpu":
        return 1 << 13, 1 << 6
    # Repeated weights are more arithmetic for less memory traffic. Only products in TF32 or bfloat16 are that cheap.
    exact = jax.config.jax_default_matmul_precision == "float32"  # type: ignore[attr-defined]
    return 0 if exact else 1 << 20, 1 << 10


def _convolve_rows(images: Array, weight: Array) -> Array:
    """Whole rows of the image at a time, times a matrix with the weights once for every place along the row.

    Most of that matrix are zeros, but only the kernel's height is unfolded.
    """
    kernel_height, kernel_width, _, outputs = weight.shape
    places = images.shape[2] - kernel_width + 1
    shifted = [jnp.pad(weight, [(0, 0), (i, places - 1 - i), (0, 0), (0, 0)]) for i in range(places)]
    unfolded = _unfold(images.reshape(*images.shape[:2], -1), kernel_height, axis=1)
    banded = jnp.stack(shifted, axis=3).reshape(unfolded.shape[-1], -1)
    # Products of rows that are a multiple of 16 bytes long are several times faster.
    spare = (0, -len(banded) % 4)
    rows = _product(jnp.pad(unfolded, [(0, 0), (0, 0), spare]), jnp.pad(banded, [spare, (0, 0)]))
    return rows.reshape(*rows.shape[:2], places, outputs)


def _convolve_patches(images: Array, weight: Array) -> Array:
    """A patch for every place, as one product."""
    return _product(_unfold(_unfold(images, weight.shape[1], axis=2), weight.shape[0], axis=1), weight)


def _convolve_strips(images: Array, weight: Array) -> Array:
    """Patches as high as a pixel; the products of the kernel's rows are added up, which takes less memory."""
    height = images.shape[1] - len(weight) + 1
    unfolded = _unfold(images, weight.shape[1], axis=2)
    by_row = [_product(unfolded[:, i : i + height], row) for i, row in enumerate(weight)]
    return sum(by_row[1:], start=by_row[0])


def _product(images: Array, weight: Array) -> Array:
    """Every pixel's channels times the weights, as one product of two matrices."""
    outputs = weight.shape[-1]
    flat = images.reshape(-1, images.shape[-1]) @ weight.reshape(-1, outputs)
    return flat.reshape(*images.shape[:-1], outputs)


def _unfold(images: Array, size: int, axis: int) -> Array:
    """``size`` neighbours along ``axis`` side by side as channels."""
    length = images.shape[axis] - size + 1
    shifted = [jax.lax.slice_in_dim(images, i, i + length, axis=axis) for i in range(size)]
    return jnp.concatenate(shifted, axis=-1)


def _pool(images: Array) -> Array:
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
