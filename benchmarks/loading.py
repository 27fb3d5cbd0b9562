"""Loading: 100,000 rows of 50 amounts from CSV, Parquet and a mapped file, against what reading their bytes takes.

Also 40 columns of all kinds from CSV: amounts, counts, names, true and false, dates.

Beside the limit stands what the file format itself costs: pyarrow alone, without checks and without our columns.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from benchmarks.figures import report
from benchmarks.limits import limit
from benchmarks.timing import alternate
from tdcd.tables.reader import read_rows
from tdcd.tables.rows import Columns

ROWS, COLUMNS = 100_000, 50
NAMES = tuple(f"name{index}" for index in range(5))


def write(folder: Path) -> None:
    """The same table three times; the mapped one without ids and labels."""
    numbers = np.random.default_rng(0).standard_normal((ROWS, COLUMNS), np.float32)
    columns = {f"x{index}": numbers[:, index] for index in range(COLUMNS)}
    table = pa.table({"id": np.arange(ROWS), "label": numbers[:, 0] > 0, **columns})
    table = table.set_column(1, "label", table["label"].cast(pa.int8()))
    pyarrow.csv.write_csv(table, folder / "table.csv")
    pyarrow.parquet.write_table(table, folder / "table.parquet")
    np.save(folder / "table.npy", numbers)
    write_mixed(folder / "mixed.csv")


def write_mixed(path: Path) -> None:
    """20 amounts, 10 counts, 5 names, 3 times true or false, 2 dates."""
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {"id": np.arange(ROWS), "label": rng.integers(0, 2, ROWS)}
    columns |= {f"amount{index}": rng.standard_normal(ROWS, np.float32) for index in range(20)}
    columns |= {f"count{index}": rng.integers(0, 1000, ROWS) for index in range(10)}
    columns |= {name: np.array(["red", "green", "blue", "yellow"])[rng.integers(0, 4, ROWS)] for name in NAMES}
    columns |= {f"truth{index}": np.array(["true", "false"])[rng.integers(0, 2, ROWS)] for index in range(3)}
    columns |= {
        f"date{index}": (np.datetime64("2020-01-01") + rng.integers(0, 999, ROWS)).astype(str) for index in "01"
    }
    pyarrow.csv.write_csv(pa.table(columns), path, pyarrow.csv.WriteOptions(quoting_style="none"))


def mapped(path: Path) -> float:
    """Go through a mapped file once."""
    return float(np.load(path, mmap_mode="r").sum(dtype=np.float64))


def main() -> dict[str, Any]:
    """Seconds to have the columns in memory."""
    readers: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any] | None]] = {
        "table.csv": (lambda path: read_rows(path, Columns(label="label")), pyarrow.csv.read_csv),
        "mixed.csv": (lambda path: read_rows(path, Columns(label="label", categorical=NAMES)), pyarrow.csv.read_csv),
        "table.parquet": (lambda path: read_rows(path, Columns(label="label")), pyarrow.parquet.read_table),
        "table.npy": (mapped, None),
    }
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        for file, (ours, bare) in readers.items():
            path = folder / file
            actions = [lambda path=path, read=read: read(path) for read in (ours, bare) if read is not None]
            taken, *format_alone = alternate(actions, repetitions=5)
            # The file is read, and the columns are written.
            size = path.stat().st_size
            columns = 40 if file == "mixed.csv" else COLUMNS
            least = limit(0, size + (4 * ROWS * columns if bare else 0), data=size)
            figures[file] = report(f"loading {file}, {ROWS:,} x {columns}", taken, least)
            if format_alone:
                figures[file]["pyarrow_ms"] = format_alone[0] * 1e3
                print(f"  pyarrow alone: {format_alone[0] * 1e3:.3g} ms ({taken / format_alone[0]:.1f} times that)")
    return figures
