"""The model that hubs share at the end, if all agreed to it: silos' blocks, and how their columns become features."""

import json
from collections.abc import Iterable

from tdcd.runtime.protocol.messages import Model
from tdcd.runtime.protocol.structure import Arrays, arrays_of
from tdcd.runtime.protocol.taking import take_json
from tdcd.runtime.protocol.wire import RejectedMessage
from tdcd.tables.preparation import Preparation


def preparation_text(preparation: Preparation) -> str:
    """How columns become features, as a message has it."""
    return json.dumps(preparation.to_json())


def blocks_in(models: Iterable[Model]) -> dict[str, Arrays]:
    """The blocks that other hubs shared, by hub."""
    return {message.sender: arrays_of(message.block) for message in models}


def preparations_in(models: Iterable[Model]) -> dict[str, Preparation]:
    """How the other silos' columns become features, by hub, if that was shared."""
    found = {message.sender: preparation_in(message) for message in models}
    return {hub: preparation for hub, preparation in found.items() if preparation is not None}


def preparation_in(message: Model) -> Preparation | None:
    """How the sender's columns become features, if a shared model says so."""
    if message.preparation is None:
        return None
    try:
        return Preparation.from_json(take_json(message.preparation, "preparation"))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RejectedMessage(f"'preparation' is damaged: {error}") from None
