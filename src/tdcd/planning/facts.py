"""What is known about a problem before any run: whether Theorem 1 covers it, where it starts, how curved and
how noisy it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tdcd.blocks.linear import Linear
from tdcd.config import Config, ConfigError
from tdcd.config.checks import weight_keys
from tdcd.config.losses import chosen_loss
from tdcd.config.resolve import Plan
from tdcd.config.schema import TrainSection
from tdcd.core.family.overlap import Overlap
from tdcd.core.losses import no_curvature
from tdcd.core.objective import Tree
from tdcd.core.settings import BATCH_SIZE, LOCAL_STEPS, Settings
from tdcd.core.update import Average
from tdcd.core.variant import Variant
from tdcd.theory import (
    Constants,
    Noise,
    ReusedConstants,
    ReusedNoise,
    UnfinishedError,
    constants,
    initial_gap,
    max_step_size,
    reused_constants,
    reused_noise,
    sigmas,
)
from tdcd.theory.progress import EstimateObserver
from tdcd.theory.step_size import timing_in_words
from tdcd.training.train import simulate

VARIANT_KEYS = ("optimizer", "schedule", "clip", "hub_optimizer", "participation", "silo_dropout", "variant")
"""The keys under ``[train]`` that make a member of the family that is not covered."""


def refuse_uncovered(config: Config, variant: Variant, where: str = "the configuration") -> None:
    """Refuse a variant that Theorem 1 does not cover.

    Args:
        where: the configuration's file.
    """
    weights = weight_keys(config)
    if weights:
        reason = "the constants of Theorem 1 are worked out for samples that all count the same; leave it out"
        raise ConfigError([f"{key}: {reason}" for key in weights], where)
    if config.model.head != "sum":
        reason = "Theorem 1 rests on scores that are sums of phi; leave it out"
        raise ConfigError([f"model.head = {config.model.head!r}: {reason}"], where)
    for key in ("epsilon", "block_epsilon"):
        if getattr(config.exchange, key) is not None:
            what = "phi" if key == "epsilon" else "blocks"
            raise ConfigError([f"exchange.{key}: Theorem 1 knows no noise on {what}; leave it out"], where)
    parts = [*variant.beyond_theorem]
    if not parts and (config.train.variant is None or variant.is_plain):
        return
    train, plain = config.train, TrainSection(step_size=config.train.step_size)
    keys = [
        f"train.{key} = {getattr(train, key)!r}" for key in VARIANT_KEYS if getattr(train, key) != getattr(plain, key)
    ]
    named = ", ".join(keys) or f"a variant with another {', '.join(parts)}"
    reason = "covers plain SGD with every client in every round"
    if parts == ["dropout"]:
        reason = "bounds the loss with all silos, and silo dropout minimises the mean loss over subsets of them"
    raise ConfigError([f"{named}: Theorem 1 {reason}; leave it out"], where)


def refuse_without_curvature(config: Config, where: str) -> None:
    """Refuse a loss whose curvature has no bound.

    Args:
        where: the configuration's file.
    """
    chosen = chosen_loss(config.model)
    if chosen is not None and (problem := no_curvature(chosen)):
        raise ConfigError([f"model.loss = {config.model.loss!r}: {problem}"], where)


def refuse_steered(config: Config, where: str) -> None:
    """Refuse steps that the loss steers: Theorem 1 is about steps of one length.

    Args:
        where: the configuration's file.
    """
    if not config.train.is_automatic:
        return
    reason = "Theorem 1 is about plain steps of one length; these have momentum, and the loss steers them. Give it a"
    raise ConfigError([f"train.step_size = 'auto': {reason} number, such as a safe one that tdcd plan prints"], where)


def plain_steps(planned: Plan) -> Plan:
    """The plan with plain local steps in place of those that ``step_size = "auto"`` steers.

    Minibatches of all samples, which scaled steps take, become those that a step size which is a number has by default.
    """
    train, settings = planned.config.train, planned.settings
    if not planned.variant.is_steered or train.hub_optimizer != "auto" or train.variant is not None:
        return planned
    if settings.local_steps == 1:
        settings = replace(settings, local_steps=LOCAL_STEPS)
    if settings.minibatches == "full":
        size = min(BATCH_SIZE, planned.federation.num_samples)
        settings = replace(settings, batch_size=size, minibatches="fresh")
    return planned._replace(settings=settings, variant=replace(planned.variant, hub_update=Average()))


def patience_caveats(config: Config) -> list[str]:
    """What a run that may end early changes of Theorem 1, in a sentence."""
    if config.evaluate.patience is None:
        return []
    return [
        f"evaluate.patience = {config.evaluate.patience} may have ended the run by what was measured in it, and "
        "Theorem 1 is about a number of rounds that is chosen beforehand."
    ]


def covered_timing(variant: Variant) -> Overlap:
    """The overlap and the periods of a variant that is not refused."""
    timing: Any = variant.timing
    overlap: Overlap = timing
    return overlap


def reuses(settings: Settings) -> bool:
    """Whether Theorem 1 does not apply, since a minibatch serves several local steps."""
    return settings.minibatches == "reused" and settings.local_steps > 1


def reused_problem(planned: Plan) -> str:
    """What is missing for the theorem for reused minibatches, in a sentence; empty if it applies."""
    reason = ""
    if not is_linear(planned):
        reason = "needs to know how much any one minibatch can curve, which is worked out for linear blocks only"
    elif timing_in_words(covered_timing(planned.variant)):
        reason = "is about rounds in step, and is not worked out for overlap and periods"
    elif planned.settings.gradient == "mean" and max(silo.num_clients for silo in planned.federation.silos) > 1:
        reason = (
            "needs the clients' weighted mean gradient to be that of the minibatch, which gradient = 'unbiased' "
            "makes it and gradient = 'mean' does not"
        )
    return f"minibatches = 'reused': the theorem for reused minibatches {reason}" if reason else ""


class Reused(NamedTuple):
    """What the theorem for reused minibatches needs to know."""

    constants: ReusedConstants
    noise: ReusedNoise


@dataclass(frozen=True)
class ProblemFacts:
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
    reuses: bool = False
    """Whether a round has one minibatch for all its local steps."""
    reused: Reused | None = None
    """If it has; None where :attr:`no_reused` says what is missing."""
    no_reused: str = ""

    def safe_step_size(self, local_steps: int, timing: Overlap | None = None) -> float | None:
        """The largest step size that a proof admits, with the plan's overlap and periods or with others.

        None without constants, and for reused minibatches that the theorem for them does not cover.
        """
        if self.constants is None:
            return None
        if self.reuses and local_steps > 1:
            covered = self.reused is not None and not timing_in_words(timing or self.timing)
            return self.reused.constants.max_step_size(local_steps) if self.reused and covered else None
        return max_step_size(self.constants, local_steps, self.num_silos, timing=timing or self.timing)


def is_linear(planned: Plan) -> bool:
    """Whether every block is linear, and so the objective convex."""
    return all(isinstance(block, Linear) for block in planned.blocks)


def why_no_constants(planned: Plan) -> str:
    """Why Theorem 1's constants cannot be had; empty if they can."""
    return no_curvature(planned.objective.kind)


def reused_facts(
    planned: Plan, known: Constants, models: Sequence[Sequence[Tree]], seconds: float, observe: EstimateObserver
) -> Reused:
    """The facts of a plan that the theorem for reused minibatches covers, with the noise at some hub blocks."""
    federation, objective, settings = planned.federation, planned.objective, planned.settings
    curved = reused_constants(federation, objective, settings, known, seconds=seconds, observe=observe)
    return Reused(curved, reused_noise(federation, objective, settings, models, variant=planned.variant))


def gather_facts(planned: Plan, seconds: float, observe: EstimateObserver) -> ProblemFacts:
    """Compute them, each within ``seconds``."""
    planned.federation.check_complete("a forecast")
    federation, blocks, objective = planned.federation, planned.blocks, planned.objective
    simulation = simulate(planned)
    start = simulation.init().blocks
    initial = simulation.loss(start, simulation.scores(start), federation.labels)
    known, optimum, noise, reused = None, None, None, None
    no_constants, no_noise = why_no_constants(planned), ""
    reuses = planned.settings.minibatches == "reused"
    no_reused = reused_problem(planned) if reuses else ""
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
        if reuses and not no_reused and known is not None:
            reused = reused_facts(planned, known, [start], seconds, observe)
        elif is_linear(planned) and objective.l2 > 0 and known is not None:
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
    return ProblemFacts(
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
        reuses=reuses,
        reused=reused,
        no_reused=no_reused,
    )
