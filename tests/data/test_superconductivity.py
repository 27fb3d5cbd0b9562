"""The real table cannot be shipped: the loader's checks are tried on a file with its shape and published figures.

Where the data folder has the real one, it is tried too.
"""

import errno
import gzip
import hashlib
import io
import json
import os
import urllib.request
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tdcd.data import DataUnavailable, load
from tdcd.data.superconductors import COLUMNS

ROWS = 21263
NAMES = (*COLUMNS, "critical_temp")
REST = ",".join(str(column % 7 + 0.5) for column in range(80))


def temperatures():
    """One label is the smallest, one the largest, the others lie on two values that make mean and deviation right."""
    middle = ROWS - 2
    centre = (34.42 * ROWS - 0.00021 - 185) / middle
    squares = 34.25**2 * ROWS - (0.00021 - 34.42) ** 2 - (185 - 34.42) ** 2 - middle * (centre - 34.42) ** 2
    step = np.sqrt(squares / (middle - 1)) * np.resize([1, -1], middle)
    step[-1] = 0
    return np.concatenate([[0.00021, 185.0], centre + step])


def element_counts():
    """Fours, with enough fives for the mean, and one of each extreme."""
    counts = np.full(ROWS, 4)
    counts[:2] = [1, 9]
    counts[2 : 2 + round(4.115 * ROWS) - counts.sum()] += 1
    return counts


LINES = [f"{count},{REST},{label:.12g}" for count, label in zip(element_counts(), temperatures(), strict=True)]


@pytest.fixture
def place(tmp_path):
    """Write a train.csv into the data folder, and say where it is."""

    def write(lines=LINES, names=NAMES, folder=tmp_path):
        file = folder / "superconductivity" / "train.csv"
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n".join([",".join(names), *lines, ""]))
        return file

    return write


def refusal(file):
    with pytest.raises(DataUnavailable) as caught:
        load("superconductivity", folder=file.parent.parent)
    return str(caught.value)


def test_a_hand_placed_file(place):
    file = place()
    table = load("superconductivity", folder=file.parent.parent)
    assert (table.name, table.task, table.columns) == ("superconductivity", "regression", COLUMNS)
    assert table.features.shape == (ROWS, 81)
    assert same_rows(table)
    assert len((file.parent / "sha256").read_text().strip()) == 64
    part = load("superconductivity", folder=file.parent.parent, rows=20000, seed=4)
    assert part.features.shape == (20000, 81)


def test_columns_may_be_quoted_and_in_another_order(place):
    def turned(cells):
        return [cells[-1], *cells[:-1]]

    names = turned([f'"{name}"' for name in NAMES])
    file = place([",".join(turned(line.split(","))) for line in LINES], names)
    assert same_rows(load("superconductivity", folder=file.parent.parent))


def same_rows(table):
    """Whether a table has the rows of ``LINES``, in whatever order."""
    expected = np.array([[float(cell) for cell in line.split(",")] for line in LINES])
    found = np.column_stack([table.features, table.labels])
    return (found[np.lexsort(found.T)] == expected[np.lexsort(expected.T)]).all()


def as_csv(lines=LINES):
    return "\n".join([",".join(NAMES), *lines, ""]).encode()


def as_arff():
    """OpenML's file: comments, quoted names."""
    attributes = "".join(f"@ATTRIBUTE '{name}' REAL\n" for name in NAMES)
    return ("% a comment\n@RELATION superconduct\n\n" + attributes + "@DATA\n" + "\n".join(LINES) + "\n").encode()


def as_zip(name="train.csv"):
    """UCI's archive has a second table, of the formulas."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("unique_m.csv", "H,He,critical_temp,material\n0,1,29,X\n")
        archive.writestr(name, as_csv())
    return packed.getvalue()


DOWNLOADED = {
    "superconduct/superconduct.csv.gz": lambda: gzip.compress(as_csv(), 1),
    "superconduct/dataset.arff": as_arff,
    "superconductivity/superconductivty+data.zip": as_zip,
    "superconductivity/table.csv": as_csv,
    "superconduct.csv": as_csv,
    "superconductivty+data.zip": as_zip,
    # A browser that unpacks and keeps the name.
    "superconduct.csv.gz": as_csv,
}


@pytest.mark.parametrize("name", DOWNLOADED)
def test_files_as_downloaded(name, tmp_path):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(DOWNLOADED[name]())
    # Other tables beside it are passed over.
    (path.parent / "superconduct_material.csv").write_text("critical_temp,material\n29,X\n")
    assert same_rows(load("superconductivity", folder=tmp_path))


def test_copies_in_another_order_give_the_same_table(tmp_path):
    tables = []
    for place, lines in enumerate((LINES, LINES[::-1], [*LINES[500:], *LINES[:500]])):
        folder = tmp_path / str(place) / "superconduct"
        folder.mkdir(parents=True)
        (folder / "superconduct.csv").write_bytes(as_csv(lines))
        tables.append(load("superconductivity", folder=folder.parent, rows=300, seed=3))
    for table in tables[1:]:
        assert (table.features == tables[0].features).all()
        assert (table.labels == tables[0].labels).all()


def test_files_that_are_something_else_are_all_named(tmp_path):
    folder = tmp_path / "superconduct"
    folder.mkdir()
    contents = {"a.zip": as_zip("other.csv"), "b.csv.gz": gzip.compress(as_csv(), 1)[:4000], "c.zip": b"PK\x03\x04 no"}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    with pytest.raises(DataUnavailable) as caught:
        load("superconductivity", folder=tmp_path)
    first, second, third = str(caught.value).split("; ")
    assert first == f"{folder / 'a.zip'} is not the UCI table: the archive has 0 files called train.csv"
    assert second.startswith(f"{folder / 'b.csv.gz'} is not the UCI table: Compressed file ended")
    assert third.startswith(f"{folder / 'c.zip'} is not the UCI table: File is not a zip file")


def test_a_file_that_unpacks_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("tdcd.data.superconductivity.LARGEST", 100_000)
    folder = tmp_path / "superconduct"
    folder.mkdir()
    (folder / "bomb.csv.gz").write_bytes(gzip.compress(bytes(1_000_000)))
    with pytest.raises(DataUnavailable, match=r"bomb\.csv\.gz is not the UCI table: it is larger than 100000 bytes"):
        load("superconductivity", folder=tmp_path)


@pytest.mark.skipif(
    not (Path(os.environ.get("TDCD_DATA", "")) / "superconduct").is_dir(),
    reason="TDCD_DATA names no folder with the real Superconductivity table in superconduct/",
)
def test_the_real_table():
    """What is published of it: a linear model explains 0.737 of the variance of the critical temperature."""
    table = load("superconductivity")
    columns = np.column_stack([table.features, np.ones(len(table.labels))])
    residual = table.labels - columns @ np.linalg.lstsq(columns, table.labels, rcond=None)[0]
    assert 1 - residual.var() / table.labels.var() == pytest.approx(0.737, abs=1e-3)
    # Consecutive rows are a fair sample: no shard of them is all cold.
    means = [part.mean() for part in np.array_split(table.labels, 10)]
    assert max(means) - min(means) < 4


def test_a_wrong_number_of_rows(place):
    file = place(LINES[:100])
    assert refusal(file) == f"{file} is not the UCI table: it has 100 rows of 82 values, not 21263 of 82"
    assert not (file.parent / "sha256").exists()


def test_a_missing_column(place):
    names = [name.replace("gmean_Density", "density") for name in NAMES]
    file = place(LINES[:3], names)
    assert refusal(file) == f"{file} is not the UCI table: it has no column 'gmean_Density'"


def test_a_cell_that_is_no_number(place):
    file = place([LINES[0], LINES[1].replace("9", "nine", 1)])
    assert refusal(file).startswith(f"{file} is not the UCI table: could not convert string 'nine' to float64 at row 1")


@pytest.mark.parametrize(
    ("row", "cell", "value", "message"),
    [
        (1, 81, "184", "the max of 'critical_temp' is 184, not 185"),
        (0, 81, "0", "the min of 'critical_temp' is 0, not 0.00021"),
        (7, 81, "nan", "the mean of 'critical_temp' is nan, not 34.42"),
        (1, 0, "8", "the max of 'number_of_elements' is 8, not 9"),
    ],
)
def test_wrong_figures(row, cell, value, message, place):
    cells = LINES[row].split(",")
    cells[cell] = value
    file = place([*LINES[:row], ",".join(cells), *LINES[row + 1 :]])
    assert refusal(file) == f"{file} is not the UCI table: {message}"


def test_changed_values_are_noticed(place):
    file = place()
    load("superconductivity", folder=file.parent.parent)
    record = file.parent / "sha256"
    known = record.read_text().strip()
    place([*LINES[:9], LINES[9].replace("0.5", "0.6", 1), *LINES[10:]])
    message = refusal(file)
    assert message.startswith(f"{file} has changed: the sha256 of its values is ")
    assert message.endswith(f"but {record} has {known}; restore the data, or delete sha256 if the new values are right")
    record.unlink()
    load("superconductivity", folder=file.parent.parent)
    assert record.read_text().strip() != known


def test_a_read_only_folder_is_enough(place, shelf, read_only):
    file = place(folder=shelf)
    with read_only(shelf):
        table = load("superconductivity", folder=shelf)
    assert table.features.shape == (ROWS, 81)
    assert [path.name for path in file.parent.iterdir()] == ["train.csv"]


def keep_as_openml_does(folder):
    """Put the table where scikit-learn keeps what it has downloaded from OpenML, as it would be there."""
    attributes = "".join(f"@ATTRIBUTE {name} REAL\n" for name in NAMES)
    arff = f"@RELATION superconduct\n{attributes}@DATA\n" + "\n".join(LINES) + "\n"
    data = {"did": "1", "name": "superconduct", "version": "1", "status": "active", "format": "ARFF"}
    description = data | {
        "id": "1",
        "description": "",
        "file_id": "2",
        "url": "https://www.openml.org/data/v1/download/2/superconduct.arff",
        "md5_checksum": hashlib.md5(arff.encode()).hexdigest(),
    }
    features = [
        {
            "index": str(index),
            "name": name,
            "data_type": "numeric",
            "is_target": "false",
            "is_ignore": "false",
            "is_row_identifier": "false",
            "number_of_missing_values": "0",
        }
        for index, name in enumerate(NAMES)
    ]
    qualities = [{"name": "NumberOfInstances", "value": str(ROWS)}]
    api = "api/v1/json/data"
    contents = {
        f"{api}/list/data_name/superconduct/limit/2/data_version/1": json.dumps({"data": {"dataset": [data]}}),
        f"{api}/1": json.dumps({"data_set_description": description}),
        f"{api}/features/1": json.dumps({"data_features": {"feature": features}}),
        f"{api}/qualities/1": json.dumps({"data_qualities": {"quality": qualities}}),
        "data/v1/download/2/superconduct.arff": arff,
    }
    for name, content in contents.items():
        path = folder / "openml" / "openml" / "openml.org" / f"{name}.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(content.encode(), 1))


def test_openml_gives_the_same_table_as_the_file(place, tmp_path):
    keep_as_openml_does(tmp_path)
    from_openml = load("superconductivity", folder=tmp_path)
    # The digest that this leaves behind is compared with the file's.
    assert (tmp_path / "superconductivity" / "sha256").is_file()
    file = place()
    from_file = load("superconductivity", folder=file.parent.parent)
    assert (from_openml.features == from_file.features).all()
    assert (from_openml.labels == from_file.labels).all()


def test_absent_and_offline(tmp_path, down, monkeypatch):
    # All requests go to a proxy that is not there; urllib looks for proxies when it makes its opener.
    monkeypatch.setenv("https_proxy", down)
    monkeypatch.setattr(urllib.request, "_opener", None)
    with pytest.raises(DataUnavailable) as caught:
        load("superconductivity", folder=tmp_path)
    folder = tmp_path / "superconductivity"
    assert str(caught.value).splitlines() == [
        "the Superconductivity table is not in the data folder and could not be downloaded",
        f"  looked for {folder}",
        f"  looked for {tmp_path / 'superconduct'}",
        f"  looked for {tmp_path / 'openml'}",
        "  tried https://www.openml.org, data set 'superconduct', version 1: "
        f"[Errno {errno.ECONNREFUSED}] Connection refused",
        "  by hand: put the file from https://archive.ics.uci.edu/dataset/464/superconductivty+data, as downloaded, "
        f"into {folder}; only for trying things out, the source 'superconductors' is a synthetic table of the same "
        "shape",
        "  (the environment variable TDCD_DATA names another data folder)",
    ]
