"""Tables as people have them: other separators, encodings, decimal marks and blanks; true and false; dates."""

import datetime
import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdcd.config import ConfigError, check_config
from tdcd.prediction.model import Model
from tdcd.tables.assembly import assemble
from tdcd.tables.cells import as_amounts, kind_of
from tdcd.tables.dialect import BLANKS, DEFAULT, Dialect
from tdcd.tables.errors import TableError
from tdcd.tables.reader import read_rows
from tdcd.tables.rows import Columns
from tdcd.tables.split import split_table
from tdcd.training.run import run

pytestmark = pytest.mark.quick

TABLE = "id,y,age,city\n1,0,4.5,Rome\n2,1,,Köln\n"


def written(tmp_path, content, name="rows.csv"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def problems(path, columns):
    with pytest.raises(TableError) as caught:
        read_rows(path, columns)
    return [problem.replace(f"{path}", "FILE") for problem in caught.value.problems]


def days(*dates):
    return [(datetime.date.fromisoformat(date) - datetime.date(1970, 1, 1)).days for date in dates]


FORMS = {
    "commas": ("rows.csv", TABLE.encode(), Dialect()),
    "compressed": ("rows.csv.gz", gzip.compress(TABLE.encode()), Dialect()),
    "compressed Latin-1": ("ROWS.CSV.GZ", gzip.compress(TABLE.encode("latin-1")), Dialect(encoding="latin-1")),
    "semicolons": ("rows.csv", TABLE.replace(",", ";").encode(), Dialect()),
    "tabs": ("rows.tsv", TABLE.replace(",", "\t").encode(), Dialect()),
    "compressed tabs": ("rows.tsv.gz", gzip.compress(TABLE.replace(",", "\t").encode()), Dialect()),
    "bars": ("rows.csv", TABLE.replace(",", "|").encode(), Dialect()),
    "told colons": ("rows.csv", TABLE.replace(",", ":").encode(), Dialect(delimiter=":")),
    "Latin-1": ("rows.csv", TABLE.encode("latin-1"), Dialect(encoding="latin-1")),
    "Windows": ("rows.csv", TABLE.encode("cp1252"), Dialect(encoding="cp1252")),
    "a mark before UTF-8": ("rows.csv", TABLE.encode("utf-8-sig"), Dialect()),
    "decimal commas": ("rows.csv", TABLE.replace(",", ";").replace(".", ",").encode(), Dialect(decimal=",")),
    "quoted decimal commas": ("rows.csv", TABLE.replace("4.5", '"4,5"').encode(), Dialect(decimal=",")),
    "a marked blank": ("rows.csv", TABLE.replace(",,", ",?,").encode(), Dialect(blank=(*BLANKS, "?"))),
    "a number for a blank": ("rows.csv", TABLE.replace(",,", ",-999.0,").encode(), Dialect(blank=(*BLANKS, "-999"))),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_same_table_in_many_forms(tmp_path, form):
    name, content, dialect = FORMS[form]
    rows = read_rows(written(tmp_path, content, name), Columns(label="y", categorical=("city",), dialect=dialect))
    assert (rows.ids, rows.labels.tolist()) == (["1", "2"], [0, 1])
    np.testing.assert_array_equal(rows.features["age"], [4.5, np.nan])
    assert rows.features["city"].levels == ("Rome", "Köln")


def test_the_separator_is_the_one_that_gives_a_column_of_ids(tmp_path):
    path = written(tmp_path, 'id;"a,b,c,d";"x;y"\n1;2;3\n')
    assert list(read_rows(path, Columns()).features) == ["a,b,c,d", "x;y"]


def test_a_damaged_archive_is_refused(tmp_path):
    whole = gzip.compress(b"id,age\n" + b"".join(b"%d,%d\n" % (n, n * n) for n in range(100_000)))
    (problem,) = problems(written(tmp_path, whole[: len(whole) // 2], "rows.csv.gz"), Columns())
    assert problem.startswith("FILE: is damaged: ")
    (problem,) = problems(written(tmp_path, b"id,age\n1,2\n", "rows.csv.gz"), Columns())
    assert problem.startswith("FILE: cannot be read: Not a gzipped file")


def test_other_encodings_are_hinted_at(tmp_path):
    path = written(tmp_path, TABLE.encode("latin-1"))
    (problem,) = problems(path, Columns(label="y", categorical=("city",)))
    assert problem.endswith(
        'is not UTF-8: save the file in that encoding, or set data.encoding = "latin-1" if all tables are'
    )
    path = written(tmp_path, b"id,city,street,age\n" + b"".join(b"%d,Z\xfcrich,Allee \xe9,1\n" % n for n in range(40)))
    with pytest.raises(TableError, match="the data has 1 problem:") as caught:
        read_rows(path, Columns(categorical=("city", "street")))
    assert caught.value.problems == [
        f"{path}, line 2, column 'city': is not UTF-8, like 79 other cells: save the file in that encoding, or set "
        'data.encoding = "latin-1" if all tables are'
    ]
    path = written(tmp_path, b"id,city\n1,\x81\n")
    (problem,) = problems(path, Columns(categorical=("city",), dialect=Dialect(encoding="cp1252")))
    assert problem == "FILE, line 2, column 'city': is not CP1252: correct data.encoding"


@pytest.mark.parametrize("rows", [3, 60_000])
def test_true_and_false_are_1_and_0_and_dates_are_days(tmp_path, rows):
    lines = "".join(
        f"{n},{['true', 'False', ''][n % 3]},{['2024-02-29', '', '1969-12-31'][n % 3]},{n}\n" for n in range(rows)
    )
    table = read_rows(written(tmp_path, "id,paid,since,age\n" + lines), Columns())
    np.testing.assert_array_equal(table.features["paid"][:3], [1, 0, np.nan])
    np.testing.assert_array_equal(table.features["since"][:3], [*days("2024-02-29"), np.nan, -1])
    np.testing.assert_array_equal(table.features["age"], np.arange(rows))
    assert table.kinds == {"paid": "truth", "since": "date", "age": "number"}
    as_names = read_rows(tmp_path / "rows.csv", Columns(categorical=("since", "paid")))
    assert as_names.features["since"].levels == ("2024-02-29", "1969-12-31")


def test_parquets_own_dates_and_flags_are_read_alike(tmp_path):
    since = [datetime.date(2024, 2, 29), None]
    moment = [datetime.datetime(2024, 2, 29, 12), None]
    columns = {
        "id": [1, 2],
        "since": since,
        "moment": moment,
        "paid": [True, None],
        "old": pa.array([-1, 7], pa.int16()),
    }
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    rows = read_rows(tmp_path / "rows.parquet", Columns(dialect=Dialect(blank=(*BLANKS, "-1"))))
    (day,) = days("2024-02-29")
    for name, expected in {"since": day, "moment": day + 0.5, "paid": 1}.items():
        np.testing.assert_array_equal(rows.features[name], [expected, np.nan])
    np.testing.assert_array_equal(rows.features["old"], [np.nan, 7])
    assert rows.kinds == {"since": "date", "moment": "date", "paid": "truth", "old": "number"}


@given(st.datetimes(datetime.datetime(1600, 1, 1), datetime.datetime(2500, 1, 1)), st.sampled_from([" ", "T"]))
def test_a_moment_is_days_with_a_fraction(moment, between):
    for text, zone in ((moment.isoformat(between), None), (moment.isoformat(between) + "+00:00", datetime.UTC)):
        (number,), kind = as_amounts(pa.array([text]), DEFAULT)
        since = moment.replace(tzinfo=zone) - datetime.datetime(1970, 1, 1, tzinfo=zone)
        assert number == pytest.approx(since / datetime.timedelta(days=1), rel=1e-15)
        assert kind == kind_of(text, DEFAULT) == "date"


@pytest.mark.parametrize(
    ("cells", "dialect", "what"),
    [
        (
            '1\n"1,5"\n',
            Dialect(),
            "'1,5' is not a number: write it with a point, or set data.decimal = \",\" if all tables",
        ),
        ("1\n1.5\n", Dialect(decimal=","), "'1.5' is not a number: there can be no point in it, since data.decimal"),
        ("1\n?\n", Dialect(), "'?' is not a number: if it stands for a blank, set data.blank = [\"?\"]"),
        ("2024-01-01\n-\n", Dialect(), "'-' is not a date: if it stands for a blank, set data.blank = [\"-\"]"),
        (
            "1\nunknown\n",
            Dialect(),
            "'unknown' is not a number: if it stands for a blank, set data.blank = [\"unknown\"]",
        ),
        (
            "2024-01-01\n31.12.2024\n",
            Dialect(),
            "'31.12.2024' is not a date: write dates as 2024-12-31, or list the column",
        ),
        ("2024-01-01\n2024-02-30\n", Dialect(), "'2024-02-30' is not a date: write dates as 2024-12-31"),
        (
            "true\nmaybe\n",
            Dialect(),
            "'maybe' is neither true nor false: correct it, or list the column under categorical",
        ),
        ("1\ntrue\n", Dialect(), "'true' is not a number: correct it, or list the column under categorical"),
        ("2024-01-01\n5\n", Dialect(), "'5' is not a date: write dates as 2024-12-31"),
    ],
)
def test_a_cell_that_does_not_belong_gets_a_hint(tmp_path, cells, dialect, what):
    lines = "".join(f"{number};{cell}\n" for number, cell in enumerate(cells.replace('"', "").split()))
    (problem,) = problems(written(tmp_path, "id;x\n" + lines), Columns(dialect=dialect))
    assert problem.startswith(f"FILE, line 3, column 'x': {what}")


@pytest.mark.parametrize("decimal", [".", ","])
def test_amounts_that_are_texts_read_the_same_from_csv_and_parquet(tmp_path, decimal):
    cells = ["1.5", " 2 ", "+3e2", "-.5", "", "NA", "7."]
    cells = [cell.replace(".", decimal) for cell in cells]
    dialect = Dialect(decimal=decimal)
    csv_file = written(tmp_path, "id;x\n" + "".join(f"{number};{cell}\n" for number, cell in enumerate(cells)))
    pq.write_table(pa.table({"id": range(len(cells)), "x": cells}), tmp_path / "rows.parquet")
    for path in (csv_file, tmp_path / "rows.parquet"):
        rows = read_rows(path, Columns(dialect=dialect))
        np.testing.assert_array_equal(rows.features["x"], [1.5, 2, 300, -0.5, np.nan, np.nan, 7])


def test_ignored_columns_are_no_features(tmp_path):
    path = written(tmp_path, "id,name,age\n1,Ann,20\n")
    assert list(read_rows(path, Columns(ignore=("name",))).features) == ["age"]
    assert problems(path, Columns(ignore=("nmae", "name"))) == ["FILE: has no column 'nmae'; did you mean 'name'?"]


@pytest.mark.parametrize("name", ["", " ", "Unnamed: 0", "__index_level_0__"])
def test_a_column_without_a_name_is_refused_unless_its_kind_is_given(tmp_path, name):
    path = written(tmp_path, f"{name},id,age\n0,a,20\n1,b,30\n")
    called = f"is called '{name}'" if name.strip() else "has no name"
    assert problems(path, Columns()) == [
        f"FILE: column 1 {called}, like the row numbers that pandas adds: write the table without it (index=False), "
        f'or list it as ignore = ["{name}"], or under features if it is one'
    ]
    assert list(read_rows(path, Columns(ignore=(name,))).features) == ["age"]
    assert list(read_rows(path, Columns(features=("age",))).features) == ["age"]
    assert list(read_rows(path, Columns(features=("age", name))).features) == ["age", name]


def test_amounts_are_as_exact_as_the_file(tmp_path):
    numbers = [1_700_000_000 + n for n in range(15)] + [20240131, 20240201, 0.1, 1e-300, 16_777_217]
    lines = "".join(f"{place},{number!r},{place}\n" for place, number in enumerate(numbers))
    rows = read_rows(written(tmp_path, "id,x,small\n" + lines), Columns())
    assert rows.features["x"].tolist() == numbers
    # What float32 holds exactly takes no more memory than it needs.
    assert (rows.features["x"].dtype, rows.features["small"].dtype) == (np.float64, np.float32)


def test_a_column_becomes_exact_where_it_has_to(tmp_path):
    lines = "".join(f"{n},{n if n < 90_000 else n + 0.1}\n" for n in range(100_000))
    column = read_rows(written(tmp_path, "id,x\n" + lines), Columns()).features["x"]
    assert column.tolist() == [n if n < 90_000 else n + 0.1 for n in range(100_000)]


def test_what_the_configuration_says_reaches_the_tables(tmp_path):
    lines = "".join(f"{n};{n % 2};{n},5;x\n" if n else "0;0;?;x\n" for n in range(20))
    written(tmp_path, "id;y;age;junk\n" + lines, "bank.csv")
    silo = {"name": "bank", "table": "bank.csv", "label": "y", "ignore": ["junk"]}
    keys = {"data": {"source": "files", "folder": str(tmp_path), "decimal": ",", "blank": ["?"]}, "silos": [silo]}
    assert assemble(check_config(keys), bias=None).federation.silos[0].columns == ("age", "age missing")
    with pytest.raises(ConfigError, match=r"data.delimiter = ';;': must be one character"):
        check_config({"data": {"delimiter": ";;"}})
    with pytest.raises(ConfigError, match=r"silo 'bank': column 'y' is under ignore and elsewhere: remove one"):
        check_config({**keys, "silos": [{**silo, "ignore": ["y"]}]})
    with pytest.raises(ConfigError, match=r"silo 'bank': ignore goes with data.source = 'files', not 'digits'"):
        check_config({"silos": [{"name": "bank", "ignore": ["x"]}]})


def test_a_number_for_a_blank_is_one_however_it_is_written(tmp_path):
    path = written(tmp_path, "id,x\n1,2\n2,-999.0\n")
    columns = Columns(blanks=False, dialect=Dialect(blank=(*BLANKS, "-999")))
    (problem,) = problems(path, columns)
    assert problem.startswith("FILE, line 3, column 'x': is blank: fill it in")


@pytest.mark.slow
def test_new_rows_are_read_like_those_of_the_training(tmp_path):
    lines = "".join(f"{n}\t{n % 2}\t{n},5\tx\n" if n else "0\t0\t?\tx\n" for n in range(20))
    written(tmp_path, gzip.compress(f"id\ty\tage\tjunk\n{lines}".encode()), "bank.csv.gz")
    silo = {"name": "bank", "table": "bank.csv.gz", "label": "y", "ignore": ["junk"]}
    data = {"source": "files", "folder": str(tmp_path), "decimal": ",", "blank": ["?"], "delimiter": "\t"}
    keys = {
        "data": data,
        "silos": [silo],
        "model": {"block": "linear"},
        "train": {"step_size": 0.05, "rounds": 1, "batch_size": 4},
    }
    run(check_config(keys), tmp_path / "run")
    new = written(tmp_path, "id\tage\n1\t?\n2\t2,5\n", "new.csv")
    plain = tmp_path / "plain.parquet"
    pq.write_table(pa.table({"id": [1, 2], "age": [None, 2.5]}), plain)
    ours, theirs = (Model.load(tmp_path / "run").silo_scores("bank", path) for path in (new, plain))
    assert ours.ids == theirs.ids == ["1", "2"]
    np.testing.assert_array_equal(ours.phi, theirs.phi)


def test_ids_that_two_silos_write_differently_get_a_hint(tmp_path):
    written(tmp_path, "id,y,a\n" + "".join(f"{n:03},{n % 2},{n}.5\n" for n in range(120)), "bank.csv")
    written(tmp_path, "id,b\n" + "".join(f"{n},{n}.5\n" for n in range(120)), "shop.csv")
    silos = [{"name": "bank", "table": "bank.csv", "label": "y"}, {"name": "shop", "table": "shop.csv"}]
    keys = {"data": {"source": "files", "folder": str(tmp_path)}, "silos": silos}
    with pytest.raises(TableError) as caught:
        assemble(check_config(keys), bias=None)
    assert caught.value.problems[0].endswith(
        "ids are compared as exact texts: '000' in silo 'bank' is not '0' in silo 'shop'; write them alike, "
        "or set data.ids = 'plain'"
    )


def test_plain_ids_are_one_sample_however_they_are_written(tmp_path):
    written(tmp_path, "id,y,a\n" + "".join(f"{n:03},{n % 2},{n}.5\n" for n in range(120)), "bank.csv")
    written(tmp_path, "id,b\n" + "".join(f" {n}.0 ,{n}.5\n" for n in range(120)), "shop.csv")
    silos = [{"name": "bank", "table": "bank.csv", "label": "y"}, {"name": "shop", "table": "shop.csv"}]
    keys = {"data": {"source": "files", "folder": str(tmp_path), "ids": "plain"}, "silos": silos}
    assembled = assemble(check_config(keys), bias=None)
    assert {*assembled.ids, *assembled.test_ids} == {str(number) for number in range(120)}


def test_rows_whose_plain_ids_are_the_same_are_refused(tmp_path):
    columns = Columns(dialect=Dialect(ids="plain"))
    path = written(tmp_path, "id,a\n7,1\nB,2\n007,3\nb,4\n")
    assert [problem.partition(": ")[2] for problem in problems(path, columns)] == [
        "the id '007' is on line 2 already, written '7' (data.ids = 'plain'): keep one of the two rows",
        "the id 'b' is on line 3 already, written 'B' (data.ids = 'plain'): keep one of the two rows",
    ]
    assert Columns.read_as("id", columns.reading).dialect == columns.dialect


def test_split_keeps_dates_and_flags(tmp_path):
    lines = "".join(f"{n};{n % 2};2024-01-{n:02};{['true', 'false'][n % 2]};town{n % 3}\n" for n in range(1, 21))
    path = written(tmp_path, gzip.compress(f"id;y;since;paid;town\n{lines}".encode()), "whole.csv.gz")
    for parquet in (False, True):
        out = split_table(path, tmp_path / f"out{parquet}", silos=1, clients=[1], label="y", parquet=parquet).parent
        (part,) = (out / "silo1").iterdir()
        rows = read_rows(part, Columns(label="y", categorical=("town",)))
        order = np.argsort([int(one) for one in rows.ids])
        np.testing.assert_array_equal(rows.features["since"][order], days("2024-01-01")[0] + np.arange(20))
        np.testing.assert_array_equal(rows.features["paid"][order], [0, 1] * 10)


def test_split_needs_no_name_for_a_column_that_it_leaves_out(tmp_path):
    path = written(tmp_path, ",id,y,a\n" + "".join(f"{n},{n},{n % 2},{n}.5\n" for n in range(9)), "whole.csv")
    split_table(path, tmp_path / "out", silos={"bank": ["a"]}, clients=[1], label="y")
    with pytest.raises(TableError, match="column 1 has no name"):
        split_table(path, tmp_path / "more", silos=1, clients=[1], label="y")
