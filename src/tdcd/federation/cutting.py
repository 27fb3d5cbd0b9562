"""What each silo takes of one table that is cut into a federation."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.core.words import counted, there_are
from tdcd.data.table import Scaling, Table
from tdcd.federation.partition import contiguous_columns, image_strips, named_columns

ALIGNMENT = 64
"""Bytes; on the CPU, JAX uses arrays that begin at a multiple of these where they are."""


def clients_of(
    clients: int | Sequence[int | Sequence[str]], names: Sequence[str], sizes: Any, aligned: bool
) -> list[int | Sequence[str]]:
    """How many clients each of the silos ``names`` has, or their names; refuses what does not fit them."""
    if sizes is not None and (not sizes or (isinstance(sizes[0], Sequence) and len(sizes) != len(names))):
        raise ValueError(
            f"sizes has {counted(len(sizes), 'entry', 'entries')}: give one per client, or one list per silo "
            f"({len(names)})"
        )
    given: list[int | Sequence[str]] = [clients] * len(names) if isinstance(clients, int) else list(clients)
    counts = [one if isinstance(one, int) else len(one) for one in given]
    if len(counts) != len(names):
        raise ValueError(f"{there_are(len(names), 'silo')}, but client counts for {len(counts)}: {counts}")
    if aligned and len(set(counts)) > 1:
        raise ValueError(f"aligned silos split the rows alike, so they cannot have {counts} clients")
    return given


def column_groups(
    table: Table, silos: int | Sequence[str] | Mapping[str, Sequence[str]], strips: bool | None
) -> tuple[list[str], list[Any], list[tuple[str, ...]]]:
    """The silos' names, what to take of the table's columns, and the columns' names."""
    if isinstance(silos, Mapping):
        parts = named_columns(table.columns, silos)
        return list(silos), list(parts), [tuple(names) for names in silos.values()]
    names = [f"silo{index + 1}" for index in range(silos)] if isinstance(silos, int) else list(silos)
    if table.is_images and strips is not False:
        return names, list(image_strips(table.features.shape[2], len(names))), [()] * len(names)
    parts = contiguous_columns(int(np.prod(table.features.shape[1:])), len(names))
    labels = [tuple(table.columns[index] for index in part) if table.columns else () for part in parts]
    return names, list(parts), labels


def take(table: Table, part: Any, bias: bool) -> NDArray[Any]:
    """The silo's columns, contiguous, with a column of ones at the end if it carries the bias."""
    rows = table.features.shape[0]
    features = table.features[:, :, part] if isinstance(part, slice) else table.features.reshape(rows, -1)[:, part]
    if not bias:
        taken = aligned_empty(features.shape, features.dtype)
        taken[...] = features
        return taken
    taken = aligned_empty((rows, features[0].size + 1), features.dtype)
    taken[:, :-1], taken[:, -1] = features.reshape(rows, -1), 1
    return taken


def scaling_of(table: Table, part: Any) -> Scaling:
    """How the silo's raw columns became its features; they are the same where the table was not standardised."""
    shape = table.features.shape[1:]
    figures = (np.zeros(shape), np.ones(shape)) if table.scaling is None else (table.scaling.mean, table.scaling.scale)
    mean, scale = (one[:, part] if isinstance(part, slice) else one.reshape(-1)[part] for one in figures)
    return Scaling(mean, scale)


def aligned_empty(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """An array that JAX uses in place on the CPU, where it copies all others."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return np.ndarray(shape, dtype, memory.data, start)


def is_used_in_place(array: NDArray[Any]) -> bool:
    """Whether JAX copies nothing to use an array on the CPU."""
    return bool(array.flags.c_contiguous) and array.ctypes.data % ALIGNMENT == 0
