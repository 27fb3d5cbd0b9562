"""The UCI Superconductivity table: 21,263 superconductors, 81 features, the critical temperature in K."""

import gzip
import hashlib
import io
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tdcd.data.download import reason
from tdcd.data.sources import DataUnavailable, unavailable
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


FOLDERS = ("superconductivity", "superconduct")
"""Where files are looked for in the data folder; in that itself, those whose names begin like these."""
ENDINGS = (".csv", ".csv.gz", ".arff", ".arff.gz", ".zip")
LARGEST = 1 << 28
"""Bytes of a file, unpacked, that are read at most; the table has a tenth of them."""


def superconductivity(folder: Path) -> Table:
    """The real table, from a file in ``folder`` or else from OpenML.

    A file may be UCI's or OpenML's as downloaded: ``.csv`` or ``.arff``, gzipped or not, or UCI's ``.zip``; what it is
    called does not matter in ``folder/superconductivity`` and ``folder/superconduct``. OpenML's copy is kept in
    ``folder/openml``. Each must have the right columns and rows and the published figures in ``FACTS``.

    Copies differ in the order of their rows, which a seed relies on: rows are put into one order, whatever the copy.
    The sha256 of the values is then compared with the file ``sha256`` next to the data. No digest of the table is
    published, so the first load that passes the other checks writes it: it shows that the data has changed since, not
    that it was right then.
    """
    places = [folder / name for name in FOLDERS]
    refused: list[str] = []
    table = None
    for file in _candidates(folder, places):
        try:
            where, table = str(file), _checked(str(file), *_read(file))
            break
        except DataUnavailable as error:
            refused.append(str(error))
    if table is None:
        if refused:
            raise DataUnavailable("; ".join(refused))
        where = "OpenML's 'superconduct'"
        table = _checked(where, *_from_openml(folder))
    table = _in_one_order(table)
    _compare_digest(where, table, next((place for place in places if place.is_dir()), places[0]) / "sha256")
    return Table("superconductivity", table[:, :-1], table[:, -1], "regression", COLUMNS)


def _candidates(folder: Path, places: Sequence[Path]) -> Iterator[Path]:
    """Files that may be the table, the UCI file's own name first."""
    for place in (*places, folder):
        if place.is_dir():
            files = (file for file in place.iterdir() if file.name.lower().endswith(ENDINGS) and file.is_file())
            named = [file for file in files if place != folder or file.name.lower().startswith("superconduct")]
            yield from sorted(named, key=lambda file: (file.name != "train.csv", file.name))


def _read(file: Path) -> tuple[list[str], NDArray[Any]]:
    """The names of the columns, and the values; what a file is shows in its first bytes, not in its name."""
    try:
        with file.open("rb") as raw:
            start = raw.read(4)
            raw.seek(0)
            if start.startswith(b"PK"):
                with zipfile.ZipFile(raw) as archive, archive.open(_member(archive)) as member:
                    return _parsed(member)
            if start.startswith(b"\x1f\x8b"):
                with gzip.open(raw) as unpacked:
                    return _parsed(unpacked)
            return _parsed(raw)
    except (ValueError, EOFError, OSError, KeyError, zlib.error, zipfile.BadZipFile, NotImplementedError) as error:
        raise DataUnavailable(f"{file} is not the UCI table: {error}") from error


def _member(archive: zipfile.ZipFile) -> str:
    """The table's name in UCI's archive."""
    names = [name for name in archive.namelist() if name.rsplit("/", 1)[-1] == "train.csv"]
    if len(names) != 1:
        raise ValueError(f"the archive has {len(names)} files called train.csv")
    return names[0]


def _parsed(source: IO[bytes] | gzip.GzipFile) -> tuple[list[str], NDArray[Any]]:
    """The columns of a CSV or an ARFF file."""
    content = source.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ValueError(f"it is larger than {LARGEST} bytes")
    lines = io.StringIO(content.decode("utf-8-sig"))
    line = lines.readline()
    if not line.lstrip().startswith(("%", "@")):
        names = [_bare(name) for name in line.split(",")]
    else:
        names = []
        while line and line.strip().lower() != "@data":
            if line.lower().startswith("@attribute"):
                names.append(_bare(line.split(None, 2)[1]))
            line = lines.readline()
    if missing := [name for name in (*COLUMNS, LABEL) if name not in names]:
        raise ValueError(f"it has no column '{missing[0]}'")
    return names, np.loadtxt(lines, delimiter=",", ndmin=2, comments="%")


def _bare(name: str) -> str:
    return name.strip().strip("\"'")


def _in_one_order(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rows in an order that does not depend on the copy: sorted, and then shuffled in a fixed way.

    Sorted rows would make shards of consecutive rows very different from each other.
    """
    ordered = table[np.lexsort(_rounded(table).T)]
    return ordered[np.random.default_rng(464).permutation(len(table))]


def _from_openml(folder: Path) -> tuple[list[str], NDArray[Any]]:
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
            looked=[*(folder / name for name in FOLDERS), home],
            tried={"https://www.openml.org, data set 'superconduct', version 1": reason(error)},
            by_hand=f"put the file from {PAGE}, as downloaded, into {folder / FOLDERS[0]}; "
            "only for trying things out, the source 'superconductors' is a synthetic table of the same shape",
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
        value = float(getattr(np, statistic)(table[:, expected.index(column)]))
        if not abs(value - published) <= tolerance:
            raise DataUnavailable(
                f"{where} is not the UCI table: the {statistic} of '{column}' is {value:.6g}, not {published:.6g}"
            )
    return table


def _rounded(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """Copies of the table may print the last digits differently; + 0 makes -0 a 0."""
    rounded: NDArray[np.float64] = table.round(6) + 0.0
    return rounded


def _compare_digest(where: str, table: NDArray[np.float64], record: Path) -> None:
    digest = hashlib.sha256(_rounded(table).astype("<f8").tobytes()).hexdigest()
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
