"""From a configuration to a plan: load the data, cut the federation, choose blocks, settings and variant."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from tdcd.blocks import Block, Cnn, Linear, Mlp
from tdcd.config import Config, ConfigError, ModelSection
from tdcd.config.baselines import rewrite
from tdcd.config.named import find_function
from tdcd.config.schema import TrainSection
from tdcd.core import randomized
from tdcd.core.execution import Execution
from tdcd.core.fixed_point import FixedBlocks, FixedPoint
from tdcd.core.knowledge import LabelsAt
from tdcd.core.ledger import Colocation
from tdcd.core.losses import Task, fitting
from tdcd.core.objective import Objective
from tdcd.core.participation import RandomClients
from tdcd.core.quantised import Quantised, QuantisedChange
from tdcd.core.settings import Settings
from tdcd.core.timing import Overlap
from tdcd.core.variant import Variant
from tdcd.data import Table, load, standardize
from tdcd.data.randomized import randomize_table
from tdcd.federation.fitting import start_fitting
from tdcd.federation.silos import Federation
from tdcd.tables.assemble import Assembled, assemble


class Plan(NamedTuple):
    """A configuration with all that depends on the data worked out."""

    config: Config
    """With every default filled in."""
    federation: Federation
    blocks: tuple[Block, ...]
    objective: Objective
    settings: Settings
    variant: Variant = Variant()
    """The member of the TDCD family."""
    execution: Execution = Execution()
    """On which devices and how to run."""
    colocation: Colocation = "none"
    """Which parties share a machine."""
    assembled: Assembled | None = None
    """How a federation from files was made."""


def plan(config: Config, table: Table | None = None, devices: int | None = 1) -> Plan:
    """Load the data and settle what depends on it; everything that does not fit is reported at once.

    Args:
        table: the data, if it is at hand already.
        devices: over which clients are spread; JAX's default one if None.
    """
    if table is None and config.data.source == "files":
        assembled = assemble(config, bias=has_bias(config))
        federation, task, strips = assembled.federation, assembled.label_encoding.task, False
    else:
        assembled = None
        federation, task, strips = _cut(config, table)
    loss = config.model.loss or fitting(task)[0]
    resolved = config.model_copy(
        update={
            "federation": config.federation.model_copy(update={"bias": has_bias(config), "strips": strips}),
            "model": config.model.model_copy(update={"loss": loss}),
        }
    )
    planned = Plan(
        resolved,
        federation,
        blocks_of(config),
        Objective(loss, config.model.l2, config.federation.label_epsilon),
        settings_of(config),
        variant_of(config),
        execution_of(config, devices),
        assembled=assembled,
    )
    if config.model.module is not None:
        _try_modules(planned)
    try:
        return rewrite(planned, config.train.algorithm, config.train.silo)
    except ValueError as error:
        raise ConfigError([f"train.silo = {config.train.silo!r}: {error}"]) from None


def _cut(config: Config, table: Table | None) -> tuple[Federation, Task, bool]:
    """One table, cut into a federation; its task, and whether its silos are strips of images."""
    data = config.data
    if table is None:
        table = load(data.source, folder=data.folder, seed=data.seed, rows=data.rows)
    epsilon = config.federation.label_epsilon
    if epsilon is not None:
        # First of all: everything that follows is a function of the randomised labels.
        try:
            table = randomize_table(table, epsilon, data.seed)
        except ValueError as error:
            raise ConfigError([str(error)]) from None
    train_rows, test_rows = table.split(config.evaluate.holdout, data.seed, stratify=config.evaluate.stratify)
    problems = _misfits(config, table, len(train_rows.labels))
    if data.standardize:
        train_rows, test_rows = standardize(train_rows, test_rows, config.dtype)
    else:
        train_rows = train_rows.rounded(config.dtype)
        test_rows = None if test_rows is None else test_rows.rounded(config.dtype)
    chosen = config.federation
    strips = table.is_images if chosen.strips is None else chosen.strips
    try:
        federation = Federation.cut(
            train_rows,
            test_rows,
            silos=_columns(config),
            clients=[silo.client_names for silo in config.silos] or [*config.client_counts],
            rows=chosen.rows,
            sizes=chosen.sizes,
            alpha=chosen.alpha,
            aligned=chosen.aligned,
            strips=strips,
            bias=has_bias(config),
            seed=config.seed,
        )
    except ValueError as error:
        raise ConfigError([f"federation: {error}", *problems]) from None
    if problems:
        raise ConfigError(problems)
    if epsilon is not None:
        words = randomized.in_words(epsilon, max(2, table.num_classes))
        federation = replace(federation, labels_in_words=f"{max(2, table.num_classes)} classes, {words}")
    return federation, table.task, strips


def settings_of(config: Config) -> Settings:
    """The numbers of Algorithm 1 in a configuration."""
    keys = config.train.model_dump(include={field.name for field in fields(Settings)})
    return Settings(seed=config.seed, dtype=config.dtype, **keys)


def variant_of(config: Config) -> Variant:
    """The member of the TDCD family that a configuration asks for."""
    train = config.train
    if train.variant is not None:
        _refuse_other_members(config)
        variant = _own_variant(train.variant, Path(train.folder or ""))
        if problems := _label_problems(config, variant):
            raise ConfigError(problems)
        return variant
    parts: dict[str, Any] = {}
    if train.optimizer != "sgd" or train.schedule != "constant" or train.hub_optimizer != "average":
        # Optax is imported only where it is asked for.
        from tdcd.core import optimizers  # noqa: PLC0415

        if train.optimizer != "sgd" or train.schedule != "constant":
            factor = optimizers.schedule(train.schedule, max(1, train.rounds * train.local_steps))
            transform = optimizers.direction(train.optimizer, train.momentum)
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
    keys = ("optimizer", "schedule", "hub_optimizer", "hub_step_size", "momentum", "overlap", "participation")
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
    silo, count = variant.knowledge.label_silo, config.num_silos
    if silo is None:
        return []
    where = f"train.variant = {config.train.variant!r}"
    if not 0 <= silo < count:
        return [f"{where}: has labels at silo number {silo}, counted from 0; there are {count} silos"]
    clashes = [
        (variant.timing != Overlap(), f"{where}: timing = {variant.timing}", "slopes are of this round's blocks"),
        (config.evaluate.stratify, "evaluate.stratify = true", "which samples are held out would tell of labels"),
    ]
    clashes += [
        (isinstance(part, Quantised), f"{where}: {name} = {part}", "slopes have no short form")
        for name, part in (("exchange", variant.exchange), ("client_exchange", variant.client_exchange))
    ]
    given = f"its knowledge = {variant.knowledge}"
    return [
        f"{key}: does not go with {given}, since {why}; leave one of them out" for is_so, key, why in clashes if is_so
    ]


def execution_of(config: Config, devices: int | None = 1) -> Execution:
    """How a configuration is to be run."""
    return Execution(config.data.keep, config.train.precision, devices, config.train.engine)


def blocks_of(config: Config) -> tuple[Block, ...]:
    """One block per silo."""
    return tuple(_block(name, config.model) for name in _block_names(config))


def has_bias(config: Config) -> bool:
    """Whether the first silo carries a column of ones."""
    chosen = config.federation.bias
    return _block_names(config)[0] == "linear" if chosen is None else chosen


def _block_names(config: Config) -> list[str]:
    block = config.model.block
    return [block] * config.num_silos if isinstance(block, str) else [*block]


def _columns(config: Config) -> int | list[str] | dict[str, list[str]]:
    """The silos: how many, by name, or with the columns that each holds."""
    named = {silo.name: silo.features for silo in config.silos if silo.features is not None}
    return named or [silo.name for silo in config.silos] or config.num_silos


def _block(name: str, model: ModelSection) -> Block:
    if name == "linear":
        return Linear()
    if name == "mlp":
        return Mlp(tuple(model.hidden))
    if name == "cnn":
        return Cnn(tuple(model.channels), (model.kernel[0], model.kernel[1]), model.embedding)
    assert model.module is not None
    try:
        from tdcd.blocks.torch import TorchBlock  # noqa: PLC0415  (PyTorch is optional)

        return TorchBlock(find_function(model.module, [Path(model.folder or ""), Path()]))
    except (ImportError, AttributeError) as error:
        raise ConfigError([f"model.module = {model.module!r}: {error}"]) from None


def _try_modules(planned: Plan) -> None:
    """Refuse a module that does not fit a silo, before anything else is done."""
    federation = planned.federation
    outputs = planned.objective.num_outputs([federation.labels, federation.test_labels])
    try:
        start_fitting(federation, planned.blocks, outputs, planned.settings)
    except ValueError as error:
        raise ConfigError([f"model.module = {planned.config.model.module!r}: {error}"]) from None


def _misfits(config: Config, table: Table, num_train: int) -> list[str]:
    problems = []
    fits, loss = fitting(table.task), config.model.loss
    if loss is not None and loss not in fits:
        labels = {"regression": "real-valued labels", "binary": "two classes"}.get(
            table.task, f"{table.num_classes} classes"
        )
        use = " or ".join(repr(name) for name in fits)
        problems.append(f"model.loss = {loss!r}: '{table.name}' has {labels}; use {use}")
    try:
        settings_of(config).effective_batch_size(num_train)
    except ValueError as error:
        problems.append(f"train.{error}")
    if config.federation.strips and not table.is_images:
        problems.append(f"federation.strips = true: '{table.name}' has columns, not images")
    return problems
