"""Where these kernels fit, and are the faster way."""

from tdcd.blocks.kernels.geometry import Layer
from tdcd.core.lazy import jax

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
