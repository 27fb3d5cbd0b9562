"""Steps of a hub whose length is steered while training runs: any hub update, times a factor that is part of its state.

Which factor it is, and when a step is taken back, follows from the lines of the history (:mod:`tdcd.records.steering`).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.core.family.scaled import CurvedUpdate
from tdcd.core.objective import Tree
from tdcd.core.trees import leaves_of, map_tree
from tdcd.core.update import HubUpdate, UpdateState


@dataclass(frozen=True)
class Steered:
    """The part ``hub_update`` of a variant whose steps are steered."""

    update: HubUpdate

    def start(self, block: Tree) -> UpdateState:
        """The state of the update, and a factor of 1."""
        return {"factor": np.ones((), leaves_of(block)[0].dtype), "inner": self.update.start(block)}

    @property
    def takes_numpy(self) -> bool:
        """Whether a hub needs no JAX for it."""
        return getattr(self.update, "takes_numpy", False)

    @property
    def is_curved(self) -> bool:
        """Whether the update knows the curvature of its silo."""
        return isinstance(self.update, CurvedUpdate)

    def curved(self, state: UpdateState, products: NDArray[Any], curvature: float, l2: float) -> UpdateState:
        """The state with the curvature of a silo, see :class:`CurvedUpdate`."""
        assert isinstance(self.update, CurvedUpdate)
        return {**state, "inner": self.update.curved(state["inner"], products, curvature, l2)}

    def step(self, block: Tree, average: Tree, state: UpdateState) -> tuple[Tree, UpdateState]:
        """What the update does to the block, times the factor."""
        moved, inner = self.update.step(block, average, state["inner"])
        factor = state["factor"]
        return map_tree(lambda old, new: old + factor * (new - old), block, moved), {**state, "inner": inner}

    def with_factor(self, state: UpdateState, factor: float, *, is_back: bool = False) -> UpdateState:
        """The state with another factor; an update that has momentum loses it when a step is taken back."""
        restart = getattr(self.update, "restarted", None)
        inner = restart(state["inner"]) if is_back and restart is not None else state["inner"]
        return {"factor": np.asarray(factor, np.asarray(state["factor"]).dtype), "inner": inner}
