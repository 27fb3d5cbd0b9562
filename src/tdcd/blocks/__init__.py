"""Blocks: the part of the model that one silo trains on its own columns; each is imported when it is asked for."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tdcd.blocks.base import Block
    from tdcd.blocks.cnn import Cnn
    from tdcd.blocks.ensemble import Ensemble
    from tdcd.blocks.linear import Linear
    from tdcd.blocks.mlp import Mlp

__all__ = ["Block", "Cnn", "Ensemble", "Linear", "Mlp"]

_MODULES = {"Block": "base", "Cnn": "cnn", "Ensemble": "ensemble", "Linear": "linear", "Mlp": "mlp"}


def __getattr__(name: str) -> Any:
    """A block's class, from the module of its own."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value
