"""A trained model: what it takes to predict from raw rows, of all silos or of a hub's own one."""

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import jax
import numpy as np
from numpy.typing import NDArray

from tdcd.blocks import Block
from tdcd.core.combine import SUM, Combine
from tdcd.core.losses import Loss
from tdcd.core.objective import Objective, Tree
from tdcd.core.settings import Dtype
from tdcd.federation.silos import Federation
from tdcd.prediction.scores import SiloScores, StandIns, by_id, by_place, check_without
from tdcd.tables.errors import caution
from tdcd.tables.labels import LabelEncoding
from tdcd.tables.preparation import Preparation, encoding_of, preparation_of
from tdcd.tables.reader import read_rows
from tdcd.tables.rows import PLACE, Columns, RawRows
from tdcd.tables.source import Frame, arrow_of

if TYPE_CHECKING:
    from tdcd.prediction.coefficients import Coefficients

ROWS_AT_ONCE = 1 << 13
"""Rows are prepared and scored so many at a time, to need little memory in addition to the table."""


class SiloModel(NamedTuple):
    """One silo's part of the model."""

    columns: Columns
    """What it reads of a table."""
    preparation: Preparation
    feature_shape: tuple[int, ...]
    """The shape of one sample, with a column of ones at the end if there is one."""
    block: Block
    parameters: Tree

    @property
    def num_ones(self) -> int:
        """How many columns of ones follow the prepared features: 1 in the silo with the bias, else 0."""
        return prod(self.feature_shape) - len(self.preparation.columns)

    def phi(self, rows: RawRows) -> NDArray[Any]:
        """``[n, C]``: what these rows add to the scores."""
        starts = range(0, len(rows), ROWS_AT_ONCE)
        chunks = [self._phi(rows.take(np.arange(start, min(start + ROWS_AT_ONCE, len(rows))))) for start in starts]
        return np.concatenate(chunks)

    def _phi(self, rows: RawRows) -> NDArray[Any]:
        dtype = jax.tree.leaves(self.parameters)[0].dtype
        features = self.preparation.apply(rows, dtype, self.num_ones).reshape(len(rows), *self.feature_shape)
        with jax.enable_x64(dtype == np.float64):
            return np.asarray(self.block.phi(self.parameters, jax.numpy.asarray(features)))


@dataclass(frozen=True, eq=False)
class Model:
    """A trained model. It takes raw rows, and handles missing values, categories and scaling itself.

    Get one from a run folder or a file with :meth:`load`, or from a finished run as :attr:`tdcd.Result.model`.
    """

    silos: tuple[str, ...]
    """In order."""
    parts: Mapping[str, SiloModel]
    """The parts by silo: of all silos, or of a hub's own."""
    label_encoding: LabelEncoding
    """What the labels are."""
    loss: Loss
    """What was minimised."""
    dtype: Dtype = "float32"
    where: str = "the model"
    """Where it is from, for messages."""
    absent: Mapping[str, Path] = field(default_factory=dict)
    """The silos whose parts are not there, and a file that is missing for each."""
    label_silo: str | None = None
    """The only silo that knows what labels mean."""
    stand_ins: StandIns = StandIns()  # noqa: RUF009  (it cannot change)
    """What takes the place of the phi of silos that are missing."""
    head: Combine = SUM
    """How the sum of the silos' phi becomes scores."""

    @classmethod
    def load(
        cls,
        path: Path | str,
        blocks: Block | Sequence[Block] | None = None,
        loss: Loss | None = None,
        *,
        allow_code: bool = False,
    ) -> Self:
        """The model in a run folder, or in a file that :meth:`save` wrote.

        Args:
            blocks: one for all silos, or one each, where they are the user's own: a folder cannot keep code.
            loss: where it is the user's own.
            allow_code: import the loss or the modules that the folder or file names, if they are not given here.
                Whoever wrote it chose that code, so it is refused otherwise.
        """
        from tdcd.prediction.storage import load_file, load_folder  # noqa: PLC0415 - it makes models

        path = Path(path)
        load = load_file if path.is_file() else load_folder
        return load(cls, path, blocks, loss, allow_code=allow_code)

    @classmethod
    def of(
        cls,
        federation: Federation,
        blocks: Sequence[Block],
        hub_blocks: Sequence[Tree],
        objective: Objective,
        dtype: Dtype = "float32",
        stand_ins: StandIns = StandIns(),  # noqa: B008  (it cannot change)
    ) -> Self:
        """The model that a federation was trained to."""
        parts = {}
        for silo, block, parameters in zip(federation.silos, blocks, hub_blocks, strict=True):
            preparation = preparation_of(silo)
            columns = Columns.read_as(silo.id_column or "id", silo.reading)
            columns = columns.only([*preparation.parts], preparation.categorical)
            parts[silo.name] = SiloModel(
                columns, preparation, silo.feature_shape, block, jax.tree.map(np.asarray, parameters)
            )
        encoding = encoding_of(federation, objective)
        return cls(tuple(parts), parts, encoding, objective.kind, dtype, stand_ins=stand_ins, head=objective.combine)

    def save(self, path: Path | str) -> None:
        """Write everything to one file, which :meth:`load` reads."""
        from tdcd.prediction.storage import save_file  # noqa: PLC0415

        save_file(self, Path(path))

    @property
    def num_outputs(self) -> int:
        """C."""
        return self.label_encoding.num_outputs or self.loss.num_outputs(len(self.label_encoding.classes))

    @property
    def phi_width(self) -> int:
        """The numbers of phi: as many as scores, unless there is a head."""
        return self.head.width(self.num_outputs)

    def check_additive(self, what: str) -> None:
        """Refuse what only a model whose scores are sums can have."""
        if not self.head.is_additive:
            raise ValueError(f"{self.where} has model.head = 'hidden': {what} is of a model whose score is a sum")

    @property
    def classes(self) -> NDArray[Any]:
        """The classes in the order of :meth:`predict_proba`: numbers if all of them are, else names."""
        names = self.label_encoding.classes
        try:
            values = [float(name) for name in names]
        except ValueError:
            return np.array(names)
        whole = all(value.is_integer() for value in values)
        return np.array([int(value) for value in values] if whole else values)

    def part(self, silo: str) -> SiloModel:
        """One silo's part of the model."""
        if silo not in self.silos:
            raise ValueError(f"there is no silo '{silo}' in {self.where}; there are {', '.join(self.silos)}")
        if silo not in self.parts:
            others = ", ".join(f"'{name}'" for name in self.parts) or "nobody"
            raise FileNotFoundError(
                f"{self.absent[silo]} is missing: {self.where} has the part of {others}, not of silo '{silo}'"
            )
        return self.parts[silo]

    def check_meaning(self) -> None:
        """Refuse a model of a silo without labels: what its scores mean is not known there."""
        if self.label_encoding.num_outputs is not None:
            raise ValueError(f"{self.where}: only silo '{self.label_silo}' knows what predictions mean: predict there")

    def silo_scores(self, silo: str, table: Path) -> SiloScores:
        """What one silo's columns in a file add to the scores.

        The file needs the silo's id column and features; other columns, such as the label, are ignored.
        """
        part = self.part(silo)
        return self._scored(silo, read_rows(table, part.columns))

    def scores(self, tables: Mapping[str, Any], without: Collection[str] = ()) -> NDArray[Any]:
        """``[n, C]``: the scores of raw rows.

        Args:
            tables: of every silo by name: a frame of pandas or Polars, an Arrow table, a mapping of columns, an array
                with the silo's columns in order, or the path of a CSV or Parquet file. Rows are put together by the id
                column, in the order of the first silo's, if it is in all tables; otherwise by their places.
            without: silos that are missing. A model that was trained with silo dropout was trained for that; of
                another one, their phi is replaced by its mean over the training rows, with a warning.
        """
        if not isinstance(tables, Mapping):
            raise ValueError(f"give tables by silo, such as {{{self.silos[0]!r}: table}}, not {type(tables).__name__}")
        check_without(self.silos, without, tables)
        given = {name: tables[name] for name in self.silos if name in tables}
        unknown = [name for name in tables if name not in self.silos]
        missing = [name for name in self.silos if name not in (*tables, *without)]
        if unknown or missing:
            problem = f"there is no silo '{unknown[0]}'" if unknown else f"the table of silo '{missing[0]}' is missing"
            raise ValueError(f"{problem}: give one for each of {', '.join(self.silos)}")
        paths = {name: Path(table) for name, table in given.items() if isinstance(table, str | Path)}
        frames = {
            name: arrow_of(table, f"table '{name}'", [*self.part(name).preparation.parts])
            for name, table in given.items()
            if name not in paths
        }
        has_ids = [self._has_id(name, frame.column_names) for name, frame in frames.items()]
        joined = bool(paths) or all(has_ids)
        if (paths or any(has_ids)) and not all(has_ids):
            name = [*frames][has_ids.index(False)]
            ids = f"'{self.part(name).columns.id}'"
            raise ValueError(
                f"table '{name}' has no id column {ids}, and others have: give ids in all tables, or in none"
            )
        parts = {
            name: self.silo_scores(name, paths[name])
            if name in paths
            else self._scored(name, self._rows(name, frames[name], joined))
            for name in given
        }
        scores = by_id(parts) if joined else by_place(parts)
        for silo in without:
            if warning := self.stand_ins.warning(silo):
                warnings.warn(warning, stacklevel=2)
            scores = scores + self.stand_ins.of(silo, scores.dtype)
        return np.asarray(self.head.scores(scores))

    def predict(self, tables: Mapping[str, Any], without: Collection[str] = ()) -> NDArray[Any]:
        """``[n]``: amounts in the labels' own unit, or classes, of what :meth:`scores` takes."""
        self.check_meaning()
        scores, encoding, target = self.scores(tables, without), self.label_encoding, self.loss.target
        if target == "amount":
            expected = self.loss.inverse_link(np.asarray(scores, np.float64))[:, 0]
            amounts: NDArray[Any] = expected * encoding.scale + encoding.mean
            return amounts
        chosen = scores.argmax(axis=1) if target == "classes" else (scores[:, 0] > 0).astype(int)
        classes: NDArray[Any] = self.classes[chosen]
        return classes

    def predict_proba(self, tables: Mapping[str, Any], without: Collection[str] = ()) -> NDArray[np.float64]:
        """``[n, classes]``: the probability of every class, of what :meth:`scores` takes."""
        self.check_meaning()
        target = self.loss.target
        if target == "amount":
            raise ValueError(f"the {self.loss.name} loss predicts amounts, which have no probabilities: use predict")
        chances = self.loss.inverse_link(np.asarray(self.scores(tables, without), np.float64))
        return np.hstack([1 - chances, chances]) if target == "binary" else chances

    def coefficients(self) -> "Coefficients":
        """A linear model in the columns' own units, see :func:`tdcd.prediction.coefficients.coefficients`."""
        from tdcd.prediction.coefficients import coefficients  # noqa: PLC0415 - it reads models

        return coefficients(self)

    def _has_id(self, silo: str, columns: Sequence[str]) -> bool:
        part = self.part(silo)
        return part.columns.id in columns and part.columns.id not in part.preparation.parts

    def _rows(self, silo: str, frame: Any, joined: bool) -> RawRows:
        columns = self.part(silo).columns
        return read_rows(Frame(frame, f"table '{silo}'"), columns if joined else replace(columns, id=PLACE))

    def _scored(self, silo: str, rows: RawRows) -> SiloScores:
        part = self.part(silo)
        for column, sentence in part.preparation.cautions(rows).items():
            caution(f"silo '{silo}', column '{column}': {sentence}")
        return SiloScores(rows.ids, part.phi(rows))
