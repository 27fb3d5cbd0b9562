"""How a simulation is carried out: on which devices, with the data where, and how precise its products are.

Whoever stops it early gets :class:`Interrupted`.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, get_args

from tdcd.core.choices import EngineName, Keep, Precision
from tdcd.core.lazy import jax

ALGORITHMS = {"float32": "float32", "tf32": "default", "bfloat16": "BF16_BF16_F32"}
"""What JAX calls each :data:`Precision`; its default on a GPU is TF32 where there is any."""


@dataclass(frozen=True)
class Execution:
    """How to run; results differ by rounding only.

    Attributes:
        keep: where the training data stays. ``"host"``: in the host's memory or in a mapped file, and every call sends
            the rows that it needs; ``"device"``: in the device's memory; ``"auto"``: there if it fits well.
        precision: of products of float32 matrices on an accelerator that has faster ones; a CPU always has float32.
        devices: how many of each process's devices clients are spread over; None for all of them.
        engine: of the simulation; ``"auto"`` takes the fastest that runs the problem.
    """

    keep: Keep = "auto"
    precision: Precision = "tf32"
    devices: int | None = 1
    engine: EngineName = "auto"

    def __post_init__(self) -> None:
        """Refuse unknown words."""
        for name, kind in (("keep", Keep), ("precision", Precision), ("engine", EngineName)):
            if getattr(self, name) not in get_args(kind):
                raise ValueError(f"{name} must be one of {', '.join(get_args(kind))}, not '{getattr(self, name)}'")

    def with_the_data(self) -> Any:
        """The context for sums over all samples at once: with ``keep="host"`` they are taken where the data stays."""
        return jax.default_device(jax.devices("cpu")[0]) if self.keep == "host" else nullcontext()

    def matrix_products(self, dtype: str) -> Any:
        """The context in which to compile and run."""
        exact = dtype == "float64" or jax.default_backend() == "cpu"
        return jax.default_matmul_precision("float32" if exact else ALGORITHMS[self.precision])


class Interrupted(Exception):  # noqa: N818
    """The user asked to stop; what was done is kept."""
