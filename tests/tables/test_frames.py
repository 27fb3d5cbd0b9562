"""A frame and its CSV file give the same features; what may be a mistake in either is said once per column."""

import re
import warnings
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from two_tables import write_csv

from tdcd import Federation, Linear, Model, Objective, Settings, train
from tdcd.config import check_config
from tdcd.tables.assembly import assemble
from tdcd.tables.errors import DataWarning, TableError
from tdcd.tables.template import survey

ROWS = 48
CELLS = {
    "amounts": st.floats(-1e6, 1e6, allow_subnormal=False).map(repr),
    "counts": st.integers(-50, 50).map(str),
    "padded": st.integers(0, 9).map("0{} ".format),
    "dates": st.dates().filter(lambda day: day.year > 1700).map(str),
    "times": st.datetimes(datetime(1900, 1, 1)).map(lambda one: f"{one:%Y-%m-%d %H:%M:%S}"),
    "truths": st.sampled_from(["true", "False"]),
    "names": st.sampled_from(["Rome", "Oslo", "são", "2 b"]),
    "dates and names": st.sampled_from(["2024-01-31", "soon"]),
}
"""What cells of a column are, as texts."""
FRAMES = {
    "pandas": pd.DataFrame,
    "pandas objects": lambda columns: pd.DataFrame(columns).astype(object),
    "polars": pl.DataFrame,
    "arrow": lambda columns: pa.table({name: pa.array(cells, pa.large_string()) for name, cells in columns.items()}),
}


@st.composite
def columns_of_texts(draw):
    kinds = draw(st.lists(st.sampled_from([*CELLS]), min_size=1, max_size=4))
    blanks = st.sampled_from(["", "NA", "null"])
    return {
        f"{kind} {place}": draw(
            st.lists(st.one_of(CELLS[kind], CELLS[kind], CELLS[kind], blanks), min_size=ROWS, max_size=ROWS)
        )
        for place, kind in enumerate(kinds)
    }


def of_file(path, **silo):
    table = {"name": "bank", "table": path.name, "label": "y", "clients": 2, **silo}
    keys = {"data": {"source": "files", "folder": str(path.parent)}, "model": {"block": "linear"}, "silos": [table]}
    return assemble(check_config(keys), bias=0).federation


@settings(max_examples=40, deadline=None)
@given(columns=columns_of_texts(), kind=st.sampled_from([*FRAMES]))
def test_texts_in_a_frame_are_read_as_in_its_file(columns, kind):
    columns = {"id": [f"s{row}" for row in range(ROWS)], "y": ["no", "yes"] * (ROWS // 2), **columns}
    frame = FRAMES[kind](columns)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "bank.csv"
        write_csv(path, columns)
        categorical = [name for name in survey(path, "id").categorical if name not in ("id", "y")]
        theirs = of_file(path, categorical=categorical)
    ours = Federation.from_frames({"bank": frame}, id="id", label="y", clients=2)
    assert ours.silos[0].columns == theirs.silos[0].columns
    np.testing.assert_array_equal(ours.silos[0].features, theirs.silos[0].features)
    np.testing.assert_array_equal(ours.silos[0].test_features, theirs.silos[0].test_features)


def test_columns_of_their_own_types_are_read_as_in_their_file(tmp_path):
    draw = np.random.default_rng(0)
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(draw.integers(0, 900, ROWS), unit="D")
    frame = pd.DataFrame(
        {
            "id": range(ROWS),
            "y": draw.choice(["no", "yes"], ROWS),
            "since": days,
            "born": [day.date() for day in days],
            "paid": draw.random(ROWS) > 0.5,
            "debt": draw.normal(size=ROWS).round(4),
            "code": pd.Categorical(draw.choice(["1", "2"], ROWS)),
        }
    )
    frame.loc[::7, "debt"] = np.nan
    frame.to_csv(tmp_path / "bank.csv", index=False)
    theirs = of_file(tmp_path / "bank.csv", categorical=["code"])
    for one in (frame, pl.from_pandas(frame), pa.Table.from_pandas(frame)):
        ours = Federation.from_frames({"bank": one}, id="id", label="y", clients=2)
        assert ours.silos[0].columns == theirs.silos[0].columns
        np.testing.assert_array_equal(ours.silos[0].features, theirs.silos[0].features)
    assert ours.silos[0].columns == ("since", "born", "paid", "debt", "debt missing", "code=1", "code=2", "bias")


@pytest.fixture
def credit(tmp_path):
    """README's two tables with a date and numbers that are texts, and new ones."""
    draw = np.random.default_rng(1)
    for name, count in (("", 200), ("new_", 30)):
        ids, since = np.arange(count) + 7, draw.integers(0, 3000, count)
        days = (pd.Timestamp("2015-01-01") + pd.to_timedelta(since, unit="D")).strftime("%Y-%m-%d")
        default = (since + draw.normal(0, 300, count) > 1500).astype(int)
        write_csv(tmp_path / f"{name}bank.csv", {"id": ids, "since": days, "default": default})
        amounts = [f"{value:.2f}" for value in draw.normal(size=count)]
        write_csv(tmp_path / f"{name}bureau.csv", {"id": ids[::-1], "amount": amounts})
    return tmp_path


def test_ten_lines_of_python_learn_from_a_date(credit):
    bank, bureau = (pd.read_csv(credit / f"{name}.csv") for name in ("bank", "bureau"))
    bureau = bureau.astype({"amount": str})
    federation = Federation.from_frames({"bank": bank, "bureau": bureau}, id="id", label="default", clients=3)
    assert [silo.columns for silo in federation.silos] == [("since", "bias"), ("amount",)]
    result = train(federation, Linear(), Objective("logistic"), Settings(batch_size=64, step_size=0.1), rounds=30)
    assert result.history[-1].metrics["test"]["auc"] > 0.9
    result.model.save(credit / "credit.tdcd")
    new = {name: pd.read_csv(credit / f"new_{name}.csv") for name in ("bank", "bureau")}
    chances = Model.load(credit / "credit.tdcd").predict_proba(new)
    texts = {name: table.astype(str) for name, table in new.items()}
    np.testing.assert_array_equal(Model.load(credit / "credit.tdcd").predict_proba(texts), chances)
    files = {name: credit / f"new_{name}.csv" for name in new}
    np.testing.assert_array_equal(Model.load(credit / "credit.tdcd").predict_proba(files), chances)


def test_a_mistake_in_a_column_of_amounts_is_not_a_category():
    columns = {"id": [*range(ROWS)], "y": [0, 1] * (ROWS // 2), "debt": [*map(str, range(ROWS - 1)), "much"]}
    message = r"frame 'bank', column 'debt': holds 'much', which is not an amount, as most of the column is: correct it"
    with pytest.raises(TableError, match=message):
        Federation.from_frames({"bank": columns}, id="id", label="y")
    marked = Federation.from_frames({"bank": columns}, id="id", label="y", data={"blank": ["much"]})
    assert marked.silos[0].columns[0] == "debt"
    columns["debt"] = ["2024-01-31"] * (ROWS - 1) + ["31.1.2024"]
    named = Federation.from_frames({"bank": columns}, id="id", label="y", data={"rare": 1})
    assert named.silos[0].columns[0] == "debt=2024-01-31"


def said(make):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        make()
    assert {Path(one.filename).name for one in found if one.category is DataWarning} <= {Path(__file__).name}
    return [str(one.message) for one in found if one.category is DataWarning]


def test_a_column_with_one_level_left_is_reported_once_of_frames_and_files(tmp_path):
    columns = {
        "id": [f"s{row}" for row in range(ROWS)],
        "y": ["no", "yes"] * (ROWS // 2),
        "same": [3] * ROWS,
        "town": ["Rome"] * ROWS,
        "name": [f"n{row}" for row in range(ROWS)],
        "empty": [""] * ROWS,
        "known": [5, ""] * (ROWS // 2),
        "debt": [*range(5, ROWS), *range(5)],
    }
    write_csv(tmp_path / "bank.csv", columns)
    of_files = said(lambda: of_file(tmp_path / "bank.csv", categorical=["town", "name"]))
    frame = pd.read_csv(tmp_path / "bank.csv")
    of_frames = said(lambda: Federation.from_frames({"bank": frame}, id="id", label="y", clients=2))
    nothing = "is the same in every training row, so the model learns nothing from it: leave it out"
    rows = round(ROWS * 0.8)
    rare = (
        f"has one level left, 'other', since each of its {rows} levels has fewer training rows than data.rare = 10, so "
        "the model learns nothing from it: lower data.rare, or leave it out"
    )
    expected = {
        "same": nothing,
        "town": nothing,
        "name": rare,
        "empty": "is blank in every training row: leave it out",
    }
    words = [f"silo 'bank', column '{name}': {sentence}" for name, sentence in expected.items()]
    assert of_files == of_frames == words


def trained_on(frame, loss="logistic", **options):
    federation = Federation.from_frames({"bank": frame}, id="id", label="y", **options)
    return train(
        federation, Linear(), Objective(loss), Settings(batch_size=16, local_steps=1, step_size=0.05), rounds=1
    )


def test_levels_that_training_never_saw_are_reported_once_per_column():
    frame = pd.DataFrame({"id": range(ROWS), "y": [0, 1] * (ROWS // 2), "town": ["Rome", "Oslo", "Bern"] * (ROWS // 3)})
    model = trained_on(frame).model
    assert said(lambda: model.predict({"bank": frame})) == []
    new = pd.DataFrame({"id": range(5), "town": ["Paris", "Rome", "Lima", "Paris", ""]})
    sentence = (
        "silo 'bank', column 'town': 3 of 5 rows have a level ('Paris', 'Lima') that was not there in training: the "
        "column adds nothing to their scores"
    )
    assert said(lambda: model.predict({"bank": new})) == [sentence]


def test_labels_that_may_be_a_mistake_are_reported_once():
    frame = pd.DataFrame({"id": range(ROWS), "y": [0, 1] * (ROWS // 2), "debt": np.sin(np.arange(ROWS))})
    squared = "the labels are 0 and 1, and the squared loss predicts amounts: the logistic loss predicts probabilities"
    assert said(lambda: trained_on(frame, "squared", model={"loss": "squared"})) == [squared]
    assert said(lambda: trained_on(frame)) == []
    with pytest.raises(TableError, match="every label is '1': there is nothing to learn"):
        trained_on(frame.assign(y=1))
    one = said(lambda: trained_on(frame.assign(y=2.5), "squared", model={"loss": "squared"}))
    assert one == ["every training label is 2.5: there is nothing to learn"]


def test_rows_that_are_lost_are_reported():
    bank = pd.DataFrame({"id": range(ROWS), "y": [0, 1] * (ROWS // 2), "debt": np.sin(np.arange(ROWS))})
    shop = pd.DataFrame({"id": range(10, ROWS + 5), "visits": np.cos(np.arange(ROWS - 5))})
    frames = {"bank": bank, "shop": shop}
    with pytest.warns(
        DataWarning, match=re.escape("38 ids are in every silo: silo 'bank' has 48, and loses 10; silo 'shop' has 43")
    ):
        federation = Federation.from_frames(frames, id="id", label="y", data={"align": True})
    assert (federation.alignment["bank"].lost, federation.alignment["shop"].lost) == (10, 5)
    assert federation.alignment["bank"].labels_before == {"0": 0.5, "1": 0.5}
