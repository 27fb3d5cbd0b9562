"""The file of one silo's block: safetensors, with what it takes to know the run again that it belongs to."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from tdcd.records.mark import Mark, digest_of
from tdcd.records.plain_file import parse_json, read_plain

RESTORE = "restore it from a backup, or start the run anew"
_FREE = {"train": "rounds", "data": "folder"}


def block_content(facts: Mapping[str, Any], tensors: dict[str, NDArray[Any]]) -> bytes:
    """The content of a model file; a digest guards tensors and ``facts``."""
    # One metadata entry: several would be written in an order that changes from run to run.
    return save(tensors, {"tdcd": json.dumps({**facts, "digest": digest_of(facts, tensors)})})


def read_block(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """The tensors in a model file and what was written about them; refuses a file that was changed since."""
    content = read_plain(path, None)
    try:
        tensors, facts = load(content), parse_json(read_metadata(content)["tdcd"])
        if facts.pop("digest") != digest_of(facts, tensors):
            raise ValueError("its content does not match its digest")
        facts["history"] = Mark.read(facts["history"])
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: {error}; {RESTORE}") from None
    return tensors, facts


def settings_digest(config: Mapping[str, Any]) -> str:
    """Of all keys but those that a resumed run may change: the rounds, and where its data lies."""
    kept = {section: _without(keys, _FREE.get(section)) for section, keys in config.items()}
    return digest_of(json.loads(json.dumps(kept, default=str)), {})


def _without(keys: Any, name: str | None) -> Any:
    return {key: value for key, value in keys.items() if key != name} if isinstance(keys, Mapping) else keys


def read_metadata(content: bytes) -> dict[str, str]:
    """The metadata of a safetensors file's content."""
    size = int.from_bytes(content[:8], "little")
    return dict(parse_json(content[8 : 8 + size])["__metadata__"])
