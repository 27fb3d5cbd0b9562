"""Samples that only some silos know: the marks of absent silos among a federation's features.

See :mod:`tdcd.blocks.absent` for what the marks are. A row has its stand-ins at one silo: the one that has the labels,
or, where all have them, the first in order that has the row, so that every absent silo is replaced once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.blocks.absent import Absent, Marks
from tdcd.blocks.base import Block
from tdcd.core.shared_rows import distinct
from tdcd.federation.partition import Rows, aligned_empty
from tdcd.federation.silos import Federation, Silo

Presence = NDArray[np.bool_]
"""``[N, M]``: which silos have which samples."""


def presence_of(federation: Federation) -> Presence:
    """Which silos have which training samples."""
    return _presence([silo.rows for silo in federation.silos], federation.num_samples)


def test_presence_of(federation: Federation) -> Presence:
    """Which silos have which held-out samples."""
    total = 0 if federation.test_labels is None else len(federation.test_labels)
    return _presence([silo.test_rows for silo in federation.silos], total)


def _presence(rows: Sequence[Rows], total: int) -> Presence:
    present = np.zeros((len(rows), total), bool)
    for own, clients in zip(present, rows, strict=True):
        for held in clients:
            own[held] = True
    return present


def stood_in_for(present: Presence, silo: int, labelled: Sequence[int]) -> Presence:
    """``[N, M]``: for which absent silos a silo's rows need stand-ins of its own.

    Args:
        labelled: the silos that have labels. The first of them that has a row is the one with its stand-ins.
    """
    if silo not in labelled:
        return np.zeros_like(present)
    earlier = [other for other in labelled if other < silo]
    absent: Presence = present[silo] & ~present[earlier].any(axis=0) & ~present
    return absent


def trained_for(absent: Presence, silo: int, labelled: Sequence[int], *, drops_silos: bool) -> Presence:
    """For which silos a silo has stand-ins: ``[N, M]``, or ``[N, 1]``, true somewhere in their row.

    With silo dropout any other silo may be missing, so it has one for each.

    Args:
        absent: of :func:`stood_in_for`.
    """
    if drops_silos and silo in labelled:
        others: Presence = np.arange(len(absent))[:, None] != silo
        return others
    return absent


def trained_without(
    present: Presence, names: Sequence[str], labelled: Sequence[int], *, drops_silos: bool = False
) -> dict[str, list[str]]:
    """By silo: the silos that it is trained to make up for, with stand-ins or, if there are none, with zeros."""
    if drops_silos:
        return {name: [other for other in names if other != name] for name in names}
    made_up_for = {}
    for index, name in enumerate(names):
        absent = stood_in_for(present, index, labelled)
        if others := [other for other, own in zip(names, absent, strict=True) if own.any()]:
            made_up_for[name] = others
    return made_up_for


def labelled_silos(federation: Federation) -> list[int]:
    """The silos that have labels."""
    only = federation.terms.label_silo
    return [index for index, silo in enumerate(federation.silos) if only in (None, silo.name)]


def with_stand_ins(
    federation: Federation, blocks: Sequence[Block], *, drops_silos: bool = False
) -> tuple[Federation, tuple[Block, ...]]:
    """The federation with marks among its features, and the blocks that read them; both as they are if no row lacks.

    Args:
        drops_silos: whether training drops silos, see :class:`tdcd.core.family.dropout.SiloDropout`.
    """
    if federation.is_complete:
        return federation, (*blocks,)
    names, terms = [silo.name for silo in federation.silos], federation.terms
    labelled = labelled_silos(federation)
    train, test = presence_of(federation), test_presence_of(federation)
    silos, marked = [], []
    for index, (silo, block) in enumerate(zip(federation.silos, blocks, strict=True)):
        absent = stood_in_for(train, index, labelled)
        lacks_rows = not (train[index].all() and test[index].all())
        needed = trained_for(absent, index, labelled, drops_silos=drops_silos)
        stand_ins = Absent.of(names, needed, terms.standin, block, lacks_rows=lacks_rows)
        chosen = [names.index(other) for other in stand_ins.silos]
        held_out = stood_in_for(test, index, labelled)[chosen].T
        marks = absent[chosen].T, held_out
        own = _marked(silo, stand_ins, marks, (train[index], test[index]))
        silos.append(replace(own, marks=Marks.of(names, index, stand_ins, labelled, _num_ones(silo))))
        marked.append(stand_ins.block(block, _num_ones(silo)))
    return replace(federation, silos=tuple(silos)), tuple(marked)


def _marked(silo: Silo, stand_ins: Absent, absent: Sequence[Presence], present: Sequence[Presence]) -> Silo:
    """One silo with marks, of its training samples and of its held-out ones."""
    if len(silo.feature_shape) > 1:
        raise ValueError(f"silo '{silo.name}': data.samples = 'all' takes tables, not images")
    preparation: Any = silo.preparation
    known, num_ones = _num_known(silo), _num_ones(silo)
    names = silo.columns[:known]
    features = [
        None if rows is None else _zeroed(stand_ins.marked(rows, marks, num_ones), held)
        for rows, marks, held in zip((silo.features, silo.test_features), absent, present, strict=True)
    ]
    columns = (*names, *stand_ins.columns, *silo.columns[known:])
    if preparation is not None and stand_ins:
        preparation = replace(preparation, absent=stand_ins)
    shared = [
        None if rows is None else distinct(rows, marks)
        for rows, marks in zip((silo.shared, silo.test_shared), absent, strict=True)
    ]
    return replace(
        silo,
        features=features[0],
        test_features=features[1],
        columns=columns,
        preparation=preparation,
        shared=shared[0],
        test_shared=shared[1],
    )


def _num_known(silo: Silo) -> int:
    preparation: Any = silo.preparation
    return len(silo.columns if preparation is None else preparation.columns)


def _num_ones(silo: Silo) -> int:
    """1 if the silo's last column is one of ones."""
    known = _num_known(silo)
    return silo.feature_shape[0] - known if known else 0


def _zeroed(features: NDArray[Any], present: Presence) -> NDArray[Any]:
    """The features with zeros for the rows that the silo lacks, where JAX uses them in place."""
    taken = aligned_empty(features.shape, features.dtype)
    taken[...] = features
    taken[~present] = 0
    return taken


def patterns(federation: Federation) -> Mapping[tuple[str, ...], NDArray[np.int64]]:
    """The training samples by the silos that have them, the most frequent first."""
    return patterns_in(presence_of(federation), [silo.name for silo in federation.silos])


def test_patterns(federation: Federation) -> Mapping[tuple[str, ...], NDArray[np.int64]]:
    """The same of the held-out samples."""
    return patterns_in(test_presence_of(federation), [silo.name for silo in federation.silos])


def patterns_in(present: Presence, names: Sequence[str]) -> dict[tuple[str, ...], NDArray[np.int64]]:
    """The samples by the silos that have them, the most frequent first."""
    kinds, which, counts = np.unique(present, axis=1, return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return {
        tuple(name for name, has in zip(names, kinds[:, kind], strict=True) if has): np.flatnonzero(
            which.ravel() == kind
        )
        for kind in order.tolist()
    }
