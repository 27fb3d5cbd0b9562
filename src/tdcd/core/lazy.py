"""JAX, imported when it is first used: a client with a linear block computes in NumPy and never needs it.

Modules on a party's path take ``jax``, ``jnp`` and ``Array`` from here, and compile by :func:`compiled`. What runs in
both libraries asks :func:`library_of`.
"""

import importlib
import os
import sys
from collections.abc import Callable
from functools import cache, wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

__all__ = ["Array", "compiled", "configure", "jax", "jnp", "library_of"]

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
    from jax import Array
else:
    Array = Any

    class _Later(ModuleType):
        """A module that is imported when one of its names is first used."""

        def __getattr__(self, name: str) -> Any:
            module = importlib.import_module(self.__name__)
            # The next question is not ours to answer.
            self.__dict__.update({key: value for key, value in vars(module).items() if not key.startswith("__")})
            return getattr(module, name)

    jax, jnp = _Later("jax"), _Later("jax.numpy")


def library_of(array: Array) -> Any:
    """The library that an array belongs to: JAX, or NumPy in hubs and in clients with a linear block."""
    # NumPy's own answer takes ten times as long.
    return np if isinstance(array, np.ndarray) else array.__array_namespace__()


def configure(name: str, value: bool) -> None:
    """Set one of JAX's settings, now or for when it is imported."""
    if "jax" in sys.modules:
        jax.config.update(name, value)  # type: ignore[no-untyped-call]
    else:
        os.environ[name.upper()] = str(value).lower()


R = TypeVar("R")


def compiled(*static: str) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """``jax.jit`` with these arguments static, at the first call."""

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        program = cache(lambda: jax.jit(function, static_argnames=static))

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> R:
            result: R = program()(*args, **kwargs)
            return result

        return call

    return decorate
