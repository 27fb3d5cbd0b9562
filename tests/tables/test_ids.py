"""Ids that are written in different ways: told wherever it matters, with the setting that decides."""

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
        assemble(config, bias=False)
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


def test_plain_ids_of_a_run_of_frames_stay_plain(tmp_path):
    """What the id column is called, and how ids are compared, are two things."""
    bank = {"key": [f"{n:03}" for n in range(40)], "y": [n % 2 for n in range(40)], "a": [n / 7 for n in range(40)]}
    for ids in ("plain", "exact"):
        federation = Federation.from_frames({"bank": bank}, label="y", id="key", data={"ids": ids})
        settings = Settings(step_size=0.1, batch_size=10)
        train(federation, Linear(), Objective("logistic"), settings, rounds=0, out=tmp_path / ids)
        columns = Model.load(tmp_path / ids).part("bank").columns
        assert (columns.id, columns.dialect.ids) == ("key", ids)
