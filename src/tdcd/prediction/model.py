"""A trained model: what it takes to predict from raw rows, of all silos or of a hub's own one.

On disk it is in a run folder, or in one safetensors file with all else that predicting takes in its metadata.
"""

import json
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import jax
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from tdcd.blocks import Block
from tdcd.blocks.base import with_head
from tdcd.blocks.start import start_block
from tdcd.config import Config, stored_config
from tdcd.config.losses import chosen_loss, combine_of, loss_keys, named_loss
from tdcd.config.resolve import block_keys, block_named, settings_of
from tdcd.config.user_code import WAY_ON
from tdcd.core.choices import PYTHON
from tdcd.core.combine import SUM, Combine
from tdcd.core.losses import Loss, fitting
from tdcd.core.notebook import summary_html
from tdcd.core.objective import Objective, Tree
from tdcd.core.settings import Dtype
from tdcd.core.trees import named_leaves
from tdcd.core.words import counted, there_are
from tdcd.federation.silos import Federation
from tdcd.prediction.scores import SiloScores, StandIns, by_id, by_place, check_without, combine, no_scores
from tdcd.prediction.subsets import temperature_in
from tdcd.records.files import SHARED, digest_of, parse_json, read_plain, write_durably
from tdcd.records.model_file import read_metadata
from tdcd.records.run_folder import RecordedRun, RunFolder
from tdcd.tables.errors import caution
from tdcd.tables.labels import LabelEncoding
from tdcd.tables.preparation import Preparation, encoding_of, load_label_encoding, load_preparation, preparation_of
from tdcd.tables.reader import read_rows
from tdcd.tables.rows import PLACE, Columns, RawRows
from tdcd.tables.source import Frame, arrow_of

if TYPE_CHECKING:
    from tdcd.prediction.coefficients import Coefficients
    from tdcd.prediction.effects import Effects
    from tdcd.prediction.importance import Importances

ROWS_AT_ONCE = 1 << 13
"""Rows are prepared and scored so many at a time, to need little memory in addition to the table."""
SHOWN_NAMES = 5
"""How many silos, columns or classes a line about the model names."""


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

    def phi(self, rows: RawRows, absent: NDArray[np.bool_] | None = None) -> NDArray[Any]:
        """``[n, C]``: what these rows add to the scores.

        Args:
            absent: ``[n, S]``: for which of the silos that it has stand-ins for, ``preparation.absent.silos``, each row
                needs them; none by default.
        """
        places = [np.arange(start, min(start + ROWS_AT_ONCE, len(rows))) for start in range(0, len(rows), ROWS_AT_ONCE)]
        marks = [None if absent is None else absent[chosen] for chosen in places]
        return np.concatenate([self._phi(rows.take(chosen), own) for chosen, own in zip(places, marks, strict=True)])

    def phi_of(self, features: NDArray[Any]) -> NDArray[Any]:
        """``[n, C]``: phi of prepared features ``[n, D]``, where no silo is absent; columns of ones are added."""
        ones = np.ones((len(features), self.num_ones), features.dtype)
        whole = self.preparation.absent.marked(np.concatenate([features, ones], axis=1), None, self.num_ones)
        starts = range(0, len(whole), ROWS_AT_ONCE)
        return np.concatenate([self._of_features(whole[start : start + ROWS_AT_ONCE]) for start in starts])

    def _phi(self, rows: RawRows, absent: NDArray[np.bool_] | None) -> NDArray[Any]:
        dtype = jax.tree.leaves(self.parameters)[0].dtype
        return self._of_features(self.preparation.apply(rows, dtype, self.num_ones, absent))

    def _of_features(self, features: NDArray[Any]) -> NDArray[Any]:
        shaped = features.reshape(len(features), *self.feature_shape)
        with jax.enable_x64(features.dtype == np.float64):
            return np.asarray(self.block.phi(self.parameters, jax.numpy.asarray(shaped)))


@dataclass(frozen=True, eq=False)
class Model:
    """A trained model. It takes raw rows, and handles missing values, categories and scaling itself.

    Get one from a run folder or a file with :meth:`load`, or from a finished run as :attr:`tdcd.Result.model`.
    """

    silos: tuple[str, ...]
    """The names of the silos, in order."""
    parts: Mapping[str, SiloModel]
    """The parts by silo: of all silos, or of a hub's own."""
    label_encoding: LabelEncoding
    """How labels are encoded."""
    loss: Loss
    """The loss that was minimised."""
    dtype: Dtype = "float32"
    where: str = "the model"
    """The file or folder that it was loaded from, for messages."""
    absent: Mapping[str, Path] = field(default_factory=dict)
    """The silos whose parts are not there, and a file that is missing for each."""
    label_silo: str | None = None
    """The only silo that knows what labels mean."""
    stand_ins: StandIns = StandIns()  # noqa: RUF009  (it cannot change)
    """What takes the place of the phi of silos that are missing."""
    head: Combine = SUM
    """How the sum of the silos' phi becomes scores."""
    temperature: float = 1.0
    """What scores are divided by before they become probabilities, see :mod:`tdcd.prediction.calibration`."""

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
        temperature: float = 1.0,
    ) -> Self:
        """The model that a federation was trained to."""
        parts = {}
        for silo, block, parameters in zip(federation.silos, blocks, hub_blocks, strict=True):
            preparation = preparation_of(silo)
            columns = Columns.read_as(silo.id_column or "id", silo.reading)
            columns = columns.new_rows([*preparation.parts], preparation.categorical)
            parts[silo.name] = SiloModel(
                columns, preparation, silo.feature_shape, block, jax.tree.map(np.asarray, parameters)
            )
        encoding = encoding_of(federation, objective)
        head = objective.combine
        return cls(
            tuple(parts),
            parts,
            encoding,
            objective.kind,
            dtype,
            stand_ins=stand_ins,
            head=head,
            temperature=temperature,
        )

    def save(self, path: Path | str) -> None:
        """Write everything to one file, which :meth:`load` reads."""
        save_file(self, Path(path))

    def to_onnx(
        self, path: Path | str, silo: str | None = None, *, from_phi: bool = False, without: Collection[str] = ()
    ) -> None:
        """Write the model as an ONNX file, with its preparation; needs the extra ``tdcd[onnx]``.

        Inputs are the raw columns, ``SILO/COLUMN``: amounts in float64, NaN where blank, and names as texts. The
        numbers are those of :meth:`predict`, in the precision of the model.

        Args:
            path: the file to write, ``.onnx``.
            silo: only its part of the model: its columns to the output ``phi`` ``[rows, W]``. By default all silos'
                columns to ``scores``, ``prediction`` and, of classes, ``probabilities``.
            from_phi: in place of columns the inputs are the silos' phi, ``SILO/phi``: for who adds up what the silos'
                own files give.
            without: silos that are missing, as in :meth:`scores`.
        """
        from tdcd.prediction.onnx import write_onnx  # noqa: PLC0415 - it reads models

        write_onnx(self, Path(path), silo, from_phi=from_phi, without=without)
        for warning in filter(None, map(self.stand_ins.warning, without)):
            warnings.warn(warning, stacklevel=2)

    @property
    def num_outputs(self) -> int:
        """C, the scores of a sample."""
        return self.label_encoding.num_outputs or self.loss.num_outputs(len(self.label_encoding.classes))

    @property
    def phi_width(self) -> int:
        """The numbers of phi: as many as scores, unless there is a head."""
        return self.head.width(self.num_outputs)

    def check_additive(self, what: str) -> None:
        """Refuse what only a model whose scores are sums can have."""
        if not self.head.is_additive:
            raise ValueError(
                f"{self.where} has model.head = {self.head.keys['head']!r}: {what} is of a model whose score is a sum"
            )

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
            others = ", ".join(f"'{name}'" for name in self.parts) or "none"
            raise FileNotFoundError(
                f"{self.absent[silo]} is missing: {self.where} has the part of {others}, not of silo '{silo}'"
            )
        return self.parts[silo]

    def check_complete(self, what: str) -> None:
        """Refuse a model with stand-ins for silos that lack rows, for what has no place for them."""
        if self.stand_ins.knows_absence:
            raise ValueError(
                f"data.samples = 'all': {what} has no place for stand-ins; tdcd predict takes such a model"
            )

    def check_meaning(self) -> None:
        """Refuse a model of a silo without labels: what its scores mean is not known there."""
        if self.label_encoding.num_outputs is not None:
            raise ValueError(f"{self.where}: only silo '{self.label_silo}' knows what predictions mean: predict there")

    def silo_scores(self, silo: str, table: Path) -> SiloScores:
        """The part of the scores that comes from one silo's columns in a file.

        The file needs the silo's id column and features; other columns, such as the label, are ignored.
        """
        return self._scored(silo, read_rows(table, self.part(silo).columns))

    def all_scores(self, rows: Mapping[str, RawRows]) -> dict[str, SiloScores]:
        """Every silo's part of the scores, with the stand-ins for silos that lack an id or are not among them."""
        held, parts = {silo: {*own.ids} for silo, own in rows.items()}, {}
        for silo, own in rows.items():
            absent = np.zeros((len(own), len(self.part(silo).preparation.absent.silos)), bool)
            for place, other in enumerate(self.part(silo).preparation.absent.silos):
                # The first silo that has the row and a stand-in is the one that uses it, as in training.
                known = [held.get(other, set())]
                for name in self.silos[: self.silos.index(silo)]:
                    if name in held and other in self.part(name).preparation.absent.silos:
                        known.append(held[name])
                absent[:, place] = [not any(sample in ids for ids in known) for sample in own.ids]
            parts[silo] = self._scored(silo, own, absent)
        return parts

    def linked(self, link: Mapping[str, Any]) -> Self:
        """The same model for new rows that are known by keys, where a row of a silo belongs to many samples.

        Args:
            link: by silo, the table with the id and the key of every new sample: a frame, or the path of a file.
                Without it, the link table of the configuration is read, as in training.

        ``model.linked({"shop": members}).predict({"bank": people, "shop": households})`` predicts by households.
        """
        parts = dict(self.parts)
        for silo, table in link.items():
            part = self.part(silo)
            if part.columns.key is None:
                raise ValueError(f"link of silo '{silo}': its rows have the ids of samples, and no key")
            is_file = isinstance(table, str | Path)
            own = Path(table) if is_file else Frame(arrow_of(table, f"link '{silo}'"), f"link '{silo}'")
            parts[silo] = part._replace(columns=part.columns.linked(own))
        return replace(self, parts=parts)

    def scores(self, tables: Mapping[str, Any], without: Collection[str] = ()) -> NDArray[Any]:
        """``[n, C]``: the scores of raw rows.

        Args:
            tables: of every silo by name: a frame of pandas or Polars, an Arrow table, a mapping of columns, an array
                with the silo's columns in order, or the path of a CSV or Parquet file. Rows are put together by the id
                column, in the order of the first silo's, if it is in all tables; otherwise by their places. Rows that
                belong to many samples may be known by their keys, see :meth:`linked`. A model
                of ``data.samples = "all"`` also takes ids that some silos lack; those that the first one lacks follow.
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
        parts = self.all_scores(
            {
                name: read_rows(paths[name], self.part(name).columns)
                if name in paths
                else self._rows(name, frames[name], joined)
                for name in given
            }
        )
        if joined and self.stand_ins.knows_absence:
            whole = parts | {name: no_scores(self) for name in without}
            ordered = {name: whole[name] for name in self.silos}
            predictions = combine(ordered, allow_missing=True, stand_ins=self.stand_ins, head=self.head)
            for warning in predictions.warnings.values():
                warnings.warn(warning, stacklevel=2)
            return predictions.scores
        scores = by_id(parts) if joined else by_place(parts)
        for silo in without:
            replaced = 0 if self.stand_ins.is_trained(silo, given) else len(scores)
            if warning := self.stand_ins.warning(silo, replaced):
                warnings.warn(warning, stacklevel=2)
            scores = scores + self.stand_ins.of(silo, scores.dtype, given)
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
        """``[n, classes]``: the probability of every class, of what :meth:`scores` takes.

        Those of an ensemble with held-out samples are calibrated: scores are divided by :attr:`temperature` first.
        """
        self.check_meaning()
        target = self.loss.target
        if target == "amount":
            raise ValueError(f"the {self.loss.name} loss predicts amounts, which have no probabilities: use predict")
        chances = self.loss.inverse_link(np.asarray(self.scores(tables, without), np.float64) / self.temperature)
        return np.hstack([1 - chances, chances]) if target == "binary" else chances

    def coefficients(self) -> "Coefficients":
        """A linear model in the columns' own units, see :func:`tdcd.prediction.coefficients.coefficients`."""
        from tdcd.prediction.coefficients import coefficients  # noqa: PLC0415 - it reads models

        return coefficients(self)

    def effects(self, tables: Mapping[str, Any] | None = None) -> "Effects":
        """What each column adds to the scores: see :func:`tdcd.prediction.effects.effects_of`.

        Args:
            tables: by silo, as in :meth:`scores`: those of silos whose blocks are not linear. By default all linear
                blocks' effects, for which no rows are needed.
        """
        from tdcd.prediction.effects import effects_of  # noqa: PLC0415 - it reads models

        return effects_of(self, {silo: self._read(silo, table) for silo, table in (tables or {}).items()})

    def permutation_importance(
        self, tables: Mapping[str, Any], labels: Sequence[Any] | NDArray[Any], *, repeats: int = 5, seed: int = 0
    ) -> "Importances":
        """How much worse predictions are if a column's values are dealt to other rows, and those of a whole silo.

        A silo shuffles its own column, so that only its phi changes: see :mod:`tdcd.prediction.importance`.

        Args:
            tables: of all silos, as in :meth:`scores`.
            labels: of the rows, in the order of :meth:`predict`.
            repeats: how many times each column is shuffled; figures are means over them.
            seed: what shuffles are drawn from.
        """
        from tdcd.prediction.importance import importances_of  # noqa: PLC0415 - it reads models

        return importances_of(self, {silo: self._read(silo, tables[silo]) for silo in tables}, labels, repeats, seed)

    def __repr__(self) -> str:
        """One line: its silos, and what it predicts."""
        return f"Model {self._in_words}"

    def _repr_html_(self) -> str:
        """What a notebook shows: one row per silo."""
        rows = []
        for silo in self.silos:
            if (part := self.parts.get(silo)) is None:
                rows.append((silo, "not here", "", ""))
                continue
            parameters = sum(np.size(leaf) for leaf in jax.tree.leaves(part.parameters))
            block = type(part.block).__name__
            rows.append((silo, _listed([*part.preparation.parts]), block, f"{parameters:,}"))
        return summary_html("Model", self._in_words, ("silo", "columns", "block", "parameters"), rows)

    @property
    def _in_words(self) -> str:
        if self.label_encoding.num_outputs is not None:
            predicted = f"what it predicts is known at silo '{self.label_silo}'"
        elif self.loss.target == "amount":
            predicted = "predicts amounts"
        else:
            predicted = f"predicts the classes {_listed(self.label_encoding.classes)}"
        silos = f"{counted(len(self.silos), 'silo')} ({_listed(self.silos)})"
        return f"of {silos}, {self.loss.name} loss: {predicted}"

    def _has_id(self, silo: str, columns: Sequence[str]) -> bool:
        part = self.part(silo)
        has_id = part.columns.id in columns and part.columns.id not in part.preparation.parts
        return has_id or part.columns.key in columns

    def _read(self, silo: str, table: Any) -> RawRows:
        """The rows of one silo's table, by id if it has ids."""
        part = self.part(silo)
        if isinstance(table, str | Path):
            return read_rows(Path(table), part.columns)
        frame = arrow_of(table, f"table '{silo}'", [*part.preparation.parts])
        return self._rows(silo, frame, self._has_id(silo, frame.column_names))

    def _rows(self, silo: str, frame: Any, joined: bool) -> RawRows:
        columns = self.part(silo).columns
        if columns.aggregate and not joined:
            raise ValueError(f"table '{silo}': its model adds up the rows of an id: give the id column '{columns.id}'")
        return read_rows(Frame(frame, f"table '{silo}'"), columns if joined else replace(columns, id=PLACE, key=None))

    def _scored(self, silo: str, rows: RawRows, absent: NDArray[np.bool_] | None = None) -> SiloScores:
        part = self.part(silo)
        for column, sentence in part.preparation.cautions(rows).items():
            caution(f"silo '{silo}', column '{column}': {sentence}")
        return SiloScores(rows.ids, part.phi(rows, absent))


def _listed(names: Sequence[str]) -> str:
    """The first names, and how many there are if that is not all."""
    shown = ", ".join(names[:SHOWN_NAMES])
    return shown if len(names) <= SHOWN_NAMES else f"{shown}, ... ({len(names):,} in all)"


KEY = "tdcd model"
SomeModel = TypeVar("SomeModel", bound=Model)
_KEPT = ("loss", "huber_delta", "folder", "l2", "encoding", "bins", "head", "head_units", "head_rank")
"""What ``[model]`` says besides its blocks."""


def save_file(model: Model, path: Path) -> None:
    """Write a model with all its parts to one file; the folders that lead there are made."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: give a file, such as {path / 'model.tdcd'}")
    if model.absent:
        name, file = next(iter(model.absent.items()))
        raise FileNotFoundError(
            f"{file} is missing: only a whole model can be saved, and silo '{name}' has a part of it"
        )
    blocks = [model.parts[name].block for name in model.silos]
    keys = block_keys(blocks)
    if keys is None:
        kinds = ", ".join(sorted({type(block).__name__ for block in blocks}))
        raise ValueError(
            f"a file cannot keep blocks of your own ({kinds}): keep the run folder, and give them to Model.load"
        )
    module = keys.get("module", "")
    if module.startswith("__main__:"):
        way_on = WAY_ON.format(module.removeprefix("__main__:"))
        raise ValueError(f"the module of TorchBlock is made by {module}, a function of this script, and {way_on}")
    loss = loss_keys(model.loss)
    if loss is None:
        raise ValueError(f"a file cannot keep a loss of your own ({model.loss.name}): keep the run folder")
    about: dict[str, Any] = {
        "model": {**keys, **loss, **model.head.keys},
        "dtype": model.dtype,
        "labels": model.label_encoding._asdict(),
        "stand_ins": model.stand_ins._asdict(),
        "silos": [
            {
                "name": name,
                "id": model.parts[name].columns.id,
                "reading": model.parts[name].columns.reading,
                "feature_shape": [*model.parts[name].feature_shape],
                "preparation": model.parts[name].preparation.to_json(),
            }
            for name in model.silos
        ],
    }
    if model.temperature != 1:
        about["temperature"] = model.temperature
    tensors = {
        f"{name}/{leaf}": np.asarray(value)
        for name in model.silos
        for leaf, value in named_leaves(model.parts[name].parameters).items()
    }
    about["digest"] = digest_of(about, tensors)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, save(tensors, {KEY: json.dumps(about)}), SHARED)
    except OSError as error:
        why = f"{path.parent} is no folder" if path.parent.is_file() else error.strerror
        raise OSError(f"{path} cannot be written: {why}") from None


def load_file(
    kind: type[SomeModel],
    path: Path,
    blocks: Block | Sequence[Block] | None = None,
    own: Loss | None = None,
    *,
    allow_code: bool = False,
) -> SomeModel:
    """Read what :func:`save_file` wrote; ``blocks`` and loss that are given take the place of those that it names."""
    try:
        content = read_plain(path, None)
        tensors, about = load(content), parse_json(read_metadata(content)[KEY])
        if about.pop("digest") != digest_of(about, tensors):
            raise ValueError("its content does not match its digest")
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a model, or is damaged: {error}") from None
    names = [silo["name"] for silo in about["silos"]]
    keys = {"model": about["model"], "dtype": about["dtype"], "federation": {"silos": len(names)}}
    config = stored_config(without_given(keys, blocks, own), str(path), allow_code=allow_code)
    encoding = LabelEncoding(**about["labels"] | {"classes": tuple(about["labels"]["classes"])})
    loss = own or chosen_loss(config.model)
    assert loss is not None
    outputs, head = loss.num_outputs(len(encoding.classes)), combine_of(config.model)
    parts = {}
    for silo, chosen in zip(about["silos"], chosen_blocks(config, names, blocks), strict=True):
        preparation = Preparation.from_json(silo["preparation"])
        num_ones = prod(silo["feature_shape"]) - len(preparation.columns)
        block = with_head(preparation.absent.block(chosen, num_ones), head)
        columns = Columns.read_as(silo["id"], silo["reading"]).new_rows([*preparation.parts], preparation.categorical)
        parameters = _tree(block, silo, tensors, head.width(outputs))
        parts[silo["name"]] = SiloModel(columns, preparation, tuple(silo["feature_shape"]), block, parameters)
    stand_ins = StandIns(**about.get("stand_ins", {}))
    # Files of earlier versions have none.
    temperature = float(about.get("temperature", 1.0))
    named = (*parts,)
    return kind(
        named,
        parts,
        encoding,
        loss,
        config.dtype,
        str(path),
        stand_ins=stand_ins,
        head=head,
        temperature=temperature,
    )


def _tree(block: Any, silo: Any, tensors: Any, outputs: int) -> Any:
    """A silo's parameters in the block's own structure."""
    template = jax.eval_shape(lambda: block.init(jax.random.key(0), tuple(silo["feature_shape"]), outputs))
    leaves = [tensors[f"{silo['name']}/{leaf}"] for leaf in named_leaves(template)]
    return jax.tree.unflatten(jax.tree.structure(template), leaves)


def load_folder(
    kind: type[SomeModel],
    path: Path,
    blocks: Block | Sequence[Block] | None,
    own: Loss | None,
    *,
    allow_code: bool = False,
) -> SomeModel:
    """The model in the folder of any run: of all silos, or of a hub's own one."""
    run, folder = RecordedRun.read(path), RunFolder(path)
    names = [silo.name for silo in run.federation.silos]
    config = _config(run, blocks, own, allow_code=allow_code)
    encoding = load_label_encoding(path)
    loss = own or named_loss(config.model, config.model.loss or fitting(encoding.task)[0])
    outputs, head = encoding.num_outputs or loss.num_outputs(len(encoding.classes)), combine_of(config.model)
    chosen = chosen_blocks(config, names, blocks)
    files = {name: (folder.model.file(name), folder.preparation_file(name)) for name in names}
    absent = {name: next((path for path in paths if not path.is_file()), None) for name, paths in files.items()}
    lacking = {name: file for name, file in absent.items() if file is not None}
    ids = {section.name: section.id for section in config.silos} | _ids(run.config)
    parts = {}
    for index, silo in enumerate(run.federation.silos):
        if silo.name in lacking:
            continue
        preparation = load_preparation(path, silo.name)
        num_ones = prod(silo.feature_shape) - len(preparation.columns)
        block = with_head(preparation.absent.block(chosen[index], num_ones), head)
        template = start_block(block, settings_of(config), index, silo.feature_shape, outputs, combine=head)
        (parameters,), _ = folder.load_blocks([silo.name], [template])
        columns = _columns(config, silo.name, ids.get(silo.name, "id"), _reading(run.config, silo.name))
        columns = columns.new_rows([*preparation.parts], preparation.categorical)
        parts[silo.name] = SiloModel(columns, preparation, silo.feature_shape, block, parameters)
    labels, subsets = config.federation.labels, folder.subsets()
    rate = subsets.get("silo_dropout", config.train.silo_dropout)
    knows_absence = "patterns" in subsets
    stand_ins = StandIns.of_absence(subsets) if knows_absence else StandIns(subsets.get("stand_in", {}), rate)
    of_all = (labels, stand_ins, head, temperature_in(subsets))
    return kind((*names,), parts, encoding, loss, config.dtype, str(path), lacking, *of_all)


def without_given(keys: Mapping[str, Any], blocks: Block | Sequence[Block] | None, loss: Loss | None) -> dict[str, Any]:
    """Settings without those that are given as objects, and without a variant, which no model needs."""
    model, train = dict(keys.get("model", {})), dict(keys.get("train", {}))
    if blocks is not None:
        model = {key: value for key, value in model.items() if key in _KEPT}
        model["block"] = "linear"
    if loss is not None:
        model.pop("loss", None)
    train.pop("variant", None)
    return {**keys, "model": model, "train": train}


def _config(run: RecordedRun, blocks: Block | Sequence[Block] | None, loss: Loss | None, *, allow_code: bool) -> Config:
    """The settings of a run; of one that Python started, those that make its model."""
    keys, where = without_given(run.config, blocks, loss), str(RunFolder(run.path).config_file)
    if keys.get("data", {}).get("source") != PYTHON:
        return stored_config(keys, where, allow_code=allow_code)
    model: dict[str, Any] = keys["model"]
    if any("(" in name or "." in name for name in _names(model["block"])):
        raise ValueError(
            f"{where}: model.block = {model['block']!r} is a block of your own: give it, Model.load(path, blocks)"
        )
    if "(" in model.get("loss", ""):
        raise ValueError(
            f"{where}: model.loss = {model['loss']!r} is a loss of your own: give it, Model.load(path, loss=...)"
        )
    known = {"seed": keys["seed"], "dtype": keys["dtype"], "model": model}
    known["federation"] = {"silos": len(run.federation.silos)}
    return stored_config(known, where, allow_code=allow_code)


def chosen_blocks(config: Config, names: Sequence[str], given: Block | Sequence[Block] | None) -> list[Block]:
    """One per silo of the run, which may be one silo of the configuration alone."""
    if given is not None:
        own = [*given] if isinstance(given, Sequence) else [given] * len(names)
        if len(own) != len(names):
            raise ValueError(
                f"{there_are(len(names), 'silo')}, but {counted(len(own), 'block')}: give one for all, or one each"
            )
        return own
    known, of_silos = dict(zip(config.silo_names, config.block_names, strict=True)), config.block_names
    chosen = [known.get(name, of_silos[index % len(of_silos)]) for index, name in enumerate(names)]
    made = {block: block_named(block, config.model) for block in dict.fromkeys(chosen)}
    return [made[block] for block in chosen]


def _names(block: str | Sequence[str]) -> Sequence[str]:
    return [block] if isinstance(block, str) else block


def _columns(config: Config, silo: str, id_column: str, reading: Mapping[str, Any]) -> Columns:
    section = next((section for section in config.silos if section.name == silo), None)
    if section is None or config.data.source != "files":
        return Columns.read_as(id_column, reading)
    return Columns.of(config, section)


def _ids(keys: Mapping[str, Any]) -> dict[str, str]:
    """What the tables of a run that Python started call the id, by silo."""
    data = keys.get("data", {})
    # Before there was a key of that name, they were under ``ids``.
    columns = data.get("id", data.get("ids", {}))
    return dict(columns) if isinstance(columns, Mapping) else {}


def _reading(keys: Mapping[str, Any], silo: str) -> dict[str, Any]:
    """How the tables of a silo of such a run are read."""
    reading = dict(keys.get("data", {}))
    if not isinstance(reading.get("ids", ""), str):
        del reading["ids"]
    own = {key: reading.pop(key, {}) for key in ("aggregate", "key")}
    return reading | {key: by_silo[silo] for key, by_silo in own.items() if silo in by_silo}
