"""A run's model on disk: one safetensors file per silo's block, with what it takes to know the run again."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from tdcd.core.trees import Tree, like, named_leaves
from tdcd.records.files import Mark, digest_of, parse_json, read_plain, sync_folder, write_synced

RESTORE = "restore it from a backup, or start the run again"
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
    """A digest of all keys but those that a resumed run may change: the rounds, and where its data lies."""
    kept = {section: _without(keys, _FREE.get(section)) for section, keys in config.items()}
    return digest_of(json.loads(json.dumps(kept, default=str)), {})


def _without(keys: Any, name: str | None) -> Any:
    return {key: value for key, value in keys.items() if key != name} if isinstance(keys, Mapping) else keys


def read_metadata(content: bytes) -> dict[str, str]:
    """The metadata of a safetensors file's content."""
    size = int.from_bytes(content[:8], "little")
    return dict(parse_json(content[8 : 8 + size])["__metadata__"])


class ModelFiles:
    """The model of a run. It is replaced as a whole: a crash at any moment leaves the old one or the new one."""

    def __init__(self, run: Path) -> None:
        """Point to the model in the run folder ``run``."""
        self.path, self._new, self._old = run / "model", run / "model.new", run / "model.old"
        self._read: dict[Path, tuple[dict[str, NDArray[Any]], dict[str, Any]]] = {}

    def file(self, name: str) -> Path:
        """The file of a silo's block."""
        return self.path / f"{name}.safetensors"

    def save(self, trees: Sequence[tuple[str, Tree]], facts: Mapping[str, Any]) -> None:
        """Replace all files by one for each named tree, each with the same facts."""
        self._read.clear()
        shutil.rmtree(self._new, ignore_errors=True)
        self._new.mkdir()
        for name, tree in trees:
            tensors = {key: np.asarray(leaf) for key, leaf in named_leaves(tree).items()}
            write_synced(self._new / self.file(name).name, block_content({"silo": name, **facts}, tensors))
        # No process reads a folder of this name: its files need not take the place of others one by one.
        sync_folder(self._new)
        self._recover()
        if self.path.exists():
            self.path.rename(self._old)
        self._new.rename(self.path)
        shutil.rmtree(self._old, ignore_errors=True)

    def load(self, names: Sequence[str], templates: Sequence[Tree]) -> tuple[list[Tree], dict[str, Any]]:
        """The named trees, shaped like ``templates``, and what :meth:`save` wrote about them."""
        self._recover()
        trees, metadata = [], []
        for name, template in zip(names, templates, strict=True):
            path = self.file(name)
            if not path.is_file():
                raise FileNotFoundError(f"{path} is missing: the run cannot be resumed without every silo's block")
            tensors, facts = self._block(path)
            if facts["silo"] != name:
                raise ValueError(f"{path} is the block of silo '{facts['silo']}': {RESTORE}")
            trees.append(_shaped(tensors, template, path))
            metadata.append(facts)
        for facts in metadata[1:]:
            other = next(
                (key for key in metadata[0] if key not in ("silo", "digest") and facts[key] != metadata[0][key]), None
            )
            if other is not None:
                raise ValueError(
                    f"the blocks in {self.path} are of different runs or rounds: {other} is {metadata[0][other]} "
                    f"at '{metadata[0]['silo']}' and {facts[other]} at '{facts['silo']}'; {RESTORE}"
                )
        self._read.clear()
        return trees, metadata[0]

    def facts(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Every file, and what :meth:`save` wrote about it."""
        self._recover()
        for path in sorted(self.path.glob("*.safetensors")):
            yield path, self._block(path)[1]

    def _block(self, path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """What :func:`read_block` gives; kept until the model is loaded, since a resumed run looks at it first."""
        if path not in self._read:
            self._read[path] = read_block(path)
        return self._read[path]

    def _recover(self) -> None:
        """Finish a replacement that a crash cut short between its two renames."""
        if self._old.exists() and not self.path.exists():
            self._old.rename(self.path)
        shutil.rmtree(self._old, ignore_errors=True)


def _shaped(tensors: Mapping[str, NDArray[Any]], template: Tree, path: Path) -> Tree:
    wanted = named_leaves(template)
    if other := sorted({*wanted} ^ {*tensors}):
        has = "lacks" if other[0] in wanted else "has"
        raise ValueError(
            f"{path} {has} '{other[0]}': it was written with other settings, or by another version with other steps. "
            "Continue with those, or start a new run; train.start begins it with the model of this one"
        )
    for name, leaf in wanted.items():
        if tensors[name].shape != leaf.shape or tensors[name].dtype != leaf.dtype:
            shape = f"{tensors[name].dtype}{list(tensors[name].shape)}"
            raise ValueError(f"{path}: '{name}' is {shape}, but the model needs {leaf.dtype}{list(leaf.shape)}")
    return like(template, [tensors[name] for name in wanted])
