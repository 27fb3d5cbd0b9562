"""Rows that are read some at a time are those that are read at once."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tdcd.tables import source
from tdcd.tables.reader import read_chunks, read_rows
from tdcd.tables.rows import Columns
from tdcd.tables.source import BLOCK_BYTES

pytestmark = pytest.mark.quick


def test_a_cell_that_is_no_number_in_a_later_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "PIECE_BYTES", BLOCK_BYTES)
    path, half = tmp_path / "bank.csv", BLOCK_BYTES // 10
    numbers = [f"p{place},{place}.25,{place % 2}," for place in range(half)]
    dates = [f"q{place},,1,2024-01-{place % 28 + 1:02}" for place in range(half)]
    path.write_text("\n".join(["id,income,sick,since", *numbers, *dates]) + "\n")
    columns = Columns("id", "sick", ignored=("sick",))
    whole, chunks = read_rows(path, columns), list(read_chunks(path, columns))
    assert len(chunks) > 2
    assert [one for chunk in chunks for one in chunk.ids] == whole.ids
    for name in ("income", "since"):
        together = np.concatenate([chunk.features[name] for chunk in chunks])
        np.testing.assert_array_equal(together, whole.features[name])


def test_wide_parquet_files_are_read_few_rows_at_a_time(tmp_path):
    path, table = tmp_path / "bank.parquet", np.arange(3000 * 400, dtype=np.float32).reshape(3000, 400)
    pq.write_table(pa.table({"id": np.arange(3000)} | {f"x{place}": table[:, place] for place in range(400)}), path)
    chunks = list(read_chunks(path, Columns("id")))
    assert len(chunks) > 2
    np.testing.assert_array_equal(np.concatenate([chunk.features["x7"] for chunk in chunks]), table[:, 7])
