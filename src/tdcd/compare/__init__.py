"""TDCD compared with its baselines: the same data and as many local steps, at what price in rounds, bytes and time.

The baselines themselves, :mod:`tdcd.compare.baselines`, are rewritings of a plan. A configuration that names one needs
them, and nothing else of this folder: its public names are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tdcd.compare.comparison import Comparison, Contender, compare, network_of, plan_all
    from tdcd.compare.running import num_runs

__all__ = ["Comparison", "Contender", "compare", "network_of", "num_runs", "plan_all"]


def __getattr__(name: str) -> Any:
    """Import a public name's module."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("tdcd.compare.running" if name == "num_runs" else "tdcd.compare.comparison"), name)
