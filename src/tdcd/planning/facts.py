"""What is known about a problem before any run: where it starts, how curved and how noisy it is."""

from dataclasses import dataclass

from tdcd.blocks.linear import Linear
from tdcd.config.resolve import Plan
from tdcd.core.losses import no_curvature
from tdcd.core.objective import Tree
from tdcd.core.timing import Overlap
from tdcd.planning.covered import covered_timing
from tdcd.theory import Constants, Noise, UnfinishedError, constants, initial_gap, max_step_size, sigmas
from tdcd.theory.progress import Observer
from tdcd.training.train import simulate


@dataclass(frozen=True)
class Facts:
    """The start of a federation's training, and Theorem 1's constants there."""

    blocks: list[Tree]
    """The hub blocks before training, which do not depend on Q."""
    initial: float
    """Their loss."""
    optimum: float | None
    """The least loss there is, where it is known: for linear blocks and the squared loss."""
    least: float
    """No loss is below it: the optimum, or else 0; of randomised labels it may be below 0, and minus infinity."""
    constants: Constants | None
    """None where :attr:`no_constants` says why."""
    no_constants: str
    noise: Noise | None
    """At the start; None where no loss follows from the theorem, for which alone it is needed, or where
    :attr:`no_noise` says why."""
    no_noise: str
    num_silos: int
    timing: Overlap
    """The plan's."""

    def safe_step_size(self, local_steps: int, timing: Overlap | None = None) -> float | None:
        """The largest step size that the theorem's proof admits, with the plan's overlap and periods or with others."""
        if self.constants is None:
            return None
        return max_step_size(self.constants, local_steps, self.num_silos, timing=timing or self.timing)


def is_linear(planned: Plan) -> bool:
    """Whether every block is linear, and so the objective convex."""
    return all(isinstance(block, Linear) for block in planned.blocks)


def why_no_constants(planned: Plan) -> str:
    """Why Theorem 1's constants cannot be had; empty if they can."""
    if "torch" in planned.config.block_names:
        return "Theorem 1's constants need second derivatives, which torch blocks lack"
    return no_curvature(planned.objective.kind)


def gather_facts(planned: Plan, seconds: float, observe: Observer) -> Facts:
    """Compute them, each within ``seconds``."""
    federation, blocks, objective = planned.federation, planned.blocks, planned.objective
    simulation = simulate(planned)
    start = simulation.init().blocks
    initial = simulation.loss(start, simulation.scores(start), federation.labels)
    known, optimum, noise = None, None, None
    no_constants, no_noise = why_no_constants(planned), ""
    with planned.execution.with_the_data():
        if not no_constants:
            models = () if is_linear(planned) else (start,)
            try:
                known = constants(federation, blocks, objective, models=models, seconds=seconds, observe=observe)
            except UnfinishedError as error:
                no_constants = str(error)
        if is_linear(planned) and objective.kind.is_quadratic:
            gap = initial_gap(federation, blocks, objective, start, seconds=seconds, observe=observe)
            # If the optimum is not known in time, the gap is taken to be the whole loss.
            optimum = initial - gap if gap < initial else None
        least = 0.0 if optimum is None else optimum
        if objective.label_epsilon is not None:
            least = initial - initial_gap(federation, blocks, objective, start, seconds=seconds, observe=observe)
        if is_linear(planned) and objective.l2 > 0 and known is not None:
            noise = sigmas(
                federation,
                blocks,
                objective,
                planned.settings,
                [start],
                variant=planned.variant,
                seconds=seconds,
                observe=observe,
            )
            no_noise = noise.too_few
    return Facts(
        blocks=start,
        initial=initial,
        optimum=optimum,
        least=least,
        constants=known,
        no_constants=no_constants,
        noise=None if no_noise else noise,
        no_noise=no_noise,
        num_silos=federation.num_silos,
        timing=covered_timing(planned.variant),
    )
