"""What a hub compiles: only where NumPy cannot do it."""

from tdcd.core.knowledge import Knowledge
from tdcd.core.lazy import Array, compiled
from tdcd.core.objective import Objective, Tree
from tdcd.core.update import HubUpdate


@compiled("update")
def step(block: Tree, average: Tree, memory: Tree, *, update: HubUpdate) -> tuple[Tree, Tree]:
    """The hub's next block, and what its update remembers."""
    return update.step(block, average, memory)


@compiled("silo", "knowledge", "objective")
def pass_on(
    own: Array, others: Array, labels: Array, *, silo: int, knowledge: Knowledge, objective: Objective
) -> Array:
    """What a hub passes on to its clients, of its own phi and the others'."""
    return knowledge.pass_on(silo, own, others, labels, objective)


@compiled("objective")
def losses(scores: Array, labels: Array, *, objective: Objective) -> Array:
    """Of every sample."""
    return objective.losses(scores, labels)
