"""Whether the bound of the theorem that covers it holds on a finished run, and which of its terms dominates."""

from dataclasses import dataclass, replace
from math import ceil, isclose, isfinite, lcm
from pathlib import Path

import numpy as np

from tdcd.config import check_config
from tdcd.config.members import variant_of
from tdcd.config.resolve import Plan, plan
from tdcd.config.user_code import refuse_code, resume_command
from tdcd.core.family.overlap import Overlap
from tdcd.planning.facts import (
    Reused,
    covered_timing,
    is_linear,
    patience_caveats,
    refuse_steered,
    refuse_uncovered,
    refuse_without_curvature,
    reused_facts,
    reused_problem,
    reuses,
)
from tdcd.records.run_folder import RecordedRun, RunFolder
from tdcd.simulation.simulate import Simulation
from tdcd.theory import (
    Bound,
    Constants,
    GradientNorms,
    Noise,
    bits_caveats,
    bound,
    caveats,
    constants,
    effective_clients,
    epsilon_caveats,
    gradient_norms,
    initial_gap,
    max_step_size,
    sigmas,
)
from tdcd.theory.progress import EstimateObserver, silent
from tdcd.theory.step_size import Condition, inside_instead, timing_in_words, vanishing
from tdcd.training.train import simulate

POINTS = 200
"""A run is measured at about this many of its rounds at most."""
REMEDIES = {
    "initial": "The initial term, how far the start was from the optimum, dominates: more rounds lower it.",
    "variance": "The variance term, the minibatches' noise, dominates: larger minibatches, more clients or a "
    "smaller step size lower it; more rounds do not.",
    "staleness": "The staleness term dominates: fewer local steps, less overlap or a smaller step size lower it; more "
    "rounds do not.",
}
"""By the names of :class:`~tdcd.theory.Bound`."""
REUSED_REMEDIES = {
    "variance": "The variance term, the minibatches' noise, dominates: larger minibatches, fewer local steps or a "
    "smaller step size lower it; more rounds do not.",
    "staleness": "The drift term, of several steps on one minibatch, dominates: fewer local steps, larger minibatches "
    "or a smaller step size lower it; more rounds do not.",
}
"""Where they differ for reused minibatches."""


@dataclass(frozen=True, eq=False)
class MeasuredBound:
    """A run, compared with its bound."""

    run: RecordedRun
    planned: Plan
    constants: Constants
    noise: Noise | None
    """None for reused minibatches, whose noise is in :attr:`reused`."""
    gap: float
    num_clients: float
    """K of the theorem."""
    gradients: GradientNorms
    bound: Bound | None
    """After the iterations measured; None if the step size is not admissible, the gap not finite, or no theorem covers
    the run."""
    caveats: tuple[str, ...]
    """Where the run departs from what the theorem assumes."""
    reused: Reused | None = None
    """For reused minibatches."""
    missing: str = ""
    """What the theorem for them lacks to cover the run."""

    @property
    def iterations(self) -> int:
        """T, as far as was measured."""
        return int(self.gradients.iterations[-1])

    @property
    def average(self) -> float:
        """The measured average that the bound limits."""
        return float(self.gradients.averages[-1])

    @property
    def dominant(self) -> str | None:
        """The largest term, by its name in :data:`REMEDIES`."""
        limit = self.bound
        return None if limit is None else max(REMEDIES, key=lambda name: float(getattr(limit, name)))

    @property
    def holds(self) -> bool | None:
        """Whether the measured average was below the bound for every T; None without a bound."""
        if self.bound is None:
            return None
        limits = [self.bound.at(int(t)).total for t in self.gradients.iterations]
        return bool((self.gradients.averages <= np.array(limits)).all())

    @property
    def bound_interval(self) -> tuple[float, float] | None:
        """The bound with sigma at the ends of its interval; None without either."""
        limit, noise = self.bound, self.noise
        if limit is None or noise is None or noise.interval is None or not noise.maximum:
            return None
        interval, sigma = noise.interval, noise.maximum
        low, high = (limit.initial + (end / sigma) ** 2 * (limit.variance + limit.staleness) for end in interval)
        return low, high

    @property
    def timing(self) -> Overlap:
        """The run's overlap and periods."""
        return covered_timing(self.planned.variant)

    def max_step_size(self, condition: Condition) -> float:
        """The largest step size that a condition admits for this run; for reused minibatches there is one only."""
        steps, silos = self.planned.settings.local_steps, self.planned.federation.num_silos
        if self.reused is not None:
            return self.reused.constants.max_step_size(steps)
        return max_step_size(self.constants, steps, silos, condition, timing=self.timing)

    @property
    def verdict(self) -> str:
        """The result in a few sentences."""
        steps, silos = self.planned.settings.local_steps, self.planned.federation.num_silos
        vanished = None if self.missing else vanishing(self.constants, steps, silos, self.timing)
        return " ".join([*self._outcome(), *([vanished] if vanished else [])])

    def _remedy(self, term: str) -> str:
        return (REMEDIES | REUSED_REMEDIES if self.reused else REMEDIES)[term]

    def _outcome(self) -> list[str]:
        if self.missing:
            return [f"No theorem covers this run. {self.missing}."]
        if not isfinite(self.gap):
            theorem = "The theorem for reused minibatches" if self.reused else "Theorem 1"
            return [
                f"{theorem} bounds nothing here: the corrected loss of randomised labels has a least value that is "
                "known only for linear blocks with model.l2 > 0."
            ]
        if self.bound is None or self.dominant is None:
            return self._outside()
        if not self.holds:
            return [
                "The bound does not hold: the measured average exceeds it at some T.",
                self._remedy(self.dominant),
                "The run departs from what the theorem assumes, or sigma was underestimated.",
            ]
        times = self.bound.total / self.average if self.average else float("inf")
        return [f"The bound holds: it is {times:.3g} times what was measured.", self._remedy(self.dominant)]

    def _outside(self) -> list[str]:
        settings, silos, late = self.planned.settings, self.planned.federation.num_silos, timing_in_words(self.timing)
        if self.reused is not None:
            return [
                f"step_size = {settings.step_size:g} is outside the range of the theorem for reused minibatches, so it "
                f"bounds nothing here: with Q = {settings.local_steps} it admits step sizes up to "
                f"{self.max_step_size('proof'):.4g}."
            ]
        named = [f"Q = {settings.local_steps}", f"N = {silos}", *late]
        printed_too = ""
        if not late:
            printed = self.max_step_size("printed")
            printed_too = f" (the condition as printed, which lacks a factor N, up to {printed:.4g})"
        return [
            f"step_size = {settings.step_size:g} is outside Theorem 1's range, so it bounds nothing here: with "
            f"{', '.join(named[:-1])} and {named[-1]} its proof admits step sizes up to "
            f"{self.max_step_size('proof'):.4g}{printed_too}.",
            *inside_instead(self.constants, settings.step_size, settings.local_steps, silos, self.timing),
        ]


def measure_bound(
    folder: Path,
    *,
    allow_code: bool = False,
    devices: int | None = 1,
    seconds: float = 60.0,
    observe: EstimateObserver = silent,
) -> MeasuredBound:
    """Run a finished run again, measuring its gradients, and compare with the bound of Theorem 1.

    Args:
        folder: a run folder that ``tdcd run`` wrote.
        allow_code: import the code that its settings name; refused otherwise.
        devices: over which clients are spread.
        seconds: a time limit, about half of it for the run itself. What is measured by then counts.
        observe: called after every piece of work.
    """
    if not seconds > 0:
        raise ValueError(f"seconds must be a positive number, not {seconds}")
    run, planned, simulation = _again(folder, devices, allow_code=allow_code)
    planned.federation.check_complete("a bound")
    federation, blocks, objective, settings = planned.federation, planned.blocks, planned.objective, planned.settings
    # Where every silo begins a period, the hubs have the model that the theorem is about.
    timing = covered_timing(planned.variant)
    whole = lcm(*timing.periods)
    rounds = run.history[-1].round // whole * whole
    every = ceil(rounds / whole / POINTS) * whole
    measured = gradient_norms(federation, simulation, rounds, every=every, seconds=seconds / 2, observe=observe)
    models = [measured.first, measured.last]
    curved_at = () if is_linear(planned) else models
    noise, reused, missing = None, None, reused_problem(planned) if reuses(settings) else ""
    with planned.execution.with_the_data():
        known = constants(federation, blocks, objective, models=curved_at, seconds=seconds / 4, observe=observe)
        if not reuses(settings):
            noise = sigmas(
                federation,
                blocks,
                objective,
                settings,
                models,
                variant=planned.variant,
                seconds=seconds / 8,
                observe=observe,
            )
            if noise.too_few:
                raise ValueError(noise.too_few)
        elif not missing:
            reused = reused_facts(planned, known, models, seconds / 8, observe)
        gap = initial_gap(federation, blocks, objective, measured.first, seconds=seconds / 8, observe=observe)
    num_clients = effective_clients(federation)
    result = MeasuredBound(
        run,
        planned,
        known,
        noise,
        gap,
        num_clients,
        measured,
        None,
        (
            *(caveats(federation, settings, noise) if noise else ()),
            *bits_caveats(planned.variant, blocks, objective),
            *epsilon_caveats(objective),
            *patience_caveats(planned.config),
        ),
        reused,
        missing,
    )
    return replace(result, bound=_bound_of(result))


def _bound_of(result: MeasuredBound) -> Bound | None:
    """What a theorem says of the run; None if none says anything."""
    settings, iterations = result.planned.settings, int(result.gradients.iterations[-1])
    if result.missing or not isfinite(result.gap) or settings.step_size > result.max_step_size("proof"):
        return None
    if result.reused is not None:
        known, noise = result.reused
        return known.bound(
            noise,
            step_size=settings.step_size,
            local_steps=settings.local_steps,
            iterations=iterations,
            gap=result.gap,
        )
    assert result.noise is not None
    return bound(
        result.constants,
        result.noise.maximum,
        step_size=settings.step_size,
        local_steps=settings.local_steps,
        num_silos=result.planned.federation.num_silos,
        num_clients=result.num_clients,
        iterations=iterations,
        gap=result.gap,
        timing=result.timing,
    )


def _again(folder: Path, devices: int | None, *, allow_code: bool) -> tuple[RecordedRun, Plan, Simulation]:
    """The run in ``folder``, ready to be run again; refused if that would be another run."""
    run = RecordedRun.read(folder)
    where = str(RunFolder(folder).config_file)
    config = check_config(run.config, where)
    if not allow_code:
        refuse_code(run.config, where)
    refuse_without_curvature(config, where)
    refuse_steered(config, where)
    refuse_uncovered(config, variant_of(config), where)
    more = resume_command(folder, run.config)
    if run.history[-1].round == 0:
        raise ValueError(f"{folder} holds no round yet: run more of it with {more}")
    planned = plan(config, devices=devices)
    whole = lcm(*covered_timing(planned.variant).periods)
    if run.history[-1].round < whole:
        raise ValueError(
            f"{folder} holds {run.history[-1].round} rounds, and its silos' periods all begin together every {whole} "
            f"rounds: run more of it with {more}"
        )
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
