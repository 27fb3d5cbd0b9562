"""Partitioners: ways to cut a table's columns into silos and a silo's rows over its clients, and what each silo takes.

A row split is, per client, a sorted array of row numbers, or a range of them. Random generators are arguments.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tdcd.core.words import counted, there_are
from tdcd.data.table import Scaling, Table

Rows = tuple[NDArray[np.int64] | range, ...]
RowRule = Literal["contiguous", "shuffled", "dirichlet"]
ALIGNMENT = 64
"""Bytes; on the CPU, JAX uses arrays that begin at a multiple of these where they are."""


def contiguous_columns(num_columns: int, num_silos: int) -> list[NDArray[np.int64]]:
    """Consecutive columns, spread evenly over the silos: widths differ by one at most.

    >>> [part.tolist() for part in contiguous_columns(5, 2)]
    [[0, 1, 2], [3, 4]]
    """
    if not 1 <= num_silos <= num_columns:
        raise ValueError(
            f"{counted(num_columns, 'column')} cannot be cut into {counted(num_silos, 'silo')}: every silo needs a "
            "column"
        )
    return np.array_split(np.arange(num_columns), num_silos)


def named_columns(columns: Sequence[str], groups: Mapping[str, Sequence[str]]) -> list[NDArray[np.int64]]:
    """The columns that each silo names; columns that no silo names are left out of the federation."""
    places = {column: index for index, column in enumerate(columns)}
    owners: dict[str, str] = {}
    for silo, names in groups.items():
        if not names:
            raise ValueError(f"silo '{silo}' has no columns")
        for name in names:
            if name not in places:
                raise ValueError(f"silo '{silo}' names column '{name}', which the table does not have")
            if name in owners:
                raise ValueError(f"column '{name}' is in silo '{owners[name]}' and again in silo '{silo}'")
            owners[name] = silo
    return [np.array([places[name] for name in names]) for names in groups.values()]


def image_strips(width: int, num_silos: int) -> list[slice]:
    """Upright strips of an image, left to right; two are its halves.

    >>> image_strips(28, 2)
    [slice(0, 14, None), slice(14, 28, None)]
    """
    if not 1 <= num_silos <= width:
        raise ValueError(f"an image {width} pixels wide cannot be cut into {num_silos} strips")
    edges = [int(edge) for edge in np.linspace(0, width, num_silos + 1)]
    return [slice(left, right) for left, right in pairwise(edges)]


def contiguous_rows(num_rows: int, sizes: Sequence[int]) -> Rows:
    """The first ``sizes[0]`` rows to client 0, the next to client 1, and so on."""
    return _cut(np.arange(num_rows), sizes)


def row_ranges(sizes: Sequence[int]) -> Rows:
    """The same as ranges, which take no memory, however many rows there are.

    >>> row_ranges([1, 3])
    (range(0, 1), range(1, 4))
    """
    stops = np.cumsum([0, *sizes]).tolist()
    return tuple(range(start, stop) for start, stop in pairwise(stops))


def selection(rows: NDArray[np.int64] | range) -> Any:
    """What takes these rows of an array: without a copy of it, if they are a range."""
    return slice(rows.start, rows.stop) if isinstance(rows, range) else rows


def shuffled_rows(num_rows: int, sizes: Sequence[int], rng: np.random.Generator) -> Rows:
    """Rows dealt to the clients at random, ``sizes[k]`` to client k."""
    return _cut(rng.permutation(num_rows), sizes)


def dirichlet_rows(labels: NDArray[np.generic], num_clients: int, alpha: float, rng: np.random.Generator) -> Rows:
    """Label skew: each class is spread over the clients in proportions drawn from a Dirichlet distribution.

    Small ``alpha`` gives every client few classes, large ``alpha`` gives all the same mix (Hsu, Qi and Brown, 2019).
    More than 20 different labels are taken as real numbers and grouped by their deciles.
    """
    if not alpha > 0:
        raise ValueError(f"the Dirichlet concentration alpha must be positive, not {alpha}")
    equal_sizes(len(labels), num_clients)
    classes = labels
    if len(np.unique(labels)) > 20:
        classes = np.searchsorted(np.quantile(labels.astype(float), np.linspace(0.1, 0.9, 9)), labels.astype(float))
    for _ in range(100):
        owner = np.empty(len(labels), np.int64)
        for label in np.unique(classes):
            members = rng.permutation(np.flatnonzero(classes == label))
            edges = np.cumsum(rng.dirichlet(np.full(num_clients, alpha)))[:-1] * len(members)
            owner[members] = np.searchsorted(edges, np.arange(len(members)), side="right")
        if np.bincount(owner, minlength=num_clients).all():
            return tuple(np.flatnonzero(owner == client) for client in range(num_clients))
    raise ValueError(
        f"a Dirichlet split with alpha = {alpha} left one of {num_clients} clients without rows 100 times: "
        "use a larger alpha or fewer clients"
    )


def equal_sizes(num_rows: int, num_clients: int) -> list[int]:
    """Shard sizes that differ by one at most."""
    return proportional_sizes(num_rows, [1] * num_clients)


def proportional_sizes(num_rows: int, sizes: Sequence[float]) -> list[int]:
    """Whole shard sizes that add up to ``num_rows`` in the proportions of ``sizes``.

    Sizes that add up to ``num_rows`` already are kept as they are.

    >>> proportional_sizes(10, [3, 1, 1])
    [6, 2, 2]
    """
    if len(sizes) < 1:
        raise ValueError("a silo needs at least one client")
    if len(sizes) > num_rows:
        raise ValueError(
            f"{counted(num_rows, 'row')} cannot be spread over {counted(len(sizes), 'client')}: every client needs a "
            "row"
        )
    for client, size in enumerate(sizes):
        if not size > 0:
            raise ValueError(f"client {client} would be empty: its size is {size}")
    edges = np.round(np.cumsum(sizes) / np.sum(sizes) * num_rows).astype(int)
    counts = np.diff(edges, prepend=0)
    if not counts.all():
        client = int(np.argmin(counts))
        raise ValueError(f"client {client} would be empty: size {sizes[client]} of {sum(sizes)} is less than one row")
    return [int(count) for count in counts]


def shares_of(rows_held: NDArray[np.integer[Any]]) -> NDArray[np.float64]:
    """``[K]``: the part of the rows that each of these clients holds.

    >>> shares_of(np.array([3, 1])).tolist()
    [0.75, 0.25]
    """
    return np.asarray(rows_held / rows_held.sum())


def sizes_of(sizes: Any, silo: int) -> Any:
    """The shard sizes of one silo: its own list of them, or the one for all silos."""
    if sizes is None or not isinstance(sizes[0], Sequence):
        return sizes
    return sizes[silo]


def split_rows(
    labels: NDArray[Any],
    num_clients: int,
    sizes: Sequence[float] | None,
    rule: RowRule,
    alpha: float,
    rng: np.random.Generator,
) -> Rows:
    """The rows of each of a silo's clients, by one of the rules that :meth:`Federation.cut` takes."""
    num_rows = len(labels)
    if rule == "dirichlet":
        if sizes is not None:
            raise ValueError("rows = 'dirichlet' draws the shard sizes itself: leave sizes out")
        return dirichlet_rows(labels, num_clients, alpha, rng)
    if sizes is not None and len(sizes) != num_clients:
        raise ValueError(f"{counted(num_clients, 'client')}, but {counted(len(sizes), 'size')}")
    counts = equal_sizes(num_rows, num_clients) if sizes is None else proportional_sizes(num_rows, sizes)
    return contiguous_rows(num_rows, counts) if rule == "contiguous" else shuffled_rows(num_rows, counts, rng)


def _cut(order: NDArray[np.int64], sizes: Sequence[int]) -> Rows:
    if sum(sizes) != len(order):
        raise ValueError(f"the clients' sizes add up to {sum(sizes)}, but {there_are(len(order), 'row')}")
    return tuple(np.sort(part) for part in np.split(order, np.cumsum(sizes)[:-1]))


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
    counts = [clients if isinstance(clients, int) else len(clients) for clients in given]
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
    mean, scale = (values[:, part] if isinstance(part, slice) else values.reshape(-1)[part] for values in figures)
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
