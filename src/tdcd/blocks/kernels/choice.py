"""Where these kernels fit, and are the faster way."""

from tdcd.blocks.kernels.geometry import Layer
from tdcd.core.lazy import jax

CHANNELS = (16, 32, 64, 128)
LARGEST_WINDOW = 63
OLDEST = 8.0
"""The first compute capability of NVIDIA GPUs that these kernels are compiled for."""


def fit(layers: list[Layer], dtype: str) -> bool:
    """Whether these layers, with numbers of ``dtype``, go through kernels on JAX's default device.

    In full float32 they do not, since kernels have the factors of TF32.
    """
    exact = jax.config.jax_default_matmul_precision in ("float32", "highest")  # type: ignore[attr-defined]
    return dtype == "float32" and not exact and _are_possible(layers) and _is_nvidia()


def _are_possible(layers: list[Layer]) -> bool:
    """One channel at first, then powers of two.

    >>> halves = [Layer(8, 28, 14, 1, 5, 3, 64), Layer(8, 12, 6, 64, 5, 3, 64)]
    >>> _are_possible(halves), _are_possible(halves[1:]), _are_possible([halves[0]._replace(outputs=48)])
    (True, False, False)
    """
    return (
        layers[0].inputs == 1
        and layers[0].window <= LARGEST_WINDOW
        and all(layer.outputs in CHANNELS for layer in layers)
    )


def _is_nvidia() -> bool:
    if jax.default_backend() != "gpu":
        return False
    device = jax.local_devices()[0]
    return "NVIDIA" in device.device_kind.upper() and float(device.compute_capability) >= OLDEST
