"""Nested fields by dotted name."""

from collections.abc import Mapping
from typing import Any


def flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Nested fields by dotted name; lists stay as they are.

    >>> flat({"round": 1, "metrics": {"train": {"auc": 0.5}}})
    {'round': 1, 'metrics.train.auc': 0.5}
    """
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{key}": item for key, item in flat(value).items()}
        else:
            found[name] = value
    return found
