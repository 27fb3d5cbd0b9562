"""The engine for linear blocks whose clients take one step per round on every sample, as ``step_size = "auto"`` does.

With Q = 1 the average of the clients' blocks is one step of the whole silo's, for any row split (tests/laws). So a
silo's rows stay in one array, nothing is drawn, gathered or padded, and a round is two matrix products per silo.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from tdcd.blocks.linear import Linear, is_linear
from tdcd.core import algorithm
from tdcd.core.algorithm import Descent
from tdcd.core.knowledge import Known
from tdcd.core.objective import Objective, Tree
from tdcd.core.trees import map_tree
from tdcd.core.variant import Variant
from tdcd.simulation.devices import WHOLE, Devices
from tdcd.simulation.engines.base import Call, Problem, State


class Shared(NamedTuple):
    """What stays from call to call."""

    features: list[Array]
    """Per silo ``[M_j, D]``: of the samples that it has."""
    samples: list[Array | None]
    """Per silo ``[M_j]``: which those are; None if it has all."""
    labels: Array
    """``[M]``."""
    weights: Any
    """``[M]``: what each sample weighs; None if all weigh the same."""


@dataclass(frozen=True)
class FullProgram:
    """What is fixed when rounds are compiled; see :class:`tdcd.simulation.engines.base.Program`."""

    blocks: tuple[Linear, ...]
    objective: Objective
    variant: Variant
    mixes: bool
    """Whether hubs continue from mixtures of their last rounds' models."""
    num_samples: int
    devices: Devices
    runs: int = 1

    def axes(self) -> tuple[object, object]:
        """There is one device."""
        return WHOLE, WHOLE

    def lay_out(self, shared: Shared, own: Array) -> Array:
        """Nothing to do in advance: what a call brings is the step size."""
        return own

    def one_round(self, index: Array, state: State, *, shared: Shared, own: Array) -> State:
        """See :meth:`tdcd.simulation.engines.base.Program.one_round`."""
        hubs = state.blocks
        parts = zip(self.blocks, shared.features, shared.samples, hubs, strict=True)
        phis = [self._spread(model.phi(hub, rows), samples) for model, rows, samples, hub in parts]
        losses = partial(self.variant.knowledge.losses, 0, objective=self.objective)
        descent = Descent(losses, self.objective.l2, self.variant.update, own)
        blocks, updates = [], []
        met = self.variant.all_met(state.updates) if self.mixes else state.updates
        every = zip(self.blocks, hubs, shared.features, shared.samples, strict=True)
        for silo, (model, hub, rows, samples) in enumerate(every):
            known = Known(shared.labels, algorithm.sum_others(phis, silo))
            weighted_sum = partial(self._weighted_sum, model, rows=rows, samples=samples, weights=shared.weights)
            average, _ = algorithm.linear_step((hub, ()), phis[silo], known, weighted_sum, descent=descent)
            moved, remembered = self.variant.hub_update.step(state.blocks[silo], average, met[silo])
            blocks.append(moved)
            updates.append(remembered)
        return state._replace(blocks=blocks, updates=updates)

    def _spread(self, phi: Array, samples: Array | None) -> Array:
        """``[M, C]``: phi of all samples, zero where the silo has none."""
        return phi if samples is None else jnp.zeros((self.num_samples, phi.shape[1]), phi.dtype).at[samples].set(phi)

    def _weighted_sum(
        self, model: Linear, slopes: Array, *, rows: Array, samples: Array | None, weights: Array | None
    ) -> Tree:
        """The gradient of the data term over all rows."""
        weighed = slopes if weights is None else weights[:, None] * slopes
        summed = model.weighted_sum(rows, weighed if samples is None else weighed[samples])
        return map_tree(lambda leaf: leaf / self.num_samples, summed)


class FullEngine:
    """Every sample in each step, and one step per round."""

    name = "full"

    def __init__(self, problem: Problem) -> None:
        """Put what stays on the device."""
        assert problem.on_device is not None
        hold, samples = problem.devices.hold, problem.federation.num_samples
        dtype = problem.settings.dtype
        features = [table.reshape(samples, -1).astype(dtype) for table in problem.on_device]
        silos = problem.federation.silos
        kept = [None if silo.num_rows == samples else jnp.asarray(np.sort(np.concatenate(silo.rows))) for silo in silos]
        features = [table if own is None else table[own] for table, own in zip(features, kept, strict=True)]
        weights = None if problem.weights is None else hold(problem.weights)
        self._shared = Shared(features, kept, hold(problem.labels), weights)
        self._step_size = problem.numbers()[0]
        linear = tuple(block for block in problem.blocks if is_linear(block))
        self.program = FullProgram(
            linear, problem.runs[0].objective, problem.variant, problem.round.mixes, samples, problem.devices
        )
        self.rounds_per_call = problem.most_rounds

    @classmethod
    def supports(cls, problem: Problem) -> str | None:
        """One step of linear blocks on every sample, with nothing between the parties but plain numbers."""
        settings, changed = problem.settings, {*problem.variant.changed} - {"hub_update"}
        if not problem.is_linear or not problem.runs[0].objective.combine.is_additive:
            return "it runs linear blocks whose sum is the score"
        if settings.minibatches != "full" or settings.local_steps > 1 or settings.gradient != "unbiased":
            return "it takes one unbiased step per round, on every sample"
        if changed:
            return f"it runs Algorithm 1 with any update of hubs, and {', '.join(sorted(changed))} differs"
        if len(problem.runs) > 1:
            return "it does not batch runs"
        if problem.on_device is None or problem.devices.count > 1 or problem.devices.hosts is not None:
            return "it needs all features on one device (data.keep = 'device')"
        return None

    @classmethod
    def suits(cls, problem: Problem) -> bool:
        """With an update of the hubs, which the other engines for linear blocks leave out."""
        return "hub_update" in problem.variant.changed

    def prepare(self, wanted: range) -> Call:
        """See :meth:`tdcd.simulation.engines.base.Engine.prepare`."""
        rounds = min(len(wanted), self.rounds_per_call)
        return Call(rounds, (self._shared, self._step_size, rounds))
