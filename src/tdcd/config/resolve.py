"""From a configuration to a plan: load the data, cut the federation, choose blocks, settings and variant."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tdcd import blocks
from tdcd.blocks.base import Block, with_heads, without_head
from tdcd.config import Config, ConfigError, ModelSection
from tdcd.config.losses import chosen_loss, combine_of, label_unit, named_loss
from tdcd.config.members import l2_of, variant_of, with_steps
from tdcd.core import randomized
from tdcd.core.execution import Execution
from tdcd.core.ledger import Colocation, Ledger, Moved
from tdcd.core.losses import Loss, Task, fitting, needs_labels
from tdcd.core.objective import Objective
from tdcd.core.settings import Settings
from tdcd.core.variant import Variant
from tdcd.data import Table, load, standardize
from tdcd.federation.hosts import Hosts, kept_here
from tdcd.federation.silos import Federation, start_blocks
from tdcd.records.outcome import Stopping

if TYPE_CHECKING:
    from tdcd.tables.assembly import Assembled


class Tier(Protocol):
    """What a baseline has above the hubs."""

    @property
    def turns(self) -> int:
        """The rounds of an engine in one communication round."""
        ...

    def ledger(self, ledger: Ledger) -> Ledger:
        """The ledger with what is sent there."""
        ...


class Plan(NamedTuple):
    """A run in full: a configuration with all that depends on the data worked out."""

    config: Config
    """With every default filled in. Of a run whose parts Python handed over, how long it is and how it is evaluated."""
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
    moved: tuple[Moved, ...] = ()
    """The raw data that was moved there."""
    tier: Tier | None = None
    """What a baseline has above the hubs; TDCD has nothing there."""
    assembled: "Assembled | None" = None
    """How a federation from files was made."""
    handed_over: Mapping[str, Any] | None = None
    """What Python handed over, in the words of a configuration; None if ``config`` says it all."""

    @property
    def description(self) -> dict[str, Any]:
        """The run in nested keys: what its folder says of it, and what it is compared by when it is resumed."""
        return self.config.model_dump() if self.handed_over is None else {**self.handed_over}

    @property
    def models(self) -> tuple[Block, ...]:
        """The blocks, each with what the head makes of the numbers that it gives."""
        return with_heads(self.blocks, self.objective.combine)

    @property
    def turns(self) -> int:
        """The rounds of an engine in one communication round."""
        return 1 if self.tier is None else self.tier.turns

    @property
    def stopping(self) -> Stopping:
        """When the run ends, and which model stays."""
        return Stopping.of(self.config.model_dump(include={"train", "evaluate", "silos"}), self.variant)


def plan(
    config: Config, data: "Table | Assembled | None" = None, devices: int | None = 1, hosts: Hosts | None = None
) -> Plan:
    """Load the data and settle what depends on it; everything that does not fit is reported at once.

    Args:
        data: if it is at hand already.
        devices: over which clients are spread; JAX's default one if None.
        hosts: the processes that run it together, each with the rows of its own clients; this one alone by default.
    """
    if hosts is not None and config.train.algorithm != "tdcd":
        from tdcd.compare.baselines import BASELINES  # noqa: PLC0415 - a run of TDCD needs none

        if needs := BASELINES[config.train.algorithm].needs:
            words = f"needs {needs}, and several processes each have the rows of their own clients"
            raise ConfigError([f"train.algorithm = {config.train.algorithm!r}: {words}; leave --coordinator out"])
    if data is None and config.data.source == "files":
        from tdcd.tables.assembly import assemble  # noqa: PLC0415 - only tables from files need it

        data = assemble(config, bias=config.bias_silo, hosts=hosts)
    assembled = None if isinstance(data, Table) else data
    if assembled is not None:
        federation, task, strips = assembled.federation, assembled.label_encoding.task, False
    else:
        cut = partial(_cut, config, data if isinstance(data, Table) else None)
        federation, task, strips = cut() if hosts is None else hosts.together(cut)
        federation = kept_here(federation, hosts)
    if config.train.class_weights is not None:
        federation = _class_weighted(federation, config, task)
    loss = config.model.loss or fitting(task)[0]
    objective = objective_of(config, loss, federation.num_samples)
    settings, variant = with_steps(config, settings_of(config), variant_of(config))
    settings = settings.at(federation.num_samples)
    steps = {"local_steps": settings.local_steps, "batch_size": settings.batch_size}
    resolved = config.model_copy(
        update={
            "federation": config.federation.model_copy(update={"bias": config.bias_silo is not None, "strips": strips}),
            "model": config.model.model_copy(update={"loss": loss, "l2": objective.l2}),
            "train": config.train.model_copy(update={**steps, "minibatches": settings.minibatches}),
        }
    )
    chosen = blocks_of(config)
    if not federation.is_complete:
        from tdcd.federation.missing_rows import with_stand_ins  # noqa: PLC0415 - few runs have such samples

        federation, chosen = with_stand_ins(federation, chosen, drops_silos=variant.dropout.drops_silos)
    planned = Plan(
        resolved,
        _started(federation, config.train.start),
        chosen,
        objective,
        settings,
        variant,
        execution_of(config, devices),
        assembled=assembled,
    )
    is_own = config.model.module is not None or any(":" in name for name in config.block_names)
    if is_own or config.train.start is not None:
        _try_blocks(planned)
    if config.train.algorithm == "tdcd":
        return planned
    from tdcd.compare.baselines import rewrite  # noqa: PLC0415 - a run of TDCD needs none

    try:
        return rewrite(planned, config.train.algorithm, config.train.silo)
    except ValueError as error:
        raise ConfigError([f"train.silo = {config.train.silo!r}: {error}"]) from None


def _started(federation: Federation, start: str | None) -> Federation:
    """Its silos with their blocks of a former run, if they start from one."""
    if start is None:
        return federation
    from tdcd.tables.preparation import load_former_block, preparation_of  # noqa: PLC0415 - few runs have one

    silos = []
    for silo in federation.silos:
        former = load_former_block(Path(start), silo.name)
        try:
            if former is not None:
                former.check(preparation_of(silo).columns)
        except ValueError as error:
            raise ConfigError([str(error)]) from None
        silos.append(replace(silo, former=former))
    if not any(silo.former for silo in silos):
        names = ", ".join(f"'{silo.name}'" for silo in silos)
        raise ConfigError([f"train.start = {start!r}: none of the silos {names} was in that run"])
    return replace(federation, silos=tuple(silos))


def _class_weighted(federation: Federation, config: Config, task: Task) -> Federation:
    given = config.train.class_weights
    assert given is not None
    where = f"train.class_weights = {given!r}"
    if task == "regression":
        raise ConfigError([f"{where}: the labels are amounts, not classes; leave it out"])
    try:
        return federation.class_weighted(given)
    except ValueError as error:
        raise ConfigError([f"{where}: {error}"]) from None


def _cut(config: Config, table: Table | None) -> tuple[Federation, Task, bool]:
    """One table, cut into a federation; its task, and whether its silos are strips of images."""
    data, loss = config.data, chosen_loss(config.model)
    if table is None:
        table = load(data.source, folder=data.folder, seed=data.seed, rows=data.rows)
    epsilon = config.federation.label_epsilon
    if epsilon is not None:
        from tdcd.data.randomized import randomize_table  # noqa: PLC0415 - few runs randomise labels

        # First of all: everything that follows is a function of the randomised labels.
        try:
            table = randomize_table(table, epsilon, data.seed)
        except ValueError as error:
            raise ConfigError([str(error)]) from None
    train_rows, test_rows = table.split(config.evaluate.holdout, data.seed, stratify=config.evaluate.stratify)
    problems = _misfits(config, table, loss, len(train_rows.labels))
    if data.standardize:
        train_rows, test_rows = standardize(train_rows, test_rows, config.dtype, labels=label_unit(config))
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
            bias=False if config.bias_silo is None else config.silo_names[config.bias_silo],
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


def objective_of(config: Config, name: str, num_samples: int = 1) -> Objective:
    """What training minimises over so many samples, with the loss of this name."""
    loss, silo = named_loss(config.model, name), config.federation.labels
    if silo is not None and (problem := needs_labels(loss)):
        raise ConfigError([f"federation.labels = {silo!r}: {problem}; leave it out"])
    try:
        return Objective(
            loss, l2_of(config, loss, num_samples), config.federation.label_epsilon, combine_of(config.model)
        )
    except ValueError as error:
        raise ConfigError([f"model.loss = {name!r}: {error}"]) from None


def settings_of(config: Config) -> Settings:
    """The numbers of Algorithm 1 in a configuration."""
    keys = config.train.model_dump(include={field.name for field in fields(Settings)})
    return Settings(seed=config.seed, dtype=config.dtype, **keys)


def execution_of(config: Config, devices: int | None = 1) -> Execution:
    """How a configuration is to be run."""
    return Execution(config.data.keep, config.train.precision, devices, config.train.engine)


def blocks_of(config: Config) -> tuple[Block, ...]:
    """One block per silo; silos that name the same share it."""
    names = config.block_names
    made = {name: block_named(name, config.model) for name in dict.fromkeys(names)}
    return tuple(made[name] for name in names)


def _columns(config: Config) -> int | list[str] | dict[str, list[str]]:
    """The silos: how many, by name, or with the columns that each holds."""
    named = {silo.name: silo.features for silo in config.silos if silo.features is not None}
    return named or [silo.name for silo in config.silos] or config.num_silos


def block_named(name: str, model: ModelSection | None = None) -> Block:
    """The block that ``model.block`` names: one that comes with the package, or one of the user's own.

    Without a section its keys have their defaults.

    >>> block_named("mlp")
    Mlp(hidden=(32,))
    """
    model = ModelSection() if model is None else model
    if name == "linear":
        return blocks.Linear()
    if name == "mlp":
        return blocks.Mlp() if model.hidden == "auto" else blocks.Mlp(tuple(model.hidden))
    if name == "ensemble":
        hidden = blocks.Ensemble().hidden if model.hidden == "auto" else tuple(model.hidden)
        return blocks.Ensemble(hidden, model.members, model.dropout)
    if name == "cnn":
        return blocks.Cnn(tuple(model.channels), (model.kernel[0], model.kernel[1]), model.embedding)
    if name != "torch":
        return _own_block(name, model)
    assert model.module is not None
    try:
        from tdcd.blocks.torch import TorchBlock  # noqa: PLC0415  (PyTorch is optional)
        from tdcd.config.user_code import find_function  # noqa: PLC0415

        return TorchBlock(find_function(model.module, [Path(model.folder or ""), Path()]))
    except (ImportError, AttributeError) as error:
        raise ConfigError([f"model.module = {model.module!r}: {error}"]) from None


def _own_block(name: str, model: ModelSection) -> Block:
    """``package.module:name``: a block, a Flax or Equinox module, or a class or function that gives one."""
    from tdcd.blocks.modules import as_block  # noqa: PLC0415 - few runs have one
    from tdcd.config.user_code import find_function  # noqa: PLC0415

    where = f"model.block = {name!r}"
    try:
        named: Any = find_function(name, [Path(model.folder or ""), Path()])
        # A class has the names of its instances' methods, too.
        made = named() if isinstance(named, type) or (as_block(named) is None and callable(named)) else named
        block = as_block(made)
        hash(block)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError([f"{where}: {error}"]) from None
    except TypeError as error:
        raise ConfigError([f"{where}: {error}; make it a frozen dataclass with a default for every field"]) from None
    if block is None:
        raise ConfigError([f"{where}: its type is {type(made).__name__}, which lacks the functions init and phi"])
    return block


def _try_blocks(planned: Plan) -> None:
    """Refuse a block of the user's own, or of a former run, that does not fit a silo, before anything else is done."""
    federation, model = planned.federation, planned.config.model
    where = f"model.block = {model.block!r}" if model.module is None else f"model.module = {model.module!r}"
    outputs = planned.objective.num_outputs([federation.labels, federation.test_labels])
    try:
        start_blocks(federation, planned.blocks, outputs, planned.settings, planned.objective.combine)
    except ValueError as error:
        is_former = str(error).startswith("train.start")
        raise ConfigError([str(error) if is_former else f"{where}: {error}"]) from None


def _misfits(config: Config, table: Table, loss: Loss | None, num_train: int) -> list[str]:
    problems = []
    if loss is not None and table.task not in loss.tasks:
        labels = {"regression": "real-valued labels", "binary": "two classes"}.get(
            table.task, f"{table.num_classes} classes"
        )
        use = " or ".join(repr(name) for name in fitting(table.task))
        problems.append(f"model.loss = {config.model.loss!r}: '{table.name}' has {labels}; use {use}")
    elif loss is not None and not loss.fits(table.labels).all():
        label = table.labels[~loss.fits(table.labels)][0]
        problems.append(f"model.loss = {config.model.loss!r}: takes labels that are {loss.labels}, not {label:g}")
    try:
        settings_of(config).effective_batch_size(num_train)
    except ValueError as error:
        problems.append(f"train.{error}")
    if config.federation.strips and not table.is_images:
        problems.append(f"federation.strips = true: '{table.name}' has columns, not images")
    return problems


def block_keys(chosen: Sequence[Block]) -> dict[str, Any] | None:
    """The keys of ``[model]`` that make these blocks, one per silo; None if a configuration has no words for them.

    >>> block_keys([blocks.Linear(), blocks.Mlp((8,))])
    {'block': ['linear', 'mlp'], 'hidden': [8]}
    """
    named = [_named(block) for block in chosen]
    keys = {key: value for _, own in named for key, value in own.items()}
    # A configuration has one list of widths for all mlp blocks and ensembles, one kernel for all cnn blocks, and so on.
    if not all(name and own == {key: keys[key] for key in own} for name, own in named):
        return None
    return {"block": one_or_each([name for name, _ in named]), **keys}


def _named(block: Block) -> tuple[str, dict[str, Any]]:
    """A block's name in a configuration and the keys that go with it; no name if it has none."""
    from tdcd.blocks.absent import without_stand_ins  # noqa: PLC0415 - only runs of Python's are named so

    block = without_stand_ins(without_head(block))
    if type(block) is blocks.Linear:
        return "linear", {}
    if type(block) is blocks.Mlp:
        return "mlp", {"hidden": [*block.hidden]}
    if type(block) is blocks.Ensemble:
        return "ensemble", {"hidden": [*block.hidden], "members": block.members, "dropout": block.dropout}
    if type(block) is blocks.Cnn:
        return "cnn", {"channels": [*block.channels], "kernel": [*block.kernel], "embedding": block.embedding}
    make = getattr(block, "make", None)
    module = f"{getattr(make, '__module__', '')}:{getattr(make, '__qualname__', '')}"
    # Recognised by its name, since PyTorch is optional.
    if type(block).__name__ == "TorchBlock" and re.fullmatch(r"[\w.]+:\w+", module):
        return "torch", {"module": module}
    return "", {}


def one_or_each(names: Sequence[str]) -> Any:
    """One name for all silos, or a list of one per silo."""
    return names[0] if len(set(names)) == 1 else [*names]
