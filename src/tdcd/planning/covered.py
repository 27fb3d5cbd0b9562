"""Which members of the TDCD family Theorem 1 covers: Algorithm 1 alone."""

from tdcd.config import Config, ConfigError
from tdcd.config.schema import TrainSection
from tdcd.core.variant import Variant

VARIANT_KEYS = ("optimizer", "schedule", "hub_optimizer", "participation", "variant")
"""The keys under ``[train]`` that make another member of the family."""


def refuse_uncovered(config: Config, variant: Variant, where: str = "the configuration") -> None:
    """Refuse a variant that Theorem 1 does not cover.

    Args:
        where: the configuration's file.
    """
    if not variant.changed:
        return
    train, plain = config.train, TrainSection()
    keys = [
        f"train.{key} = {getattr(train, key)!r}" for key in VARIANT_KEYS if getattr(train, key) != getattr(plain, key)
    ]
    named = ", ".join(keys) or f"a variant with another {', '.join(variant.changed)}"
    raise ConfigError([f"{named}: Theorem 1 covers Algorithm 1 (plain SGD) only; leave it out"], where)
