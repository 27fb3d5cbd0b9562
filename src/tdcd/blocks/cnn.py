"""The convolutional block."""

from dataclasses import dataclass
from math import prod
from typing import ClassVar, Literal

from tdcd.blocks.kernels.geometry import halves_for, layers_of
from tdcd.core.lazy import Array, jax, jnp
from tdcd.core.objective import Tree


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

    has_layers: ClassVar[Literal[True]] = True
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

        A ``weight`` and a ``bias`` per convolution (``[height, width, inputs, outputs]``) and for the ``embedding``,
        and the ``slice`` ``[embedding, C]``.
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
        return self.phi_of_first(block, features, len(features))

    def phi_of_first(self, block: Tree, features: Array, count: Array | int) -> Array:
        """See :class:`tdcd.blocks.base.SkipsPadding`; without kernels all rows are computed."""
        images = features.reshape(*features.shape[:3], -1)
        convolutions = block["convolutions"]
        if halves := halves_for(layers_of(convolutions, images), images.dtype.name):
            # Only here, since importing kernels takes a third of a second.
            from tdcd.blocks.kernels.stack import convolve_layers  # noqa: PLC0415

            images = convolve_layers(convolutions, images, jnp.asarray(count, jnp.int32), halves=halves)
        else:
            # Nor does everybody who reads a configuration need JAX.
            from tdcd.blocks.convolution import plain_layers  # noqa: PLC0415

            images = plain_layers(convolutions, images)
        rows = images.reshape(images.shape[0], -1)
        rows = jax.nn.relu(rows @ block["embedding"]["weight"] + block["embedding"]["bias"])
        return jnp.matmul(rows, block["slice"])


def _he_normal(key: Array, shape: tuple[int, ...]) -> Tree:
    fan_in = prod(shape[:-1])
    return {"weight": jax.random.normal(key, shape) * (2 / fan_in) ** 0.5, "bias": jnp.zeros(shape[-1])}
