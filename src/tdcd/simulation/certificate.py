"""Certificates of simulated runs: :mod:`tdcd.core.certificate` over all clients' rows at once, in float64."""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.blocks.linear import Linear
from tdcd.core import certificate
from tdcd.core.certificate import Certificate, Floats, Samples
from tdcd.core.objective import Tree
from tdcd.core.trees import leaves_of
from tdcd.simulation.simulate import Simulation

NUMBERS_AT_ONCE = 1 << 13
"""Rows become float64 in chunks of so many features: products of larger ones would be shared out to threads, which wait
for each other, and change last bits with the number of cores."""


def no_gradient(simulation: Simulation) -> str:
    """Why the gradient over all training samples is not computed; empty if it is."""
    if not all(type(block) is Linear for block in simulation.blocks):
        return certificate.no_certificate(simulation.objective, are_linear=False)
    if not simulation.objective.combine.is_additive:
        return certificate.no_certificate(simulation.objective, are_linear=True)
    if simulation.variant.is_private:
        return "hubs see each other's scores with noise only"
    return "" if simulation.hosts is None else "several hosts share the rows"


def no_certificate(simulation: Simulation) -> str:
    """Why a simulation's runs come without certificates; empty if they come with them."""
    return no_gradient(simulation) or certificate.no_certificate(simulation.objective, are_linear=True)


def num_certified(simulation: Simulation) -> int:
    """How many of the models evaluated last a certificate is made of; 0 if not even the gradient is computed."""
    if no_gradient(simulation):
        return 0
    is_mixed = not no_certificate(simulation)
    return certificate.num_models(simulation.num_samples, simulation.num_outputs) if is_mixed else 1


def certify(simulation: Simulation, run: int, models: Sequence[Sequence[Tree]]) -> Certificate:
    """The certificate of the last of these models of a run; the others are those evaluated before it.

    Args:
        models: of each, every silo's block.
    """
    objective, federation = simulation.runs[run].objective, simulation.federation
    rows = _Rows(simulation.tables)
    weights = [[np.asarray(leaves_of(block)[0], np.float64) for block in blocks] for blocks in models]
    labels = federation.labels.astype(objective.label_dtype("float64"))
    with np.errstate(all="ignore"):
        known = list(zip(weights, rows.scores(weights), strict=True))
        return certificate.certify(known, rows.pull_back, Samples.of(objective, labels, federation.weights))


class _Rows:
    """All silos' training rows."""

    def __init__(self, tables: Sequence[NDArray[Any]]) -> None:
        self._tables, self._count = tables, len(tables[0])
        self._at_once = max(16, NUMBERS_AT_ONCE // max(prod(table.shape[1:]) for table in tables))

    def _chunks(self) -> Iterator[tuple[slice, list[Floats]]]:
        for begin in range(0, self._count, self._at_once):
            part = slice(begin, begin + self._at_once)
            rows = [np.asarray(table[part], np.float64) for table in self._tables]
            yield part, [chunk.reshape(len(chunk), -1) for chunk in rows]

    def scores(self, models: Sequence[list[Floats]]) -> Floats:
        """``[m, M, C]``."""
        count, outputs = len(models), models[0][0].shape[-1]
        stacked = [np.concatenate(blocks, axis=1) for blocks in zip(*models, strict=True)]
        found = np.empty((self._count, count * outputs))
        for part, rows in self._chunks():
            found[part] = sum(chunk @ blocks for chunk, blocks in zip(rows, stacked, strict=True))
        return np.moveaxis(found.reshape(self._count, count, outputs), 1, 0)

    def pull_back(self, slopes: Floats) -> list[list[Floats]]:
        """Every silo's X' times the slopes ``[m, M, C]``, of each of the m."""
        count, _, outputs = slopes.shape
        flat = np.moveaxis(slopes, 0, 1).reshape(self._count, -1)
        sums: list[Any] = [0.0] * len(self._tables)
        for part, rows in self._chunks():
            sums = [total + chunk.T @ flat[part] for total, chunk in zip(sums, rows, strict=True)]
        each = [np.moveaxis(total.reshape(len(total), count, outputs), 1, 0) for total in sums]
        return [[silo[model] for silo in each] for model in range(count)]
