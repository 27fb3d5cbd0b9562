"""The data sources, by name, the folder that public data is kept in, and the message when it cannot be had.

Tables that ship with scikit-learn are read from its files: importing scikit-learn takes longer than a short run.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.core.words import counted
from tdcd.data.table import Table

VARIABLE = "TDCD_DATA"
"""The environment variable that names the data folder."""


def data_folder(folder: str | Path | None = None) -> Path:
    """The folder of downloaded and hand-placed data: ``folder``, else ``$TDCD_DATA``, else ``~/.cache/tdcd``.

    For a user without a home folder, as in containers, ``~`` is the working folder.

    >>> data_folder("corpora").name
    'corpora'
    """
    chosen = Path(folder or os.environ.get(VARIABLE) or "~/.cache/tdcd")
    try:
        return chosen.expanduser().absolute()
    except RuntimeError:
        return Path(*chosen.parts[1:]).absolute()


class DataUnavailable(OSError):  # noqa: N818
    """Public data is neither in the data folder nor to be had from the network, or is not what it should be."""

    by_hand = ""
    """How to get data that is absent; empty if it is there, and wrong."""


def unavailable(what: str, *, looked: Iterable[Path], tried: Mapping[str, str], by_hand: str) -> DataUnavailable:
    """The error for absent data: where it was looked for, why each address failed, and how to get it by hand."""
    lines = [f"{what} is not in the data folder and could not be downloaded"]
    lines += [f"  looked for {path}" for path in looked]
    lines += [f"  tried {address}: {reason}" for address, reason in tried.items()]
    lines += [f"  by hand: {by_hand}", f"  (the environment variable {VARIABLE} names another data folder)"]
    error = DataUnavailable("\n".join(lines))
    error.by_hand = by_hand
    return error


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


def _superconductors(seed: int) -> Table:
    from tdcd.data.superconductors import superconductors  # noqa: PLC0415 - few runs need it

    return superconductors(seed)


def _superconductivity(folder: Path) -> Table:
    from tdcd.data.superconductivity import superconductivity  # noqa: PLC0415 - the same

    return superconductivity(folder)


def _mnist(folder: Path) -> Table:
    from tdcd.data.mnist import mnist  # noqa: PLC0415 - the same

    return mnist(folder)


_LOADERS: Mapping[str, Callable[[Path, int], Table]] = {
    "digits": lambda folder, seed: digits(),
    "digits28": lambda folder, seed: _enlarged(digits()),
    "breast_cancer": lambda folder, seed: breast_cancer(),
    "diabetes": lambda folder, seed: diabetes(),
    "superconductors": lambda folder, seed: _superconductors(seed),
    "superconductivity": lambda folder, seed: _superconductivity(folder),
    "mnist": lambda folder, seed: _mnist(folder),
}
SOURCES: tuple[str, ...] = tuple(_LOADERS)
"""The names that :func:`load` takes."""


_NUCLEUS = (
    *("radius", "texture", "perimeter", "area", "smoothness", "compactness", "concavity", "concave points"),
    *("symmetry", "fractal dimension"),
)
"""What was measured of cell nuclei; each has a mean, a standard error and a worst value."""


def digits() -> Table:
    """Handwritten digits, 8 x 8 pixels each; their 16 grey levels become 0 to 1."""
    rows = _numbers("digits.csv.gz", delimiter=",")
    images = (rows[:, :-1].reshape(-1, 8, 8) / 16).astype(np.float32)
    return Table("digits", images, rows[:, -1].astype(np.int32), "multiclass", value_bytes=1)


def breast_cancer() -> Table:
    """Tumours in their own units; the file's first line counts rows and columns, and names the classes."""
    rows = _numbers("breast_cancer.csv", delimiter=",", skiprows=1)
    each = [[f"mean {name}", f"{name} error", f"worst {name}"] for name in _NUCLEUS]
    columns = tuple(name for kind in zip(*each, strict=True) for name in kind)
    labels = rows[:, -1].astype(np.int32)
    return Table("breast_cancer", rows[:, :-1], labels, "binary", columns, classes=("malignant", "benign"))


def diabetes() -> Table:
    """Patients in their own units, and the progression of the disease after a year."""
    columns = ("age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6")
    return Table(
        "diabetes", _numbers("diabetes_data_raw.csv.gz"), _numbers("diabetes_target.csv.gz"), "regression", columns
    )


def _numbers(name: str, **layout: Any) -> NDArray[np.float64]:
    package = find_spec("sklearn")  # this finds the package without importing it
    folders = [] if package is None else [Path(place) for place in package.submodule_search_locations or ()]
    for folder in folders:
        if (file := folder / "datasets" / "data" / name).is_file():
            return np.loadtxt(file, **layout)
    where = ", ".join(map(str, folders)) or "any folder of packages"
    raise DataUnavailable(f"scikit-learn's file {name} is not in {where}: install scikit-learn as constraints.txt says")
