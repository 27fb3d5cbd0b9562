r"""Theorem 1: the bound on the average squared gradient norm, and the norms that a run measures."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import jax
import numpy as np
from numpy.typing import NDArray

from tdcd.blocks.base import Block
from tdcd.blocks.linear import Linear
from tdcd.core.family.overlap import Overlap
from tdcd.core.objective import Objective, Tree
from tdcd.core.settings import Settings
from tdcd.federation.silos import Federation
from tdcd.pages.kit.chart import Curve, line_figure
from tdcd.pages.kit.html import Html
from tdcd.simulation.simulate import Simulation
from tdcd.theory.full_objective import FullObjective, Vector
from tdcd.theory.noise import Noise
from tdcd.theory.progress import EstimateObserver, Meter, silent
from tdcd.theory.smoothness import Constants
from tdcd.theory.step_size import (
    IN_STEP,
    Condition,
    at_least_one,
    condition_in_words,
    inside_instead,
    max_step_size,
    staleness_of,
    timing_in_words,
)


@dataclass(frozen=True)
class Bound:
    r"""The three terms of Theorem 1, with :math:`m_j = 1` and :math:`R_j = N` in step."""

    initial: float
    r""":math:`2 (\mathcal{L}(\theta^0) - \mathcal{L}_{inf}) / (\eta T)`: the way to go, which time makes up for."""
    variance: float
    r""":math:`\eta L \sigma_{max}^2 \sum_j m_j / K`: the minibatches' noise, which clients average out."""
    staleness: float
    r""":math:`\eta^2 L_{max}^2 \sigma_{max}^2 Q^2 \sum_j R_j`: local steps on what the others sent when the round
    began, or before."""
    iterations: int
    """T."""

    @property
    def total(self) -> float:
        r"""What :math:`\frac1T \sum_{t<T} \|\nabla\mathcal{L}(\theta^t)\|^2` is at most, in expectation."""
        return self.initial + self.variance + self.staleness

    def at(self, iterations: int) -> Self:
        """The bound after another number of iterations T."""
        at_least_one(iterations=iterations)
        return replace(self, initial=self.initial * self.iterations / iterations, iterations=iterations)


def bound(
    constants: Constants,
    sigma_max: float,
    *,
    step_size: float,
    local_steps: int,
    num_silos: int,
    num_clients: float,
    iterations: int,
    gap: float,
    condition: Condition = "proof",
    timing: Overlap = IN_STEP,
) -> Bound:
    r"""The bound of Theorem 1 for these settings; refuses a step size that the condition does not admit.

    .. math:: E\Big[\frac1T \sum_{t<T} \|\nabla\mathcal{L}(\theta^t)\|^2\Big] \le
              \frac{2 (\mathcal{L}(\theta^0) - \mathcal{L}_{inf})}{\eta T} + \frac{\eta L N \sigma_{max}^2}{K}
              + \eta^2 L_{max}^2 \sigma_{max}^2 Q^2 N^2

    With overlap D, :math:`N\,[1 + (N-1)(D+1)^2]` replaces :math:`N^2`. With periods :math:`m_j`,
    :math:`\sum_j m_j` replaces N and :math:`\sum_j R_j` (:func:`~tdcd.theory.step_size.staleness_of`) replaces
    :math:`N^2`; silo j's part of the gradient is then averaged over the iterations at which it steps.

    Args:
        sigma_max: see :func:`~tdcd.theory.sigmas`.
        num_clients: K; :func:`effective_clients` where silos or shards are unequal.
        iterations: T, rounds times Q; with periods, of whole periods of every silo.
        gap: see :func:`initial_gap`.
        timing: the overlap and the periods of the silos.
    """
    at_least_one(num_clients=num_clients, iterations=iterations)
    for name, value in {"sigma_max": sigma_max, "gap": gap}.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} must be a finite number of at least 0, not {value}")
    largest = max_step_size(constants, local_steps, num_silos, condition, timing=timing)
    # Without the slack, the largest step size itself might be refused after a round trip through text.
    if not 0 < step_size <= largest * (1 + 1e-12):
        named = [f"local_steps = {local_steps}", f"num_silos = {num_silos}", *timing_in_words(timing)]
        demanded = condition_in_words(timing, printed=condition == "printed")
        instead = inside_instead(constants, step_size, local_steps, num_silos, timing) if step_size > largest else []
        raise ValueError(
            f"step_size = {step_size:g} is outside the theorem's range for {', '.join(named[:-1])} and {named[-1]}: "
            f"{demanded} with L = {constants.L:.6g} and L_max = {constants.L_max:.6g} admits step sizes above 0 and up "
            f"to {largest:.6g}" + "".join(f". {sentence.rstrip('.')}" for sentence in instead)
        )
    variance, stale = noise_terms(constants, sigma_max, local_steps, num_silos, num_clients, timing)
    return Bound(
        initial=2 * gap / (step_size * iterations),
        variance=variance * step_size,
        staleness=stale * step_size**2,
        iterations=iterations,
    )


def noise_terms(
    constants: Constants, sigma_max: float, local_steps: int, num_silos: int, num_clients: float, timing: Overlap
) -> tuple[float, float]:
    r"""What the bound's second term is per :math:`\eta`, and its third per :math:`\eta^2`."""
    silos = staleness_of(num_silos, timing)
    variance = constants.L * sum(silo.period for silo in silos) * sigma_max**2 / num_clients
    return variance, (constants.L_max * sigma_max * local_steps) ** 2 * sum(silo.factor for silo in silos)


def effective_clients(federation: Federation) -> float:
    r"""K of Theorem 1 where shards differ: the least over silos of :math:`1 / \sum_k (n_k / M)^2`.

    The theorem has K equal clients in every silo, and needs K only because averaging them divides the noise by K; the
    average weighted by rows divides it by this. With equal shards it is the smallest K.
    """
    return min(1 / float(sum(share**2 for share in silo.shares.tolist())) for silo in federation.silos)


def initial_gap(
    federation: Federation,
    blocks: Sequence[Block],
    objective: Objective,
    hub_blocks: Sequence[Tree],
    *,
    seconds: float | None = None,
    observe: EstimateObserver = silent,
) -> float:
    r"""An upper bound of :math:`\mathcal{L}(\theta^0) - \mathcal{L}_{inf}` at the hub blocks before training.

    For linear blocks and the squared loss it is the difference itself, :math:`\frac12 g^T H^+ g` with the gradient g
    and the Hessian H, by conjugate gradients. Otherwise, or when time is up, it is the objective at the start, as no
    loss is below zero.

    The corrected loss of randomised labels can be below zero, and has no least value by itself. With linear blocks and
    l2 regularisation :math:`\lambda` the objective is strongly convex, and :math:`|g|^2 / 2 \lambda` is a bound;
    otherwise it is infinite.
    """
    full_objective = FullObjective(federation, blocks, objective)
    theta = full_objective.flatten(hub_blocks)
    loss, gradient = full_objective.loss_and_gradient(theta)
    is_linear = all(isinstance(block, Linear) for block in blocks)
    if objective.label_epsilon is not None:
        return float(gradient @ gradient) / (2 * objective.l2) if is_linear and objective.l2 else math.inf
    if not objective.kind.is_quadratic or not is_linear:
        return loss
    meter = Meter(1, seconds, observe)
    quadratic = _quadratic_gap(full_objective, theta, gradient, meter)
    return loss if quadratic is None else min(quadratic, loss)


def _quadratic_gap(full_objective: FullObjective, theta: Vector, gradient: Vector, meter: Meter) -> float | None:
    """How far a quadratic objective is above its least value; None when time is up before that is known.

    Conjugate gradients would walk down to the minimum; what each step of theirs gains adds up to the gap.
    """
    residual, direction, gap = gradient, gradient, 0.0
    squared = float(residual @ residual)
    smallest = 1e-28 * squared
    last_gains: deque[float] = deque([math.inf] * 10, maxlen=10)
    while squared > smallest and sum(last_gains) > 1e-12 * gap:
        curved = full_objective.hessian_vector(theta, direction)
        length = squared / float(direction @ curved)
        last_gains.append(length * squared / 2)
        gap += last_gains[-1]
        meter.report("gap", gap, finished=False)
        if meter.expired:
            return None
        residual = residual - length * curved
        previous, squared = squared, float(residual @ residual)
        direction = residual + squared / previous * direction
    return gap


def epsilon_caveats(objective: Objective) -> list[str]:
    """What randomised labels change of Theorem 1, in sentences."""
    if objective.label_epsilon is None:
        return []
    return [
        f"Labels are randomised with epsilon = {objective.label_epsilon:g}: losses, gradients and sigma are those of "
        "the corrected loss. It is curved as the loss of true labels is, so L and the step sizes stay; it is noisier, "
        "so sigma grows; and it can be below 0."
    ]


def caveats(federation: Federation, settings: Settings, noise: Noise) -> list[str]:
    """Where a run departs from what Theorem 1 assumes, in sentences."""
    sentences = []
    if settings.minibatches == "reused" and settings.local_steps != 1:
        sentences.append(
            "minibatches = 'reused': Theorem 1 assumes a fresh minibatch for each local step; after the first step "
            "on one, gradients are biased. The theorem for reused minibatches has another bound."
        )
    if settings.gradient == "mean" and max(silo.num_clients for silo in federation.silos) > 1:
        sentences.append(
            "gradient = 'mean': a client without rows in a minibatch does not step, which biases its gradient towards "
            "zero."
        )
    if max(noise.bias) > 1e-12:
        sentences.append(
            f"The clients' rows differ: their expected gradients are off by up to {max(noise.bias):.3g}, where the "
            f"theorem assumes 0. It is counted into sigma ({noise.maximum:.3g}), which the proof does not cover."
        )
    counts = {count for silo in federation.silos for count in silo.rows_held.tolist()}
    if max(counts) > min(counts) + 1:
        sentences.append(
            f"Clients hold from {min(counts)} to {max(counts)} rows: K = {effective_clients(federation):.3g} stands "
            "for the theorem's equal clients."
        )
    return sentences


@dataclass(frozen=True, eq=False)
class GradientNorms:
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
    observe: EstimateObserver = silent,
) -> GradientNorms:
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
        meter.report("squared gradient norm", norms[-1], finished=True)
        advanced = simulation.advance(state, begin, end - begin)
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(advanced.blocks)):
            break
        state = advanced
        if meter.expired:
            break
    return GradientNorms(np.array(norms), np.array(iterations), first, state.blocks)


def bound_figure(measured: GradientNorms, bound: Bound) -> Html:
    """The measured average and the bound, over T."""
    iterations = measured.iterations
    return line_figure(
        [
            Curve("measured at the starts of rounds", iterations, measured.averages),
            Curve("bound", iterations, [bound.at(int(t)).total for t in iterations]),
        ],
        "iterations T",
        "average squared gradient norm",
        log_y=True,
    )
