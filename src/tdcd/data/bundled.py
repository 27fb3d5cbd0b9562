"""The tables that ship with scikit-learn, read from its files: importing scikit-learn takes longer than a short run."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.data.download import DataUnavailable
from tdcd.data.table import Table

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
