"""Several rows per sample become one of sums, means, counts and the like: as if the table had been that way."""

import csv
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from two_tables import write_csv

from tdcd import Federation, Linear, Model, Objective, Settings, train
from tdcd.config import ConfigError, check_config
from tdcd.config.resolve import plan
from tdcd.tables import reader, source
from tdcd.tables.aggregation import aggregated
from tdcd.tables.client_table import check_tables
from tdcd.tables.errors import TableError
from tdcd.tables.reader import read_chunks, read_rows
from tdcd.tables.rows import Columns
from tdcd.tables.source import Frame
from tdcd.training.train import train_plan

ALL = ("count", "sum", "mean", "min", "max")
VISITS = Columns(categorical=("ward",), aggregate=ALL)
PEOPLE = 60


def visits_of(seed, people=PEOPLE, rows=300):
    """Visits of some people each: an amount with blanks, a ward with blanks, a date."""
    rng = np.random.default_rng(seed)
    wards = rng.choice(["a", "b", "c", ""], rows)
    days = rng.integers(0, 28, rows)
    return {
        "id": [f"p{place}" for place in np.concatenate([np.arange(people), rng.integers(0, people, rows - people)])],
        "cost": [None if rng.random() < 0.2 else round(rng.normal(100, 50), 3) for _ in range(rows)],
        "ward": [ward or None for ward in wards],
        "day": [f"2024-02-{day + 1:02}" for day in days],
    }


def by_hand(visits, sample):
    """The figures of one person."""
    rows = [place for place, one in enumerate(visits["id"]) if one == sample]
    costs = [visits["cost"][row] for row in rows if visits["cost"][row] is not None]
    wards = Counter(visits["ward"][row] for row in rows if visits["ward"][row] is not None)
    total = None if not costs else sum(costs, start=0.0)
    most = sorted(name for name, count in wards.items() if count == max(wards.values()))
    return {
        "count()": len(rows),
        "sum(cost)": total,
        "mean(cost)": None if total is None else total / len(costs),
        "min(cost)": min(costs, default=None),
        "max(cost)": max(costs, default=None),
        "mode(ward)": most[0] if most else None,
    }


def listed(column):
    """A column's values; None where blank."""
    if hasattr(column, "levels"):
        return [None if code < 0 else column.levels[code] for code in column.codes]
    return [None if np.isnan(value) else float(value) for value in column]


def test_the_figures_of_every_id(tmp_path, monkeypatch):
    visits = visits_of(1)
    write_csv(tmp_path / "visits.csv", {name: ["" if v is None else v for v in c] for name, c in visits.items()})
    pq.write_table(pa.table(visits), tmp_path / "visits.parquet", row_group_size=7)
    whole = read_rows(tmp_path / "visits.csv", VISITS)
    assert whole.ids == [*dict.fromkeys(visits["id"])]
    for name in by_hand(visits, "p0"):
        wanted = [by_hand(visits, sample)[name] for sample in whole.ids]
        found = listed(whole.features[name])
        assert found == wanted, name
    days = {sample: visits["day"][visits["id"].index(sample)] for sample in whole.ids}
    assert whole.kinds["max(day)"] == "date"
    assert whole.features["max(day)"][0] >= np.datetime64(days["p0"]).astype(int)
    monkeypatch.setattr(source, "BLOCK_BYTES", 500)
    monkeypatch.setattr(source, "PIECE_BYTES", 600)
    monkeypatch.setattr(source, "CHUNK_ROWS", 11)
    # In pieces of any size, and from every kind of table, to the last bit.
    frame = Frame(pa.table(visits), "visits")
    for other in (tmp_path / "visits.csv", tmp_path / "visits.parquet", frame):
        same(read_rows(other, VISITS), whole)
    monkeypatch.setattr(reader, "CHUNK_ROWS", 13)
    chunks = list(read_chunks(tmp_path / "visits.csv", VISITS))
    assert [len(chunk) for chunk in chunks[:-1]] == [13] * (len(chunks) - 1)
    assert [sample for chunk in chunks for sample in chunk.ids] == whole.ids


def same(rows, others):
    assert rows.ids == others.ids
    assert [*rows.features] == [*others.features]
    for name, column in rows.features.items():
        assert listed(column) == listed(others.features[name]), name


def test_pieces_are_forgotten_as_they_come():
    """Memory grows with the ids: no piece is there any more when the next but one comes."""
    import gc
    import weakref

    alive = []

    def pieces():
        for place in range(20):
            rows = read_rows(Frame(pa.table({"id": ["a", "b"], "x": [float(place), 1.0]}), "x"), Columns())
            alive.append(weakref.ref(rows))
            gc.collect()
            assert sum(one() is not None for one in alive) <= 2
            yield rows
            del rows

    rows = aggregated("x", pieces(), ("sum",))
    assert rows.features["sum(x)"].tolist() == [190.0, 20.0]


@pytest.mark.parametrize("seed", range(3))
def test_a_federation_of_visits_is_that_of_their_figures(seed, tmp_path):
    visits, rng = visits_of(seed), np.random.default_rng(seed)
    figures = read_rows(Frame(pa.table(visits), "visits"), VISITS)
    people = {"id": [f"p{place}" for place in range(PEOPLE)], "age": rng.normal(50, 9, PEOPLE)}
    people["sick"] = ["no" if age > 50 else "yes" for age in people["age"]]
    table = pa.table({"id": figures.ids, **{name: listed(column) for name, column in figures.features.items()}})
    dates = [name for name in table.column_names if name.endswith("(day)")]
    ready, raw = table.drop(dates), {name: column for name, column in visits.items() if name != "day"}
    settings = {"label": "sick", "id": "id", "clients": 2, "data": {"rare": 1}}
    given = Federation.from_frames({"home": people, "clinic": ready}, **settings)
    made = Federation.from_frames({"home": people, "clinic": raw}, aggregate={"clinic": ALL}, **settings)
    for one, other in zip(given.silos, made.silos, strict=True):
        np.testing.assert_array_equal(one.features, other.features)
        assert one.columns == other.columns
    if seed:
        return
    result = train(
        made, Linear(), Objective("logistic"), Settings(step_size=0.1, batch_size=20), rounds=1, out=tmp_path / "run"
    )
    scores = result.model.scores({"home": people, "clinic": raw})
    other = train(given, Linear(), Objective("logistic"), Settings(step_size=0.1, batch_size=20), rounds=1)
    np.testing.assert_array_equal(scores, other.model.scores({"home": people, "clinic": ready}))
    # What is read again knows how rows become figures.
    result.model.save(tmp_path / "model.tdcd")
    for path in (tmp_path / "run", tmp_path / "model.tdcd"):
        np.testing.assert_array_equal(Model.load(path).scores({"home": people, "clinic": raw}), scores)
    without_ids = {name: column for name, column in raw.items() if name != "id"}
    with pytest.raises(ValueError, match="its model adds up the rows of an id: give the id column 'id'"):
        result.model.scores({"home": {"age": people["age"]}, "clinic": without_ids})


def test_ids_labels_and_weights_of_files(tmp_path):
    """Labels and weights may be in a table with several rows, if all rows of an id agree."""
    visits = visits_of(4) | {"sick": None, "counts": None}
    visits["sick"] = ["yes" if int(one[1:]) % 2 else "no" for one in visits["id"]]
    visits["counts"] = [1 + int(one[1:]) % 3 for one in visits["id"]]
    columns = Columns(label="sick", weight="counts", categorical=("ward",), aggregate=("count",))
    rows = read_rows(Frame(pa.table(visits), "visits"), columns)
    assert rows.labels == ["yes" if int(one[1:]) % 2 else "no" for one in rows.ids]
    assert rows.weights.tolist() == [1 + int(one[1:]) % 3 for one in rows.ids]
    assert [*rows.features] == ["count()", "mode(ward)"]
    visits["sick"][visits["id"].index("p3", PEOPLE)] = "no"
    with pytest.raises(TableError, match="the rows of id 'p3' have the labels yes and no: with aggregate, all rows"):
        read_rows(Frame(pa.table(visits), "visits"), columns)


def keys_of(tmp_path, **silo):
    write_csv(tmp_path / "visits.csv", {"id": ["1", "1", "2"], "x": [1, 2, 3], "y": ["a", "a", "b"]})
    section = {"name": "clinic", "table": "visits.csv", "label": "y", **silo}
    return {"data": {"source": "files", "folder": str(tmp_path)}, "silos": [section]}


def test_repeated_ids_name_the_setting(tmp_path):
    advice = 'keep one of the two rows; or set aggregate = ["sum", "mean", "count"] under the silo'
    ready = check_tables(check_config(keys_of(tmp_path)))
    assert advice in ready.problems[0]
    with pytest.raises(TableError) as caught:
        plan(check_config(keys_of(tmp_path)))
    assert advice in str(caught.value)
    ready = check_tables(check_config(keys_of(tmp_path, aggregate=["mean"])))
    assert not ready.problems
    assert [*ready.tables[0].rows.features] == ["mean(x)"]
    frame = {"id": ["1", "1", "2"], "x": [1, 2, 3], "y": ["a", "a", "b"]}
    with pytest.raises(TableError, match=r'or give aggregate=\{"clinic": \["sum", "mean", "count"\]\}'):
        Federation.from_frames({"clinic": frame}, label="y", id="id")


def test_what_is_wrong_in_any_row_is_found(tmp_path):
    with (tmp_path / "visits.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "day"], ["1", "2024-01-02"], ["1", "soon"], ["", "2024-01-02"]])
    with pytest.raises(TableError) as caught:
        read_rows(tmp_path / "visits.csv", Columns(aggregate=("max",)))
    assert len(caught.value.problems) == 2
    assert "'soon' is not a date" in str(caught.value)
    assert "the id is blank" in str(caught.value)


@pytest.mark.parametrize(
    ("silo", "problem"),
    [
        ({"aggregate": ["sum", "sum"]}, "silo 'clinic': aggregate has 'sum' twice: remove one"),
        ({"aggregate": ["median"]}, "aggregate"),
        ({"aggregate": []}, "aggregate"),
    ],
)
def test_refused(tmp_path, silo, problem):
    with pytest.raises(ConfigError, match=problem):
        check_config(keys_of(tmp_path, **silo))


def test_refused_without_tables():
    keys = {"silos": [{"name": "a", "aggregate": ["sum"]}, {"name": "b"}]}
    with pytest.raises(ConfigError, match=r"aggregate = .*'sum'.* goes with data.source = 'files', not 'digits'"):
        check_config(keys)


def test_a_run_of_files_predicts(tmp_path):
    keys = keys_of(tmp_path, aggregate=["sum", "count"]) | {"train": {"rounds": 1, "step_size": 0.1, "batch_size": 2}}
    keys |= {"model": {"block": "linear"}, "evaluate": {"holdout": 0.0}}
    result = train_plan(plan(check_config(keys)), tmp_path / "run")
    model = Model.load(tmp_path / "run")
    assert model.part("clinic").columns.aggregate == ("sum", "count")
    scores = model.scores({"clinic": tmp_path / "visits.csv"})
    assert scores.shape == (2, 1)
    np.testing.assert_array_equal(scores, result.model.scores({"clinic": tmp_path / "visits.csv"}))
