"""A linear model as a table of coefficients in the columns' own units."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdcd.blocks import Linear
from tdcd.core.losses import Poisson
from tdcd.core.notebook import summary_html
from tdcd.core.words import counted
from tdcd.prediction.model import Model, SiloModel
from tdcd.tables.writing import write_table

INTERCEPT = "intercept"


class Coefficient(NamedTuple):
    """The effect of one column on the scores."""

    silo: str
    """Empty for the intercept."""
    column: str
    """``COLUMN``, per unit; ``COLUMN=LEVEL``; or ``COLUMN missing``, for a blank."""
    values: NDArray[np.float64]
    """``[C]``."""


class Coefficients(NamedTuple):
    """A linear model, see :func:`coefficients`."""

    outputs: Sequence[str]
    """``[C]``: the headings of the values."""
    rows: Sequence[Coefficient]
    """The last one is the intercept."""
    absent: Sequence[str]
    """The silos whose part is not in it, because it is not in the run folder."""

    def __repr__(self) -> str:
        """One line: how many there are."""
        return f"Coefficients {self._in_words}"

    def _repr_html_(self) -> str:
        """What a notebook shows: one row per coefficient, the intercept first."""
        *features, intercept = self.rows
        rows = [(row.silo, row.column, *(f"{value:.4g}" for value in row.values)) for row in (intercept, *features)]
        return summary_html("Coefficients", self._in_words, ("silo", "column", *self.outputs), rows)

    @property
    def _in_words(self) -> str:
        silos = {row.silo: None for row in self.rows if row.silo}
        without = f", without {', '.join(self.absent)}" if self.absent else ""
        count = counted(len(self.rows) - 1, "coefficient")
        return f"of {counted(len(silos), 'silo')} ({', '.join(silos)}{without}): {count} and the intercept"


def coefficients(model: Model) -> Coefficients:
    """A linear model, standardisation undone.

    A row's score is the intercept, plus coefficient times value for its amounts that are not blank, plus the
    coefficient of ``COLUMN=LEVEL`` for each of its names (of ``COLUMN=other`` if that level is not there) and of the
    bin for each binned amount, plus coefficient times position, from 0 to 1, for each bin of a piecewise amount, plus
    the coefficient of ``COLUMN missing`` for each blank. Only columns that had blanks in training have a row for them;
    in others a blank amount counts as the mean of the training rows, and a blank name as ``COLUMN=other``.

    The score of a regression is the predicted amount in the labels' unit; with the Poisson loss it is the logarithm of
    the expected count; with the logistic loss it is the logarithm
    of the second class's odds; with the softmax loss there is a score for every class, and the probabilities are in
    proportion to their exponentials. In a silo without labels, a regression's coefficients are in standardised units.
    """
    model.check_additive("a table of coefficients")
    model.check_complete("a table of coefficients")
    label_encoding, silos = model.label_encoding, [*model.parts]
    if not silos:
        raise FileNotFoundError(
            f"{model.where} holds no model: let the run end, or stop it with Ctrl-C after its first rounds"
        )
    # The first silo's part takes the labels' mean, so that parts which were exported one by one add up to the model.
    is_logarithm = isinstance(model.loss, Poisson)
    unit = 1.0 if is_logarithm else label_encoding.scale
    origin = math.log(label_encoding.scale) if is_logarithm else label_encoding.mean
    intercept = np.full(model.num_outputs, origin if silos[0] == model.silos[0] else 0.0)
    rows = []
    for silo in silos:
        own, shift = _unscaled(silo, model.part(silo))
        intercept += shift * unit
        rows += [Coefficient(silo, column, value * unit) for column, value in own.items()]
    per_class = model.loss.target == "classes"
    # A silo without labels knows how many classes there are, and not what they are called.
    names = label_encoding.classes or [f"output_{number}" for number in range(1, model.num_outputs + 1)]
    outputs = [f"coefficient_{name}" for name in names] if per_class else ["coefficient"]
    absent = [silo for silo in model.silos if silo not in silos]
    return Coefficients(outputs, [*rows, Coefficient("", INTERCEPT, intercept)], absent)


def _unscaled(silo: str, part: SiloModel) -> tuple[dict[str, NDArray[Any]], NDArray[Any]]:
    """One silo's coefficients ``[C]`` by column, and what it adds to the intercept."""
    if not isinstance(part.block, Linear):
        name = type(part.block).__name__.lower()
        raise ValueError(f"silo '{silo}' has a block of kind '{name}': only linear ones have coefficients")
    weights = np.asarray(part.parameters["weight"], np.float64)
    features, width = set(part.preparation.columns), len(part.preparation.columns)
    own, shift = part.preparation.unscaled(weights[:width])
    # Where no blank was seen there is nothing to say of them, and a reader would take it for a finding.
    unseen = {f"{column} missing" for column in part.preparation.parts} - features
    own = {name: value for name, value in own.items() if name not in unseen}
    return own, shift + weights[width:].sum(axis=0)


def write_coefficients(path: Path, table: Coefficients) -> None:
    """Write a table of coefficients: ``silo``, ``column``, ``coefficient`` or one ``coefficient_CLASS`` per class."""
    columns: dict[str, Sequence[Any]] = {
        "silo": [row.silo for row in table.rows],
        "column": [row.column for row in table.rows],
    }
    values = {name: [float(row.values[place]) for row in table.rows] for place, name in enumerate(table.outputs)}
    write_table(path, columns | values)
