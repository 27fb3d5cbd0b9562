"""CSV files that are parsed piece by piece have the rows that Python's own reader finds, wherever pieces end."""

import csv
import io

import pytest

from tdcd.tables import pieces
from tdcd.tables.loader import read_rows
from tdcd.tables.rows import Columns

LINES = [f"{number},{number % 2},{number / 8},level{number % 3}" for number in range(40)]
HEADER = "id,label,x,kind"
QUOTED = '40,1,2.5,"a name, with a comma\nand two lines"'
FILES = {
    "plain": "\n".join([HEADER, *LINES]) + "\n",
    "no end of the last line": "\n".join([HEADER, *LINES]),
    "two characters end a line": "\r\n".join([HEADER, *LINES]) + "\r\n",
    "empty lines": "\n\n".join([HEADER, *LINES]) + "\n\n\n\n" + "\n" * 200,
    "a mark at the start": "\ufeff" + "\n".join([HEADER, *LINES]),
    "quotes in the middle": "\n".join([HEADER, *LINES[:20], QUOTED, *LINES[20:]]),
    "quotes in the first row": "\n".join([HEADER, QUOTED, *LINES]),
    "quotes in the header": "\n".join(['"id",label,x,kind', *LINES]),
    "a line longer than a piece": "\n".join([HEADER, *LINES[:9], f"99,1,3,{'long' * 100}", *LINES[9:]]),
}


@pytest.mark.parametrize("size", [64, 100, 1 << 22])
@pytest.mark.parametrize("text", FILES.values(), ids=[*FILES])
def test_rows_do_not_depend_on_where_pieces_end(text, size, tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_BYTES", size)
    path = tmp_path / "table.csv"
    path.write_bytes(text.encode())
    rows = read_rows(path, Columns(label="label", categorical=("kind",)))
    wanted = [row for row in csv.DictReader(io.StringIO(text.removeprefix("\ufeff"), newline="")) if row]
    assert rows.ids == [row["id"] for row in wanted]
    assert rows.labels.tolist() == [float(row["label"]) for row in wanted]
    assert rows.features["x"].tolist() == [float(row["x"]) for row in wanted]
    kinds = rows.features["kind"]
    assert [kinds.levels[code] for code in kinds.codes] == [row["kind"] for row in wanted]


def test_a_row_with_too_many_cells_is_found_in_any_piece(tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_BYTES", 64)
    path = tmp_path / "table.csv"
    path.write_text("\n".join([HEADER, *LINES[:30], "30,1,2,a,b", *LINES[31:]]))
    with pytest.raises(ValueError, match="line 32"):
        read_rows(path, Columns(label="label", categorical=("kind",)))
