"""Tables of which one silo's alone have labels: read, trained on, kept and predicted from."""

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow.csv as pcsv
import pytest
from test_tables import same_as_the_simulation, write_table
from typer.testing import CliRunner

from support.in_process import InProcess
from support.party_files import data_of
from support.party_processes import processes, up, written
from tdcd.cli.app import app
from tdcd.config import ConfigError, check_config, read_config
from tdcd.config.resolve import plan
from tdcd.prediction.model import Model
from tdcd.runtime.compute.client_data import ClientData
from tdcd.runtime.process.party import PartySection, read_data
from tdcd.runtime.process.trial import write_rows
from tdcd.runtime.storage.account import Account
from tdcd.runtime.storage.hub_folder import HubFolder
from tdcd.tables.errors import TableError
from tdcd.tables.split import split_table


def keys_of(folder, clients):
    """Per-client files; those of the shop without the label."""
    write_table(folder / "all.csv")
    silos = {"bank": ["age", "income"], "shop": ["debt", "town"]}
    path = split_table(folder / "all.csv", folder / "split", silos=silos, clients=clients, label="bought", seed=1)
    keys = read_config(path)
    keys |= {"dtype": "float64", "federation": {"labels": "bank"}, "evaluate": {"every": 2}}
    keys["train"] = {"rounds": 5, "local_steps": 3, "batch_size": 20, "step_size": 0.2}
    del keys["silos"][1]["label"]
    for client in keys["silos"][1]["client"]:
        rewrite(Path(keys["data"]["folder"]) / client["table"], lambda row: {**row}, without="bought")
    return keys


def rewrite(path, change, without=None):
    with path.open() as file:
        rows = [change(row) for row in csv.DictReader(file)]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [name for name in rows[0] if name != without], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture
def federation(tmp_path):
    return keys_of(tmp_path, [3, 2])


def assert_same_predictions(across_hubs, run, tables, path):
    """Across hubs, by ``tdcd predict`` in one place, and from Python."""
    data = [option for silo, table in tables.items() for option in ("--data", f"{silo}={table}")]
    assert CliRunner().invoke(app, ["predict", str(run), *data, "--out", str(path)]).exit_code == 0
    ours, theirs = (pcsv.read_csv(one) for one in (path, across_hubs))
    assert ours.column_names == theirs.column_names
    assert ours["prediction"] == theirs["prediction"]
    chance = [name for name in ours.column_names if name.startswith("probability_")][-1]
    np.testing.assert_allclose(ours[chance], theirs[chance], rtol=0, atol=1e-6)
    model, order = Model.load(run), {one: place for place, one in enumerate(ours[0].to_pylist())}
    places = [order[one] for one in pcsv.read_csv(tables["bank"])[ours.column_names[0]].to_pylist()]
    np.testing.assert_allclose(model.predict_proba(tables)[:, 1], np.asarray(ours[chance])[places], rtol=0, atol=1e-6)
    assert model.predict(tables).tolist() == np.asarray(ours["prediction"])[places].tolist()


def test_same_as_the_simulation_and_what_each_hub_keeps(federation, tmp_path):
    config = check_config(federation)
    same_as_the_simulation(config, tmp_path)
    data = data_of(config, write_rows(plan(config), tmp_path / "more"))
    assert {client: rows.labels is None for client, rows in data.items()} == {
        client: client.startswith("client.shop.") for client in data
    }
    office = InProcess(config, data).run()
    found = {}
    for hub, machine in office.hubs.items():
        folder = HubFolder(tmp_path / hub, machine.job, machine.handshake.silo)
        folder.describe(machine.handshake)
        folder.close()
        labels = json.loads((tmp_path / hub / "labels.json").read_text())
        found[hub] = labels, json.loads((tmp_path / hub / "federation.json").read_text())["labels"]
    assert found["hub.bank"][0]["classes"] == ["no", "yes"]
    assert found["hub.shop"] == (
        {"task": "binary", "classes": [], "mean": 0.0, "scale": 1.0, "num_outputs": 1},
        "only silo 'bank' has them",
    )


def test_a_table_per_silo(federation, tmp_path):
    folder = tmp_path / "whole"
    folder.mkdir()
    with (tmp_path / "all.csv").open() as file:
        rows = list(csv.DictReader(file))
    for name, columns in {"bank.csv": ["id", "bought", "age", "income"], "shop.csv": ["id", "debt", "town"]}.items():
        with (folder / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
    federation["data"]["folder"] = str(folder)
    federation["silos"] = [
        {"name": "shop", "table": "shop.csv", "clients": ["a", "b"], "categorical": ["town"]},
        {"name": "bank", "table": "bank.csv", "clients": 3, "label": "bought"},
    ]
    config = check_config(federation)
    same_as_the_simulation(config, tmp_path)
    assert not [path for path in (tmp_path / "data").iterdir() if path.name.startswith("labels.")]


def test_labels_that_a_silo_must_not_have_are_refused(federation, tmp_path):
    config = check_config(federation)
    path = Path(config.data.folder) / config.silos[1].client[0].table
    with pytest.raises(ConfigError, match=r"labels = 'l.csv': federation.labels = 'bank', and this is a client of 'sh"):
        read_data(config, 1, PartySection(data=str(path), labels="l.csv"))
    rewrite(path, lambda row: {**row, "bought": "yes"})
    with pytest.raises(TableError, match=r"c1.csv: column 'bought' is the label, and only silo 'bank' may have it"):
        read_data(config, 1, PartySection(data=str(path)))
    rows = tmp_path / "rows.safetensors"
    ClientData(["1"], np.zeros(1), np.zeros((1, 2), np.float32)).save(rows)
    with pytest.raises(ValueError, match=r"has the labels of its rows: federation.labels = 'bank', and this is a clie"):
        read_data(config, 1, PartySection(data=str(rows)))
    ClientData(["1"], None, np.zeros((1, 2), np.float32)).save(rows)
    assert read_data(config, 1, PartySection(data=str(rows))).labels is None
    with pytest.raises(ValueError, match="has no labels of its rows"):
        read_data(config, 0, PartySection(data=str(rows)))


@pytest.mark.slow
def test_a_trial_and_predictions_across_its_hubs(tmp_path):
    """Every party a process: the shop's files never have a label, and the bank alone predicts."""
    keys = keys_of(tmp_path, [1, 1])
    names = {"yes": "has bought", "no": "never bought"}
    for client in keys["silos"][0]["client"]:
        rewrite(Path(keys["data"]["folder"]) / client["table"], lambda row: {**row, "bought": names[row["bought"]]})
    keys["train"]["class_weights"] = "balanced"
    path, out = written(tmp_path / "up", keys), tmp_path / "up" / "trial"
    code, text = up(path, out)
    assert code == 0, text
    with processes(tmp_path) as start:
        homes = {silo: out / "silos" / silo for silo in ("bank", "shop")}
        own = [(homes[silo] / "history.jsonl").read_text().splitlines() for silo in homes]
        lines = [[json.loads(line) | {"seconds": 0} for line in history] for history in own]
        assert lines[0] == lines[1]
        shop = [one for one in homes["shop"].rglob("*") if one.is_file()]
        shop += [*out.glob("data/client.shop.*"), *out.glob("logs/*.shop*")]
        assert len(shop) > 10
        assert not [one for one in shop if b" bought" in one.read_bytes()]
        assert b"never bought" in (homes["bank"] / "held-out.csv").read_bytes()
        assert (out / "held-out.csv").read_bytes() == (homes["bank"] / "held-out.csv").read_bytes()
        assert json.loads((out / "labels.json").read_text())["classes"] == ["has bought", "never bought"]
        said = CliRunner().invoke(app, ["status", str(out)]).output
        assert "labels      here, and in no other silo" in said
        assert "labels      not here: only silo 'bank' has them" in said
        shared, new = out / "federation.toml", {"bank": tmp_path / "new.csv", "shop": None}
        options = {
            silo: ["predict", shared, "--silo", silo, "--run", homes[silo], "--certs", out / "certs", "--data"]
            + [Path(keys["data"]["folder"]) / section["client"][0]["table"]]
            + ([] if new[silo] is None else ["--out", new[silo]])
            + ["--account", tmp_path / f"{silo}.jsonl"]
            for silo, section in zip(("bank", "shop"), keys["silos"], strict=True)
        }
        started = [start(f"predict-{silo}", *words) for silo, words in options.items()]
        assert [one.wait(120) for one in started] == [0, 0]
        assert "Scored 120 rows for silo 'bank', which alone has labels" in (tmp_path / "predict-shop.log").read_text()
        (line,) = Account(tmp_path / "shop.jsonl").read()
        run = json.loads((homes["shop"] / "hub.json").read_text())["run"]
        assert (line.what, line.to, line.rows, line.run) == ("predicted", ["bank"], 120, run)
        assert not (tmp_path / "bank.jsonl").exists()
        tables = {silo: Path(words[words.index("--data") + 1]) for silo, words in options.items()}
        assert_same_predictions(new["bank"], out, tables, tmp_path / "together.csv")
        refused = CliRunner().invoke(app, [*map(str, options["shop"]), "--out", str(tmp_path / "not.csv")])
        assert refused.exit_code == 2
        assert "silo 'bank' alone has labels" in refused.output
        without = ["--without", "shop", "--out", str(tmp_path / "alone.csv")]
        alone = CliRunner().invoke(app, [*map(str, options["bank"][:-4]), *without])
        assert alone.exit_code == 0, alone.output
        assert "120 of them are scored without the part of silo 'shop'." in " ".join(alone.output.split())
        with (tmp_path / "alone.csv").open() as file:
            assert {row["missing"] for row in csv.DictReader(file)} == {"shop"}
        refused = CliRunner().invoke(app, [*map(str, options["shop"]), "--without", "bank"])
        assert refused.exit_code == 2
        assert "without 'bank': it alone has labels, and predicts" in " ".join(refused.output.split())
