"""A row that belongs to many samples: the same as the table with one row per sample."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from two_tables import write_csv

from support.command import tdcd
from tdcd import Federation, Linear, Model, Objective, Settings, train
from tdcd.config import ConfigError, check_config
from tdcd.config.resolve import plan
from tdcd.tables.assembly import assemble
from tdcd.tables.client_table import check_tables, read_client
from tdcd.tables.errors import TableError
from tdcd.tables.reader import keys_of, read_chunks, read_rows
from tdcd.tables.rows import Columns
from tdcd.tables.source import Frame
from tdcd.training.run import run

PEOPLE, HOMES = 60, 17
SETTINGS = Settings(step_size=0.1, batch_size=16)


def tables(seed=0):
    """People; households; who lives where; and the households' columns for each person."""
    rng = np.random.default_rng(seed)
    ids = [f"p{place:03}" for place in range(PEOPLE)]
    homes = [f"h{home}" for home in rng.integers(0, HOMES, PEOPLE)]
    income = {f"h{home}": round(rng.normal(30, 9), 2) for home in range(HOMES)}
    town = {f"h{home}": rng.choice(["Oslo", "Rome"]) for home in range(HOMES)}
    people = {"id": ids, "age": rng.normal(40, 9, PEOPLE).round(2)}
    people["bought"] = [
        "yes" if income[home] + age > 70 else "no" for home, age in zip(homes, people["age"], strict=True)
    ]
    order = rng.permutation(HOMES)
    household = {"home": [f"h{home}" for home in order]}
    household |= {"income": [income[home] for home in household["home"]], "town": [town[h] for h in household["home"]]}
    turned = rng.permutation(PEOPLE)
    link = {"id": [ids[place] for place in turned], "home": [homes[place] for place in turned]}
    joined = {"id": link["id"], "income": [income[home] for home in link["home"]]}
    return people, household, link, joined | {"town": [town[home] for home in link["home"]]}


@pytest.fixture
def files(tmp_path):
    people, household, link, joined = tables()
    for name, table in (("people", people), ("households", household), ("link", link), ("joined", joined)):
        write_csv(tmp_path / f"{name}.csv", table)
    keys = {
        "data": {"source": "files", "folder": str(tmp_path), "rare": 1},
        "model": {"block": "linear"},
        "train": {"rounds": 3, "step_size": 0.1, "batch_size": 16},
        "silos": [
            {"name": "bank", "table": "people.csv", "clients": 2, "label": "bought"},
            {"name": "shop", "clients": 2, "categorical": ["town"]},
        ],
    }
    keyed = {"table": "households.csv", "key": "home", "link": "link.csv"}
    return keys, keyed, {"table": "joined.csv"}


def with_shop(keys, shop):
    return keys | {"silos": [keys["silos"][0], keys["silos"][1] | shop]}


def test_a_run_is_that_of_the_joined_table(files, tmp_path):
    keys, keyed, joined = files
    one, other = (
        run(check_config(with_shop(keys, shop)), tmp_path / name) for name, shop in (("a", keyed), ("b", joined))
    )
    assert [record.train_loss for record in one.history] == [record.train_loss for record in other.history]
    for name, block in one.blocks.items():
        np.testing.assert_array_equal(block["weight"], other.blocks[name]["weight"])
    # New samples come with a row each, or with the rows of their households and the link table of the configuration.
    model = Model.load(tmp_path / "a")
    new = {"bank": tmp_path / "people.csv", "shop": tmp_path / "joined.csv"}
    scores = Model.load(tmp_path / "b").scores(new)
    np.testing.assert_array_equal(model.scores(new), scores)
    # There a key is one more column, of any type.
    every = tables()[3]
    pq.write_table(pa.table(every | {"home": [0.5] * len(every["id"])}), tmp_path / "joined.parquet")
    np.testing.assert_array_equal(model.scores(new | {"shop": tmp_path / "joined.parquet"}), scores)
    by_key = new | {"shop": tmp_path / "households.csv"}
    np.testing.assert_array_equal(model.scores(by_key), scores)
    write_csv(tmp_path / "nameless.csv", {"income": [1.0], "town": ["Oslo"]})
    # A saved model is without that table.
    model.save(tmp_path / "a.tdcd")
    saved = Model.load(tmp_path / "a.tdcd")
    with pytest.raises(TableError, match="known by keys: give the table with the 'id' and the 'home' of every sample"):
        saved.scores(by_key)
    np.testing.assert_array_equal(saved.linked({"shop": tmp_path / "link.csv"}).scores(by_key), scores)
    with pytest.raises(TableError, match=r"has no column 'id'.*; or give rows by 'home', as in training"):
        model.scores(new | {"shop": tmp_path / "nameless.csv"})
    with pytest.raises(ValueError, match="link of silo 'bank': its rows have the ids of samples, and no key"):
        model.linked({"bank": tmp_path / "link.csv"})


def test_tdcd_predict_takes_links_of_new_samples(files, tmp_path):
    keys, keyed, _ = files
    run(check_config(with_shop(keys, keyed)), tmp_path / "run")
    _, household, link, joined = tables(7)
    link = {name: column[:20] for name, column in link.items()} | {"id": [f"new{place}" for place in range(20)]}
    write_csv(tmp_path / "new_homes.csv", household)
    write_csv(tmp_path / "new_link.csv", link)
    write_csv(tmp_path / "new_people.csv", {"id": link["id"], "age": [30.0 + place for place in range(20)]})
    write_csv(tmp_path / "new_joined.csv", {name: column[:20] for name, column in joined.items()} | {"id": link["id"]})
    written = []
    for name, shop in (
        ("by_key", ["--data", f"shop={tmp_path}/new_homes.csv", "--link", f"shop={tmp_path}/new_link.csv"]),
        ("joined", ["--data", f"shop={tmp_path}/new_joined.csv"]),
    ):
        out = tmp_path / f"predicted_{name}.csv"
        own = ["--data", f"bank={tmp_path}/new_people.csv", *shop, "--out", out]
        assert tdcd("predict", tmp_path / "run", *own, cwd=tmp_path).exit_code == 0
        written.append(out.read_text())
    assert written[0] == written[1]
    assert written[0].splitlines()[1].startswith("new0,")
    wrong = tdcd("predict", tmp_path / "run", *own, "--force", "--link", f"bank={tmp_path}/new_link.csv", cwd=tmp_path)
    assert wrong.exit_code == 2
    assert "link of silo 'bank': its rows have the ids of samples, and no key" in wrong.stderr
    alone = ["--data", f"bank={tmp_path}/new_people.csv", "--without", "shop", "--out", out, "--force"]
    wrong = tdcd("predict", tmp_path / "run", *alone, "--link", "shop=links.csv", cwd=tmp_path)
    assert wrong.exit_code == 2
    assert "--link shop=links.csv: goes with --data shop=FILE" in wrong.stderr


def test_a_federation_of_frames(tmp_path):
    people, household, link, joined = tables(1)
    settings = {"label": "bought", "id": "id", "clients": 2, "data": {"rare": 1}}
    given = Federation.from_frames({"bank": people, "shop": joined}, **settings)
    made = Federation.from_frames({"bank": people, "shop": household}, link={"shop": (link, "home")}, **settings)
    for one, other in zip(given.silos, made.silos, strict=True):
        np.testing.assert_array_equal(one.features, other.features)
        np.testing.assert_array_equal(one.test_features, other.test_features)
    result = train(made, Linear(), Objective("logistic"), SETTINGS, rounds=1, out=tmp_path / "run")
    new = {"bank": people, "shop": joined}
    scores = result.model.scores(new)
    np.testing.assert_array_equal(Model.load(tmp_path / "run").scores(new), scores)
    by_key = {"bank": people, "shop": household}
    for model in (result.model, Model.load(tmp_path / "run")):
        np.testing.assert_array_equal(model.linked({"shop": link}).scores(by_key), scores)
        with pytest.raises(TableError, match="give the table with the 'id' and the 'home' of every sample"):
            model.scores(by_key)
    with pytest.raises(ValueError, match="link: there is no frame 'store'"):
        Federation.from_frames({"bank": people}, link={"store": (link, "home")}, **settings)
    with pytest.raises(ValueError, match="link: rows are put together by ids: give id=COLUMN"):
        Federation.from_frames({"bank": people, "shop": household}, label="bought", link={"shop": (link, "home")})


def test_rows_whose_ids_are_plain(tmp_path):
    """Keys are compared as ids are."""
    people, household, link, _ = tables(2)
    table = Frame(pa.table(household | {"home": [home.upper() + " " for home in household["home"]]}), "households")
    columns = Columns(key="home", link=Frame(pa.table(link), "link"), categorical=("town",))
    with pytest.raises(TableError, match="no sample has a 'home' that is in households: ids are compared as exact"):
        read_rows(table, columns)
    plain = replace(columns, dialect=replace(columns.dialect, ids="plain"))
    assert sorted(read_rows(table, plain).ids) == sorted(people["id"])
    assert keys_of(plain, {link["id"][0]}) == {link["home"][0]}


def test_several_rows_of_a_household(tmp_path):
    """Figures by key first, then a row for every sample."""
    _, household, link, _ = tables(3)
    twice = {name: [*column, *column] for name, column in household.items()}
    columns = Columns(key="home", link=Frame(pa.table(link), "link"), aggregate=("sum", "count"))
    rows = read_rows(Frame(pa.table(twice), "households"), columns)
    assert rows.ids == link["id"]
    assert set(rows.features["count()"].tolist()) == {2}
    income = dict(zip(household["home"], household["income"], strict=True))
    assert rows.features["sum(income)"].tolist() == [2 * income[home] for home in link["home"]]


def test_labels_and_weights_are_in_the_link_table(tmp_path):
    people, household, link, _ = tables(4)
    bought = dict(zip(people["id"], people["bought"], strict=True))
    link |= {"bought": [bought[one] for one in link["id"]], "times": np.arange(PEOPLE) % 3}
    link["home"][0], link["home"][1] = None, "elsewhere"
    pq.write_table(pa.table(household), tmp_path / "households.parquet")
    pq.write_table(pa.table(link), tmp_path / "link.parquet")
    shop = {"name": "shop", "table": "households.parquet", "key": "home", "link": "link.parquet", "label": "bought"}
    shop |= {"weight": "times", "categorical": ["town"]}
    config = check_config({"data": {"source": "files", "folder": str(tmp_path)}, "silos": [shop]})
    rows = read_client(config, config.silos[0], tmp_path / "households.parquet")
    # A sample without a row there, or whose row is another client's.
    assert rows.ids == link["id"][2:]
    assert rows.labels == [bought[one] for one in rows.ids]
    assert rows.weights.tolist() == (np.arange(PEOPLE) % 3)[2:].tolist()
    chunks = list(read_chunks(tmp_path / "households.parquet", Columns.of(config, config.silos[0])))
    assert [one for chunk in chunks for one in chunk.ids] == rows.ids
    assert not check_tables(config).problems
    assert len(assemble(config, bias=0).ids) > 0


@pytest.mark.parametrize(
    ("shop", "problem"),
    [
        ({"table": "households.csv", "key": "home"}, "silo 'shop': key = 'home' goes with link: give both, or neither"),
        ({"table": "joined.csv", "link": "link.csv"}, "silo 'shop': link = 'link.csv' goes with key: give both"),
        ({"table": "joined.csv", "key": "id", "link": "link.csv"}, "column 'id' is the key and something else"),
    ],
)
def test_refused(files, shop, problem):
    with pytest.raises(ConfigError, match=problem):
        check_config(with_shop(files[0], shop))


def test_what_is_wrong_in_either_table(files, tmp_path):
    keys, keyed, _ = files
    (tmp_path / "twice.csv").write_text("id,home\np000,h1\np000,h2\n")
    config = check_config(with_shop(keys, keyed | {"link": "twice.csv"}))
    with pytest.raises(
        TableError,
        match=r"twice.csv, line 3, column 'id': the id 'p000' is on line 2 already: keep one of the two rows",
    ):
        plan(config)
    config = check_config(with_shop(keys, keyed | {"key": "house"}))
    with pytest.raises(TableError, match=r"households.csv: has no column 'house'; .*shares with the link table as key"):
        plan(config)
    config = check_config(with_shop(keys, keyed | {"link": "none.csv"}))
    with pytest.raises(TableError, match=r"none.csv: there is no such file"):
        plan(config)
    assert any("none.csv" in problem for problem in check_tables(config).problems)
