"""The UCI Superconductivity table: 21,263 superconductors, 81 features, the critical temperature in K."""

import hashlib
import warnings
from collections.abc import Sequence
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.data.download import reason
from tdcd.data.folder import DataUnavailable, unavailable
from tdcd.data.superconductors import COLUMNS, NUM_ROWS
from tdcd.data.table import Table

LABEL = "critical_temp"
PAGE = "https://archive.ics.uci.edu/dataset/464/superconductivty+data"
FACTS = (
    (LABEL, "mean", 34.42, 0.01),
    (LABEL, "std", 34.25, 0.01),
    (LABEL, "min", 0.00021, 1e-6),
    (LABEL, "max", 185.0, 1e-6),
    ("number_of_elements", "mean", 4.115, 0.001),
    ("number_of_elements", "min", 1.0, 0.0),
    ("number_of_elements", "max", 9.0, 0.0),
)
"""Published figures of the real table: a column, its statistic, the value, and how far the rounding may be off."""


def superconductivity(folder: Path) -> Table:
    """The real table, from ``folder/superconductivity/train.csv`` (the UCI file) or else from OpenML.

    OpenML's copy is kept in ``folder/openml``. Either must have the right columns and rows and the published
    figures in ``FACTS``. The values' sha256 is also compared with ``folder/superconductivity/sha256``. No digest of
    the table is published, so that file is written by the first load that passes the other checks: it shows that
    the data has changed since, not that it was right then. It covers the order of the rows, which a seed relies on.
    """
    file = folder / "superconductivity" / "train.csv"
    if file.is_file():
        where, names, values = str(file), *_from_csv(file)
    else:
        where, names, values = "OpenML's 'superconduct'", *_from_openml(folder, file)
    table = _checked(where, names, values)
    _compare_digest(where, table, file.with_name("sha256"))
    features, labels = table[:, :-1], table[:, -1]
    return Table("superconductivity", features, labels, "regression", COLUMNS)


def _from_csv(file: Path) -> tuple[list[str], NDArray[Any]]:
    try:
        with file.open(encoding="utf-8-sig") as lines:
            names = [name.strip().strip('"') for name in lines.readline().split(",")]
            return names, np.loadtxt(lines, delimiter=",", ndmin=2)
    except ValueError as error:
        raise DataUnavailable(f"{file} is not the UCI table: {error}") from error


def _from_openml(folder: Path, file: Path) -> tuple[list[str], NDArray[Any]]:
    from sklearn.datasets import fetch_openml  # noqa: PLC0415 - takes a second, which other sources need not wait

    home = folder / "openml"
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="A network error occurred")
            # Without a target column all 82 come back together, whatever OpenML has registered as the target.
            bunch = fetch_openml(
                "superconduct",
                version=1,
                data_home=home,
                target_column=None,
                as_frame=False,
                parser="liac-arff",
                n_retries=1,
            )
    except (OSError, ValueError, HTTPException) as error:
        raise unavailable(
            "the Superconductivity table",
            looked=[file, home],
            tried={"https://www.openml.org, data set 'superconduct', version 1": reason(error)},
            by_hand=f"unpack train.csv from {PAGE} into {file.parent}; "
            "or use the source 'superconductors', a synthetic table of the same shape",
        ) from error
    return list(bunch.feature_names), bunch.data


def _checked(where: str, names: Sequence[str], values: NDArray[Any]) -> NDArray[np.float64]:
    """``[21263, 82]``: the features in their order and then the label, if they are those of the real table."""
    expected = (*COLUMNS, LABEL)
    if missing := [name for name in expected if name not in names]:
        raise DataUnavailable(f"{where} is not the UCI table: it has no column '{missing[0]}'")
    if values.shape != (NUM_ROWS, len(expected)):
        shape = "{} rows of {} values".format(*values.shape)
        raise DataUnavailable(f"{where} is not the UCI table: it has {shape}, not {NUM_ROWS} of {len(expected)}")
    table = np.asarray(values, np.float64)[:, [names.index(name) for name in expected]]
    for column, statistic, published, tolerance in FACTS:
        found = float(getattr(np, statistic)(table[:, expected.index(column)]))
        if not abs(found - published) <= tolerance:
            raise DataUnavailable(
                f"{where} is not the UCI table: the {statistic} of '{column}' is {found:.6g}, not {published:.6g}"
            )
    return table


def _compare_digest(where: str, table: NDArray[np.float64], record: Path) -> None:
    # Rounded, because copies of the table may print the last digits differently; + 0 makes -0 a 0.
    digest = hashlib.sha256((table.round(6) + 0.0).astype("<f8").tobytes()).hexdigest()
    if record.is_file():
        known = record.read_text().strip()
        if known != digest:
            raise DataUnavailable(
                f"{where} has changed: the sha256 of its values is {digest}, but {record} has {known}; "
                f"restore the data, or delete {record.name} if the new values are right"
            )
        return
    # A folder that cannot be written keeps no record; the data is as good without.
    with suppress(OSError):
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(f"{digest}\n")
