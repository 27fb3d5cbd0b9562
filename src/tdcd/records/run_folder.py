"""The run folder: everything a run leaves behind, and all that resuming it needs.

::

    config.toml                 the resolved settings
    federation.json             silos, columns, clients and their rows; the engine that simulates them
    history.jsonl               one line per evaluated round
    model/<silo>.safetensors    each hub's block; the round is in the metadata
    model/<silo>.memory.safetensors    what else a hub remembers, if its variant has it remember anything
    report.html
"""

import json
import os
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np
from numpy.typing import NDArray

from tdcd.core.objective import Tree
from tdcd.federation.silos import Federation
from tdcd.records.history import Record, read_history
from tdcd.records.mark import NO_LINES, Mark, marks_of
from tdcd.records.model_file import RESTORE, block_content, read_block, settings_digest


class RunFolder:
    """One run on disk. Models are replaced as a whole: a crash at any moment leaves the old ones or the new ones."""

    def __init__(self, path: Path) -> None:
        """Point to ``path``; see :meth:`create` and :meth:`open`."""
        self.path = path
        self._settings = ""

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any], facts: Mapping[str, Any]) -> Self:
        """Start a new run; refuses a folder that already holds one.

        Args:
            config: nested settings, written as TOML.
            facts: see :func:`describe`.
        """
        if (path / "history.jsonl").exists():
            raise FileExistsError(
                f"{path} already holds a run: resume it (--resume {path}, or resume=True) or choose another folder"
            )
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise FileExistsError(f"{path} is there already and is not an empty folder: choose another one")
        path.mkdir(parents=True, exist_ok=True)
        # Of two runs that start in the same folder at the same time, one fails here.
        (path / "history.jsonl").open("x").close()
        folder = cls(path)
        folder.write_config(config)
        folder.write_facts(facts)
        return folder

    @classmethod
    def open(cls, path: Path) -> Self:
        """An existing run."""
        for name in ("config.toml", "history.jsonl"):
            if not (path / name).is_file():
                raise FileNotFoundError(f"{path} is not a run folder: it has no {name}")
        return cls(path)

    def config(self) -> dict[str, Any]:
        """The resolved settings."""
        path = self.path / "config.toml"
        try:
            return tomllib.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is not valid TOML: {error}") from None

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Replace the settings, as when a resumed run is given more rounds."""
        text = toml_text(config)
        self._settings = settings_digest(tomllib.loads(text))
        write_durably(self.path / "config.toml", text.encode())

    def write_facts(self, facts: Mapping[str, Any]) -> None:
        """Say who holds what, see :func:`describe`."""
        write_durably(self.path / "federation.json", (json.dumps(facts, indent=1) + "\n").encode())

    def facts(self) -> dict[str, Any]:
        """Who holds what, see :func:`describe`."""
        path = self.path / "federation.json"
        try:
            return dict(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise FileNotFoundError(f"{self.path} is not a run folder: it has no federation.json") from None
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} is damaged: {error}") from None

    def append(self, record: Record) -> None:
        """Add one line to the history."""
        with (self.path / "history.jsonl").open("a") as file:
            file.write(record.to_json() + "\n")

    def history(self) -> list[Record]:
        """The records so far, at least the one before training."""
        path = self.path / "history.jsonl"
        records = read_history(path)
        if not records:
            raise ValueError(f"{path} is empty: the run ended before its first evaluation; start it anew")
        return records

    def records_before(self, round_index: int, every: int, mark: Mark) -> list[Record]:
        """The history up to ``round_index``, if its first lines are those of ``mark``.

        A last record that an uninterrupted run, evaluated every ``every`` rounds, would not have is left out.
        """
        return [
            record
            for record in self.marked_history(mark)[: mark.lines]
            if record.round <= round_index and record.round % every == 0 and not record.diverged
        ]

    def marked_history(self, mark: Mark) -> list[Record]:
        """All records, if the first lines are those of ``mark``."""
        records = read_history(path := self.path / "history.jsonl")
        difference = mark.difference(marks_of(record.without_seconds() for record in records))
        if difference:
            raise ValueError(f"{path} {difference}: {RESTORE}")
        return records

    def rewrite_history(self, records: Sequence[Record]) -> None:
        """Leave nothing in the history but these records."""
        write_durably(self.path / "history.jsonl", "".join(record.to_json() + "\n" for record in records).encode())

    def check_settings(self) -> None:
        """Refuse settings that are not those of the models, but for what a resumed run may change."""
        self._recover()
        for path in sorted((self.path / "model").glob("*.safetensors")):
            known = read_block(path)[1].get("settings")
            if known and known != settings_digest(self.config()):
                raise ValueError(f"{self.path / 'config.toml'} is not what {path} was trained with: {RESTORE}")
        self._settings = settings_digest(self.config())

    def mark(self) -> Mark | None:
        """The history that the last checkpoint knows; None if there is no checkpoint to resume from."""
        return self._about_model().get("history")

    def data_digest(self) -> str:
        """The digest of the rows that the last checkpoint was trained on; empty if it is not known."""
        return str(self._about_model().get("data", ""))

    def _about_model(self) -> dict[str, Any]:
        self._recover()
        models = sorted((self.path / "model").glob("*.safetensors"))
        return read_block(models[0])[1] if models else {}

    def save_blocks(
        self,
        names: Sequence[str],
        hub_blocks: Sequence[Tree],
        round_index: int,
        history: Mark = NO_LINES,
        data: str = "",
        memory: Sequence[Tree] = (),
    ) -> None:
        """Replace all silos' blocks at once, each with what it takes to know its run again.

        Args:
            history: the lines so far, without seconds; ``data`` is a digest of the federation's rows.
            memory: what else each hub remembers; nothing is written for a hub that remembers nothing.
        """
        model, new, old = self.path / "model", self.path / "model.new", self.path / "model.old"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        settings = self._settings = self._settings or settings_digest(self.config())
        remembered = [(f"{name}.memory", tree) for name, tree in zip(names, memory, strict=False) if named_leaves(tree)]
        for name, tree in [*zip(names, hub_blocks, strict=True), *remembered]:
            tensors = {key: np.asarray(leaf) for key, leaf in named_leaves(tree).items()}
            facts = {"silo": name, "round": round_index, "history": history, "settings": settings, "data": data}
            _write_synced(new / f"{name}.safetensors", block_content(facts, tensors))
        # Nobody reads a folder of this name: its files need not take the place of others one by one.
        sync_folder(new)
        self._recover()
        if model.exists():
            model.rename(old)
        new.rename(model)
        shutil.rmtree(old, ignore_errors=True)

    def load_blocks(self, names: Sequence[str], templates: Sequence[Tree]) -> tuple[list[Tree], int]:
        """All silos' blocks, shaped like ``templates``, and the round they belong to."""
        blocks, facts = self.load_checkpoint(names, templates)
        return blocks, int(facts["round"])

    def load_checkpoint(self, names: Sequence[str], templates: Sequence[Tree]) -> tuple[list[Tree], dict[str, Any]]:
        """All silos' blocks, shaped like ``templates``, and what :meth:`save_blocks` wrote about them."""
        self._recover()
        blocks, found = [], []
        for name, template in zip(names, templates, strict=True):
            path = self.path / "model" / f"{name}.safetensors"
            if not path.is_file():
                raise FileNotFoundError(f"{path} is missing: the run cannot be resumed without every silo's block")
            tensors, facts = read_block(path)
            if facts["silo"] != name:
                raise ValueError(f"{path} is the block of silo '{facts['silo']}': {RESTORE}")
            blocks.append(_shaped(tensors, template, path))
            found.append(facts)
        for facts in found[1:]:
            other = next(
                (key for key in found[0] if key not in ("silo", "digest") and facts[key] != found[0][key]), None
            )
            if other is not None:
                raise ValueError(
                    f"the blocks in {self.path / 'model'} are of different runs or rounds: {other} is "
                    f"{found[0][other]} at '{found[0]['silo']}' and {facts[other]} at '{facts['silo']}'; {RESTORE}"
                )
        return blocks, found[0]

    def _recover(self) -> None:
        """Finish a replacement that a crash cut short between its two renames."""
        model, old = self.path / "model", self.path / "model.old"
        if old.exists() and not model.exists():
            old.rename(model)
        shutil.rmtree(old, ignore_errors=True)


def describe(federation: Federation, parameters: Sequence[int], engine: str) -> dict[str, Any]:
    """What ``federation.json`` says: silos, columns, clients and their rows, and the engine that simulates them.

    Args:
        parameters: of each silo's block.
    """
    return {
        "name": federation.name,
        "num_samples": federation.num_samples,
        "num_test": 0 if federation.test_labels is None else len(federation.test_labels),
        "labels": federation.labels_in_words,
        "engine": engine,
        "silos": [
            {
                "name": silo.name,
                "feature_shape": list(silo.feature_shape),
                "columns": list(silo.columns),
                "clients": silo.rows_held.tolist(),
                "parameters": count,
            }
            for silo, count in zip(federation.silos, parameters, strict=True)
        ],
    }


def named_leaves(block: Tree) -> dict[str, Any]:
    """A block's arrays by path.

    >>> list(named_leaves({"hidden": [{"bias": 0.0}], "slice": 1.0}))
    ['hidden.0.bias', 'slice']
    """
    leaves, structure = jax.tree.flatten(block)
    return dict(zip(_paths(structure), leaves, strict=True))


@cache
def _paths(structure: Any) -> list[str]:
    """The path of every leaf."""
    numbered = jax.tree.unflatten(structure, range(structure.num_leaves))
    paths = (path for path, _ in jax.tree_util.tree_leaves_with_path(numbered))
    return [jax.tree_util.keystr(path, simple=True, separator=".") for path in paths]


def _shaped(tensors: Mapping[str, NDArray[Any]], template: Tree, path: Path) -> Tree:
    wanted = named_leaves(template)
    if set(wanted) != set(tensors):
        raise ValueError(f"{path} holds {sorted(tensors)}, but the model has {sorted(wanted)}")
    for name, leaf in wanted.items():
        if tensors[name].shape != leaf.shape or tensors[name].dtype != leaf.dtype:
            found = f"{tensors[name].dtype}{list(tensors[name].shape)}"
            raise ValueError(f"{path}: '{name}' is {found}, but the model needs {leaf.dtype}{list(leaf.shape)}")
    return jax.tree.unflatten(jax.tree.structure(template), [tensors[name] for name in wanted])


def write_durably(path: Path, content: bytes) -> None:
    """Replace a file's content: after a crash at any moment it is the old one or the new one, never a part."""
    temporary = f"{path}.tmp"
    _write_synced(temporary, content)
    os.replace(temporary, path)  # noqa: PTH105
    sync_folder(path.parent)


def _write_synced(path: Path | str, content: bytes) -> None:
    """Write a file whose content is durable then, but not its name."""
    with open(path, "wb", buffering=0) as file:  # noqa: PTH123
        write_all(file.fileno(), content)
        os.fsync(file.fileno())


def write_all(file: int, content: bytes) -> None:
    """Write all of it to an open file; a single call may take a part only."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file, rest) :]


def sync_folder(path: Path) -> None:
    """Make durable which files a folder has."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


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
