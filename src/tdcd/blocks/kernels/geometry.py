"""The sizes of layers."""

from typing import Any, NamedTuple

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
    found = []
    for convolution in convolutions:
        kernel_height, kernel_width, inputs, outputs = convolution["weight"].shape
        layer = Layer(rows, height, width, inputs, kernel_height, kernel_width, outputs)
        found.append(layer)
        height, width = layer.pooled
    return found
