"""How one raw column becomes features: a file per kind of part."""

from collections.abc import Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

from tdcd.tables.parts.binned import Binned
from tdcd.tables.parts.cell import Cell
from tdcd.tables.parts.one_hot import OneHot
from tdcd.tables.parts.scaled import Scaled
from tdcd.tables.summary import CategoryStats, ColumnStats, SketchStats

__all__ = ["Binned", "ColumnPart", "OneHot", "Scaled", "fit_part", "part_from_json"]


class ColumnPart(Protocol):
    """How a column becomes features."""

    def names(self, column: str) -> list[str]:
        """Of the features."""
        ...

    def apply(self, values: Any, out: NDArray[Any]) -> None:
        """Write the features of a column to ``out`` ``[n, width]``."""
        ...

    def cells(self) -> list[Cell]:
        """The bins or levels that the features stand for, in order; nothing if they are no such things.

        A cell after those of the features has none, and adds nothing.
        """
        ...

    def unscaled(self, column: str, weights: NDArray[Any]) -> tuple[dict[str, NDArray[Any]], NDArray[Any]]:
        """Coefficients ``[C]`` in the column's own unit, by name, and what they add to the intercept."""
        ...

    def to_json(self) -> dict[str, Any]:
        """As values that JSON writes exactly."""
        ...


def fit_part(name: str, column: ColumnStats, *, standardize: bool, rare: int, bins: int | None) -> ColumnPart:
    """For a column with these figures."""
    if isinstance(column, CategoryStats):
        return OneHot.fit(name, column, rare, has_shares=bins is not None)
    if isinstance(column, SketchStats):
        assert bins is not None
        return Binned.fit(name, column, bins)
    return Scaled.fit(column, standardize)


def part_from_json(value: Mapping[str, Any]) -> ColumnPart:
    """What ``to_json`` of a part gave."""
    fields: dict[str, Any] = {key: tuple(of) if isinstance(of, list) else of for key, of in value.items()}
    kind: Any = OneHot if "levels" in value else Binned if "cuts" in value else Scaled
    part: ColumnPart = kind(**fields)
    return part
