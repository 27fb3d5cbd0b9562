"""Steps of a hub whose length is steered while training runs: any hub update, times a factor that is part of its state.

Which factor it is, and when a step is taken back, follows from the lines of the history (:mod:`tdcd.records.steering`).

A step that is not finite is not taken: from then on the block of its silo stays as it was, so that nothing that is not
a number is ever sent. The next line of the history says so, its loss is not finite, and the steps of all silos since
the last good line are taken back.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.core.family.scaled import CurvedUpdate, Window
from tdcd.core.lazy import Array, library_of
from tdcd.core.objective import Objective, Tree
from tdcd.core.traits import stated
from tdcd.core.trees import leaves_of, map_tree
from tdcd.core.update import HubUpdate, UpdateState

LONGEST = 8.0
"""The largest factor, unless an update has a ``longest`` of its own."""


@dataclass(frozen=True)
class Steered:
    """The part ``hub_update`` of a variant whose steps are steered."""

    update: HubUpdate

    def start(self, block: Tree) -> UpdateState:
        """The state of the update, a factor of 1, and that no step was lost or is waited for."""
        inner = self.update.start(block)
        return self._state(inner, 1.0, 0, leaves_of(block)[0].dtype)

    def _state(self, inner: UpdateState, factor: float, wait: int, dtype: Any) -> UpdateState:
        numbers = {"factor": factor, "lost": 0, "wait": wait}
        return {**{name: np.asarray(number, dtype) for name, number in numbers.items()}, "inner": inner}

    @property
    def takes_numpy(self) -> bool:
        """Whether a hub needs no JAX for it."""
        return bool(stated(self.update, "takes_numpy"))

    @property
    def longest(self) -> float:
        """The largest factor."""
        return float(getattr(self.update, "longest", LONGEST))

    @property
    def is_curved(self) -> bool:
        """Whether the update knows the curvature of its silo."""
        return isinstance(self.update, CurvedUpdate)

    def curved(self, state: UpdateState, products: NDArray[Any], objective: Objective) -> UpdateState:
        """The state with the curvature of a silo, see :class:`CurvedUpdate`."""
        assert isinstance(self.update, CurvedUpdate)
        return {**state, "inner": self.update.curved(state["inner"], products, objective)}

    def products(self, state: UpdateState, largest: float = np.inf) -> Array:
        """What a hub sends the others before a step, see :class:`CurvedUpdate`."""
        assert isinstance(self.update, CurvedUpdate)
        return self.update.products(state["inner"], largest)

    def met(self, state: UpdateState, total: Array, num_silos: int) -> UpdateState:
        """The state with the sum of what all hubs sent, see :class:`CurvedUpdate`."""
        assert isinstance(self.update, CurvedUpdate)
        return {**state, "inner": self.update.met(state["inner"], total, num_silos)}

    def step(self, block: Tree, average: Tree, state: UpdateState) -> tuple[Tree, UpdateState]:
        """What the update does to the block, times the factor.

        Nothing while it waits, and from a step on whose block has no finite norm.
        """
        factor, lost, wait = state["factor"], state["lost"], state["wait"]
        with np.errstate(over="ignore", invalid="ignore"):
            moved, inner = self.update.step(block, average, state["inner"])
            moved = map_tree(lambda old, new: old + factor * (new - old), block, moved)
            squares = sum((leaf * leaf).sum() for leaf in leaves_of(moved))
        library = library_of(leaves_of(moved)[0])
        is_finite, is_waiting = library.isfinite(squares), wait > 0
        moves = is_finite & ~is_waiting & (lost == 0)
        block, inner = (
            map_tree(lambda new, old: library.where(moves, new, old), *pair)
            for pair in ((moved, block), (inner, state["inner"]))
        )
        lost = library.where(is_finite | is_waiting, lost, library.ones_like(lost))
        return block, {"factor": factor, "lost": lost, "wait": library.maximum(wait - 1, 0 * wait), "inner": inner}

    def is_lost(self, state: UpdateState) -> bool:
        """Whether a step since the last decision was not finite, so that the block stands still."""
        return bool(np.asarray(state["lost"]) > 0)

    def window(self, state: UpdateState, delay: int = 0) -> Window | None:
        """The last rounds, where the update remembers them; see :meth:`Scaled.window`."""
        window = getattr(self.update, "window", None)
        remembered: Window | None = None if window is None else window(state["inner"], delay)
        return remembered

    def with_factor(self, state: UpdateState, factor: float, *, wait: int | None = None) -> UpdateState:
        """The state with another factor.

        Args:
            wait: if steps are taken back, how many steps to wait before the next; the update loses its momentum then.
        """
        restart = getattr(self.update, "restarted", None)
        inner = restart(state["inner"]) if wait is not None and restart is not None else state["inner"]
        return self._state(inner, factor, wait or 0, np.asarray(state["factor"]).dtype)
