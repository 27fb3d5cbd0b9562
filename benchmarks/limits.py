"""What this machine can do at most, measured in the same run: products of matrices, and copies."""

from functools import cache

import jax
import jax.numpy as jnp

from benchmarks.timing import alternate


@cache
def product_rate() -> float:
    """Floating-point operations a second of one large product of float32 matrices."""
    size = 2048 if jax.default_backend() == "cpu" else 16384
    matrix = jnp.ones((size, size))
    multiply = jax.jit(jnp.matmul)
    (seconds,) = alternate([lambda: jax.block_until_ready(multiply(matrix, matrix))], repetitions=5)
    return 2 * size**3 / seconds


@cache
def copy_rate(data: int | None = None) -> float:
    """Bytes a second, read and written, of a copy: of so many bytes, or of more than any cache holds."""
    numbers = jnp.zeros((data or 1 << (28 if jax.default_backend() == "cpu" else 32)) // 4)
    copy = jax.jit(lambda array: array + 1)
    (seconds,) = alternate([lambda: jax.block_until_ready(copy(numbers))], repetitions=25)
    return 2 * numbers.nbytes / seconds


def limit(flops: float, moved: float, data: int | None = None) -> float:
    """The least seconds that so many operations, and so many bytes moved of ``data`` bytes, can take here."""
    return max(flops / product_rate(), moved / copy_rate(data))
