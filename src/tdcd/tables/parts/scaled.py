"""A column of amounts as one feature, and one that marks its blanks."""

from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tdcd.tables.parts.cell import Cell
from tdcd.tables.summary import NumericStats


@dataclass(frozen=True)
class Scaled:
    """How a column of amounts becomes a feature: ``(x - mean) / scale``, a blank as ``x = fill``."""

    fill: float
    mean: float
    scale: float
    indicator: bool
    """Whether a second feature marks blanks."""

    @classmethod
    def fit(cls, column: NumericStats, standardize: bool) -> Self:
        """For a column with these figures."""
        mean, scale = (column.mean, column.deviation or 1.0) if standardize else (0.0, 1.0)
        return cls(column.mean, mean, scale, column.missing > 0)

    def names(self, column: str) -> list[str]:
        """Of the features."""
        return [column] + [f"{column} missing"] * self.indicator

    def apply(self, values: NDArray[Any], out: NDArray[Any]) -> None:
        """Write the features of these values to ``out``: computed in float64, and only then in its precision."""
        blank = np.isnan(values)
        known = np.where(blank, self.fill, values.astype(np.float64))
        out[:, 0] = (known - self.mean) / self.scale
        if self.indicator:
            out[:, 1] = blank

    def cells(self) -> list[Cell]:
        """Nothing: an amount has no bins."""
        return []

    def unscaled(self, column: str, weights: NDArray[Any]) -> tuple[dict[str, NDArray[Any]], NDArray[Any]]:
        """Coefficients in the column's own unit, and what they take from the intercept."""
        slope = weights[0] / self.scale
        blank = slope * self.fill + (weights[1] if self.indicator else 0)
        return {column: slope, f"{column} missing": blank}, -slope * self.mean

    def to_json(self) -> dict[str, Any]:
        """As values that JSON writes exactly."""
        return asdict(self)
