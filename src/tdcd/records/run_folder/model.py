"""The silos' blocks in a run folder: ``model/<name>.safetensors``, always all of the same round."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.core.trees import Tree, like, named_leaves
from tdcd.records.model_file import RESTORE, block_content, read_block
from tdcd.records.run_folder.durable import sync_folder, write_synced


class ModelFiles:
    """The model of a run. It is replaced as a whole: a crash at any moment leaves the old one or the new one."""

    def __init__(self, run: Path) -> None:
        """Point to the model in the run folder ``run``."""
        self.path, self._new, self._old = run / "model", run / "model.new", run / "model.old"

    def file(self, name: str) -> Path:
        """The file of a silo's block."""
        return self.path / f"{name}.safetensors"

    def save(self, trees: Sequence[tuple[str, Tree]], facts: Mapping[str, Any]) -> None:
        """Replace all files by one for each named tree, each with the same facts."""
        shutil.rmtree(self._new, ignore_errors=True)
        self._new.mkdir()
        for name, tree in trees:
            tensors = {key: np.asarray(leaf) for key, leaf in named_leaves(tree).items()}
            write_synced(self._new / self.file(name).name, block_content({"silo": name, **facts}, tensors))
        # Nobody reads a folder of this name: its files need not take the place of others one by one.
        sync_folder(self._new)
        self._recover()
        if self.path.exists():
            self.path.rename(self._old)
        self._new.rename(self.path)
        shutil.rmtree(self._old, ignore_errors=True)

    def load(self, names: Sequence[str], templates: Sequence[Tree]) -> tuple[list[Tree], dict[str, Any]]:
        """The named trees, shaped like ``templates``, and what :meth:`save` wrote about them."""
        self._recover()
        trees, found = [], []
        for name, template in zip(names, templates, strict=True):
            path = self.file(name)
            if not path.is_file():
                raise FileNotFoundError(f"{path} is missing: the run cannot be resumed without every silo's block")
            tensors, facts = read_block(path)
            if facts["silo"] != name:
                raise ValueError(f"{path} is the block of silo '{facts['silo']}': {RESTORE}")
            trees.append(_shaped(tensors, template, path))
            found.append(facts)
        for facts in found[1:]:
            other = next(
                (key for key in found[0] if key not in ("silo", "digest") and facts[key] != found[0][key]), None
            )
            if other is not None:
                raise ValueError(
                    f"the blocks in {self.path} are of different runs or rounds: {other} is "
                    f"{found[0][other]} at '{found[0]['silo']}' and {facts[other]} at '{facts['silo']}'; {RESTORE}"
                )
        return trees, found[0]

    def facts(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Every file, and what :meth:`save` wrote about it."""
        self._recover()
        for path in sorted(self.path.glob("*.safetensors")):
            yield path, read_block(path)[1]

    def _recover(self) -> None:
        """Finish a replacement that a crash cut short between its two renames."""
        if self._old.exists() and not self.path.exists():
            self._old.rename(self.path)
        shutil.rmtree(self._old, ignore_errors=True)


def _shaped(tensors: Mapping[str, NDArray[Any]], template: Tree, path: Path) -> Tree:
    wanted = named_leaves(template)
    if set(wanted) != set(tensors):
        raise ValueError(f"{path} holds {sorted(tensors)}, but the model has {sorted(wanted)}")
    for name, leaf in wanted.items():
        if tensors[name].shape != leaf.shape or tensors[name].dtype != leaf.dtype:
            found = f"{tensors[name].dtype}{list(tensors[name].shape)}"
            raise ValueError(f"{path}: '{name}' is {found}, but the model needs {leaf.dtype}{list(leaf.shape)}")
    return like(template, [tensors[name] for name in wanted])
