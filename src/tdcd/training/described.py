"""What a run folder says of a run that Python started, and how it differs from what a call asks for."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tdcd.blocks import Block, Cnn, Linear, Mlp
from tdcd.core.choices import PYTHON
from tdcd.core.execution import Execution
from tdcd.core.objective import Objective
from tdcd.core.settings import Settings

FREE = ("train.rounds", "federation.name", "federation.engine", "federation.labels")
"""What may differ when a run is resumed."""
SHOWN = 80
"""Characters of a value that a message shows."""


def describe_call(
    blocks: Sequence[Block],
    objective: Objective,
    settings: Settings,
    execution: Execution,
    *,
    rounds: int,
    evaluate_every: int,
) -> dict[str, Any]:
    """The arguments of :func:`tdcd.train` in the words of a configuration."""
    chosen = asdict(settings)
    return {
        "seed": chosen.pop("seed"),
        "dtype": chosen.pop("dtype"),
        "data": {"source": PYTHON, "keep": execution.keep},
        "model": {**_model(blocks), **asdict(objective)},
        "train": {"rounds": rounds, **chosen, "precision": execution.precision},
        "evaluate": {"every": evaluate_every},
    }


def _model(blocks: Sequence[Block]) -> dict[str, Any]:
    """The blocks as a configuration has them; where it has no words for them, as Python shows them."""
    named = [_named(block) for block in blocks]
    keys = {key: value for _, own in named for key, value in own.items()}
    # A configuration has one list of widths for all mlp blocks, one kernel for all cnn blocks, and so on.
    if all(name and own == {key: keys[key] for key in own} for name, own in named):
        return {"block": _one([name for name, _ in named]), **keys}
    # Where an object lies in memory differs from one process to the next.
    return {"block": _one([re.sub(r" at 0x[0-9a-f]+", "", repr(block)) for block in blocks])}


def _named(block: Block) -> tuple[str, dict[str, Any]]:
    """A block's name in a configuration and the keys that go with it; no name if it has none."""
    if type(block) is Linear:
        return "linear", {}
    if type(block) is Mlp:
        return "mlp", {"hidden": [*block.hidden]}
    if type(block) is Cnn:
        return "cnn", {"channels": [*block.channels], "kernel": [*block.kernel], "embedding": block.embedding}
    make = getattr(block, "make", None)
    module = f"{getattr(make, '__module__', '')}:{getattr(make, '__qualname__', '')}"
    # Told by its name, since PyTorch is optional.
    if type(block).__name__ == "TorchBlock" and re.fullmatch(r"[\w.]+:\w+", module):
        return "torch", {"module": module}
    return "", {}


def _one(names: Sequence[str]) -> Any:
    """One name for all silos, or a list of one per silo."""
    return names[0] if len(set(names)) == 1 else [*names]


def differences(asked: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """What a call asks for that the folder's run does not have: one line per key, with both values.

    A key that one of them lacks, such as one that a later version added, is not compared.

    >>> differences({"train": {"rounds": 9, "step_size": 0.1}}, {"train": {"rounds": 5, "step_size": 0.05}})
    ['train.step_size = 0.1: the run has 0.05; give that, or another folder']
    """
    before = dict(_flat(found))
    return [
        f"{key} = {_short(value)}: the run has {_short(before[key])}; give that, or another folder"
        for key, value in _flat(asked)
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
            yield dotted, _one(value) if key == "block" and isinstance(value, list) else value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."
