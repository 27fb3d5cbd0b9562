import csv

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.examples import num_examples
from tdcd.config import check_config, read_config
from tdcd.tables.assembly import assemble
from tdcd.tables.dialect import BLANKS
from tdcd.tables.errors import TableError
from tdcd.tables.reader import read_rows
from tdcd.tables.rows import Columns
from tdcd.tables.split import split_table

pytestmark = pytest.mark.quick


@pytest.fixture
def whole(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "whole.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "id", "y", "rent", "city"])
        for number in range(40):
            city = ["Rome, Italy", "Oslo", "12", ""][rng.integers(4)]
            writer.writerow([f"{rng.normal():.3f}", f"{number:03}", rng.integers(2), rng.integers(99), city])
    return path


def records(path):
    with path.open(newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def test_one_silo_may_get_all_labels(whole, tmp_path):
    out = tmp_path / "out"
    silos = {"bank": ["rent", "age"], "town": ["city"]}
    path = split_table(whole, out, silos=silos, clients=[2], label="y", labels_at="town")
    headers = [(out / silo / "c1.csv").read_text().splitlines()[0] for silo in silos]
    assert headers == ["id,rent,age", "id,y,city"]
    config = check_config(read_config(path))
    assert config.federation.labels == "town"
    assert [silo.label for silo in config.silos] == [None, "y"]
    assert len(assemble(config, bias=None).ids) == 32
    with pytest.raises(
        ValueError, match=r"federation\.labels = 'village': there is no such silo; there are bank, town"
    ):
        split_table(whole, tmp_path / "other", silos=silos, clients=[2], label="y", labels_at="village")


def test_every_silo_has_all_rows_of_its_columns_in_files_of_its_own(whole, tmp_path):
    out = tmp_path / "out"
    silos = {"bank": ["rent", "age"], "town": ["city"]}
    assert split_table(whole, out, silos=silos, clients=[3, 2], label="y") == out / "federation.toml"
    original = records(whole)
    orders = []
    for silo, columns, count in (("bank", ["rent", "age"], 3), ("town", ["city"], 2)):
        files = [out / silo / f"c{index + 1}.csv" for index in range(count)]
        parts = [records(file) for file in files]
        assert sorted(one for part in parts for one in part) == sorted(original)
        for part in parts:
            assert list(part) != sorted(part)
            for one, row in part.items():
                assert row == {name: original[one][name] for name in ("id", "y", *columns)}
        assert {len(part) for part in parts} <= {13, 14, 20}
        orders.append([one for part in parts for one in part])
    assert orders[0] != orders[1] != sorted(original)
    keys = read_config(out / "federation.toml")
    assert [silo["categorical"] for silo in keys["silos"]] == [[], ["city"]]
    assert [silo["hub"] for silo in keys["silos"]] == ["127.0.0.1:7447", "127.0.0.1:7448"]
    result = assemble(check_config(keys), bias=None)
    assert [silo.num_clients for silo in result.federation.silos] == [3, 2]
    assert result.federation.silos[0].columns == ("rent", "age")
    assert len(result.ids) == 32


def test_silos_by_number_share_the_columns_out_and_the_seed_deals_the_rows(whole, tmp_path):
    def files(seed, name):
        split_table(whole, tmp_path / name, silos=2, clients=[2], label="y", seed=seed)
        return [file.read_text() for file in sorted((tmp_path / name).rglob("*.csv"))]

    first = files(0, "a")
    assert [text.splitlines()[0] for text in first] == ["id,y,age,rent"] * 2 + ["id,y,city"] * 2
    assert first == files(0, "b")
    assert first != files(1, "c")


def test_parquet_files_give_the_same_features(whole, tmp_path):
    results = []
    for name, parquet in (("text", False), ("binary", True)):
        path = split_table(whole, tmp_path / name, silos=2, clients=[2], label="y", parquet=parquet)
        results.append(assemble(check_config(read_config(path)), bias=0))
    assert pq.read_schema(tmp_path / "binary" / "silo1" / "c1.parquet").field("age").type == pa.float64()
    for ours, theirs in zip(results[0].federation.silos, results[1].federation.silos, strict=True):
        np.testing.assert_array_equal(ours.features, theirs.features)
    assert results[0].ids == results[1].ids
    np.testing.assert_array_equal(results[0].federation.labels, results[1].federation.labels)


def test_a_parquet_table_can_be_split_into_csv(tmp_path):
    count = 10
    columns = {"id": range(count), "y": [0, 1] * 5, "paid": [True, None] * 5, "x": [0.1, None] * 5}
    pq.write_table(pa.table({name: list(values) for name, values in columns.items()}), tmp_path / "whole.parquet")
    split_table(tmp_path / "whole.parquet", tmp_path / "out", silos=1, clients=[1], label="y")
    rows = read_rows(tmp_path / "out" / "silo1" / "c1.csv", Columns(label="y"))
    places = np.argsort([int(one) for one in rows.ids])
    np.testing.assert_array_equal(rows.features["paid"][places], np.array([1, np.nan] * 5, np.float32))
    np.testing.assert_array_equal(rows.features["x"][places], np.array([0.1, np.nan] * 5))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"silos": {"a": ["age"], "b": ["age"]}}, "column 'age' is in silo 'a' and again in silo 'b'"),
        ({"silos": {"a": ["agee"]}}, "silo 'a' names column 'agee', which the table does not have"),
        ({"silos": {"a b": ["age"]}}, "silos.0.name = 'a b': must be letters"),
        ({"silos": 4}, "3 columns cannot be cut into 4 silos"),
        ({"clients": [1, 2, 3]}, "there are 2 silos, but client counts for 3"),
        ({"clients": [41]}, "40 rows cannot be spread over 41 clients"),
        ({"id_column": "idd"}, "has no column 'idd'; did you mean 'id'?"),
        ({"label": "z"}, "has no column 'z'"),
    ],
)
def test_a_split_that_cannot_be_is_refused(whole, tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        split_table(whole, tmp_path / "out", **{"silos": 2, "clients": [2], "label": "y"} | arguments)


def test_a_table_with_problems_and_a_folder_with_files_are_refused(whole, tmp_path):
    with pytest.raises(FileExistsError, match="is there already and is not an empty folder"):
        split_table(whole, tmp_path, silos=2, clients=[2], label="y")
    whole.write_text(whole.read_text() + "old,040,1,5,Oslo\n")
    with pytest.raises(TableError, match="line 42, column 'age': 'old' is not a number"):
        split_table(whole, tmp_path / "out", silos=2, clients=[2], label="y")
    assert not (tmp_path / "out").exists()


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), min_size=1, max_size=6)
tables = st.lists(
    st.tuples(
        texts.filter(str.strip),
        st.none() | st.floats(allow_nan=False, allow_infinity=False, width=32),
        st.none() | texts.map(lambda text: f"#{text}"),
    ),
    min_size=4,
    max_size=20,
    unique_by=lambda row: row[0],
)


@num_examples(40)
@given(tables)
def test_any_table_is_the_same_after_a_split(tmp_path_factory, table):
    folder = tmp_path_factory.mktemp("random")
    with (folder / "whole.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "y", "amount", "name"])
        for number, (one, amount, name) in enumerate(table):
            writer.writerow([one, number % 2, "NA" if amount is None else repr(amount), name or ""])
    path = split_table(folder / "whole.csv", folder / "out", silos=2, clients=[2, 1], label="y")
    keys = read_config(path)
    keys["data"] |= {"standardize": False, "rare": 1}
    keys["evaluate"] = {"holdout": 0}
    result = assemble(check_config(keys), bias=None)
    bank, town = (dict(zip(result.ids, silo.features, strict=True)) for silo in result.federation.silos)
    labels = dict(zip(result.ids, result.federation.labels, strict=True))
    columns = result.federation.silos[1].columns
    blank = any(amount is None for _, amount, _ in table)
    for number, (one, amount, name) in enumerate(table):
        assert labels[one] == number % 2
        assert amount is None or bank[one][0] == np.float32(amount)
        assert not blank or bank[one][1] == (amount is None)
        told = {column for column, value in zip(columns, town[one], strict=True) if value}
        assert told == ({f"name={name}"} if name not in (None, *BLANKS) else told & {"name missing"})
