"""Stacks of silos: small ones of the same shape step as one, since their time is in the number of operations."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.federation.hosts import HostRows, is_mapped

SMALL = 1 << 14
"""A silo whose rows of a minibatch are more numbers than this is not stacked with others."""
SMALL_TABLES = 1 << 25
"""Tables of more bytes than this are not copied to be next to each other."""

Shape = tuple[Any, tuple[int, ...]]
"""The shape of a silo: its groups, and the rows that it has in a minibatch, ``(L, P)``."""


def alike(widths: Sequence[int], shapes: Sequence[Shape]) -> list[tuple[int, ...]]:
    """The silos in stacks: small ones with equal numbers of groups, clients and rows, and similar widths.

    >>> same = ((1, 5), (1, 100))
    >>> alike([21, 20, 200], [same, same, same])
    [(1, 0), (2,)]
    """
    stacks: list[tuple[int, ...]] = []
    for silo in sorted(range(len(widths)), key=lambda silo: widths[silo]):
        last = stacks[-1][0] if stacks else silo
        fits = shapes[last] == shapes[silo] and widths[silo] <= 1.25 * widths[last]
        if stacks and fits and math.prod(shapes[silo][1]) * widths[silo] <= SMALL:
            stacks[-1] += (silo,)
        else:
            stacks.append((silo,))
    return stacks


def stacked(tables: Sequence[Any], shapes: Sequence[Shape]) -> NDArray[Any] | None:
    """``[N, M, D]``: a copy of small tables in the order of the one stack that they are; None if they are not."""
    order, *others = alike([table.shape[1] for table in tables], shapes)
    room = len(order), len(tables[0]), tables[order[-1]].shape[1]
    are_arrays = not any(isinstance(table, HostRows) or is_mapped(table) for table in tables)
    if others or not are_arrays or len({table.dtype for table in tables}) > 1:
        return None
    if math.prod(room) * tables[0].dtype.itemsize > SMALL_TABLES:
        return None
    copied = np.zeros(room, tables[0].dtype)
    for silo, table in zip(order, copied, strict=True):
        table[:, : tables[silo].shape[1]] = tables[silo]
    return copied
