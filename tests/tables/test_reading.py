import csv

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.examples import num_examples
from tdcd.tables.dialect import BLANKS
from tdcd.tables.errors import TableError
from tdcd.tables.reader import read_rows
from tdcd.tables.rows import Columns, id_order
from tdcd.tables.source import Frame

pytestmark = pytest.mark.quick

LABELLED = Columns(label="y", categorical=("city",))
HEADER = b"id,y,age,city\n"


def written(tmp_path, content, name="rows.csv"):
    path = tmp_path / name
    path.write_bytes(content)
    return path


def problems(path, columns=LABELLED):
    with pytest.raises(TableError) as caught:
        read_rows(path, columns)
    return [problem.replace(f"{path}", "FILE") for problem in caught.value.problems]


def test_ids_labels_amounts_and_names_are_read(tmp_path):
    content = HEADER + "007,1,41,Rome\n8,0,,Zürich\nß,1,-1.5e2,Rome\nNA,0,NaN,NA\n".encode()
    rows = read_rows(written(tmp_path, content), LABELLED)
    assert rows.ids == ["007", "8", "ß", "NA"]
    assert rows.labels.tolist() == [1, 0, 1, 0]
    np.testing.assert_array_equal(rows.features["age"], np.array([41, np.nan, -150, np.nan], np.float32))
    assert rows.features["city"].codes.tolist() == [0, 1, 0, -1]
    assert rows.features["city"].levels == ("Rome", "Zürich")
    assert list(rows.features) == ["age", "city"]


@pytest.mark.parametrize("blank", BLANKS)
def test_blanks_are_blank_in_every_kind_of_column(tmp_path, blank):
    rows = read_rows(written(tmp_path, HEADER + f"a,1,{blank},{blank}\n".encode()), LABELLED)
    assert np.isnan(rows.features["age"]).all()
    assert rows.features["city"].codes.tolist() == [-1]


def test_a_parquet_file_reads_like_the_csv_file(tmp_path):
    table = pa.table(
        {
            "id": pa.array([7, 12, 3]),
            "y": ["yes", "no", "yes"],
            "age": pa.array([1.5, None, 2]),
            "paid": [True, None, False],
            "city": pa.array(["Rome", None, "Oslo"]).dictionary_encode(),
        }
    )
    pq.write_table(table, tmp_path / "rows.parquet")
    content = b"id,y,age,paid,city\n7,yes,1.5,1,Rome\n12,no,,,\n3,yes,2,0,Oslo\n"
    ours = read_rows(tmp_path / "rows.parquet", LABELLED)
    theirs = read_rows(written(tmp_path, content), LABELLED)
    assert ours.ids == theirs.ids == ["7", "12", "3"]
    assert ours.labels == theirs.labels == ["yes", "no", "yes"]
    for name in ("age", "paid"):
        np.testing.assert_array_equal(ours.features[name], theirs.features[name])
    assert ours.features["city"].codes.tolist() == theirs.features["city"].codes.tolist()
    assert ours.features["city"].levels == theirs.features["city"].levels


def test_features_are_those_named_in_that_order_and_never_another_silos_label(tmp_path):
    path = written(tmp_path, b"age,id,y,rent\n1,a,0,2\n")
    assert list(read_rows(path, Columns(features=("rent", "age"))).features) == ["rent", "age"]
    assert list(read_rows(path, Columns(ignored=("y",))).features) == ["age", "rent"]
    assert list(read_rows(path, Columns(label="y", features=())).features) == []


def test_a_table_larger_than_a_block_is_whole(tmp_path):
    lines = "".join(f'{n},{n % 2},{n / 8},"a\n{n % 3}"\n' for n in range(120_000))
    rows = read_rows(written(tmp_path, HEADER + lines.encode()), LABELLED)
    numbers = np.arange(120_000)
    assert rows.ids == [str(n) for n in numbers]
    np.testing.assert_array_equal(rows.features["age"], (numbers / 8).astype(np.float32))
    assert np.array(rows.features["city"].levels)[rows.features["city"].codes].tolist() == [
        f"a\n{n % 3}" for n in numbers
    ]


def test_a_frame_that_changes_later_changes_no_rows():
    amounts = np.array([0.1, 0.2, 0.3])
    rows = read_rows(Frame(pa.table({"id": ["a", "b", "c"], "x": amounts}), "frame"), Columns())
    amounts[:] = 0
    assert rows.features["x"].tolist() == [0.1, 0.2, 0.3]


def test_rows_are_taken_in_the_order_asked_for(tmp_path):
    rows = read_rows(written(tmp_path, HEADER + b"a,no,1,Rome\nb,yes,2,Oslo\nc,no,3,\n"), LABELLED)
    taken = rows.take(np.array([2, 0]))
    assert (taken.ids, taken.labels) == (["c", "a"], ["no", "no"])
    assert taken.features["age"].tolist() == [3, 1]
    assert taken.features["city"].codes.tolist() == [-1, 0]


def test_all_that_is_wrong_with_a_file_comes_at_once(tmp_path):
    content = HEADER + (
        b"a,1,41,Rome\n"
        b'"multi\nline",1,forty,Rome\n'
        b"a,0,inf,Oslo\n"
        b",0,1e39,\xff\n"
        b"d,,5\n"
        b"e,,5,Rome,more\n"
        b"f,NA,-Infinity,Rome\n"
        b"g,nan,1,Rome\n"
    )
    assert problems(written(tmp_path, content)) == [
        "FILE, line 3, column 'age': 'forty' is not a number: correct it, or list the column under categorical",
        "FILE, line 5, column 'id': the id 'a' is on line 2 already: keep one of the two rows",
        "FILE, line 5, column 'age': 'inf' is not finite: leave the cell empty if the value is not known",
        "FILE, line 6, column 'id': the id is blank: every row needs one",
        "FILE, line 6, column 'age': '1e39' is too large: amounts go up to 3.4e38, so give the column in another unit",
        "FILE, line 6, column 'city': is not UTF-8: save the file in that encoding, or set data.encoding = \"latin-1\" "
        "if all tables are",
        "FILE, line 7: has 3 fields, but the header has 4: quote fields that hold commas, and close every quote",
        "FILE, line 8: has 5 fields, but the header has 4: quote fields that hold commas, and close every quote",
        "FILE, line 9, column 'y': the label is blank: fill it in, or leave the row out",
        "FILE, line 9, column 'age': '-Infinity' is not finite: leave the cell empty if the value is not known",
        "FILE, line 10, column 'y': the label is blank: fill it in, or leave the row out",
    ]


@pytest.mark.parametrize(
    ("row", "what"),
    [
        (b"b,1,forty,Rome\n", "line 3, column 'age': 'forty' is not a number"),
        (b"b,1, ,Rome\n", "line 3, column 'age': ' ' is not a number"),
        (b"b,1,1_000,Rome\n", "line 3, column 'age': '1_000' is not a number"),
        (b"b,1,0x10,Rome\n", "line 3, column 'age': '0x10' is not a number"),
        (b"b,1,inf,Rome\n", "line 3, column 'age': 'inf' is not finite"),
        (b"b,inf,1,Rome\n", "line 3, column 'y': the label 'inf' is not finite"),
        (b"b,1,1e39,Rome\n", "line 3, column 'age': '1e39' is too large"),
        (b"b,,1,Rome\n", "line 3, column 'y': the label is blank"),
        (b"b,null,1,Rome\n", "line 3, column 'y': the label is blank"),
        (b" ,1,1,Rome\n", "line 3, column 'id': the id is blank"),
        (b"a,1,1,Rome\n", "line 3, column 'id': the id 'a' is on line 2 already"),
        (b"b,1,1,R\xe9my\n", "line 3, column 'city': is not UTF-8"),
        (b"b,1,1\n", "line 3: has 3 fields, but the header has 4"),
        (b'b,1,1,"Rome\nc,1,2,Oslo\n', "line 3: a quote is never closed"),
        (b'b,1,1,"Ro\nme"\nc,1,2,"Oslo\n', "line 5: a quote is never closed"),
    ],
)
def test_each_defect_alone_is_found(tmp_path, row, what):
    (problem,) = problems(written(tmp_path, HEADER + b"a,1,41,Rome\n" + row))
    assert problem.startswith(f"FILE, {what}")


def test_a_quote_inside_a_field_is_a_character(tmp_path):
    rows = read_rows(written(tmp_path, HEADER + b'a,1,41,5" pipe\n'), LABELLED)
    assert rows.features["city"].levels == ('5" pipe',)


def test_blanks_are_refused_where_they_are_not_allowed(tmp_path):
    path = written(tmp_path, HEADER + b"a,1,,Rome\nb,1,1,\n")
    advice = "is blank: fill it in, leave the row out, or set data.missing = 'mean'"
    columns = Columns(label="y", categorical=("city",), blanks=False)
    assert problems(path, columns) == [
        f"FILE, line 2, column 'age': {advice}",
        f"FILE, line 3, column 'city': {advice}",
    ]


def test_one_bad_column_leaves_room_for_the_others_and_all_problems_are_counted(tmp_path):
    lines = b"".join(b"%d,1,%s,Rome\n" % (n, b"1" if n == 30 else b"old") for n in range(60))
    with pytest.raises(TableError, match="the data has 61 problems; the first 7 are:") as caught:
        read_rows(written(tmp_path, HEADER + lines + b"x,,2,Rome\ny,1,2\n"), LABELLED)
    *told, label, ragged = [problem.partition(", ")[2] for problem in caught.value.problems]
    assert told[0] == "line 2, column 'age': 'old' is not a number: correct it, or list the column under categorical"
    assert told[4] == told[0].replace("line 2", "line 6") + " (and 54 more in this column)"
    assert (len(told), caught.value.total) == (5, 61)
    assert label.startswith("line 62, column 'y': the label is blank")
    assert ragged.startswith("line 63: has 3 fields")


def test_at_most_twenty_problems_are_shown(tmp_path):
    names = [f"x{n}" for n in range(8)]
    lines = "".join(f"{n}," + ",".join(["old" if n else "1"] * 8) + "\n" for n in range(9))
    with pytest.raises(TableError, match="the data has 64 problems; the first 20 are:"):
        read_rows(written(tmp_path, f"id,{','.join(names)}\n{lines}".encode()), Columns())


def test_a_column_of_nothing_but_text_is_one_problem(tmp_path):
    path = written(tmp_path, HEADER + b"".join(b"%d,1,1,Rome\n" % n for n in range(60)))
    assert problems(path, Columns(label="y")) == [
        "FILE, line 2, column 'city': 'Rome' is not a number: correct it, or list the column under categorical "
        "(none of its 60 values is a number)"
    ]


@pytest.mark.parametrize(
    ("content", "columns", "what"),
    [
        (b"", Columns(), "is empty: it needs a header line"),
        (b"id,age\n", Columns(), "has a header but no rows"),
        (b"\xff\xfei\x00d\x00", Columns(), "FILE, line 1: is not UTF-8"),
        (b"idx,age\n1,2\n", Columns(), "has no column 'id'; did you mean 'idx'?"),
        (b"key,age\n1,2\n", Columns(), "has no column 'id'; there are 'key', 'age'"),
        (
            b"id:age\n1:2\n",
            Columns(),
            "has no column 'id'; its only column is 'id:age': if that should be several, set ",
        ),
        (b"id,age\n1,2\n", Columns(features=("agee",)), "has no column 'agee'; did you mean 'age'?"),
        (b"id,age\n1,2\n", Columns(categorical=("aeg",)), "has no column 'aeg'; did you mean 'age'?"),
        (b"id,age,age\n1,2,3\n", Columns(), "column 'age' is in the header twice: rename one"),
        (
            b"id,age\n1,2\n",
            Columns(label="age", features=("age",)),
            "column 'age' can only be one of id, label, weight and feature",
        ),
        (
            b"id,a,b\n1,2,3\n",
            Columns(features=("a",), categorical=("b",)),
            "column 'b' is categorical but not among the",
        ),
        (b"id\n1\n", Columns(), "has no features, only the id and labels"),
    ],
)
def test_a_file_with_other_columns_is_refused(tmp_path, content, columns, what):
    (problem,) = problems(written(tmp_path, content), columns)
    assert what in problem


def test_files_that_are_no_tables_are_refused(tmp_path):
    assert problems(tmp_path / "absent.csv") == ["FILE: there is no such file"]
    assert problems(tmp_path / "absent.parquet") == ["FILE: there is no such file"]
    assert problems(tmp_path / "rows.xlsx") == [
        "FILE: the name of a table must end in .csv, .csv.gz, .tsv, .tsv.gz or .parquet"
    ]
    (tmp_path / "folder.csv").mkdir()
    assert problems(tmp_path / "folder.csv") == ["FILE: cannot be read: Is a directory"]
    assert "is damaged" in problems(written(tmp_path, b"id,age\n1,2\n", "rows.parquet"))[0]


def test_parquet_problems_name_the_row(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(
        pa.table({"id": [1, 2, 1], "y": [1.0, None, 0.0], "age": ["1", "x", ""], "city": ["a", "b", None]}), path
    )
    assert problems(path) == [
        "FILE, row 2, column 'y': the label is blank: fill it in, or leave the row out",
        "FILE, row 2, column 'age': 'x' is not a number: correct it, or list the column under categorical",
        "FILE, row 3, column 'id': the id '1' is on row 1 already: keep one of the two rows",
    ]
    pq.write_table(pa.table({"id": [1.0, 2.0], "age": [1, 2]}), path)
    assert problems(path, Columns()) == ["FILE, column 'id': ids must be whole numbers or text, not double"]
    pq.write_table(pa.table({"id": pa.array([], pa.int64()), "age": pa.array([], pa.float64())}), path)
    assert problems(path, Columns()) == ["FILE: has a header but no rows"]


cells = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), min_size=1, max_size=8)


@num_examples(60)
@given(
    st.lists(
        st.tuples(
            cells.filter(str.strip),
            st.none() | st.floats(allow_nan=False, allow_infinity=False, width=32),
            st.none() | cells,
        ),
        min_size=1,
        max_size=20,
        unique_by=lambda row: row[0],
    )
)
def test_what_is_written_is_what_is_read(tmp_path_factory, table):
    path = tmp_path_factory.mktemp("random") / "rows.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "amount", "name"])
        writer.writerows([one, "" if amount is None else repr(amount), name or ""] for one, amount, name in table)
    rows = read_rows(path, Columns(categorical=("name",)))
    assert rows.ids == [row[0] for row in table]
    amounts = np.array([np.nan if row[1] is None else row[1] for row in table], np.float32)
    np.testing.assert_array_equal(rows.features["amount"], amounts)
    names = [None if code < 0 else rows.features["name"].levels[code] for code in rows.features["name"].codes]
    assert names == [None if row[2] in (None, *BLANKS) else row[2] for row in table]


@given(st.lists(st.integers(-(10**20), 10**20), unique=True))
def test_whole_ids_are_ordered_by_size_and_others_by_characters(numbers):
    ids = [str(number) for number in numbers]
    assert [ids[place] for place in id_order(ids)] == [str(number) for number in sorted(numbers)]
    mixed = [*ids, "x"]
    assert [mixed[place] for place in id_order(mixed)] == sorted(mixed)
