"""The model that hubs share at the end, if all agreed to it: silos' blocks, and how their columns become features."""

from collections.abc import Iterable

from tdcd.core.objective import Tree
from tdcd.records.run_folder import named_leaves
from tdcd.runtime.protocol.instructions import Arrays
from tdcd.runtime.protocol.messages import Message, RejectedMessage, pack, unpack
from tdcd.tables.preparation import Preparation


def model_part(block: Tree, preparation: Preparation | None) -> Arrays:
    """What a hub shares."""
    own = {} if preparation is None else {"preparation": pack(preparation.to_json())}
    return {**named_leaves(block), **own}


def blocks_in(models: Iterable[Message]) -> dict[str, Arrays]:
    """The blocks that other hubs shared, by hub."""
    return {
        message.sender: {name: leaf for name, leaf in message.arrays.items() if name != "preparation"}
        for message in models
    }


def preparations_in(models: Iterable[Message]) -> dict[str, Preparation]:
    """How the other silos' columns become features, by hub, if that was shared."""
    found = {message.sender: preparation_in(message) for message in models}
    return {hub: preparation for hub, preparation in found.items() if preparation is not None}


def preparation_in(message: Message) -> Preparation | None:
    """How the sender's columns become features, if a shared model says so."""
    if "preparation" not in message.arrays:
        return None
    try:
        return Preparation.from_json(unpack(message, "preparation"))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RejectedMessage(f"'preparation' is damaged: {error}") from None
