"""The silos' scores of new samples, put together, and what they say."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from tdcd.core.words import are, counted


class SiloScores(NamedTuple):
    """What one silo's columns add to the scores of some samples."""

    ids: Sequence[str]
    """``[n]``: each once."""
    phi: NDArray[Any]
    """``[n, C]``."""


def by_place(parts: Mapping[str, SiloScores]) -> NDArray[Any]:
    """``[n, C]``: the sum over the silos, whose rows are about the same samples in the same order."""
    counts = {name: len(part.phi) for name, part in parts.items()}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"'{name}' has {counted(count, 'row')}" for name, count in counts.items())
        raise ValueError(f"without ids, all tables must have the same rows in the same order: {told}")
    first, *others = (part.phi for part in parts.values())
    return sum(others, start=first)


def by_id(parts: Mapping[str, SiloScores]) -> NDArray[Any]:
    """``[n, C]``: the sum over the silos by id, in the order of the first silo's."""
    (first, start), *others = parts.items()
    total = start.phi.copy()
    for name, part in others:
        places = {one: place for place, one in enumerate(part.ids)}
        lacking = [(one, name) for one in start.ids if one not in places]
        lacking += [(one, first) for one in {*places} - {*start.ids}]
        if lacking:
            one, silo = lacking[0]
            raise ValueError(
                f"{counted(len(lacking), 'id')} {are(len(lacking))} not in all tables: silo '{silo}' lacks {one!r}; "
                "add what is missing or leave it out"
            )
        total += part.phi[[places[one] for one in start.ids]]
    return total
