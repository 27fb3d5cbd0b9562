"""What Theorem 1 bounds, measured on a run, and the figure of both."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np
from numpy.typing import NDArray

from tdcd.core.objective import Tree
from tdcd.federation.silos import Federation
from tdcd.pages.kit.chart import Curve, line_figure
from tdcd.pages.kit.html import Html
from tdcd.simulation.simulate import Simulation
from tdcd.theory.full_objective import FullObjective
from tdcd.theory.progress import Meter, Observer, silent
from tdcd.theory.theorem import Bound


@dataclass(frozen=True, eq=False)
class Measured:
    r"""Squared gradient norms of the objective along a run, at the starts of rounds.

    The theorem averages over every iteration, most of which happen inside clients, where no hub sees the model. The
    starts of rounds are the iterations that a run can see.
    """

    squared_norms: NDArray[np.float64]
    r"""``[P]``: :math:`\|\nabla\mathcal{L}\|^2` of the hub blocks at the start of every measured round."""
    iterations: NDArray[np.int64]
    """``[P]``: T, the iterations up to the next measured round, or to the end."""
    first: list[Tree]
    """The hub blocks before round 0."""
    last: list[Tree]
    """The hub blocks after the last round, or the last ones measured before the run diverged."""

    @property
    def averages(self) -> NDArray[np.float64]:
        """``[P]``: the mean of the squared norms so far."""
        return np.cumsum(self.squared_norms) / np.arange(1, len(self.squared_norms) + 1)


def gradient_norms(
    federation: Federation,
    simulation: Simulation,
    rounds: int,
    *,
    every: int = 1,
    start: Sequence[Tree] | None = None,
    seconds: float | None = None,
    observe: Observer = silent,
) -> Measured:
    """Run ``rounds`` rounds, and measure the global gradient at the start of one in ``every``.

    A run that diverges is measured for as long as its numbers are finite.

    Args:
        federation: the one of the simulation.
        every: with periods, a multiple of all of them: there the hubs have the model that the theorem is about.
        start: the hub blocks before round 0; by default the simulation's own.
        seconds: a time limit; at least one measurement is made.
        observe: called after every measurement.
    """
    if rounds < 1 or every < 1:
        raise ValueError(f"rounds and every must be at least 1, not {rounds} and {every}")
    with simulation.execution.with_the_data():
        full_objective = FullObjective(federation, simulation.blocks, simulation.objective)
    state = simulation.init() if start is None else simulation.state_of(start)
    first = state.blocks
    steps = range(0, rounds, every)
    meter = Meter(len(steps), seconds, observe)
    norms, iterations = list[float](), list[int]()
    for begin in steps:
        with simulation.execution.with_the_data():
            gradient = full_objective.loss_and_gradient(full_objective.flatten(state.blocks))[1]
        norms.append(float(gradient @ gradient))
        end = min(begin + every, rounds)
        iterations.append(end * simulation.settings.local_steps)
        meter.tell("squared gradient norm", norms[-1], finished=True)
        advanced = simulation.advance(state, begin, end - begin)
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(advanced.blocks)):
            break
        state = advanced
        if meter.expired:
            break
    return Measured(np.array(norms), np.array(iterations), first, state.blocks)


def bound_figure(measured: Measured, bound: Bound) -> Html:
    """The measured average beside the bound, over T."""
    iterations = measured.iterations
    return line_figure(
        [
            Curve("measured at the starts of rounds", iterations, measured.averages),
            Curve("bound of Theorem 1", iterations, [bound.at(int(t)).total for t in iterations]),
        ],
        "iterations T",
        "average squared gradient norm",
        log_y=True,
    )
