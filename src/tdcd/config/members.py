"""The member of the TDCD family that a configuration asks for: a member's file is imported where it is asked for."""
# ruff: noqa: PLC0415

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tdcd.config.errors import ConfigError, clashing
from tdcd.config.losses import chosen_loss
from tdcd.config.schema import Config, TrainSection
from tdcd.core.codecs.fixed_point import FixedBlocks, FixedPoint
from tdcd.core.family.dropout import SiloDropout
from tdcd.core.family.overlap import Overlap
from tdcd.core.knowledge import Knowledge
from tdcd.core.losses import Loss
from tdcd.core.settings import LOCAL_STEPS, Settings
from tdcd.core.timing import followed
from tdcd.core.variant import Variant
from tdcd.core.words import there_are

if TYPE_CHECKING:
    from tdcd.core.codecs.codec import Codec


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
    intercept = config.bias_silo if train.silo_dropout else None
    parts: dict[str, Any] = {"dropout": SiloDropout(train.silo_dropout, intercept)}
    moves_otherwise = train.optimizer != "sgd" or train.schedule != "constant" or train.clip is not None
    hub_moves = train.hub_optimizer not in ("auto", "average")
    if moves_otherwise or hub_moves:
        from tdcd.core.family import optimizers

        if moves_otherwise:
            # With steps that are chosen later, an optimiser of the clients is refused there.
            steps = LOCAL_STEPS if train.local_steps == "auto" else train.local_steps
            factor = optimizers.schedule(train.schedule, max(1, train.rounds * steps))
            transform = optimizers.direction(train.optimizer, train.momentum, train.clip)
            parts["update"] = optimizers.ClientOptimizer(transform, factor)
        if hub_moves:
            transform = optimizers.direction(train.hub_optimizer, train.momentum)
            parts["hub_update"] = optimizers.HubOptimizer(transform, float(train.hub_step_size))
    if train.participation < 1:
        from tdcd.core.family.participation import RandomClients

        parts["participation"] = RandomClients(train.participation)
    periods = tuple(silo.period for silo in config.silos)
    if train.overlap or max(periods, default=1) > 1:
        parts["timing"] = Overlap(train.overlap, periods if max(periods, default=1) > 1 else ())
    if config.exchange.phi_bits < 32:
        from tdcd.core.codecs.quantised import Quantised

        parts["exchange"] = parts["client_exchange"] = Quantised(config.exchange.phi_bits)
    if config.exchange.protect == "mask":
        parts["exchange"] = FixedPoint(config.exchange.mask_range, config.num_silos)
    if config.exchange.protect_blocks:
        parts["block_exchange"] = FixedBlocks(config.exchange.mask_range)
    if config.exchange.block_bits < 32:
        from tdcd.core.codecs.quantised import QuantisedChange

        parts["block_exchange"] = QuantisedChange(config.exchange.block_bits)
    if config.federation.labels is not None:
        parts["knowledge"] = _labels_at(config.silo_names.index(config.federation.labels), config)
    return Variant(**parts)


def _labels_at(silo: int, config: Config) -> Knowledge:
    """What clients know where one silo has the labels."""
    if config.federation.protect_labels == "encrypt":
        from tdcd.core.family.encrypted import EncryptedSlopes

        return EncryptedSlopes(silo)
    from tdcd.core.family.labels import LabelsAt

    return LabelsAt(silo)


def with_steps(config: Config, settings: Settings, variant: Variant) -> tuple[Settings, Variant]:
    """The settings and the variant, with what ``train.step_size = "auto"`` chooses, and the noise of all rounds."""
    settings, variant = _with_chosen_steps(config, settings, variant)
    if config.exchange.block_epsilon is not None:
        variant = _with_block_noise(config, variant)
    if config.exchange.epsilon is None and not variant.is_private:
        return settings, variant
    return settings, _with_noise(config, settings, variant)


def _with_block_noise(config: Config, variant: Variant) -> Variant:
    """The variant with the noise on clients' blocks that ``exchange.block_epsilon`` asks for."""
    from tdcd.core.codecs.block_noise import NoisyBlocks
    from tdcd.core.codecs.noise import GaussianNoise

    exchange, epsilon = config.exchange, config.exchange.block_epsilon
    assert epsilon is not None
    where = f"exchange.block_epsilon = {epsilon:g}"
    try:
        noise = GaussianNoise.of_epsilon(epsilon, exchange.delta, exchange.block_clip, config.train.rounds)
        noisy = NoisyBlocks(exchange.mask_range, noise)
        for count in config.client_counts:
            noisy.check_room(count)
    except ValueError as error:
        raise ConfigError([f"{where}: {error}"]) from None
    return replace(variant, block_exchange=noisy)


def _with_noise(config: Config, settings: Settings, variant: Variant) -> Variant:
    """The variant with the noise that ``exchange.epsilon`` asks for; one that has noise already only has to count."""
    from tdcd.core.codecs.codec import messages_until
    from tdcd.core.codecs.noise import GaussianNoise, require

    exchange, rounds = config.exchange, config.train.rounds
    given = f"train.variant = {config.train.variant!r}" if exchange.epsilon is None else "exchange.epsilon"
    try:
        require()
    except ValueError as error:
        raise ConfigError([f"{given}: {error}"]) from None
    if exchange.epsilon is None:
        _check_noise(variant.exchange, settings, given)
        return variant
    timing = followed(variant.timing, config.num_silos)
    messages = messages_until(rounds, settings, timing, config.evaluate.every, rounds)
    noise = GaussianNoise.of_epsilon(exchange.epsilon, exchange.delta, exchange.clip, messages)
    _check_noise(noise, settings, f"exchange.epsilon = {exchange.epsilon:g}")
    return replace(variant, exchange=noise)


def _check_noise(exchange: "Codec", settings: Settings, given: str) -> None:
    """Refuse noise that the precision has no room for."""
    from tdcd.core.codecs.noise import noise_of

    if (noise := noise_of(exchange)) is not None:
        try:
            noise.check(settings.dtype)
        except ValueError as error:
            raise ConfigError([f"{given}: {error}"]) from None


def _with_chosen_steps(config: Config, settings: Settings, variant: Variant) -> tuple[Settings, Variant]:
    train, where = config.train, "train.step_size = 'auto'"
    if not train.is_automatic:
        return settings, variant
    from tdcd.core.family.automatic import PLAIN_STEPS, automatic

    if train.hub_optimizer == "average" and train.variant is None:
        raise ConfigError(
            [f"train.hub_optimizer = 'average': {where} steers the hubs' own steps; give a number, or leave one out"]
        )
    if train.algorithm == "hierarchical-sgd":
        raise ConfigError([f"train.algorithm = 'hierarchical-sgd': {where} is of hubs without a centre; give a number"])
    if not variant.takes_plain_steps:
        plain, keys = TrainSection(), ("variant", "optimizer", "schedule", "clip")
        changed = [
            f"train.{key} = {getattr(train, key)!r}" for key in keys if getattr(train, key) != getattr(plain, key)
        ]
        raise ConfigError([f"{given}: {PLAIN_STEPS}" for given in changed])
    chosen = automatic(
        settings,
        variant,
        is_scalable=is_scalable(config),
        num_silos=config.num_silos,
        are_ensembles={*config.block_names} == {"ensemble"},
    )
    if variant.encrypted is not None and chosen[0].local_steps != 1:
        raise ConfigError([f"{where}: the curvature of this loss has no bound, so set train.local_steps = 1 as well"])
    return chosen


def is_scalable(config: Config) -> bool:
    """Whether the silos' curvature is known before training: linear blocks, sums, and a loss with bounded curvature."""
    loss = chosen_loss(config.model)
    is_bounded = loss is None or loss.curvature is not None
    return is_bounded and config.model.head == "sum" and set(config.block_names) == {"linear"}


def l2_of(config: Config, loss: Loss, num_samples: int) -> float:
    """Lambda, for so many training samples."""
    if config.model.l2 != "auto":
        return config.model.l2
    if not (config.train.is_automatic and is_scalable(config)):
        return 0.0
    from tdcd.core.family.automatic import automatic_l2

    return automatic_l2(loss, num_samples)


def _refuse_other_members(config: Config) -> None:
    """A variant of the user's own takes the place of the keys that make one: both would say different things."""
    keys = ["optimizer", "schedule", "clip", "hub_optimizer", "hub_step_size", "momentum", "overlap", "participation"]
    keys.append("silo_dropout")
    train, plain = config.train, TrainSection(step_size=config.train.step_size)
    given = [f"train.{key} = {getattr(train, key)!r}" for key in keys if getattr(train, key) != getattr(plain, key)]
    given += config.exchange.changed
    given += [f"silo '{silo.name}': period = {silo.period}" for silo in config.silos if silo.period > 1]
    if given:
        raise ConfigError([f"{given[0]}: train.variant = {train.variant!r} takes its place; leave one of them out"])


def _own_variant(where: str, folder: Path) -> Variant:
    """A variant of the user's own, ``package.module:name``: the value, or a function that returns it."""
    from tdcd.config.user_code import find_function

    try:
        named: Any = find_function(where, [folder, Path()])
    except (ImportError, AttributeError) as error:
        raise ConfigError([f"train.variant = {where!r}: {error}"]) from None
    variant = named() if callable(named) else named
    if not isinstance(variant, Variant):
        raise ConfigError([f"train.variant = {where!r}: its type is {type(variant).__name__}, not tdcd.Variant"])
    return variant


def _label_problems(config: Config, variant: Variant) -> list[str]:
    """What is wrong with labels at one silo by a variant of the user's own: the rules of ``federation.labels``."""
    silo, count, key = variant.knowledge.scored_at(0), config.num_silos, config.federation.labels
    where, is_everywhere = f"train.variant = {config.train.variant!r}", variant.knowledge.are_labels_everywhere
    # Where both name the same silo, they agree: the file that parties share names it, too.
    if key is not None and (is_everywhere or config.silo_names.index(key) != silo):
        return [f"federation.labels = {key!r}: {where} takes its place; leave one of them out"]
    if is_everywhere:
        return []
    if not 0 <= silo < count:
        return [f"{where}: has labels at silo number {silo}, counted from 0; {there_are(count, 'silo')}"]
    excluded = variant.knowledge.excludes(variant, count)
    clashes = [(True, f"{where}: {part} = {getattr(variant, part)}", why) for part, why in excluded]
    stratify = "which samples are held out would reveal labels"
    clashes.append((config.evaluate.stratify, "evaluate.stratify = true", stratify))
    return clashing(f"its knowledge = {variant.knowledge}", clashes)
