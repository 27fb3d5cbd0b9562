"""The loss and the head that a configuration asks for."""

from pathlib import Path
from typing import Any

from tdcd.config.errors import ConfigError
from tdcd.config.schema import Config, ModelSection
from tdcd.core.combine import SUM, Combine
from tdcd.core.losses import LOSSES, Huber, LabelUnit, Loss


def chosen_loss(model: ModelSection) -> Loss | None:
    """The loss that ``model.loss`` names; None if it is left to the labels."""
    return None if model.loss is None else named_loss(model, model.loss)


def label_unit(config: Config) -> LabelUnit:
    """What is taken off labels that are amounts, and what they are divided by, before training."""
    loss = chosen_loss(config.model) or LOSSES["squared"]
    return loss.unit if config.data.standardize else lambda labels: (0.0, 1.0)


def combine_of(model: ModelSection) -> Combine:
    """How the sum of the silos' phi becomes scores."""
    if model.head == "sum":
        return SUM
    from tdcd.core.family.heads import Hidden, Pairs  # noqa: PLC0415 - as in tdcd.config.members

    return Hidden(model.head_units) if model.head == "hidden" else Pairs(model.head_rank)


def loss_keys(loss: Loss) -> dict[str, Any] | None:
    """The keys of ``[model]`` that choose this loss; None if it is the user's own."""
    if isinstance(loss, Huber):
        return {"loss": loss.name, "huber_delta": loss.delta}
    return {"loss": loss.name} if LOSSES.get(loss.name) == loss else None


def named_loss(model: ModelSection, name: str) -> Loss:
    """The loss of this name: one that comes with the package, or the very one that ``model.loss`` names.

    No other module is imported, whoever says its name.
    """
    if name == Huber.name:
        return Huber(model.huber_delta)
    if name in LOSSES:
        return LOSSES[name]
    if name != model.loss:
        raise ConfigError([f"model.loss = {model.loss!r}: it does not name {name!r}, which another party trains with"])
    from tdcd.config.user_code import find_function  # noqa: PLC0415 - few losses are the user's own

    try:
        named: Any = find_function(name, [Path(model.folder or ""), Path()])
    except (ImportError, AttributeError) as error:
        raise ConfigError([f"model.loss = {name!r}: {error}"]) from None
    # A class has the names of its instances' methods, too.
    loss = named() if isinstance(named, type) or (not isinstance(named, Loss) and callable(named)) else named
    if not isinstance(loss, Loss):
        raise ConfigError([f"model.loss = {name!r}: its type is {type(loss).__name__}, not a tdcd.Loss"])
    return loss
