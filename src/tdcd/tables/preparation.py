"""From raw columns to features: blanks filled, names one-hot, amounts standardised, binned or piecewise linear.

A client makes a :class:`Summary` of its training rows, which is sums and counts and no rows. The hub merges those of
its clients in their order and fits a :class:`Preparation`, which every client applies to its rows. The simulation does
the same with the same functions.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray
from safetensors.numpy import load_file

from tdcd.blocks.absent import Absent
from tdcd.blocks.start import FormerBlock
from tdcd.config import Config, ConfigError
from tdcd.core.objective import Objective
from tdcd.data.table import Scaling
from tdcd.federation.hosts import HostLabels
from tdcd.federation.silos import Federation, Silo
from tdcd.records.run_folder import RunFolder
from tdcd.tables.encodings import ColumnEncoding, OneHot, Piecewise, Standardized, encoding_from_json, fit_encoding
from tdcd.tables.errors import caution
from tdcd.tables.labels import LabelEncoding

if TYPE_CHECKING:
    from tdcd.tables.rows import RawRows
    from tdcd.tables.summary import Summary

ABSENT = ""
"""Where a preparation's file has what is no column: no column has an empty name."""
SHOWN_LEVELS = 3
"""How many levels a sentence names."""


@dataclass(frozen=True)
class Preparation:
    """How a silo's raw columns become its features."""

    parts: Mapping[str, ColumnEncoding]
    """The encoding of each raw column, in order."""
    absent: Absent = Absent()  # noqa: RUF009  (it cannot change)
    """What stands in for silos that lack some of the rows: it adds features."""

    @classmethod
    def fit(
        cls,
        summary: "Summary",
        *,
        standardize: bool = True,
        rare: int = 1,
        bins: int | None = None,
        is_piecewise: bool = False,
    ) -> Self:
        """The preparation from the merged summary of the silo's training rows.

        Args:
            standardize: amounts to mean 0 and variance 1; a constant column becomes 0.
            rare: levels with fewer rows than this are one level, "other".
            bins: how many an amount becomes at most, if the summary was made for them.
            is_piecewise: whether its features are positions within the bins, and not which bin it is in.
        """
        fitted = {
            name: fit_encoding(name, column, standardize=standardize, rare=rare, bins=bins, is_piecewise=is_piecewise)
            for name, column in summary.columns.items()
        }
        prepared = cls(fitted)
        # What a blank or an unseen level adds has a name too when the model is exported.
        names = [{name, *part.names(name), f"{name} missing", f"{name}=other"} for name, part in fitted.items()]
        twice = [name for name, count in Counter(name for some in names for name in some).items() if count > 1]
        if twice:
            raise ValueError(f"two features would be called '{twice[0]}': rename a column")
        return prepared

    @classmethod
    def of_clients(cls, summaries: Mapping[str, "Summary"], config: Config) -> Self:
        """A preparation from the summaries of a silo's clients, by client, as the configuration sets it."""
        from tdcd.tables.summary import merge_summaries  # noqa: PLC0415 - features that are ready have no raw columns

        data, model, merged = config.data, config.model, merge_summaries(summaries)
        return cls.fit(
            merged,
            standardize=data.standardize,
            rare=data.rare,
            bins=model.num_bins,
            is_piecewise=model.chosen_encoding == "piecewise",
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """The features' names, D of them."""
        return (*self._own_columns, *self.absent.columns)

    @property
    def _own_columns(self) -> tuple[str, ...]:
        return tuple(feature for name, part in self.parts.items() for feature in part.names(name))

    @property
    def categorical(self) -> tuple[str, ...]:
        """The raw columns that hold names."""
        return tuple(name for name, part in self.parts.items() if isinstance(part, OneHot))

    def apply(
        self, rows: "RawRows", dtype: DTypeLike, num_ones: int = 0, absent: NDArray[np.bool_] | None = None
    ) -> NDArray[Any]:
        """``[n, D + num_ones]``: the features of these rows in the precision of the run, and columns of ones.

        Args:
            absent: ``[n, S]``: which of the silos that there are stand-ins for lack each row; none by default.
        """
        features = np.ones((len(rows), len(self._own_columns) + num_ones), dtype)
        start = 0
        for name, part in self.parts.items():
            width = len(part.names(name))
            part.apply(rows.features[name], features[:, start : start + width])
            start += width
        return self.absent.marked(features, absent, num_ones)

    def cautions(self, rows: "RawRows") -> dict[str, str]:
        """A sentence for every raw column that has levels in these rows which training did not learn about."""
        from tdcd.tables.rows import Category  # noqa: PLC0415 - features that are ready have no raw columns

        sentences = {}
        for name, part in self.parts.items():
            column = rows.features[name]
            if not isinstance(part, OneHot) or not isinstance(column, Category):
                continue
            levels, count = part.unseen(column)
            if levels:
                shown = ", ".join(map(repr, levels[:SHOWN_LEVELS])) + (", ..." if len(levels) > SHOWN_LEVELS else "")
                words = (
                    "was rare in training, or not there: they count as 'other'"
                    if part.other
                    else "was not there in training: the column adds nothing to their scores"
                )
                sentences[name] = f"{count} of {len(rows)} rows have a level ({shown}) that {words}"
        return sentences

    def unscaled(self, weights: NDArray[Any]) -> tuple[dict[str, NDArray[Any]], NDArray[Any]]:
        """A linear block ``[D, C]`` in the columns' own units: coefficients ``[C]`` by name, and the intercept ``[C]``.

        A row's score is the intercept, plus coefficient times value for its amounts that are not blank, plus the
        coefficient of ``COLUMN=LEVEL`` for each of its names (of ``COLUMN=other`` if that level is not there) and of
        the bin for each of its binned amounts, plus coefficient times position, from 0 to 1, for each bin of its
        piecewise amounts, plus the coefficient of ``COLUMN missing`` for each blank.
        """
        weights = np.asarray(weights, np.float64)
        coefficients: dict[str, NDArray[Any]] = {}
        intercept = np.zeros(weights.shape[1])
        start = 0
        for name, part in self.parts.items():
            width = len(part.names(name))
            own, shift = part.unscaled(name, weights[start : start + width])
            coefficients.update(own)
            intercept += shift
            start += width
        return coefficients, intercept

    def to_json(self) -> dict[str, Any]:
        """The preparation in values that JSON writes exactly."""
        written = {name: part.to_json() for name, part in self.parts.items()}
        return {**written, ABSENT: self.absent.to_json()} if self.absent else written

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The preparation that :meth:`to_json` wrote."""
        encodings = {name: encoding_from_json(of) for name, of in value.items() if name != ABSENT}
        return cls(encodings, Absent.from_json(value[ABSENT]) if ABSENT in value else Absent())


def without_use(summary: "Summary", preparation: Preparation, rare: int) -> dict[str, str]:
    """The raw columns that are the same in every training row of a silo, each with a sentence about it.

    Args:
        summary: what ``preparation`` was fitted to.
        rare: as it was fitted with.
    """
    from tdcd.tables.summary import CategoryStats, NumericStats  # noqa: PLC0415 - features that are ready have no raw columns

    sentences = {}
    for name, part in preparation.parts.items():
        column = summary.columns[name]
        if isinstance(column, NumericStats):
            is_constant, known = not column.squares and not (column.known and column.missing), column.known > 0
        else:
            bends = isinstance(part, Piecewise) and len(part.edges) > 1
            known = bool(column.levels) if isinstance(column, CategoryStats) else column.known > 0
            is_constant = len(part.names(name)) == 1 and not bends
        if not is_constant:
            continue
        if not known:
            sentences[name] = "is blank in every training row: leave it out"
        elif isinstance(column, CategoryStats) and isinstance(part, OneHot) and part.other:
            sentences[name] = (
                f"has one level left, 'other', since each of its {len(column.levels)} levels has fewer training rows "
                f"than data.rare = {rare}, so the model learns nothing from it: lower data.rare, or leave it out"
            )
        else:
            sentences[name] = "is the same in every training row, so the model learns nothing from it: leave it out"
    return sentences


def save_preparations(folder: Path, preparations: Mapping[str, Preparation], label_encoding: LabelEncoding) -> None:
    """Write every silo's preparation and the labels' encoding to a run folder."""
    run = RunFolder(folder)
    for silo, preparation in preparations.items():
        run.write_preparation(silo, preparation.to_json())
    run.write_labels({key: value for key, value in label_encoding._asdict().items() if value is not None})


def load_preparation(folder: Path, silo: str) -> Preparation:
    """One silo's preparation."""
    return Preparation.from_json(RunFolder(folder).preparation(silo))


def load_former_block(run: Path, silo: str) -> FormerBlock | None:
    """A silo's block in the folder of a former run: of a simulation, of its hub, or of ``tdcd up``.

    None if the run had other silos and not this one: its block then begins as it is drawn.
    """
    folders = [RunFolder(path) for path in (run, run / "silos" / silo)]
    folder = next((folder for folder in folders if folder.model.file(silo).is_file()), None)
    if folder is None and folders[0].is_begun and silo not in _silos_of(folders[0]):
        return None
    if folder is None:
        where = folders[0].model.file(silo)
        raise ConfigError([f"train.start = '{run}': {where} is not there; name the folder of a run that has finished"])
    columns = load_preparation(folder.path, silo).columns if folder.preparation_file(silo).is_file() else None
    path = folder.model.file(silo)
    return FormerBlock(str(path), load_file(path), columns)


def _silos_of(run: RunFolder) -> list[str]:
    """The names in a run's settings and in its facts."""
    silos = [*run.config().get("silos", ()), *run.facts().get("silos", ())]
    return [str(silo.get("name")) for silo in silos if isinstance(silo, dict)]


def load_label_encoding(folder: Path) -> LabelEncoding:
    """What the labels are."""
    keys = RunFolder(folder).labels()
    return LabelEncoding(**keys | {"classes": tuple(keys["classes"])})


def preparation_of(silo: Silo) -> Preparation:
    """How a silo's raw columns became its features; columns without names are called by their places."""
    if isinstance(silo.preparation, Preparation):
        return silo.preparation
    # A column of ones at the end is no raw column.
    shape = silo.feature_shape if silo.preparation is None else np.shape(_scaling(silo).mean)
    names = silo.columns[: prod(shape)] if len(silo.columns) >= prod(shape) else _places(shape)
    scaling = Scaling(np.zeros(shape), np.ones(shape)) if silo.preparation is None else _scaling(silo)
    figures = zip(names, scaling.mean.ravel().tolist(), scaling.scale.ravel().tolist(), strict=True)
    return Preparation({name: Standardized(mean, mean, scale, False) for name, mean, scale in figures})


def _scaling(silo: Silo) -> Scaling:
    assert isinstance(silo.preparation, Scaling)
    return silo.preparation


def _places(shape: tuple[int, ...]) -> tuple[str, ...]:
    """``pixel_ROW_COLUMN`` in images, else ``x0``, ``x1``, ...

    >>> _places((1, 2)), _places((2,))
    (('pixel_0_0', 'pixel_0_1'), ('x0', 'x1'))
    """
    if len(shape) == 1:
        return tuple(f"x{place}" for place in range(shape[0]))
    return tuple("pixel_" + "_".join(map(str, place)) for place in np.ndindex(*shape))


def encoding_of(federation: Federation, objective: Objective) -> LabelEncoding:
    """How a federation's labels became numbers."""
    outputs = objective.num_outputs([federation.labels, federation.test_labels])
    target, task = objective.kind.target, objective.kind.tasks[0]
    if target == "amount":
        return LabelEncoding(task, (), float(federation.label_mean), float(federation.label_scale))
    classes = federation.classes or tuple(str(number) for number in range(max(2, outputs)))
    return LabelEncoding(task, classes)


def save_prepared(folder: Path, federation: Federation, objective: Objective) -> None:
    """Keep in a run folder what it takes to use the model on raw rows."""
    preparations = {silo.name: preparation_of(silo) for silo in federation.silos}
    save_preparations(folder, preparations, encoding_of(federation, objective))


def say_what_labels_are(federation: Federation, objective: Objective) -> None:
    """Warn of labels that can be trained on, but may be a mistake."""
    labels = federation.labels
    known = np.array(labels.different) if isinstance(labels, HostLabels) else np.unique(labels)[:3]
    different = known * federation.label_scale + federation.label_mean
    if len(different) == 1:
        number = int(different[0])
        is_class = objective.kind.target != "amount" and number < len(federation.classes)
        label = repr(federation.classes[number]) if is_class else f"{different[0]:g}"
        caution(f"every training label is {label}: there is nothing to learn")
    # Counts of at most one are no classes.
    takes_amounts = objective.kind.target == "amount" and objective.kind.standardizes
    if takes_amounts and len(different) == 2 and np.allclose(different, [0, 1], atol=1e-6):
        caution(
            f"the labels are 0 and 1, and the {objective.kind.name} loss predicts amounts: the logistic loss predicts "
            "probabilities"
        )
