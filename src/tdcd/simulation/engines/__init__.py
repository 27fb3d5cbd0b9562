"""Engines: each lays minibatches out on the host in its own way, and runs Algorithm 1's functions over them.

=========== ==================================================== ============================================
engine      runs                                                 lays rows out
=========== ==================================================== ============================================
``clients`` any block, any variant, any device                   every client's rows in an array of their own
``grouped`` linear blocks, Algorithm 1                           many clients' rows in one array
``flat``    linear blocks of one output, Algorithm 1, data there all rows in the minibatch's order
=========== ==================================================== ============================================
"""

from collections.abc import Mapping

from tdcd.simulation.engines.base import Engine, Problem
from tdcd.simulation.engines.clients import ClientsEngine
from tdcd.simulation.engines.flat import FlatEngine
from tdcd.simulation.engines.grouped import GroupedEngine

ENGINES: Mapping[str, type[Engine]] = {"flat": FlatEngine, "grouped": GroupedEngine, "clients": ClientsEngine}
"""By name; the first that is at its best is chosen."""


def choose_engine(problem: Problem, name: str) -> Engine:
    """The engine of this name, or with ``"auto"`` the fastest; one that cannot run the problem is refused."""
    if name == "auto":
        chosen = next(kind for kind in ENGINES.values() if kind.supports(problem) is None and kind.suits(problem))
        return chosen(problem)
    if name not in ENGINES:
        raise ValueError(f"engine must be one of auto, {', '.join(ENGINES)}, not '{name}'")
    reason = ENGINES[name].supports(problem)
    if reason is not None:
        raise ValueError(f"engine = '{name}': {reason}; use 'clients', which runs everything, or leave it 'auto'")
    return ENGINES[name](problem)


__all__ = ["ENGINES", "Engine", "Problem", "choose_engine"]
