"""The member of the TDCD family that a configuration asks for."""

from pathlib import Path
from typing import Any

from tdcd.config.errors import ConfigError, clashing
from tdcd.config.schema import Config, TrainSection
from tdcd.config.user_code import find_function
from tdcd.core.codecs.fixed_point import FixedBlocks, FixedPoint
from tdcd.core.codecs.quantised import Quantised, QuantisedChange
from tdcd.core.dropout import SiloDropout
from tdcd.core.knowledge import LabelsAt
from tdcd.core.participation import RandomClients
from tdcd.core.timing import Overlap
from tdcd.core.variant import Variant
from tdcd.core.words import there_are


def variant_of(config: Config) -> Variant:
    """The member of the TDCD family that a configuration asks for."""
    train = config.train
    if train.variant is not None:
        _refuse_other_members(config)
        variant = _own_variant(train.variant, Path(train.folder or ""))
        if problems := _label_problems(config, variant):
            raise ConfigError(problems)
        return variant
    # A rate of zero is no other member, with or without an intercept.
    intercept = 0 if config.has_bias and train.silo_dropout else None
    parts: dict[str, Any] = {"dropout": SiloDropout(train.silo_dropout, intercept)}
    moves_otherwise = train.optimizer != "sgd" or train.schedule != "constant" or train.clip is not None
    if moves_otherwise or train.hub_optimizer != "average":
        # Optax is imported only where it is asked for.
        from tdcd.core import optimizers  # noqa: PLC0415

        if moves_otherwise:
            factor = optimizers.schedule(train.schedule, max(1, train.rounds * train.local_steps))
            transform = optimizers.direction(train.optimizer, train.momentum, train.clip)
            parts["update"] = optimizers.ClientOptimizer(transform, factor)
        if train.hub_optimizer != "average":
            transform = optimizers.direction(train.hub_optimizer, train.momentum)
            parts["hub_update"] = optimizers.HubOptimizer(transform, train.hub_step_size)
    if train.participation < 1:
        parts["participation"] = RandomClients(train.participation)
    periods = tuple(silo.period for silo in config.silos)
    if train.overlap or max(periods, default=1) > 1:
        parts["timing"] = Overlap(train.overlap, periods if max(periods, default=1) > 1 else ())
    if config.exchange.phi_bits < 32:
        parts["exchange"] = parts["client_exchange"] = Quantised(config.exchange.phi_bits)
    if config.exchange.protect == "mask":
        parts["exchange"] = FixedPoint(config.exchange.mask_range, config.num_silos)
    if config.exchange.protect_blocks:
        parts["block_exchange"] = FixedBlocks(config.exchange.mask_range)
    if config.exchange.block_bits < 32:
        parts["block_exchange"] = QuantisedChange(config.exchange.block_bits)
    if config.federation.labels is not None:
        parts["knowledge"] = LabelsAt(config.silo_names.index(config.federation.labels))
    return Variant(**parts)


def _refuse_other_members(config: Config) -> None:
    """A variant of the user's own takes the place of the keys that make one: both would say different things."""
    keys = ["optimizer", "schedule", "clip", "hub_optimizer", "hub_step_size", "momentum", "overlap", "participation"]
    keys.append("silo_dropout")
    train, plain = config.train, TrainSection()
    given = [f"train.{key} = {getattr(train, key)!r}" for key in keys if getattr(train, key) != getattr(plain, key)]
    given += config.exchange.changed
    given += [f"federation.labels = {config.federation.labels!r}"] if config.federation.labels else []
    given += [f"silo '{silo.name}': period = {silo.period}" for silo in config.silos if silo.period > 1]
    if given:
        raise ConfigError([f"{given[0]}: train.variant = {train.variant!r} takes its place; leave one of them out"])


def _own_variant(where: str, folder: Path) -> Variant:
    """A variant of the user's own, ``package.module:name``: the value, or a function that returns it."""
    try:
        found: Any = find_function(where, [folder, Path()])
    except (ImportError, AttributeError) as error:
        raise ConfigError([f"train.variant = {where!r}: {error}"]) from None
    variant = found() if callable(found) else found
    if not isinstance(variant, Variant):
        raise ConfigError([f"train.variant = {where!r}: its type is {type(variant).__name__}, not tdcd.Variant"])
    return variant


def _label_problems(config: Config, variant: Variant) -> list[str]:
    """What is wrong with labels at one silo by a variant of the user's own: the rules of ``federation.labels``."""
    silo, count = variant.knowledge.scored_at(0), config.num_silos
    if variant.knowledge.are_labels_everywhere:
        return []
    where = f"train.variant = {config.train.variant!r}"
    if not 0 <= silo < count:
        return [f"{where}: has labels at silo number {silo}, counted from 0; {there_are(count, 'silo')}"]
    clashes = [(True, f"{where}: {part} = {getattr(variant, part)}", why) for part, why in variant.label_clashes]
    stratify = "which samples are held out would tell of labels"
    clashes.append((config.evaluate.stratify, "evaluate.stratify = true", stratify))
    return clashing(f"its knowledge = {variant.knowledge}", clashes)
