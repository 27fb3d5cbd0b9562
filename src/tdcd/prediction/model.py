"""A model that was trained from files, as its run folder keeps it: of all silos, or of a hub's own one."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import jax
import numpy as np
from numpy.typing import NDArray

from tdcd.blocks import Block
from tdcd.blocks.start import start_block
from tdcd.config import Config, check_config
from tdcd.config.losses import named_loss
from tdcd.config.resolve import blocks_of, settings_of
from tdcd.core.losses import Loss, fitting
from tdcd.core.objective import Tree
from tdcd.records.run_folder import RunFolder
from tdcd.report.folder import Run
from tdcd.tables.labels import LabelEncoding
from tdcd.tables.preparation import Preparation
from tdcd.tables.preparation_io import load_label_encoding, load_preparation
from tdcd.tables.rows import Columns, RawRows


class Part(NamedTuple):
    """One silo's part of the model."""

    columns: Columns
    """What it reads of a table."""
    preparation: Preparation
    num_ones: int
    """How many columns of ones follow the prepared features: 1 in the silo with the bias, else 0."""
    block: Block
    parameters: Tree

    def phi(self, rows: RawRows) -> NDArray[Any]:
        """``[n, C]``: what these rows add to the scores."""
        dtype = jax.tree.leaves(self.parameters)[0].dtype
        features = self.preparation.apply(rows, dtype, self.num_ones)
        with jax.enable_x64(dtype == np.float64):
            return np.asarray(self.block.phi(self.parameters, jax.numpy.asarray(features)))


@dataclass(frozen=True)
class Model:
    """The trained model in the folder of a run from files."""

    path: Path
    config: Config
    label_encoding: LabelEncoding
    """What the labels are."""
    widths: dict[str, int]
    """How many features each silo has, a column of ones counted in; by name, in order."""

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read a run folder; refuses one of a run that was not from files."""
        run = Run.read(path)
        config = check_config(run.config, str(RunFolder(path).config_file))
        if config.data.source != "files":
            raise ValueError(
                f"{path} was trained on '{config.data.source}': only a run from files keeps how columns become features"
            )
        return cls(
            path, config, load_label_encoding(path), {silo.name: silo.num_features for silo in run.federation.silos}
        )

    @property
    def loss(self) -> Loss:
        """What was minimised."""
        return named_loss(self.config.model, self.config.model.loss or fitting(self.label_encoding.task)[0])

    @property
    def num_outputs(self) -> int:
        """C."""
        return self.label_encoding.num_outputs or self.loss.num_outputs(len(self.label_encoding.classes))

    def check_meaning(self) -> None:
        """Refuse a folder of a silo without labels: what the model's scores mean is not known there."""
        if self.label_encoding.num_outputs is not None:
            holder = f"'{self.config.federation.labels}'"
            raise ValueError(f"{self.path}: only silo {holder} knows what predictions mean: predict there")

    @cached_property
    def present(self) -> list[str]:
        """The silos whose parts are in this folder: all, or a hub's own."""
        return [silo for silo in self.widths if all(path.is_file() for path in self._files(silo))]

    def id_column(self, silo: str) -> str:
        """What a silo's tables call the id."""
        return next(section.id for section in self.config.silos if section.name == silo)

    def part(self, silo: str) -> Part:
        """One silo's part of the model."""
        if silo not in self.widths:
            raise ValueError(f"there is no silo '{silo}' in {self.path}; there are {', '.join(self.widths)}")
        if silo not in self.present:
            absent = next(path for path in self._files(silo) if not path.is_file())
            others = ", ".join(f"'{name}'" for name in self.present) or "nobody"
            raise FileNotFoundError(f"{absent} is missing: {self.path} has the part of {others}, not of silo '{silo}'")
        index = [section.name for section in self.config.silos].index(silo)
        preparation = load_preparation(self.path, silo)
        block = blocks_of(self.config)[index]
        template = start_block(block, settings_of(self.config), index, (self.widths[silo],), self.num_outputs)
        (parameters,), _ = RunFolder(self.path).load_blocks([silo], [template])
        columns = Columns.of(self.config, self.config.silos[index]).only([*preparation.parts], preparation.categorical)
        return Part(columns, preparation, self.widths[silo] - len(preparation.columns), block, parameters)

    def _files(self, silo: str) -> tuple[Path, Path]:
        folder = RunFolder(self.path)
        return folder.model.file(silo), folder.preparation_file(silo)
