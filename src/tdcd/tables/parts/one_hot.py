"""A column of names as one feature per level."""

from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tdcd.core.words import counted
from tdcd.tables.parts.cell import BLANK, OTHER, Cell
from tdcd.tables.rows import Category
from tdcd.tables.summary import CategoryStats

MOST_LEVELS = 1000
"""A column with more frequent levels than this is not a category."""


@dataclass(frozen=True)
class OneHot:
    """How a column of names becomes features: one per level, and one for rare or unseen levels if rare ones exist."""

    levels: tuple[str, ...]
    other: bool
    indicator: bool
    """Whether a last feature marks blanks."""
    shares: tuple[float, ...] = ()
    """Of the training rows that have each feature, for additive models; otherwise nobody is told."""

    @classmethod
    def fit(cls, name: str, column: CategoryStats, rare: int, *, has_shares: bool = False) -> Self:
        """For a column with these counts; levels with fewer than ``rare`` rows are rare, as is one called "other"."""
        kept = tuple(sorted(level for level, n in column.levels.items() if n >= rare and level != "other"))
        if len(kept) > MOST_LEVELS:
            raise ValueError(
                f"column '{name}' has {len(kept)} levels with at least {counted(rare, 'row')} each, more than "
                f"{MOST_LEVELS}: leave it out, or raise data.rare"
            )
        part = cls(kept, len(kept) < len(column.levels), column.missing > 0)
        if not has_shares:
            return part
        known = sum(column.levels.values())
        counts = [column.levels[level] for level in kept]
        counts += [known - sum(counts)] * part.other + [column.missing] * part.indicator
        return replace(part, shares=tuple(count / (known + column.missing) for count in counts))

    def names(self, column: str) -> list[str]:
        """Of the features."""
        others = [f"{column}=other"] * self.other + [f"{column} missing"] * self.indicator
        return [f"{column}={level}" for level in self.levels] + others

    def apply(self, column: Category, out: NDArray[Any]) -> None:
        """Write the features of these names to ``out``."""
        places = {level: place for place, level in enumerate(self.levels)}
        unseen = len(self.levels) if self.other else -1
        blank = out.shape[1] - 1 if self.indicator else unseen
        place = np.array([*(places.get(level, unseen) for level in column.levels), blank])[column.codes]
        out[:] = 0
        rows = np.flatnonzero(place >= 0)
        out[rows, place[rows]] = 1

    def unseen(self, column: Category) -> tuple[list[str], int]:
        """The levels that have no feature of their own, and how many rows have one of them."""
        places = [place for place, level in enumerate(column.levels) if level not in {*self.levels}]
        counts = np.bincount(column.codes[column.codes >= 0], minlength=len(column.levels))[places]
        return [column.levels[place] for place, count in zip(places, counts, strict=True) if count], int(counts.sum())

    def cells(self) -> list[Cell]:
        """What the features stand for; at the end what has no feature, as a level that training never saw."""
        levels = [*self.levels, *[OTHER] * self.other, *[BLANK] * self.indicator]
        cells = [Cell(level, share=share) for level, share in zip(levels, self.shares, strict=False)]
        return cells + [Cell(OTHER)] * (bool(cells) and not self.other)

    def unscaled(self, column: str, weights: NDArray[Any]) -> tuple[dict[str, NDArray[Any]], NDArray[Any]]:
        """The weights as they are; nothing for the intercept."""
        nothing = np.zeros(weights.shape[1])
        other = weights[len(self.levels)] if self.other else nothing
        own = {f"{column}={level}": weight for level, weight in zip(self.levels, weights, strict=False)}
        own |= {f"{column}=other": other, f"{column} missing": weights[-1] if self.indicator else other}
        return own, nothing

    def to_json(self) -> dict[str, Any]:
        """As values that JSON writes exactly."""
        return asdict(self)
