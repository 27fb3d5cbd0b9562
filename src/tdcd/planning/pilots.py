"""Pilot runs: the federation simulated in several ways side by side, until their losses reach a target."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import jax

from tdcd.config.resolve import Plan
from tdcd.core.codecs.fixed_point import BeyondRangeError
from tdcd.planning.forecast import Cost, Forecast
from tdcd.simulation.engines.base import State
from tdcd.simulation.simulate import Simulation
from tdcd.theory.progress import EstimateObserver, EstimateProgress
from tdcd.training.train import simulate

BLOWN_UP = 10.0
"""A run diverges when its loss is this many times that before training."""
FOLLOWED = 20
"""Rounds at least that a run with a step size beyond the safe one is followed after it was at the target."""
GIVE_UP = 10
"""A run is hopeless when another one was at the target sooner, with this many times fewer local steps."""


class PilotPoint(NamedTuple):
    """A pilot run after some round."""

    round: int
    loss: float
    """The objective over all training samples."""


@dataclass(eq=False)
class Pilot:
    """One way to train: its settings, and how its run went so far."""

    planned: Plan
    cost: Cost
    safe_step_size: float | None
    """The step size to fall back on when the run diverges; None where there is none."""
    curve: list[PilotPoint]
    """Begins before training; a new run restarts it."""
    name: str
    diverged: list[float] = field(default_factory=list)
    """Step sizes with which the run diverged."""
    state: State | None = None
    _simulation: Simulation | None = None

    @property
    def local_steps(self) -> int:
        """Q."""
        return self.planned.settings.local_steps

    @property
    def step_size(self) -> float:
        """The configuration's, or the safe one if the run diverged with that."""
        return self.planned.settings.step_size

    @property
    def failed(self) -> bool:
        """Whether it diverged with every step size there is to try."""
        return self.step_size in self.diverged

    @property
    def taken(self) -> int:
        """The local steps so far."""
        return self.curve[-1].round * self.local_steps

    @property
    def seconds(self) -> float:
        """The predicted time of the rounds so far."""
        return self.cost.after(self.curve[-1].round)

    @property
    def lowest(self) -> float:
        """The least loss so far."""
        return min(point.loss for point in self.curve)

    def reached(self, target: float) -> int | None:
        """The first evaluated round at which the loss is at most ``target``."""
        return next((point.round for point in self.curve if point.loss <= target), None)

    def forecast(self, target: float, bound_rounds: int | None = None) -> Forecast:
        """What the pilot says of a whole run up to ``target``, next to the rounds that Theorem 1 needs."""
        return Forecast(
            local_steps=self.local_steps,
            safe_step_size=self.safe_step_size,
            step_size=self.step_size,
            rounds=self.reached(target),
            simulated=self.curve[-1].round,
            lowest=self.lowest,
            diverged=tuple(self.diverged),
            cost=self.cost,
            bound_rounds=bound_rounds,
        )

    @property
    def stride(self) -> int:
        """Rounds to the next evaluation: a tenth of those so far, so that rounds to a target are right to a tenth."""
        return max(1, self.curve[-1].round // 10)

    def advance(self) -> float:
        """Simulate up to the next evaluation; a run that diverged starts again with the safe step size.

        Returns:
            The seconds that a local step took here.
        """
        begin, rounds = self.curve[-1].round, self.stride
        simulation = self.compiled()
        began = time.monotonic()
        assert self.state is not None
        state = simulation.advance(self.state, begin, rounds)
        jax.block_until_ready(state)  # type: ignore[no-untyped-call]
        pace = (time.monotonic() - began) / (rounds * self.local_steps)
        try:
            loss = simulation.loss(state.blocks, simulation.scores(state.blocks), self.planned.federation.labels)
        except BeyondRangeError:
            loss = math.inf
        if math.isfinite(loss) and loss <= BLOWN_UP * self.curve[0].loss:
            self.state = state
            self.curve.append(PilotPoint(begin + rounds, loss))
        else:
            self._diverge()
        return pace

    def compiled(self) -> Simulation:
        """The simulation after a round that warms it up, so that later times are without compilation."""
        if self._simulation is None:
            self._simulation = simulate(self.planned)
            if self.state is None or len(self.curve) == 1:
                self.state = self._simulation.init()
            jax.block_until_ready(self._simulation.advance(self.state, 0, 1))  # type: ignore[no-untyped-call]
        return self._simulation

    def _diverge(self) -> None:
        self.diverged.append(self.step_size)
        if self.safe_step_size is not None and self.safe_step_size < self.step_size:
            self.planned = self.planned._replace(settings=replace(self.planned.settings, step_size=self.safe_step_size))
            self.rest()
            self.curve = self.curve[:1]

    def followed(self, target: float) -> bool:
        """Whether it was at the target long enough ago to see whether it stays.

        A step size beyond the safe one may pass the target and diverge: that run is followed for as many rounds again.
        """
        rounds = self.reached(target)
        if rounds is None:
            return False
        is_safe = self.safe_step_size is not None and self.step_size <= self.safe_step_size
        return is_safe or self.curve[-1].round >= max(2 * rounds, rounds + FOLLOWED)

    def judge(self, target: float | None) -> None:
        """Take a run for diverged that was at the target and has lost half of the way since."""
        initial, last = self.curve[0].loss, self.curve[-1].loss
        if target is not None and self.reached(target) is not None and last > (initial + self.lowest) / 2:
            self._diverge()

    def rest(self) -> None:
        """Release the data."""
        self._simulation = None


class Clock:
    """A time limit."""

    def __init__(self, seconds: float) -> None:
        """Start it."""
        if not seconds > 0:
            raise ValueError(f"seconds must be a positive number, not {seconds}")
        self._end = time.monotonic() + seconds

    def has(self, seconds: float) -> bool:
        """Whether that much time is left."""
        return self._end - time.monotonic() > seconds


def start_pilot(
    planned: Plan, cost: Cost, safe_step_size: float | None, initial: float, name: str | None = None
) -> Pilot:
    """A pilot run before its first round, whose loss is ``initial``; by default it is called by its Q."""
    return Pilot(planned, cost, safe_step_size, [PilotPoint(0, initial)], name or f"Q = {planned.settings.local_steps}")


def run_pilots(
    pilots: Sequence[Pilot], *, target: float | None, horizon: int = 0, clock: Clock, observe: EstimateObserver
) -> None:
    """Simulate until each pilot is at the target and stays there, is hopeless or has diverged, or until time is up.

    The pilot that is behind in *predicted* time is always the next to run. So all are at about the same predicted time,
    and the first to reach the target is the fastest, even if time is up before the others get there.

    Args:
        target: None runs each for ``horizon`` local steps instead.
    """
    for pilot in pilots:
        pilot.judge(target)
    pace, waiting = 0.0, [pilot for pilot in pilots if not _finished(pilot, pilots, target, horizon)]
    while waiting:
        pilot = min(waiting, key=lambda each: each.seconds)
        if not clock.has(pace * pilot.stride * pilot.local_steps):
            waiting.remove(pilot)
            continue
        pace = min(pilot.advance(), pace or math.inf)
        pilot.judge(target)
        if _finished(pilot, pilots, target, horizon):
            waiting.remove(pilot)
            pilot.rest()
        done = len(pilots) - len(waiting)
        observe(EstimateProgress(pilot.name, done, len(pilots), pilot.curve[-1].loss))


def _finished(pilot: Pilot, pilots: Sequence[Pilot], target: float | None, horizon: int) -> bool:
    if pilot.failed:
        return True
    if target is None:
        return pilot.taken >= horizon
    if pilot.reached(target) is not None:
        return pilot.followed(target)
    arrived = [(each, rounds) for each in pilots if (rounds := each.reached(target)) is not None]
    fewest = min((rounds * each.local_steps for each, rounds in arrived), default=math.inf)
    soonest = min((each.cost.after(rounds) for each, rounds in arrived), default=math.inf)
    return pilot.taken > GIVE_UP * fewest and pilot.seconds > soonest
