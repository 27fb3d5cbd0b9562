"""Tables that people get: CSV, or Parquet where the file's name says so."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tdcd.records.files import SHARED, write_durably


def check_name(out: Path) -> None:
    """Refuse a name that says neither CSV nor Parquet, before any work is done for it."""
    if out.suffix.lower() not in (".csv", ".parquet"):
        raise ValueError(f"--out {out}: the name of a table must end in .csv or .parquet")


def write_table(path: Path, columns: Mapping[str, Sequence[Any]], mode: int = SHARED) -> None:
    """Write columns of equal length; a crash leaves what was there before, or all of it.

    Args:
        mode: who may read a new file; by default as of any file that a person asks for by its name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() == ".parquet":
        binary = io.BytesIO()
        pq.write_table(pa.table({name: pa.array(values) for name, values in columns.items()}), binary)
        write_durably(path, binary.getvalue(), mode)
        return
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    write_durably(path, text.getvalue().encode(), mode)
