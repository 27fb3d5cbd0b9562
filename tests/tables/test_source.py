"""CSV files that are parsed piece by piece have the rows that Python's own reader finds, wherever pieces end."""

import csv
import io
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest

from tdcd.tables import source
from tdcd.tables.errors import TableError
from tdcd.tables.reader import read_chunks, read_rows
from tdcd.tables.rows import Columns
from tdcd.tables.source import open_table

pytestmark = pytest.mark.quick

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
    "a mark, then quotes": "\n".join(['\ufeff"id","label","x","kind"', *LINES]),
    "a line longer than a piece": "\n".join([HEADER, *LINES[:9], f"99,1,3,{'long' * 100}", *LINES[9:]]),
}


@pytest.mark.parametrize("size", [64, 100, 1 << 22])
@pytest.mark.parametrize("text", FILES.values(), ids=[*FILES])
def test_rows_do_not_depend_on_where_pieces_end(text, size, tmp_path, monkeypatch):
    monkeypatch.setattr(source, "PIECE_BYTES", size)
    path = tmp_path / "table.csv"
    path.write_bytes(text.encode())
    rows = read_rows(path, Columns(label="label", categorical=("kind",)))
    wanted = [row for row in csv.DictReader(io.StringIO(text.removeprefix("\ufeff"), newline="")) if row]
    assert rows.ids == [row["id"] for row in wanted]
    assert rows.labels.tolist() == [float(row["label"]) for row in wanted]
    assert rows.features["x"].tolist() == [float(row["x"]) for row in wanted]
    kinds = rows.features["kind"]
    assert [kinds.levels[code] for code in kinds.codes] == [row["kind"] for row in wanted]


@pytest.mark.parametrize(
    ("name", "in_pieces"), [("kind", True), ("a, b", True), ('5" pipe', True), ("two\nlines", False), ("a\rb", True)]
)
def test_names_in_quotes(name, in_pieces, tmp_path, monkeypatch):
    monkeypatch.setattr(source, "PIECE_BYTES", 64)
    path, quoted = tmp_path / "table.csv", '"' + name.replace('"', '""') + '"'
    path.write_bytes("\n".join([f'"id","label","x",{quoted}', *LINES]).encode())
    rows = read_rows(path, Columns(label="label", categorical=(name,)))
    assert rows.ids == [str(number) for number in range(40)]
    assert [*rows.features] == ["x", name]
    assert rows.features[name].levels == ("level0", "level1", "level2")
    with open_table(path, "id") as table:
        assert (len([*table.parsed(pcsv.ConvertOptions())]) > 2) == in_pieces


def test_an_amount_of_a_later_piece_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "PIECE_BYTES", 64)
    path = tmp_path / "table.csv"
    path.write_text("\n".join([HEADER, *LINES[:30], "30,1,1e39,level0", *LINES[31:]]))
    with pytest.raises(ValueError, match=r"line 32, column 'x'.*1e39"):
        read_rows(path, Columns(label="label", categorical=("kind",)))


@pytest.mark.parametrize("first", ["p", "long" * 100], ids=["rows are expected", "more rows than expected"])
def test_amounts_have_all_their_digits_whatever_comes_before(first, tmp_path, monkeypatch):
    monkeypatch.setattr(source, "PIECE_BYTES", 64)
    monkeypatch.setattr(source, "BEGINNING_BYTES", 500)
    path, amounts = tmp_path / "table.csv", [*range(30), "", *(number / 7 for number in range(300))]
    path.write_text("\n".join(["id,x", f"{first},-1", *(f"p{place},{one}" for place, one in enumerate(amounts))]))
    with open_table(path) as table:
        assert (table.expected_rows(1) < len(amounts)) == (first != "p")
    found = read_rows(path, Columns()).features["x"]
    assert found.flags.writeable
    np.testing.assert_array_equal(found, [-1, *(np.nan if one == "" else one for one in amounts)])


def test_no_more_rows_are_expected_than_there_can_be(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("id" + "\n" * 1000)
    with open_table(path) as table:
        assert table.expected_rows(10) == 100
    path.write_text("id")
    with open_table(path) as table:
        assert table.expected_rows(10) == 0


def test_rows_that_no_party_waits_for_leave_no_open_file(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "PIECE_BYTES", 64)
    path = tmp_path / "table.csv"
    path.write_text(FILES["plain"])
    threads, chunks = threading.active_count(), read_chunks(path, Columns(label="label", categorical=("kind",)))
    assert len(next(chunks)) < len(LINES)
    chunks.close()
    assert threading.active_count() == threads
    assert path not in {one.resolve() for one in Path("/proc/self/fd").iterdir()}


def test_a_row_with_too_many_cells_is_found_in_any_piece(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "PIECE_BYTES", 64)
    path = tmp_path / "table.csv"
    path.write_text("\n".join([HEADER, *LINES[:30], "30,1,2,a,b", *LINES[31:]]))
    with pytest.raises(ValueError, match="line 32"):
        read_rows(path, Columns(label="label", categorical=("kind",)))


def test_a_parquet_file_that_claims_many_rows_gets_no_room_for_them(tmp_path):
    table, path = pa.table({"id": ["p", "q"], "a": [1.5, 2.5], "label": [0, 1]}), tmp_path / "p.parquet"
    pq.write_table(table, path)
    content = path.read_bytes()
    size = int.from_bytes(content[-8:-4], "little")
    data, footer = content[: -8 - size], content[-8 - size : -8]
    # The number of rows, 2, as a whole number of Thrift: twice it, seven bits at a time; here 2 ** 62.
    footer = footer.replace(b"\x16\x04\x19", b"\x16" + b"\x80" * 9 + b"\x01\x19", 1)
    path.write_bytes(data + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    assert pq.read_metadata(path).num_rows == 2**62
    assert read_rows(path, Columns("id", "label")).features["a"].tolist() == [1.5, 2.5]


MIXED = "id,label,sure,seen,x"


def mixed(number, sure=None):
    return (
        f"{number},{number % 2},{sure or ('true', 'False', '')[number % 3]},2024-01-{1 + number % 28:02},{number / 8}"
    )


def first_attempt(path):
    with open_table(path) as table:
        return table.attempts(("sure", "seen", "x"))[0]


@pytest.mark.parametrize("size", [64, 1 << 22])
def test_truths_and_dates_are_seen_at_the_beginning_or_found_later(size, tmp_path, monkeypatch):
    """What is told in advance is what reading all of the file as texts gives."""
    monkeypatch.setattr(source, "PIECE_BYTES", size)
    path, columns = tmp_path / "table.csv", Columns(label="label")
    path.write_text("\n".join([MIXED, *map(mixed, range(60))]))
    assert first_attempt(path) == {"sure", "seen"}
    told = read_rows(path, columns)
    assert told.kinds == {"sure": "truth", "seen": "date", "x": "number"}
    monkeypatch.setattr(source, "FIRST_ROWS", 0)
    assert first_attempt(path) == frozenset()
    found = read_rows(path, columns)
    assert (found.ids, found.kinds) == (told.ids, told.kinds)
    for name, column in told.features.items():
        np.testing.assert_array_equal(column, found.features[name])


@pytest.mark.parametrize("sure", ["5", "perhaps"])
def test_a_cell_of_another_kind_is_found_wherever_it_is(sure, tmp_path, monkeypatch):
    """Nor does a reader of some rows at a time skip those that it is in."""
    monkeypatch.setattr(source, "PIECE_BYTES", 200)
    path = tmp_path / "table.csv"
    path.write_text("\n".join([MIXED, *map(mixed, range(30)), mixed(30, sure), *map(mixed, range(31, 60))]))
    with pytest.raises(TableError, match=f"line 32, column 'sure': '{sure}'"):
        read_rows(path, Columns(label="label"))
    path.write_text("\n".join([MIXED, *map(mixed, range(30)), mixed(30, "perhaps"), *map(mixed, range(31, 60))]))
    with pytest.raises(pa.ArrowInvalid):
        list(read_chunks(path, Columns("id")))


@pytest.mark.parametrize("other", ["2024-01-01", "1.5"])
def test_nothing_is_reported_of_a_column_without_a_known_cell(other, tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(f"id,label,x,none\n1,0,{other},\n2,1,{other},NA\n")
    assert [*read_rows(path, Columns(label="label")).kinds] == ["x"]
