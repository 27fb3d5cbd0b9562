"""Code that a configuration names: ``package.module:function``, in files of the user's own.

Whoever gives a configuration file asks for the code that it names. A run folder or a model file may be from elsewhere:
what they name is imported only if the person who reads them says so, see :func:`refuse_code`.
"""

import importlib
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from threading import RLock
from typing import Any

_LOCK = RLock()
ALLOW_CODE = "--allow-code"
WAY_ON = "other scripts cannot import it: put {} into a file of its own, import it from there, and train again"


def code_in(keys: Mapping[str, Any]) -> dict[str, str]:
    """The code that a configuration names, by key.

    >>> code_in({"model": {"loss": "mine:Quantile", "block": "linear"}, "train": {"variant": "mine:variant"}})
    {'model.loss': 'mine:Quantile', 'train.variant': 'mine:variant'}
    """
    names = {}
    for section, key in (("model", "loss"), ("model", "module"), ("model", "block"), ("train", "variant")):
        value = _section(keys, section).get(key)
        named = [str(name) for name in (value if isinstance(value, list | tuple) else [value]) if ":" in str(name)]
        if named:
            names[f"{section}.{key}"] = ", ".join(named)
    return names


def refuse_code(keys: Mapping[str, Any], where: str) -> None:
    """Refuse a configuration that names code which the caller does not allow."""
    names = code_in(keys)
    if not names:
        return
    named = " and ".join(f"{key} = {name!r}" for key, name in names.items())
    folders = dict.fromkeys(_section(keys, key.partition(".")[0]).get("folder") for key in names)
    places = ", ".join([*(str(folder) for folder in folders if folder), "the working directory or Python's own path"])
    raise ValueError(
        f"{where} names code, which would be imported from {places} and run: {named}. Whoever wrote the file chose it. "
        f"If you trust it, add {ALLOW_CODE}; in Python, allow_code=True"
    )


def _section(keys: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = keys.get(name)
    return section if isinstance(section, Mapping) else {}


def resume_command(folder: Path | str, keys: Mapping[str, Any]) -> str:
    """The command that continues the run or the sweep in a folder, which has these settings."""
    return f"tdcd run --resume {shlex.quote(str(folder))}" + f" {ALLOW_CODE}" * bool(code_in(keys))


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
            value: Callable[..., Any] = getattr(importlib.import_module(module), function)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
            raise ImportError(f"there is no {module.replace('.', '/')}.py in {' or '.join(places)}") from None
    return value


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
