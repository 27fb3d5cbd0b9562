"""What theory says of a run with ``step_size = "auto"`` and linear blocks, from its data: it is not run."""

from dataclasses import dataclass, replace
from math import ceil, isfinite, lcm, log, log1p
from typing import Any

import numpy as np

from tdcd.config import Config, ConfigError
from tdcd.config.members import is_scalable, variant_of
from tdcd.config.resolve import Plan, plan
from tdcd.core.family.overlap import Overlap
from tdcd.core.family.scaled import MOST_ROWS, WIDEST, Scaled, damping_of
from tdcd.core.objective import Objective, Tree
from tdcd.federation.silos import Federation, Silo
from tdcd.planning.facts import covered_timing, refuse_steered, refuse_uncovered, refuse_without_curvature
from tdcd.theory import (
    Bound,
    Constants,
    bits_caveats,
    bound,
    effective_clients,
    epsilon_caveats,
    initial_gap,
    max_step_size,
    sigmas,
)
from tdcd.theory.full_objective import Matrix
from tdcd.theory.noise import counts_bits
from tdcd.theory.progress import EstimateObserver, silent
from tdcd.theory.scaled import (
    StepScaling,
    largest_with_momentum,
    own_curvature,
    scaled_constants,
    strong_convexity,
)
from tdcd.theory.step_size import timing_in_words
from tdcd.training.train import simulate

LEFT = 0.01
"""The part of the distance to the least loss that is left after the rounds that are given."""

ITSELF = (
    "The automatic run itself has momentum, measures its steps and is steered by the loss: no theorem covers that, and "
    "tdcd plan forecasts it by running it."
)


@dataclass(frozen=True)
class ScaledBound:
    """A problem in the units of scaled steps, and what follows for one of fixed length on every sample."""

    planned: Plan
    constants: Constants
    """In the scaled variables, where L is at most N whatever the data."""
    convexity: float
    """The least that the objective curves there; 0 if it may be flat."""
    gap: float
    """The loss before training, above the least there is, at most."""
    sigma: float
    """Of minibatches and few bits, in the scaled norm; 0 if every sample is in each minibatch."""
    caveats: tuple[str, ...]
    """What to know of these figures, in sentences."""

    @property
    def num_silos(self) -> int:
        """N."""
        return self.planned.federation.num_silos

    @property
    def timing(self) -> Overlap:
        """The overlap and the periods."""
        return covered_timing(self.planned.variant)

    @property
    def is_descent(self) -> bool:
        """Whether a round is one step of gradient descent: in step, and without noise."""
        return not timing_in_words(self.timing) and not self.sigma

    @property
    def update(self) -> Scaled:
        """The steps that the run takes."""
        steered: Any = self.planned.variant.hub_update
        scaled: Scaled = steered.update
        return scaled

    @property
    def first_step(self) -> float:
        """The first scaled step of the run, and its shortest until the loss steers it: 1 / N in step."""
        return self.update.step_size

    @property
    def allowed_step(self) -> float:
        """Below it, steps with the run's momentum are stable in step, since silos overlap as they do."""
        return largest_with_momentum(self.constants.L, self.update.momentum)

    @property
    def step_size(self) -> float:
        """The largest fixed scaled step that Theorem 1 admits."""
        return max_step_size(self.constants, 1, self.num_silos, timing=self.timing)

    @property
    def bound(self) -> Bound | None:
        """Theorem 1 for that step and as many rounds as the run may take; None if it bounds nothing."""
        whole = lcm(*self.timing.periods)
        rounds = self.planned.config.train.rounds // whole * whole
        if not (isfinite(self.gap) and isfinite(self.step_size) and rounds):
            return None
        return bound(
            self.constants,
            self.sigma,
            step_size=self.step_size,
            local_steps=1,
            num_silos=self.num_silos,
            num_clients=effective_clients(self.planned.federation),
            iterations=rounds,
            gap=self.gap,
            timing=self.timing,
        )

    @property
    def rounds(self) -> int | None:
        """Rounds after which scaled steps of 1 / L leave a hundredth of the distance; None if that is not known."""
        if not (self.is_descent and self.convexity > 0):
            return None
        remaining = min(self.convexity / self.constants.L, 1 - LEFT)
        return ceil(log(LEFT) / log1p(-remaining))

    @property
    def verdict(self) -> str:
        """The promise in a few sentences."""
        return " ".join([self._average(), *self._distance(), ITSELF])

    def _average(self) -> str:
        limit = self.bound
        if limit is None:
            return "Theorem 1 bounds nothing here: no least loss, no curvature or no round is known."
        return (
            f"With a fixed scaled step of {self.step_size:.4g} Theorem 1 promises that the squared gradient, in the "
            f"scaled norm and averaged over {limit.iterations:,} rounds, is at most {limit.total:.4g}."
        )

    def _distance(self) -> list[str]:
        if not self.is_descent:
            return []
        smooth = (
            f"In step and on every sample, fixed scaled steps below {2 / self.constants.L:.4g} never raise the loss"
        )
        if self.rounds is None:
            return [f"{smooth}."]
        return [
            f"{smooth}; with {1 / self.constants.L:.4g}, at most 1 % of the distance to the least loss is left after "
            f"{self.rounds:,} rounds."
        ]


def scaled_bound(
    config: Config, where: str, *, devices: int | None = 1, seconds: float = 60.0, observe: EstimateObserver = silent
) -> ScaledBound:
    """Work out what theory says of scaled steps on a configuration's data.

    Args:
        where: the configuration's file.
        devices: over which clients are spread.
        seconds: a time limit for the distance to the least loss and for sigma; the rest takes what it takes.
        observe: called after every piece of work.
    """
    if not seconds > 0:
        raise ValueError(f"seconds must be a positive number, not {seconds}")
    if not config.train.is_automatic:
        raise ConfigError(
            [
                f"train.step_size = {config.train.step_size:g}: steps of one length are held against the gradients of "
                "a finished run; run it, and give the folder that it wrote"
            ],
            where,
        )
    refuse_without_curvature(config, where)
    if not is_scalable(config):
        refuse_steered(config, where)
    refuse_uncovered(config, variant_of(config), where)
    planned = plan(config, devices=devices)
    federation, objective = planned.federation, planned.objective
    federation.check_complete("a bound")
    _refuse_wide_silos(planned, where)
    scaling = StepScaling.of([_curvature_of(silo, objective) for silo in federation.silos])
    start = simulate(planned).init().blocks
    with planned.execution.with_the_data():
        known = scaled_constants(federation, scaling, objective)
        gap = initial_gap(federation, planned.blocks, objective, start, seconds=seconds / 2, observe=observe)
        sigma, notes = _noise(planned, scaling, start, seconds / 2, observe)
    convexity = strong_convexity(federation, scaling, objective)
    return ScaledBound(planned, known, convexity, gap, sigma, (*notes, *_caveats(planned, federation)))


def _curvature_of(silo: Silo, objective: Objective) -> Matrix:
    """The silo's A, with the damping of the run."""
    bare = own_curvature(silo, objective.curvature, 0.0)
    return np.asarray(bare + damping_of(np.diagonal(bare), objective.l2) * np.eye(len(bare)))


def _refuse_wide_silos(planned: Plan, where: str) -> None:
    for silo in planned.federation.silos:
        columns = int(np.prod(silo.feature_shape))
        if columns > WIDEST:
            raise ConfigError(
                [
                    f"silo '{silo.name}': of more than {WIDEST:,} columns hubs scale by the diagonal alone, for which "
                    f"no constants are worked out, and it has {columns:,}"
                ],
                where,
            )


def _noise(
    planned: Plan, scaling: StepScaling, start: list[Tree], seconds: float, observe: EstimateObserver
) -> tuple[float, list[str]]:
    """Sigma in the scaled norm, and what to know of it."""
    if planned.settings.minibatches == "full" and not counts_bits(planned.variant, planned.blocks):
        # The clients' mean is the gradient itself, and they take one step.
        return 0.0, []
    noise = sigmas(
        scaling.federation(planned.federation),
        planned.blocks,
        planned.objective,
        replace(planned.settings, local_steps=1),
        [scaling.model(start)],
        variant=planned.variant,
        seconds=seconds,
        observe=observe,
    )
    if noise.too_few:
        raise ValueError(noise.too_few)
    return noise.maximum, ["Sigma is that at the start of training, where the theorem wants the largest of all rounds."]


def _caveats(planned: Plan, federation: Federation) -> list[str]:
    steps, notes = planned.settings.local_steps, []
    if steps > 1:
        notes.append(
            f"local_steps = {steps}: hubs take what so many short local steps changed for one gradient, and these "
            "figures are about one scaled step a round."
        )
    if any(len(rows) > MOST_ROWS for silo in federation.silos for rows in silo.rows):
        notes.append(
            f"Hubs know their curvature from {MOST_ROWS:,} rows of a client at most; these figures take all rows."
        )
    return [
        *notes,
        *bits_caveats(planned.variant, planned.blocks, planned.objective),
        *epsilon_caveats(planned.objective),
    ]
