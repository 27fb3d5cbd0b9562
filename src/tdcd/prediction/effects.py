"""What each column of a trained model adds to the scores, as a table; see :mod:`tdcd.tables.effects`."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax

from tdcd.blocks import Linear
from tdcd.core.notebook import summary_html
from tdcd.core.words import counted
from tdcd.prediction.model import Model, SiloModel
from tdcd.tables.effects import ROWS, Effect, average_row, by_spread, effects, evenly_spaced
from tdcd.tables.rows import RawRows


class Effects(NamedTuple):
    """The effects of a model's columns, see :func:`effects_of`."""

    outputs: Sequence[str]
    """``[C]``: the headings of the values."""
    silos: Mapping[str, Sequence[Effect]]
    """By silo, the columns that decide most first."""

    def __repr__(self) -> str:
        """One line: how many there are."""
        return f"Effects {self._in_words}"

    def _repr_html_(self) -> str:
        """What a notebook shows: one row per column."""
        rows = [
            (silo, effect.column, f"{effect.spread:.4g}", f"{effect.points[0]} ... {effect.points[-1]}")
            for silo, own in self.silos.items()
            for effect in own
        ]
        return summary_html("Effects", self._in_words, ("silo", "column", "spread", "points"), rows)

    @property
    def _in_words(self) -> str:
        columns = sum(map(len, self.silos.values()))
        return f"of {counted(columns, 'column')} of {counted(len(self.silos), 'silo')} ({', '.join(self.silos)})"


def effects_of(model: Model, rows: Mapping[str, RawRows]) -> Effects:
    """What each column adds to a row's score, compared with the average row.

    In the labels' unit for amounts, in log-odds for two classes, and as scores of each class for several. Columns that
    are the same everywhere have none.

    Args:
        rows: of silos whose block is not linear, and of others if the average is to be that of these rows. Of a table
            at most :data:`~tdcd.tables.effects.ROWS` rows are taken, evenly spaced.
    """
    model.check_additive("the effect of a column")
    named = {silo: model.part(silo) for silo in (rows or model.parts)}
    outputs = model.label_encoding.classes if model.loss.target == "classes" else ()
    if not outputs and model.num_outputs > 1:
        outputs = tuple(f"output_{number}" for number in range(1, model.num_outputs + 1))
    by_silo = {silo: by_spread(_of_silo(silo, part, rows.get(silo))) for silo, part in named.items()}
    scale = model.label_encoding.scale
    scaled = {silo: [each._replace(values=each.values * scale) for each in own] for silo, own in by_silo.items()}
    return Effects([f"effect_{name}" for name in outputs] or ["effect"], scaled)


def _of_silo(silo: str, part: SiloModel, rows: RawRows | None) -> list[Effect]:
    if len(part.feature_shape) > 1:
        raise ValueError(f"silo '{silo}' has images: effects are of columns")
    dtype = jax.tree.leaves(part.parameters)[0].dtype
    if rows is not None:
        chosen = rows.take(evenly_spaced(len(rows), ROWS))
        features = part.preparation.apply(chosen, dtype, 0)[:, : average_row(part.preparation).shape[1]]
    elif isinstance(part.block, Linear):
        features = average_row(part.preparation).astype(dtype)
    else:
        kind = type(part.block).__name__.lower()
        raise ValueError(
            f"silo '{silo}' has a block of kind '{kind}', whose effects are averages over rows: give a table of it"
        )
    return effects(part.preparation, part.phi_of, features)


def effects_table(table: Effects) -> dict[str, list[Any]]:
    """Columns of a table: ``silo``, ``column``, ``value`` and ``effect``, or one ``effect_CLASS`` per class."""
    lines = [
        (silo, effect.column, point, *map(float, values))
        for silo, own in table.silos.items()
        for effect in own
        for point, values in zip(effect.points, effect.values, strict=True)
    ]
    names = ["silo", "column", "value", *table.outputs]
    return {name: [line[place] for line in lines] for place, name in enumerate(names)}
