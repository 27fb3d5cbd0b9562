"""Whether the bound of Theorem 1 holds on a finished run, and which of its terms dominates."""

from dataclasses import dataclass
from math import ceil, isclose
from pathlib import Path

import numpy as np

from tdcd.config import ConfigError, check_config
from tdcd.config.resolve import Plan, plan, variant_of
from tdcd.planning.covered import refuse_uncovered
from tdcd.planning.facts import is_linear
from tdcd.records.run_folder import RunFolder
from tdcd.report.folder import Run
from tdcd.simulation.simulate import Simulation
from tdcd.theory import (
    Bound,
    Constants,
    Measured,
    Noise,
    bound,
    caveats,
    constants,
    effective_clients,
    gradient_norms,
    initial_gap,
    max_step_size,
    sigmas,
)
from tdcd.theory.progress import Observer, silent
from tdcd.theory.theorem import Condition
from tdcd.training.run import simulate

POINTS = 200
"""A run is measured at about this many of its rounds at most."""
TERMS = {
    "initial": "initial: 2 (L(start) - L_inf) / (eta T)",
    "variance": "variance: eta L N sigma^2 / K",
    "staleness": "staleness: eta^2 L_max^2 sigma^2 Q^2 N^2",
}
"""The bound's terms by the names of :class:`~tdcd.theory.Bound`."""
REMEDIES = {
    "initial": "The initial term, how far the start was from the optimum, dominates: more rounds lower it.",
    "variance": "The variance term, the minibatches' noise, dominates: larger minibatches, more clients or a "
    "smaller step size lower it; more rounds do not.",
    "staleness": "The staleness term dominates: fewer local steps or a smaller step size lower it; more rounds do not.",
}


@dataclass(frozen=True, eq=False)
class MeasuredBound:
    """A run beside its bound."""

    run: Run
    planned: Plan
    constants: Constants
    noise: Noise
    gap: float
    num_clients: float
    """K of the theorem."""
    gradients: Measured
    bound: Bound | None
    """After the iterations measured; None if the step size is not admissible."""
    caveats: tuple[str, ...]
    """Where the run departs from what the theorem assumes."""

    @property
    def iterations(self) -> int:
        """T, as far as was measured."""
        return int(self.gradients.iterations[-1])

    @property
    def average(self) -> float:
        """What the bound bounds, as measured."""
        return float(self.gradients.averages[-1])

    @property
    def dominant(self) -> str | None:
        """The largest term, by its name in :data:`TERMS`."""
        limit = self.bound
        return None if limit is None else max(TERMS, key=lambda name: float(getattr(limit, name)))

    @property
    def holds(self) -> bool | None:
        """Whether the measured average was below the bound for every T; None without a bound."""
        if self.bound is None:
            return None
        limits = [self.bound.at(int(t)).total for t in self.gradients.iterations]
        return bool((self.gradients.averages <= np.array(limits)).all())

    def max_step_size(self, condition: Condition) -> float:
        """The largest step size that a condition admits for this run."""
        steps, silos = self.planned.settings.local_steps, self.planned.federation.num_silos
        return max_step_size(self.constants, steps, silos, condition)

    @property
    def verdict(self) -> str:
        """What came out, in a sentence or two."""
        settings = self.planned.settings
        if self.bound is None or self.dominant is None:
            return (
                f"step_size = {settings.step_size:g} is outside Theorem 1's range, so it bounds nothing here: "
                f"with Q = {settings.local_steps} and N = {self.planned.federation.num_silos} its proof admits step "
                f"sizes up to {self.max_step_size('proof'):.4g} (the condition as printed, which lacks a factor N, up "
                f"to {self.max_step_size('printed'):.4g})."
            )
        if not self.holds:
            return (
                f"The bound does not hold: the measured average exceeds it at some T. {REMEDIES[self.dominant]} "
                "The run departs from what the theorem assumes, or sigma was underestimated."
            )
        times = self.bound.total / self.average if self.average else float("inf")
        return f"The bound holds: it is {times:.3g} times what was measured. {REMEDIES[self.dominant]}"


def measure_bound(
    folder: Path, *, devices: int | None = 1, seconds: float = 60.0, observe: Observer = silent
) -> MeasuredBound:
    """Run a finished run again, measuring its gradients, and compare with the bound of Theorem 1.

    Args:
        folder: a run folder that ``tdcd run`` wrote.
        devices: over which clients are spread.
        seconds: a time limit, about half of it for the run itself. What is measured by then counts.
        observe: called after every piece of work.
    """
    if not seconds > 0:
        raise ValueError(f"seconds must be a positive number, not {seconds}")
    run, planned, simulation = _again(folder, devices)
    federation, blocks, objective, settings = planned.federation, planned.blocks, planned.objective, planned.settings
    rounds = run.history[-1].round
    every = ceil(rounds / POINTS)
    measured = gradient_norms(federation, simulation, rounds, every=every, seconds=seconds / 2, observe=observe)
    models = [measured.first, measured.last]
    curved_at = () if is_linear(planned) else models
    with planned.execution.with_the_data():
        known = constants(federation, blocks, objective, models=curved_at, seconds=seconds / 4, observe=observe)
        noise = sigmas(federation, blocks, objective, settings, models, seconds=seconds / 8, observe=observe)
        gap = initial_gap(federation, blocks, objective, measured.first, seconds=seconds / 8, observe=observe)
    num_clients = effective_clients(federation)
    limit = None
    if settings.step_size <= max_step_size(known, settings.local_steps, federation.num_silos):
        limit = bound(
            known,
            noise.maximum,
            step_size=settings.step_size,
            local_steps=settings.local_steps,
            num_silos=federation.num_silos,
            num_clients=num_clients,
            iterations=int(measured.iterations[-1]),
            gap=gap,
        )
    departures = tuple(caveats(federation, settings, noise))
    return MeasuredBound(run, planned, known, noise, gap, num_clients, measured, limit, departures)


def _again(folder: Path, devices: int | None) -> tuple[Run, Plan, Simulation]:
    """The run in ``folder``, ready to be run again; refused if that would be another run."""
    run = Run.read(folder)
    where = str(RunFolder(folder).config_file)
    config = check_config(run.config, where)
    if "torch" in config.model.block:
        raise ConfigError(
            ["model.block = 'torch': Theorem 1's constants need second derivatives, which torch blocks lack"], where
        )
    refuse_uncovered(config, variant_of(config), where)
    if run.history[-1].round == 0:
        raise ValueError(f"{folder} holds no round yet: run more of it with tdcd run --resume {folder}")
    planned = plan(config, devices=devices)
    simulation = simulate(planned)
    start = simulation.init().blocks
    loss = simulation.loss(start, simulation.scores(start), planned.federation.labels)
    before = run.history[0].train_loss
    if not isclose(loss, before, rel_tol=1e-3):
        raise ValueError(
            f"{folder} cannot be run again: its loss before training was {before:.6g}, and now it is {loss:.6g}; "
            "the data has changed since"
        )
    return run, planned, simulation
