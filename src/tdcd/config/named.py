"""Functions that a configuration names: ``package.module:function``, in files of the user's own."""

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from threading import RLock
from typing import Any

_LOCK = RLock()
WAY_ON = "other scripts cannot import it: put {} into a file of its own, import it from there, and train again"


def find_function(name: str, folders: Sequence[Path]) -> Callable[..., Any]:
    """The function ``package.module:function``.

    Args:
        folders: where to look for the module before Python's own path, in this order.
    """
    module, _, function = name.partition(":")
    places = [str(folder.absolute()) for folder in folders]
    with _LOCK, _importing_from(places):
        _forget_namesake(module.partition(".")[0], places)
        try:
            if module == "__main__" and not hasattr(sys.modules[module], function):
                raise ImportError(f"{function} was in the script that trained; {WAY_ON.format(function)}")
            found: Callable[..., Any] = getattr(importlib.import_module(module), function)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
            raise ImportError(f"there is no {module.replace('.', '/')}.py in {' or '.join(places)}") from None
    return found


@contextmanager
def _importing_from(places: Sequence[str]) -> Iterator[None]:
    before = [*sys.path]
    sys.path[:0] = places
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before


def _forget_namesake(package: str, places: Sequence[str]) -> None:
    """Let go of a module of the same name that was imported from elsewhere, if these folders have one of their own."""
    spec = PathFinder.find_spec(package, [*places])
    loaded = sys.modules.get(package)
    if spec is None or spec.origin is None or loaded is None or getattr(loaded, "__file__", None) == spec.origin:
        return
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        del sys.modules[name]
