"""Loading: 100,000 rows of 50 amounts from CSV, Parquet and a mapped file, against what reading their bytes takes.

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
from tdcd.tables.loader import read_rows
from tdcd.tables.rows import Columns

ROWS, COLUMNS = 100_000, 50


def write(folder: Path) -> None:
    """The same table three times; the mapped one without ids and labels."""
    numbers = np.random.default_rng(0).standard_normal((ROWS, COLUMNS), np.float32)
    columns = {f"x{index}": numbers[:, index] for index in range(COLUMNS)}
    table = pa.table({"id": np.arange(ROWS), "label": numbers[:, 0] > 0, **columns})
    table = table.set_column(1, "label", table["label"].cast(pa.int8()))
    pyarrow.csv.write_csv(table, folder / "table.csv")
    pyarrow.parquet.write_table(table, folder / "table.parquet")
    np.save(folder / "table.npy", numbers)


def mapped(path: Path) -> float:
    """Go through a mapped file once."""
    return float(np.load(path, mmap_mode="r").sum(dtype=np.float64))


def main() -> dict[str, Any]:
    """Seconds to have the columns in memory."""
    readers: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any] | None]] = {
        "csv": (lambda path: read_rows(path, Columns(label="label")), pyarrow.csv.read_csv),
        "parquet": (lambda path: read_rows(path, Columns(label="label")), pyarrow.parquet.read_table),
        "npy": (mapped, None),
    }
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        for ending, (ours, bare) in readers.items():
            path = folder / f"table.{ending}"
            actions = [lambda path=path, read=read: read(path) for read in (ours, bare) if read is not None]
            taken, *format_alone = alternate(actions, repetitions=3)
            # The file is read, and the columns are written.
            size = path.stat().st_size
            least = limit(0, size + (4 * ROWS * COLUMNS if ending != "npy" else 0), data=size)
            figures[ending] = report(f"loading .{ending}, {ROWS:,} x {COLUMNS}", taken, least)
            if format_alone:
                figures[ending]["pyarrow_ms"] = format_alone[0] * 1e3
                print(f"  pyarrow alone: {format_alone[0] * 1e3:.3g} ms ({taken / format_alone[0]:.1f} times that)")
    return figures
