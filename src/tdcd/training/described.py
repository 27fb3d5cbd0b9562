"""What a run folder says of a run that Python started, and how it differs from what a call asks for."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import takewhile
from typing import Any

from tdcd.blocks import Block
from tdcd.config.block_names import block_keys, one_or_each
from tdcd.config.losses import head_keys
from tdcd.core.choices import PYTHON
from tdcd.core.execution import Execution
from tdcd.core.losses import Huber
from tdcd.core.objective import Objective
from tdcd.core.settings import Settings
from tdcd.core.variant import Variant
from tdcd.records.patience import Stopping
from tdcd.training.identity import identity, importable, unknown_in

FREE = ("train.rounds", "federation.name", "federation.labels", "federation.engine")
"""What may differ when a run is resumed."""
UNSAID: Mapping[str, Any] = {
    "train.variant": None,
    "federation.label_epsilon": None,
    "evaluate.patience": None,
    "evaluate.keep": "last",
}
"""Keys that mean as much if they are missing: without a variant of its own, a run is what the other keys say."""
SHOWN = 80
"""Characters of a value that a message shows."""


def describe_call(
    blocks: Sequence[Block],
    objective: Objective,
    settings: Settings,
    execution: Execution,
    variant: Variant,
    *,
    stopping: Stopping,
    evaluate_every: int,
    reading: Mapping[str, Any],
) -> dict[str, Any]:
    """The arguments of :func:`tdcd.train` in the words of a configuration.

    Args:
        reading: how tables were read, in the keys of ``[data]``.
    """
    chosen = asdict(settings)
    return {
        "seed": chosen.pop("seed"),
        "dtype": chosen.pop("dtype"),
        "data": {"source": PYTHON, "keep": execution.keep, **reading},
        "federation": {"label_epsilon": objective.label_epsilon},
        "model": {**_model(blocks), **_loss(objective), **head_keys(objective.combine), "l2": objective.l2},
        "train": {"rounds": stopping.rounds, **chosen, **_member(variant), "precision": execution.precision},
        "evaluate": {"every": evaluate_every, "patience": stopping.patience, "keep": stopping.keep},
    }


def _model(blocks: Sequence[Block]) -> dict[str, Any]:
    """The blocks as a configuration has them; where it has no words for them, in words of their own."""
    return block_keys(blocks) or {"block": one_or_each([identity(block) for block in blocks])}


def _loss(objective: Objective) -> dict[str, Any]:
    """The loss as a configuration has it; one of the user's own that no configuration could name, in its own words."""
    loss = objective.loss
    if isinstance(loss, str):
        return {"loss": loss}
    if isinstance(loss, Huber):
        return {"loss": loss.name, "huber_delta": loss.delta}
    with suppress(Exception):
        if importable(type(loss)) and type(loss)() == loss:
            return {"loss": f"{type(loss).__module__}:{type(loss).__qualname__}"}
    return {"loss": identity(loss)}


def _member(variant: Variant) -> dict[str, Any]:
    """The variant as a configuration has Algorithm 1, or the parts that differ in words of their own."""
    if not variant.changed:
        return {"optimizer": "sgd", "schedule": "constant", "hub_optimizer": "average", "participation": 1.0}
    return {"variant": ", ".join(f"{part}={identity(getattr(variant, part))}" for part in variant.changed)}


def differences(asked: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """What a call asks for that the folder's run does not have: one line per key, with both values.

    A key that one of them lacks, such as one that a later version added, is not compared. A value that could be another
    although its words are the same counts as different.

    >>> differences({"train": {"rounds": 9, "step_size": 0.1}}, {"train": {"rounds": 5, "step_size": 0.05}})
    ['train.step_size = 0.1: the run has 0.05; give that, or another folder']
    """
    before, now = ({**UNSAID, **dict(_flat(keys))} for keys in (found, asked))
    unknown = {key: unknown_in(str(now[key])) for key in ("train.variant", "model.block", "model.loss") if key in now}
    return [
        f"{key}: a run folder cannot tell one {kind} from another, so such a run cannot be resumed: make it a frozen "
        "dataclass that holds numbers, texts, arrays or functions"
        for key, kind in unknown.items()
        if kind
    ] + [
        "{} = {}: the run has {}; give that, or another folder".format(key, *_short(value, before[key]))
        for key, value in now.items()
        if key in before and key not in FREE and value != before[key]
        # Python may hand over the very data that a configuration names: federation.json tells whether it fits.
        if (key, value) != ("data.source", PYTHON)
        # A hub does not know the names of other silos' columns.
        if not (key.endswith(".columns") and [] in (value, before[key]))
    ]


def _flat(keys: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Nested keys as dotted ones; entries of a list that have a name go by it."""
    for key, value in keys.items():
        dotted = f"{path}.{key}" if path else key
        if isinstance(value, Mapping):
            yield from _flat(value, dotted)
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) and "name" in item for item in value):
            yield dotted, [item["name"] for item in value]
            yield from _flat({item["name"]: item for item in value}, dotted)
        else:
            yield dotted, one_or_each(value) if key == "block" and isinstance(value, list) else value


def _short(*values: Any) -> list[str]:
    """Different values, each cut to a few characters from where they begin to differ."""
    texts = [repr(value) for value in values]
    same = len([*takewhile(lambda letters: len(set(letters)) == 1, zip(*texts, strict=False))])
    start = max(0, same - SHOWN // 2) if min(map(len, texts)) > SHOWN else 0
    return [
        ("..." if start else "") + text[start : start + SHOWN] + ("..." if start + SHOWN < len(text) else "")
        for text in texts
    ]
