"""Which members of the TDCD family Theorem 1 covers: plain SGD, in step or with overlap, periods and few bits."""

from typing import Any

from tdcd.config import Config, ConfigError
from tdcd.config.schema import TrainSection
from tdcd.config.weighting import weight_keys
from tdcd.core.timing import Overlap
from tdcd.core.variant import Variant

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
    parts = [*variant.beyond_theorem]
    if not parts and (config.train.variant is None or variant.is_plain):
        return
    train, plain = config.train, TrainSection()
    keys = [
        f"train.{key} = {getattr(train, key)!r}" for key in VARIANT_KEYS if getattr(train, key) != getattr(plain, key)
    ]
    named = ", ".join(keys) or f"a variant with another {', '.join(parts)}"
    reason = "covers plain SGD with every client in every round"
    if parts == ["dropout"]:
        reason = "bounds the loss with all silos, and silo dropout minimises the mean loss over subsets of them"
    raise ConfigError([f"{named}: Theorem 1 {reason}; leave it out"], where)


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
