"""Ids that are written in different ways: told wherever it matters, with the setting that decides."""

import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tdcd import Federation, Linear, Model, Objective, Settings, train
from tdcd.config import check_config
from tdcd.prediction.scores import SiloScores, by_id, combine
from tdcd.tables.assembly import assemble
from tdcd.tables.client_table import cautions, check_tables
from tdcd.tables.errors import TableError
from tdcd.tables.reader import read_rows
from tdcd.tables.rows import Columns
from tdcd.tables.source import Frame


@pytest.mark.parametrize("lenient", [{"align": True}, {"samples": "all"}])
def test_ids_that_are_left_out_for_how_they_are_written(tmp_path, lenient):
    """Where an id that a silo lacks does not stop the run: in a run, of files and frames; by tdcd check; and later."""
    bank = {"id": [f"{n:03}" for n in range(120)], "y": [n % 2 for n in range(120)], "a": [n / 7 for n in range(120)]}
    shop = {"id": [f"{n}" for n in range(60)] + [f"{n:03}" for n in range(60, 120)], "b": [n / 3 for n in range(120)]}
    hint = r"ids are compared as exact texts: '000' in silo 'bank' is not '0' in silo 'shop'; write them alike"
    for name, table in (("bank", bank), ("shop", shop)):
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet")
    silos = [{"name": "bank", "table": "bank.parquet", "label": "y"}, {"name": "shop", "table": "shop.parquet"}]
    config = check_config({"data": {"source": "files", "folder": str(tmp_path), **lenient}, "silos": silos})
    with pytest.warns(UserWarning, match=hint):
        assemble(config, bias=None)
    assert any(hint in sentence for sentence in check_tables(config).cautions)
    with pytest.warns(UserWarning, match=hint):
        Federation.from_frames({"bank": bank, "shop": shop}, label="y", id="id", data=lenient)
    parts = {"bank": SiloScores(bank["id"], np.ones((120, 1))), "shop": SiloScores(shop["id"], np.ones((120, 1)))}
    with pytest.warns(UserWarning, match=r"'000' in silo 'bank' is not '0' in silo 'shop'; .* data.ids = 'exact'"):
        combine(parts, allow_missing=True)
    with pytest.raises(TableError, match=r"the model was trained with data.ids = 'exact'"):
        combine(parts)
    with pytest.raises(ValueError, match=r"the model was trained with data.ids = 'exact'"):
        by_id(parts)


def test_ids_of_one_table_that_may_be_one_sample(tmp_path):
    rows = read_rows(Frame(pa.table({"id": ["7", "AB", "ab ", "007"], "a": [1.0, 2.0, 3.0, 5.0]}), "a"), Columns())
    assert [one for one in cautions(rows) if "two samples" in one] == [
        "ids are compared as exact texts: 'AB' and 'ab ' are two samples; set data.ids = 'plain' if they are one"
    ]
    assert any("'007' with its zeros too, or all set data.ids = 'plain'" in one for one in cautions(rows))


@pytest.mark.parametrize(("written", "meant"), [("007", "7"), (" B", "b"), ("7.0", "7")])
def test_keys_and_repeated_ids_that_are_written_in_different_ways(written, meant):
    """Samples whose key is written otherwise lack their row, and visits are of two people: both with a warning."""
    hours = Frame(pa.table({"hour": [meant, "x"], "rain": [1.0, 2.0]}), "hours")
    link = Frame(pa.table({"id": ["p", "q", "r"], "hour": [written, meant, "x"]}), "link")
    keyed = Columns(key="hour", link=link)
    hint = f"column 'hour': ids are compared as exact texts: '{meant}' in hours is not '{written}' in link; write them"
    with pytest.warns(UserWarning, match=re.escape(hint)):
        assert read_rows(hours, keyed).ids == ["q", "r"]
    plain = replace(keyed, dialect=replace(keyed.dialect, ids="plain"))
    assert read_rows(hours, plain).ids == ["p", "q", "r"]
    visits = Frame(pa.table({"id": [meant, written, meant], "cost": [1.0, 2.0, 4.0]}), "visits")
    several = Columns(aggregate=("sum", "mean", "count"))
    rows = read_rows(visits, several)
    assert rows.features["sum(cost)"].tolist() == [5.0, 2.0]
    assert any(f"'{meant}' and '{written}' are two samples; set data.ids = 'plain'" in one for one in cautions(rows))
    rows = read_rows(visits, replace(several, dialect=plain.dialect))
    assert rows.ids == [meant]
    figures = {name: column.tolist() for name, column in rows.features.items()}
    assert figures == {"count()": [3.0], "sum(cost)": [7.0], "mean(cost)": pytest.approx([7 / 3])}


def test_plain_ids_of_a_run_of_frames_stay_plain(tmp_path):
    """What the id column is called, and how ids are compared, are two things."""
    bank = {"key": [f"{n:03}" for n in range(40)], "y": [n % 2 for n in range(40)], "a": [n / 7 for n in range(40)]}
    for ids in ("plain", "exact"):
        federation = Federation.from_frames({"bank": bank}, label="y", id="key", data={"ids": ids})
        settings = Settings(step_size=0.1, batch_size=10)
        train(federation, Linear(), Objective("logistic"), settings, rounds=0, out=tmp_path / ids)
        columns = Model.load(tmp_path / ids).part("bank").columns
        assert (columns.id, columns.dialect.ids) == ("key", ids)
