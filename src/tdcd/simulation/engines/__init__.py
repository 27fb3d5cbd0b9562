"""Engines: each lays minibatches out on the host in its own way, and runs Algorithm 1's functions over them.

=========== ==================================================== ============================================
engine      runs                                                 lays rows out
=========== ==================================================== ============================================
``clients`` any block, any variant, any device                   every client's rows in an array of their own
``grouped`` linear blocks, Algorithm 1                           many clients' rows in one array
``flat``    linear blocks of one output, Algorithm 1, data there all rows in the minibatch's order
``full``    linear blocks, one step per round on every sample    all rows of a silo as they are
=========== ==================================================== ============================================
"""

from collections.abc import Mapping
from importlib import import_module

from tdcd.simulation.engines.base import Engine, Problem

ENGINES: Mapping[str, str] = {
    "full": "FullEngine",
    "flat": "FlatEngine",
    "grouped": "GroupedEngine",
    "clients": "ClientsEngine",
}
"""The class of each, in the module of its name; the first that is at its best is chosen."""


def choose_engine(problem: Problem, name: str) -> Engine:
    """The engine of this name, or with ``"auto"`` the fastest; one that cannot run the problem is refused."""
    if name == "auto":
        # Only the general engine runs other blocks.
        kinds = map(_engine, ENGINES if problem.is_linear else ["clients"])
        return next(kind for kind in kinds if kind.supports(problem) is None and kind.suits(problem))(problem)
    if name not in ENGINES:
        raise ValueError(f"engine must be one of auto, {', '.join(ENGINES)}, not '{name}'")
    reason = _engine(name).supports(problem)
    if reason is not None:
        raise ValueError(f"engine = '{name}': {reason}; use 'clients', which runs everything, or leave it 'auto'")
    return _engine(name)(problem)


def _engine(name: str) -> type[Engine]:
    """The engine of this name, imported when it is asked for: a reader of one needs no other."""
    engine: type[Engine] = getattr(import_module(f"tdcd.simulation.engines.{name}"), ENGINES[name])
    return engine


__all__ = ["ENGINES", "Engine", "Problem", "choose_engine"]
