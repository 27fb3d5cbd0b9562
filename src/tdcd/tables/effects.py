r"""The effect of each raw column of a silo on the scores: partial dependence (Friedman, 2001), inside one silo.

Scores are sums over silos, so that what a column adds depends on columns of its own silo only:

.. math:: e_c(v) = \frac{1}{n} \sum_i \phi_j(x_i \text{ with } x_{ic} = v) - \frac{1}{n} \sum_i \phi_j(x_i)

Where phi is linear in the features, the first argument's other columns do not matter: one row with every column's
average, which the encoding knows, gives the same as the training rows. Other blocks need rows of the silo.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdcd.tables.cells import moment_in_words
from tdcd.tables.encodings import BLANK, OTHER, Binned, ColumnEncoding, OneHot, Piecewise, Standardized
from tdcd.tables.preparation import Preparation
from tdcd.tables.rows import Category

POINTS = 12
"""Of a column of amounts without bins, the most values at which its effect is worked out."""
TAIL = 0.02
"""The share of the rows beyond the first of these values, and beyond the last."""
ROWS = 100
"""The most rows that an effect is averaged over, evenly spaced in the table."""
DAYS_PER_YEAR = 365.2425

Floats = NDArray[np.float64]


class Effect(NamedTuple):
    """What one raw column adds to the scores, compared with the average row."""

    column: str
    points: tuple[str, ...]
    """Values, levels or bins, in words; :data:`~tdcd.tables.encodings.BLANK` at the end if blanks were seen."""
    places: tuple[float, ...]
    """Where the points of amounts are on an axis, in years if they are dates; nothing of levels and bins."""
    values: Floats
    """``[points, C]``."""

    @property
    def spread(self) -> float:
        """The root of the mean square over the points: how much the column decides."""
        return float(np.sqrt(np.mean(np.square(self.values))))

    @classmethod
    def from_json(cls, facts: Any) -> "Effect":
        """What :meth:`to_json` gave."""
        values = np.asarray(facts["values"], np.float64)
        points, places = tuple(map(str, facts["points"])), tuple(map(float, facts["places"]))
        if values.ndim != 2 or len(values) != len(points) or len(places) > len(points):
            raise ValueError("an effect has one row of numbers per point")
        return cls(str(facts["column"]), points, places, values)

    def to_json(self) -> dict[str, Any]:
        """The column as JSON."""
        return {**self._asdict(), "values": [[float(f"{value:.6g}") for value in row] for row in self.values]}


def column_slices(preparation: Preparation) -> dict[str, slice]:
    """Where the features of each raw column are."""
    slices, start = {}, 0
    for name, part in preparation.parts.items():
        width = len(part.names(name))
        slices[name] = slice(start, start + width)
        start += width
    return slices


def average_row(preparation: Preparation) -> Floats:
    """``[1, D]``: the features of the silo's average row, as far as its encodings know."""
    return np.concatenate([_average(name, part) for name, part in preparation.parts.items()])[None]


def evenly_spaced(count: int, most: int) -> NDArray[np.int64]:
    """The places of at most so many of ``count`` rows."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def effects(preparation: Preparation, phi: Callable[[NDArray[Any]], NDArray[Any]], rows: NDArray[Any]) -> list[Effect]:
    """The effects of all columns that have more than one value.

    Args:
        phi: ``[n, C]`` from features ``[n, W]``.
        rows: ``[n, W]``: the features of the rows to average over; W is at least the preparation's number of features,
            which come first.
    """
    average = np.asarray(phi(rows), np.float64).mean(axis=0)
    shown = []
    for name, place in column_slices(preparation).items():
        values, words, places = _points(preparation.parts[name], rows[:, place])
        if len(words) < 2:
            continue
        encoded = np.zeros((len(words), place.stop - place.start), rows.dtype)
        preparation.parts[name].apply(values, encoded)
        moved = np.tile(rows, (len(words), 1))
        moved[:, place] = np.repeat(encoded, len(rows), axis=0)
        means = np.asarray(phi(moved), np.float64).reshape(len(words), len(rows), -1).mean(axis=1)
        shown.append(Effect(name, words, places, means - average))
    return shown


def _average(name: str, part: ColumnEncoding) -> Floats:
    """What a column's features are on average over the training rows."""
    width = len(part.names(name))
    average = np.zeros(width)
    if isinstance(part, Standardized):
        # Without standardising, an amount is its own feature.
        average[0] = (part.fill - part.mean) / part.scale
    elif isinstance(part, Piecewise):
        if not part.centred:
            average[: len(part.mean)] = part.mean
    else:
        shares = getattr(part, "shares", ())
        # Where shares of levels are not kept, each counts the same.
        average[:] = shares if len(shares) == width else 1 / width
    return average


def _points(part: ColumnEncoding, features: NDArray[Any]) -> tuple[Any, tuple[str, ...], tuple[float, ...]]:
    """Raw values of a column, in words, and their places on an axis."""
    if isinstance(part, OneHot):
        names = [*part.levels, *[OTHER] * part.other, *[BLANK] * part.indicator]
        codes = [*range(len(part.levels) + part.other), *[-1] * part.indicator]
        return Category(np.array(codes, np.int32), (*part.levels, OTHER)), tuple(names), ()
    if isinstance(part, Binned):
        cells = part.cells()
        bins = [cell for cell in cells if cell.level != BLANK]
        ends = [np.inf if cell.up_to is None else cell.up_to for cell in bins]
        return np.array([*ends, *[np.nan] * (len(cells) - len(bins))]), tuple(map(_bin_in_words, cells)), ()
    is_date = isinstance(part, Piecewise) and part.is_date
    numbers = _amounts(part, features)
    words = [moment_in_words(number) if is_date else f"{number:.6g}" for number in numbers]
    places = [1970 + number / DAYS_PER_YEAR if is_date else number for number in numbers]
    has_blanks = bool(getattr(part, "indicator", False)) and len(words) > 1
    return np.array([*numbers, *[np.nan] * has_blanks]), (*words, *[BLANK] * has_blanks), tuple(places)


def _amounts(part: ColumnEncoding, features: NDArray[Any]) -> list[float]:
    """The values of an amount at which its effect is worked out: a line bends nowhere, and its ends are enough."""
    if isinstance(part, Piecewise):
        return [*part.edges]
    assert isinstance(part, Standardized)
    seen = features[:, 0] if not part.indicator else features[features[:, 1] == 0, 0]
    if len(features) == 1:
        numbers = part.fill + part.scale * np.array([-2.0, 0.0, 2.0])
    else:
        numbers = np.unique(np.quantile(seen, np.linspace(TAIL, 1 - TAIL, POINTS))) * part.scale + part.mean
    return [float(f"{number:.6g}") for number in numbers]


def _bin_in_words(cell: Any) -> str:
    if cell.level:
        return str(cell.level)
    above, up_to = cell.ends
    if above is None:
        return "any" if up_to is None else f"to {up_to}"
    return f"above {above}" if up_to is None else f"{above} to {up_to}"


def by_spread(listed: Sequence[Effect]) -> list[Effect]:
    """The effects, the columns that decide most first."""
    return sorted(listed, key=lambda effect: -effect.spread)
