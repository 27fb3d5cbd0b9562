"""Values in words that differ if the values do, in whatever process: how a run folder knows the parts of a run again.

A function that can be imported counts by its name. One that cannot, such as a lambda or what an Optax optimiser is made
of, counts by its code and by what it uses: its defaults, its closure, and what it reads from its module. Objects count
by their attributes. What cannot be told from others of its kind is called unknown, see :func:`unknown_in`.
"""

import hashlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import jax
import numpy as np

PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), np.generic, np.dtype)
"""Values that Python shows as they are."""
_UNKNOWN = re.compile(r"<unknown ([\w.<>]+)>")


def identity(value: Any, within: tuple[Any, ...] = ()) -> str:
    """A value in words.

    >>> identity(partial(round, ndigits=2))
    "partial(builtins.round, (), {'ndigits': 2})"

    Args:
        within: what the value is a part of, to end where something is a part of itself.
    """
    if isinstance(value, PLAIN):
        return repr(value)
    if any(value is one for one in within):
        return "itself"
    inner = partial(identity, within=(*within, value))
    if isinstance(value, np.ndarray | jax.Array):
        return _array(value, inner)
    if isinstance(value, Mapping | Sequence | Set):
        return _container(value, inner)
    return _callable(value, inner) or _object(value, inner)


def unknown_in(words: str) -> str:
    """The type of something in the words of :func:`identity` that cannot be told from others; empty if there is none.

    >>> unknown_in(identity([1, object()])), unknown_in(identity([1, 2]))
    ('builtins.object', '')
    """
    found = _UNKNOWN.search(words)
    return found[1] if found else ""


def _array(value: Any, inner: Any) -> str:
    is_key = isinstance(value, jax.Array) and jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key)
    numbers = np.asarray(jax.random.key_data(value) if is_key else value)
    # An array of objects holds only where they lie in memory.
    content = inner(numbers.tolist()) if numbers.dtype.hasobject else _digest(numbers.tobytes())
    return f"array({value.dtype}{[*value.shape]} {content})"


def _container(value: Any, inner: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {inner(item)}" for key, item in value.items()) + "}"
    parts = [inner(item) for item in value]
    name = "" if type(value) in (tuple, list) else _name(type(value))
    comma = "," if len(parts) == 1 else ""
    return f"{name}({', '.join(sorted(parts) if isinstance(value, Set) else parts)}{comma})"


def _callable(value: Any, inner: Any) -> str:
    """The words for a function or class; none for anything else."""
    if isinstance(value, partial):
        return f"partial({inner(value.func)}, {inner(value.args)}, {inner(value.keywords)})"
    if isinstance(value, MethodType):
        return f"{inner(value.__self__)}.{value.__name__}"
    if isinstance(value, type | ModuleType) or importable(value):
        return _name(value)
    if isinstance(value, FunctionType):
        uses = "".join(f", {name}={inner(item)}" for name, item in _uses(value))
        return f"{_name(value)}({_digest(_code(value.__code__))}{uses})"
    # What jax.jit and functools.wraps make of a function.
    wrapped = getattr(value, "__wrapped__", None)
    return "" if wrapped is None else f"{type(value).__name__}({inner(wrapped)})"


def _object(value: Any, inner: Any) -> str:
    name = _name(type(value))
    if is_dataclass(value):
        attributes = {field.name: getattr(value, field.name) for field in fields(value)}
    elif hasattr(value, "__dict__"):
        attributes = vars(value)
    else:
        return f"<unknown {name}>"
    return f"{name}({', '.join(f'{key}={inner(item)}' for key, item in attributes.items())})"


def _name(value: Any) -> str:
    """With its module, but for blocks and parts that come with the package."""
    if isinstance(value, ModuleType):
        return value.__name__
    own = isinstance(value, type) and value.__module__.startswith("tdcd.")
    return value.__qualname__ if own else f"{value.__module__}.{value.__qualname__}"


def importable(value: Any) -> bool:
    """Whether another process can find the same thing by its name."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__":
        return False
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is value


def _uses(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function uses besides its arguments, by name."""
    if function.__defaults__ or function.__kwdefaults__:
        yield "defaults", (function.__defaults__, function.__kwdefaults__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue  # Not assigned yet.
    for name in sorted({name for code in _codes(function.__code__) for name in code.co_names}):
        item = function.__globals__.get(name)
        if item is not None and not isinstance(item, type | ModuleType):
            yield name, item


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _code(code: CodeType) -> bytes:
    """What a function does, without where it was written."""
    return repr(
        [
            (one.co_code, one.co_names, [identity(item) for item in one.co_consts if not isinstance(item, CodeType)])
            for one in _codes(code)
        ]
    ).encode()


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()
