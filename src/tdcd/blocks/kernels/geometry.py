"""The sizes of layers, and for which of them these kernels fit and are the faster way."""

from typing import Any, NamedTuple

from tdcd.core.lazy import jax
from tdcd.core.objective import Tree


class Layer(NamedTuple):
    """A convolution that is not padded, the largest of every 2 x 2 outputs, bias and ReLU."""

    rows: int
    """P, the client's images."""
    height: int
    width: int
    inputs: int
    """Channels; so ``outputs``."""
    kernel_height: int
    kernel_width: int
    outputs: int

    @property
    def pooled(self) -> tuple[int, int]:
        """Height and width of what the layer returns; an odd last row or column is dropped."""
        return (self.height - self.kernel_height + 1) // 2, (self.width - self.kernel_width + 1) // 2

    @property
    def pixels(self) -> int:
        """Pixels of one image that the layer returns."""
        return self.pooled[0] * self.pooled[1]

    @property
    def taps(self) -> int:
        """Places of the kernel."""
        return self.kernel_height * self.kernel_width

    @property
    def window(self) -> int:
        """Inputs of one channel that a pooled pixel depends on."""
        return (self.kernel_height + 1) * (self.kernel_width + 1)


def layers_of(convolutions: list[Tree], images: Any) -> list[Layer]:
    """The sizes of every layer, for images ``[P, height, width, channels]``."""
    rows, height, width, _ = images.shape
    layers = []
    for convolution in convolutions:
        kernel_height, kernel_width, inputs, outputs = convolution["weight"].shape
        layer = Layer(rows, height, width, inputs, kernel_height, kernel_width, outputs)
        layers.append(layer)
        height, width = layer.pooled
    return layers


FEWEST_CHANNELS = 16
LARGEST_WINDOW = 63
OLDEST = 8.0
"""The first compute capability of NVIDIA GPUs that these kernels are compiled for."""


def halves_for(layers: list[Layer], dtype: str) -> int:
    """How many float16 numbers make up one in the kernels for these layers on JAX's default device; 0: no kernels.

    Two of them in full float32, and one for everything less exact.
    """
    if not (dtype == "float32" and _are_possible(layers) and _is_nvidia()):
        return 0
    return 2 if jax.config.jax_default_matmul_precision in ("float32", "highest") else 1  # type: ignore[attr-defined]


def _are_possible(layers: list[Layer]) -> bool:
    """One channel at first, then powers of two.

    >>> halves = [Layer(8, 28, 14, 1, 5, 3, 64), Layer(8, 12, 6, 64, 5, 3, 64)]
    >>> _are_possible(halves), _are_possible(halves[1:])
    (True, False)
    >>> [outputs for outputs in (8, 16, 48, 64, 512) if _are_possible([halves[0]._replace(outputs=outputs)])]
    [16, 64, 512]
    """
    return (
        layers[0].inputs == 1
        and layers[0].window <= LARGEST_WINDOW
        and all(layer.outputs >= FEWEST_CHANNELS and layer.outputs.bit_count() == 1 for layer in layers)
    )


def _is_nvidia() -> bool:
    if jax.default_backend() != "gpu":
        return False
    device = jax.local_devices()[0]
    return "NVIDIA" in device.device_kind.upper() and float(device.compute_capability) >= OLDEST
