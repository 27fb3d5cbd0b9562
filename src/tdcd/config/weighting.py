"""What is wrong with weights of samples and classes in a configuration."""

from tdcd.config.errors import clashing
from tdcd.config.schema import Config
from tdcd.core.losses import LOSSES


def weight_keys(config: Config) -> list[str]:
    """The keys by which samples do not all weigh the same, with their values."""
    given = config.train.class_weights
    columns = [f"silo '{one.name}': weight = {one.weight!r}" for one in config.silos if one.weight is not None]
    return [f"train.class_weights = {given!r}"] * (given is not None) + columns


def weight_problems(config: Config) -> list[str]:
    """What is wrong with ``train.class_weights`` and with ``weight`` under ``[[silos]]``."""
    given, keys, engine = config.train.class_weights, weight_keys(config), config.train.engine
    problems = _column_problems(config)
    for where in keys:
        is_other = engine in ("grouped", "flat")
        problems += clashing(where, [(is_other, f"train.engine = {engine!r}", "it gives all samples the same weight")])
    loss, epsilon = config.model.loss, config.federation.label_epsilon
    for where in keys[: given is not None]:
        clashes = [
            (
                loss is not None and loss in LOSSES and LOSSES[loss].target == "amount",
                f"model.loss = {loss!r}",
                "it predicts amounts",
            ),
            (epsilon is not None, f"federation.label_epsilon = {epsilon}", "nobody knows a sample's true class"),
        ]
        problems += clashing(where, clashes)
    return problems


def _column_problems(config: Config) -> list[str]:
    problems, is_weighted = [], any(one.weight is not None for one in config.silos)
    for one in config.silos:
        where = f"silo '{one.name}'"
        if is_weighted and one.label is not None and one.weight is None:
            problems.append(f"{where}: weight is missing; give it in every silo that has a label, as another one does")
        if one.weight is None:
            continue
        if config.data.source != "files":
            problems.append(f"{where}: weight goes with data.source = 'files', not {config.data.source!r}")
        if one.label is None:
            problems.append(
                f"{where}: weight = {one.weight!r} goes with label; name both in the silo that has the labels"
            )
        if one.weight in (one.id, one.label, *(one.features or ()), *one.categorical):
            problems.append(f"{where}: column '{one.weight}' is the weight and something else: remove one of the two")
    return problems
