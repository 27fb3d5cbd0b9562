"""Settings as TOML, for people and for :mod:`tomllib`."""

import json
from collections.abc import Mapping
from typing import Any


def toml_text(config: Mapping[str, Any]) -> str:
    """Nested settings as TOML; entries that are None are left out.

    >>> print(toml_text({"seed": 0, "train": {"rounds": 5, "note": None}}), end="")
    seed = 0
    <BLANKLINE>
    [train]
    rounds = 5
    """
    tables = {key: value for key, value in config.items() if isinstance(value, Mapping)}
    lines = [
        f"{key} = {_toml_value(value)}" for key, value in config.items() if key not in tables and value is not None
    ]
    for name, table in tables.items():
        lines += ["", f"[{name}]"]
        lines += [f"{key} = {_toml_value(value)}" for key, value in table.items() if value is not None]
    return "\n".join(lines) + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, Mapping):
        entries = (f"{json.dumps(key)} = {_toml_value(item)}" for key, item in value.items() if item is not None)
        return "{ " + ", ".join(entries) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    # JSON and TOML agree on these but for characters past the basic plane and the delete character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
