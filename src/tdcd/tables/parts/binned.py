"""A column of amounts as one feature per bin, and one for its blanks."""

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tdcd.tables.parts.cell import BLANK, Cell
from tdcd.tables.summary import SketchStats


@dataclass(frozen=True)
class Binned:
    """How a column of amounts becomes features: 1 for the bin that a value is in, 0 for the others."""

    cuts: tuple[float, ...]
    """Where bins end: a bin has the values above one cut and up to the next, itself included."""
    shares: tuple[float, ...]
    """Of the training rows in each bin, one more than cuts, as the sketches tell; of the blank ones at the end."""
    indicator: bool
    """Whether a last feature marks blanks."""

    @classmethod
    def fit(cls, name: str, column: SketchStats, bins: int) -> Self:
        """For a column with this sketch."""
        if column.known and not column.sketch.counts:
            raise ValueError(
                f"column '{name}': no client has enough values to tell where bins begin without telling the values: "
                "leave model.bins out, or have fewer clients with more rows"
            )
        cuts, counts = column.sketch.bins(bins)
        # The sketches lack the values of clients with a handful of rows.
        total, blank = column.known + column.missing, [column.missing] * (column.missing > 0)
        known = [count * column.known / (sum(counts) or 1) for count in counts]
        return cls(cuts, tuple(count / (total or 1) for count in [*known, *blank]), column.missing > 0)

    def cells(self) -> list[Cell]:
        """What the features stand for."""
        ranges = [("", *ends) for ends in pairwise([None, *self.cuts, None])]
        ranges += [(BLANK, None, None)] * self.indicator
        return [Cell(*ends, share) for ends, share in zip(ranges, self.shares, strict=True)]

    def names(self, column: str) -> list[str]:
        """Of the features."""
        return [_in_words(column, cell) for cell in self.cells()]

    def apply(self, values: NDArray[Any], out: NDArray[Any]) -> None:
        """Write the features of these values to ``out``."""
        blank = np.isnan(values)
        out[:] = 0
        rows = np.flatnonzero(~blank)
        out[rows, np.searchsorted(self.cuts, values[rows].astype(np.float64))] = 1
        # A blank where training had none counts as an average row does.
        out[blank] = np.arange(out.shape[1]) == len(self.cuts) + 1 if self.indicator else self.shares

    def unscaled(self, column: str, weights: NDArray[Any]) -> tuple[dict[str, NDArray[Any]], NDArray[Any]]:
        """The weights as they are; nothing for the intercept."""
        own = dict(zip(self.names(column), weights, strict=True))
        if not self.indicator:
            own[f"{column} missing"] = np.array(self.shares) @ weights
        return own, np.zeros(weights.shape[1])

    def to_json(self) -> dict[str, Any]:
        """As values that JSON writes exactly."""
        return asdict(self)


def _in_words(column: str, cell: Cell) -> str:
    _, above, up_to, _ = cell
    if cell.level == BLANK:
        return f"{column} missing"
    if above is None:
        return f"{column} any" if up_to is None else f"{column} <= {short(up_to)}"
    return f"{column} > {short(above)}" if up_to is None else f"{column} {short(above)} to {short(up_to)}"


def short(number: float) -> str:
    """The number in the fewest characters that give it back.

    >>> short(20.0), short(0.25), short(1234567.0)
    ('20', '0.25', '1234567')
    """
    return repr(number).removesuffix(".0")
