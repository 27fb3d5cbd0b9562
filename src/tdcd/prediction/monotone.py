"""Bins of an additive model, merged until a column's weights only rise or only fall.

The pool-adjacent-violators algorithm merges neighbouring bins whose trained weights are out of order, and gives them
their mean, weighted by the bins' shares of the training rows. It needs the model and no labels: a silo without labels
can do it for its own columns, and no party learns how many events are in a bin.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdcd.blocks import Linear
from tdcd.prediction.model import Model, SiloModel
from tdcd.tables.encodings import Binned, ColumnEncoding
from tdcd.tables.preparation import Preparation

ALL = "all"
"""Stands for every column in bins."""
TINY = 1e-12
"""The weight of a bin that no training row is in."""


class MergedColumn(NamedTuple):
    """How many bins a column had and has, without that of blanks."""

    silo: str
    column: str
    before: int
    after: int


class MonotoneModel(NamedTuple):
    """A model with merged bins, see :func:`monotone`."""

    model: Model
    merged: Sequence[MergedColumn]


def isotonic(values: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    r"""The rising sequence that is nearest to ``values``: it minimises :math:`\sum_i w_i (x_i - v_i)^2`.

    Pool adjacent violators: neighbours that fall are replaced by their weighted mean until none does.

    >>> isotonic(np.array([1.0, 3.0, 2.0, 4.0]), np.ones(4)).tolist()
    [1.0, 2.5, 2.5, 4.0]
    """
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        pool = (value, weight, 1)
        while pools and pools[-1][0] >= pool[0]:
            mean, total, count = pools.pop()
            joint = total + pool[1]
            pool = ((mean * total + pool[0] * pool[1]) / joint, joint, count + pool[2])
        pools.append(pool)
    return np.repeat([mean for mean, _, _ in pools], [count for _, _, count in pools])


def nearest_monotone(values: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rising or falling sequence that is nearest; the rising one if both are as near."""
    rising, falling = isotonic(values, weights), -isotonic(-values, weights)
    off = [float(weights @ (fitted - values) ** 2) for fitted in (rising, falling)]
    return rising if off[0] <= off[1] else falling


def monotone(model: Model, columns: Sequence[str] = (ALL,)) -> MonotoneModel:
    """The model with neighbouring bins merged, in each of these columns, until its weights only rise or only fall.

    The direction is the one that changes the column less. It is not trained again: other columns keep their weights,
    and a column keeps its mean over the training rows. Blanks keep the bin of their own.

    Args:
        columns: their names, in whichever silos have them, or ``SILO.COLUMN``; ``"all"`` for every column in bins.
    """
    model.check_additive("a scorecard")
    model.check_complete("a scorecard")
    parts, merged, known = {}, list[MergedColumn](), set[str]()
    for silo, part in model.parts.items():
        encodings, rows = {**part.preparation.parts}, []
        weights, start = _weights(silo, part), 0
        for column, encoding in part.preparation.parts.items():
            width = len(encoding.names(column))
            own, start = weights[start : start + width], start + width
            named = {column, f"{silo}.{column}"} & {*columns}
            known |= named
            if isinstance(encoding, Binned) and (named or ALL in columns):
                fewer, own = _merged(encoding, own)
                merged.append(MergedColumn(silo, column, len(encoding.cuts) + 1, len(fewer.cuts) + 1))
                encodings[column] = fewer
            elif named:
                raise ValueError(f"--monotone {min(named)}: in silo '{silo}' it has {_what(encoding)}")
            rows.append(own)
        prepared = Preparation(encodings)
        block = np.concatenate([*rows, weights[start:]])
        shape = (len(block),)
        parts[silo] = part._replace(preparation=prepared, feature_shape=shape, parameters={"weight": block})
    unknown = [name for name in columns if name != ALL and name not in known]
    if unknown or not merged:
        name = unknown[0] if unknown else ALL
        there = ", ".join(dict.fromkeys(name for part in model.parts.values() for name in part.preparation.parts))
        raise ValueError(f"--monotone {name}: no such column is in bins; the columns are {there}")
    return MonotoneModel(replace(model, parts=parts), merged)


def _merged(encoding: Binned, weights: NDArray[np.floating]) -> tuple[Binned, NDArray[np.floating]]:
    """Both with neighbours of equal weight as one bin; what is after the bins stays."""
    bins = len(encoding.cuts) + 1
    shares = np.maximum(np.array(encoding.shares[:bins]), TINY)
    fitted = nearest_monotone(weights[:bins, 0].astype(np.float64), shares)
    kept = np.flatnonzero(np.diff(fitted) != 0)
    cuts = tuple(encoding.cuts[place] for place in kept)
    starts = np.append(0, kept + 1)
    pooled = np.add.reduceat(np.array(encoding.shares[:bins]), starts).tolist()
    merged = replace(encoding, cuts=cuts, shares=(*pooled, *encoding.shares[bins:]))
    own = np.append(fitted[starts], weights[bins:, 0])[:, None].astype(weights.dtype)
    return merged, own


def _weights(silo: str, part: SiloModel) -> NDArray[np.floating]:
    """``[D + ones, 1]``."""
    if not isinstance(part.block, Linear) or np.shape(part.parameters["weight"])[1] != 1:
        raise ValueError(f"silo '{silo}': bins are merged in models of linear blocks with one output")
    return np.asarray(part.parameters["weight"])


def _what(encoding: ColumnEncoding) -> str:
    return "levels, not bins" if encoding.cells() else "no bins: train with model.encoding = 'bins'"
