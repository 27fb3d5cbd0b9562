"""Blocks in the words of a configuration."""

import re
from collections.abc import Sequence
from typing import Any

from tdcd.blocks import Block, Cnn, Linear, Mlp


def block_keys(blocks: Sequence[Block]) -> dict[str, Any] | None:
    """The keys of ``[model]`` that make these blocks, one per silo; None if a configuration has no words for them.

    >>> block_keys([Linear(), Mlp((8,))])
    {'block': ['linear', 'mlp'], 'hidden': [8]}
    """
    named = [_named(block) for block in blocks]
    keys = {key: value for _, own in named for key, value in own.items()}
    # A configuration has one list of widths for all mlp blocks, one kernel for all cnn blocks, and so on.
    if not all(name and own == {key: keys[key] for key in own} for name, own in named):
        return None
    return {"block": one_or_each([name for name, _ in named]), **keys}


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


def one_or_each(names: Sequence[str]) -> Any:
    """One name for all silos, or a list of one per silo."""
    return names[0] if len(set(names)) == 1 else [*names]
