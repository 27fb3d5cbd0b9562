"""The data sources, by name."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from tdcd.core.words import counted
from tdcd.data import bundled
from tdcd.data.download import data_folder
from tdcd.data.mnist import mnist
from tdcd.data.superconductivity import superconductivity
from tdcd.data.superconductors import superconductors
from tdcd.data.table import Table


def load(source: str, *, folder: str | Path | None = None, seed: int = 0, rows: int | None = None) -> Table:
    """The table of a source.

    ===================== ======== ============== ================================================================
    source                rows     a sample       labels
    ===================== ======== ============== ================================================================
    ``digits``            1,797    8 x 8 image    10 classes; ships with scikit-learn
    ``digits28``          1,797    28 x 28 image  the same, each pixel drawn three times as large, in a frame
    ``breast_cancer``     569      30 features    binary, 1 is benign; ships with scikit-learn
    ``diabetes``          442      10 features    progression after a year; ships with scikit-learn
    ``superconductors``   21,263   81 features    critical temperature; SYNTHETIC, drawn from the seed
    ``superconductivity`` 21,263   81 features    critical temperature in K; the UCI table, from its file or OpenML
    ``mnist``             70,000   28 x 28 image  10 classes; the last 10,000 rows are its own test set
    ===================== ======== ============== ================================================================

    Args:
        folder: where downloaded and hand-placed data is; see :func:`data_folder`.
        seed: of the synthetic table, and of which ``rows`` are drawn.
        rows: keep that many, drawn without replacement and in the source's order; a smaller draw of the same seed
            is part of a larger one.

    Raises:
        DataUnavailable: the source is not in the folder and cannot be downloaded, or is not what it should be.

    >>> load("diabetes", rows=100).features.shape
    (100, 10)
    """
    if source not in _LOADERS:
        raise ValueError(f"there is no data source '{source}': choose one of {', '.join(SOURCES)}")
    table = _LOADERS[source](data_folder(folder), seed)
    if rows is None:
        return table
    if not 1 <= rows <= len(table.labels):
        raise ValueError(f"data source '{source}' has {counted(len(table.labels), 'row')}: cannot draw {rows} of them")
    # A stream of its own: the synthetic table and the split are drawn from the bare seed.
    order = np.random.default_rng([seed, 1]).permutation(len(table.labels))
    return table.take(np.sort(order[:rows]))


def _enlarged(digits: Table) -> Table:
    """The digits at the size of MNIST's, for networks made for those: no new detail, only larger pixels."""
    features = np.pad(np.kron(digits.features, np.ones((1, 3, 3), np.float32)), ((0, 0), (2, 2), (2, 2)))
    return replace(digits, name="digits enlarged to 28 x 28", features=features)


_LOADERS: Mapping[str, Callable[[Path, int], Table]] = {
    "digits": lambda folder, seed: bundled.digits(),
    "digits28": lambda folder, seed: _enlarged(bundled.digits()),
    "breast_cancer": lambda folder, seed: bundled.breast_cancer(),
    "diabetes": lambda folder, seed: bundled.diabetes(),
    "superconductors": lambda folder, seed: superconductors(seed),
    "superconductivity": lambda folder, seed: superconductivity(folder),
    "mnist": lambda folder, seed: mnist(folder),
}
SOURCES: tuple[str, ...] = tuple(_LOADERS)
"""The names that :func:`load` takes."""
