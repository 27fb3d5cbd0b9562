"""Which silo gets which columns of X."""

from collections.abc import Mapping, Sequence

import numpy as np

from tdcd.core.words import counted
from tdcd.federation.partition import contiguous_columns

Columns = Mapping[str, Sequence[str]]
"""By silo."""


def columns_by_silo(silos: int | Mapping[str, Sequence[str] | Sequence[int]], names: Sequence[str]) -> Columns:
    """The names of every silo's columns.

    Args:
        silos: how many, which take the columns in turn, as many of them as there are columns; or the columns of each
            by name or by place.
        names: of all columns.

    >>> columns_by_silo(2, ["a", "b", "c"])
    {'silo1': ['a', 'b'], 'silo2': ['c']}
    >>> columns_by_silo({"bank": [0, 2], "shop": ["b"]}, ["a", "b", "c"])
    {'bank': ['a', 'c'], 'shop': ['b']}
    """
    if not isinstance(silos, Mapping | int | np.integer):
        raise ValueError(f"silos = {silos!r}: give a number, or the columns of each silo by name")
    if not isinstance(silos, Mapping):
        if silos < 1:
            raise ValueError(f"silos = {silos}: there must be at least one")
        parts = contiguous_columns(len(names), min(silos, len(names)))
        return {f"silo{place + 1}": [names[index] for index in part] for place, part in enumerate(parts)}
    chosen: dict[str, list[str]] = {}
    taken: dict[str, str] = {}
    for silo, given in silos.items():
        columns = [given] if isinstance(given, str) else given
        if not isinstance(columns, Sequence | np.ndarray):
            raise ValueError(f"silos: '{silo}' has {given!r}, not a list of columns")
        chosen[silo] = []
        for one in columns:
            if isinstance(one, str) and one not in names:
                raise ValueError(f"silos: '{silo}' has the column '{one}', which X has not; it has {', '.join(names)}")
            if not isinstance(one, str) and not 0 <= one < len(names):
                raise ValueError(
                    f"silos: '{silo}' has the column number {one}, and X has {counted(len(names), 'column')}"
                )
            name = one if isinstance(one, str) else names[one]
            if name in taken:
                raise ValueError(f"silos: column '{name}' is given to '{taken[name]}' and to '{silo}'")
            taken[name] = silo
            chosen[silo].append(name)
        if not chosen[silo]:
            raise ValueError(f"silos: '{silo}' has no columns")
    if not chosen:
        raise ValueError("silos: there must be at least one")
    return chosen
