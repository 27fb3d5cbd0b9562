"""Clients with their own tables, as state machines, against the simulation of the same file."""

import csv
import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from support.in_process import InProcess, largest_difference
from support.party_files import data_of
from tdcd.config import check_config, read_config
from tdcd.config.resolve import plan
from tdcd.runtime.compute.client_data import ClientData
from tdcd.runtime.machine.instructions import Append
from tdcd.runtime.process.party import PartySection, read_data
from tdcd.runtime.process.trial import write_rows
from tdcd.runtime.storage.hub_folder import HubFolder
from tdcd.tables.errors import TableError
from tdcd.tables.split import split_table
from tdcd.training.run import run

ROWS = 120


def write_table(path: Path) -> None:
    """Amounts and names, blanks among them, and two classes."""
    rng = np.random.default_rng(3)
    amounts = rng.normal(5, 3, (ROWS, 3))
    towns = rng.choice(["Rome", "Oslo", "Ulm", ""], ROWS, p=[0.5, 0.3, 0.1, 0.1])
    labels = amounts[:, 0] - amounts[:, 1] + 2 * (towns == "Rome") + rng.normal(0, 1, ROWS) > 1
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "bought", "age", "income", "debt", "town"])
        for row in range(ROWS):
            cells = [f"{value:.3f}" if rng.random() > 0.1 else "" for value in amounts[row]]
            writer.writerow([f"k{row}", "yes" if labels[row] else "no", *cells, towns[row]])


@pytest.fixture
def federation(tmp_path):
    """A folder of per-client files and its configuration."""
    write_table(tmp_path / "all.csv")
    silos = {"bank": ["age", "income"], "shop": ["debt", "town"]}
    path = split_table(tmp_path / "all.csv", tmp_path / "split", silos=silos, clients=[3, 2], label="bought", seed=1)
    keys = read_config(path)
    keys["dtype"] = "float64"
    keys["data"]["rare"] = 3
    keys["train"] = {"rounds": 5, "local_steps": 3, "batch_size": 20, "step_size": 0.2}
    keys["evaluate"] = {"every": 2}
    return keys


def same_as_the_simulation(config, folder):
    planned = plan(config)
    office = InProcess(config, data_of(config, write_rows(planned, folder / "data"))).run()
    result = run(config, folder / "run")
    assert {end.status for end in office.ends.values()} == {"finished"}, office.ends
    for hub, history in office.history.items():
        losses = [(record.train_loss, record.test_loss) for record in result.history]
        assert np.allclose([(r.train_loss, r.test_loss) for r in history], losses, rtol=1e-10, atol=0), hub
        assert [r.bytes for r in history] == [r.bytes for r in result.history]
    for hub, block in office.blocks().items():
        assert largest_difference(block, result.blocks[hub.removeprefix("hub.")]) < 1e-10
    for hub, machine in office.hubs.items():
        assert machine.handshake.preparation == planned.assembled.preparations[hub.removeprefix("hub.")]


def test_every_client_its_own_table(federation, tmp_path):
    same_as_the_simulation(check_config(federation), tmp_path)


@pytest.mark.parametrize("encoding", ["bins", "piecewise"])
def test_amounts_in_bins(federation, tmp_path, encoding):
    federation["model"] = {"block": "linear", "encoding": encoding, "bins": 4}
    federation["train"]["rounds"] = 1
    same_as_the_simulation(check_config(federation), tmp_path)


def test_an_ensemble_on_piecewise_amounts(federation, tmp_path):
    federation["model"] = {"block": "ensemble", "hidden": [3], "members": 2}
    federation["train"]["rounds"] = 2
    config = check_config(federation)
    assert config.model.chosen_encoding == "piecewise"
    same_as_the_simulation(config, tmp_path)


def test_one_table_a_silo_and_labels_in_one_of_them(federation, tmp_path):
    folder = tmp_path / "whole"
    folder.mkdir()
    with (tmp_path / "all.csv").open() as file:
        rows = list(csv.DictReader(file))
    kept = {"bank.csv": ["id", "bought", "age", "income"], "shop.csv": ["id", "debt", "town"]}
    for name, columns in kept.items():
        with (folder / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, columns, extrasaction="ignore")
            writer.writeheader()
            # The shop has customers that the bank does not know.
            writer.writerows(rows[:-15] if name == "bank.csv" else rows[::-1])
    federation["data"] |= {"folder": str(folder), "align": True}
    federation["silos"] = [
        {"name": "bank", "table": "bank.csv", "clients": 3, "label": "bought"},
        {"name": "shop", "table": "shop.csv", "clients": ["a", "b"], "categorical": ["town"]},
    ]
    same_as_the_simulation(check_config(federation), tmp_path)


def test_a_stratified_holdout_is_the_same_for_all(federation, tmp_path):
    federation["evaluate"]["stratify"] = True
    same_as_the_simulation(check_config(federation), tmp_path)


def test_labels_that_do_not_fit_stop_everybody(federation, tmp_path):
    config = check_config(federation)
    data = data_of(config, write_rows(plan(config), tmp_path / "data"))
    for key, value, message in (
        ("model", {"loss": "squared"}, "the labels: model.loss = 'squared': the labels must be numbers"),
        ("model", {"block": "linear"}, None),
    ):
        ends = InProcess(check_config(federation | {key: value}), data).run().ends
        assert {end.status for end in ends.values()} == {"finished" if message is None else "refused"}
        assert message is None or any(message in end.reason for end in ends.values())


def test_hubs_know_the_predictions_of_held_out_samples(federation, tmp_path):
    config = check_config(federation)
    office = InProcess(config, data_of(config, write_rows(plan(config), tmp_path / "data"))).run()
    run(config, tmp_path / "run")
    with (tmp_path / "run" / "held-out.csv").open(newline="") as file:
        wanted = list(csv.DictReader(file))
    for hub, machine in office.hubs.items():
        folder = HubFolder(tmp_path / hub, machine.job, machine.handshake.silo)
        folder.describe(machine.handshake)
        last = office.history[hub][-1]
        folder.save_figures(machine.handshake, Append(last, office.test_scores[hub]))
        folder.close()
        with (tmp_path / hub / "held-out.csv").open(newline="") as file:
            found = list(csv.DictReader(file))
        assert [(row["id"], row["label"], row["prediction"]) for row in found] == [
            (row["id"], row["label"], row["prediction"]) for row in wanted
        ]
        chances = [[float(row["probability_yes"]) for row in rows] for rows in (found, wanted)]
        np.testing.assert_allclose(*chances, rtol=1e-10)
        # Of a client that was absent there are no scores.
        scores = np.where(np.arange(len(wanted))[:, None] == 2, np.nan, office.test_scores[hub])
        folder.save_figures(machine.handshake, Append(last, scores))
        with (tmp_path / hub / "held-out.csv").open(newline="") as file:
            assert [row["id"] for row in csv.DictReader(file)] == [row["id"] for row in (*wanted[:2], *wanted[3:])]
        facts = json.loads((tmp_path / hub / "federation.json").read_text())
        assert facts["labels"] == '2 classes no, yes (model.loss = "logistic" decided from the values)'


def test_arrays_that_do_not_belong_together_are_refused(tmp_path):
    path = tmp_path / "rows.safetensors"
    ClientData(["1", "2"], np.zeros(3), np.zeros((3, 2), np.float32)).save(path)
    with pytest.raises(ValueError, match="has 2 ids, 3 labels and 3 rows"):
        ClientData.load(path)
    path.write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="does not hold a client's rows"):
        ClientData.load(path)


def test_a_shared_model_comes_with_what_it_takes_to_use_it(federation, tmp_path):
    federation["federation"] = {"share_model": True}
    config = check_config(federation)
    planned = plan(config)
    office = InProcess(config, data_of(config, write_rows(planned, tmp_path / "data"))).run()
    bank, shop = office.hubs["hub.bank"].rounds, office.hubs["hub.shop"].rounds
    assert bank.preparations() == {"hub.shop": planned.assembled.preparations["shop"]}
    assert largest_difference(bank.models()["hub.shop"], shop.models()["hub.shop"]) == 0


@pytest.fixture
def apart(federation, tmp_path):
    """The shop's clients have tables without labels, and customers that the bank, which has them, does not know."""
    for client in federation["silos"][1]["client"]:
        path = Path(federation["data"]["folder"]) / client["table"]
        with path.open() as file:
            rows = list(csv.DictReader(file))
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", "debt", "town"])
            writer.writerows([row["id"], row["debt"], row["town"]] for row in rows)
            writer.writerows([f"{client['name']}-{number}", number, "Ulm"] for number in range(9))
    del federation["silos"][1]["label"]
    federation["data"]["align"] = True
    return federation


def test_common_ids_need_no_labels_of_others(apart, tmp_path):
    same_as_the_simulation(check_config(apart), tmp_path)


def test_a_client_with_labels_apart_trains_on_the_common_ids(apart, tmp_path):
    config = check_config(apart)
    path = Path(config.data.folder) / config.silos[1].client[0].table
    known = [line.split(",")[0] for line in path.read_text().splitlines()[1:] if not line.startswith("c1-")]
    (tmp_path / "ids.txt").write_text("\n".join([*known[:7], "elsewhere"]) + "\n")
    (tmp_path / "labels.csv").write_text("id,bought\n" + "".join(f"{one},yes\n" for one in known[:8]))
    own = {"data": str(path), "labels": str(tmp_path / "labels.csv")}
    data = read_data(config, 1, PartySection(**own, ids=str(tmp_path / "ids.txt")))
    assert (data.ids, data.labels) == (known[:7], ["yes"] * 7)
    with pytest.raises(
        TableError, match=rf"labels.csv: has no label for 61 of the 69 ids in .*c1.csv, such as '{known[8]}'"
    ):
        read_data(config, 1, PartySection(**own))
    (tmp_path / "ids.txt").write_text("00123\n")
    with pytest.raises(
        TableError,
        match=r"c1.csv: has none of the ids in .*ids.txt, of which there is 1: check that",
    ):
        read_data(config, 1, PartySection(**own, ids=str(tmp_path / "ids.txt")))


def test_a_run_in_float64_has_features_in_float64_everywhere(federation, tmp_path):
    start = 1_700_000_000
    for silo, column in zip(federation["silos"], ("income", "debt"), strict=True):
        for client in silo["client"]:
            path = Path(federation["data"]["folder"]) / client["table"]
            with path.open() as file:
                rows = list(csv.DictReader(file))
            with path.open("w", newline="") as file:
                writer = csv.DictWriter(file, rows[0])
                writer.writeheader()
                writer.writerows({**row, column: start + int(row["id"].removeprefix("k"))} for row in rows)
    config = check_config(federation)
    same_as_the_simulation(config, tmp_path)
    planned = plan(config)
    for silo, place in zip(planned.federation.silos, (2, 0), strict=True):
        times = np.array([start + float(one.removeprefix("k")) for one in planned.assembled.ids])
        assert silo.features.dtype == silo.test_features.dtype == np.float64
        expected = (times - times.mean()) / times.std()
        np.testing.assert_allclose(silo.features[:, place], expected, rtol=1e-9, err_msg=str(silo.columns))
    data = data_of(config, write_rows(planned, tmp_path / "more"))["client.bank.c1"]
    features, _ = data.prepared(planned.assembled.preparations["bank"], bias=True, dtype=config.dtype)
    assert features.dtype == np.float64
    train = [planned.assembled.ids.index(one) for one in data.ids if one in planned.assembled.ids]
    held = [place for place, one in enumerate(data.ids) if one in planned.assembled.ids]
    np.testing.assert_array_equal(features[held], planned.federation.silos[0].features[train])


def test_tables_in_another_dialect_reach_the_clients_as_they_are(federation, tmp_path):
    folder = tmp_path / "whole"
    folder.mkdir()
    with (tmp_path / "all.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row |= {"debt": row["debt"].replace(".", ",") or "?", "town": row["town"].replace("Ulm", "Köln")}
        row |= {"age": row["age"].replace(".", ","), "since": f"2024-01-{1 + int(row['id'][1:]) % 28:02}", "row": "x"}
        row |= {"income": "true" if row["income"] > "5" else "FALSE"}
    kept = {"bank.csv.gz": ["id", "bought", "age", "income"], "shop.csv": ["id", "row", "debt", "town", "since"]}
    for name, columns in kept.items():
        opened = gzip.open if name.endswith(".gz") else open
        with opened(folder / name, "wt", newline="", encoding="latin-1") as file:
            writer = csv.DictWriter(file, columns, extrasaction="ignore", delimiter=";")
            writer.writeheader()
            writer.writerows(rows)
    federation["data"] |= {"folder": str(folder), "encoding": "latin-1", "decimal": ",", "blank": ["?"]}
    federation["silos"] = [
        {"name": "bank", "table": "bank.csv.gz", "clients": 3, "label": "bought"},
        {"name": "shop", "table": "shop.csv", "clients": 2, "categorical": ["town"], "ignore": ["row"]},
    ]
    config = check_config(federation)
    same_as_the_simulation(config, tmp_path)
    columns = plan(config).federation.silos[1].columns
    assert columns == ("debt", "debt missing", "town=Köln", "town=Oslo", "town=Rome", "town missing", "since")


@pytest.mark.parametrize("clients", [2, "tables"])
def test_rows_of_many_samples_and_several_rows_of_one(federation, tmp_path, clients):
    """Ids by a link table, and figures of visits: at the clients as in the simulation."""
    rng, folder = np.random.default_rng(5), tmp_path / "whole"
    folder.mkdir()
    homes = rng.integers(0, 30, ROWS)
    (folder / "homes.csv").write_text("id,home\n" + "".join(f"k{row},h{home}\n" for row, home in enumerate(homes)))
    debts = [f"h{home},{rng.normal():.3f},{'Rome' if rng.random() > 0.5 else 'Oslo'}\n" for home in range(30)]
    visits = [f"k{row},{rng.normal():.3f}\n" for row in [*range(ROWS), *rng.integers(0, ROWS, 90).tolist()]]
    parts = {"shop": (debts, "home,debt,town\n"), "clinic": (sorted(visits), "id,cost\n")}
    for name, (lines, header) in parts.items():
        (folder / f"{name}.csv").write_text(header + "".join(lines))
        half = len(lines) // 2
        # Rows of one id are at one client.
        half += sum(line.split(",")[0] == lines[half - 1].split(",")[0] for line in lines[half:])
        for client, own in (("c1", lines[:half]), ("c2", lines[half:])):
            (folder / f"{name}.{client}.csv").write_text(header + "".join(own))
    shop = {"name": "shop", "key": "home", "link": "homes.csv", "categorical": ["town"]}
    clinic = {"name": "clinic", "aggregate": ["count", "sum", "mean"]}
    for silo in (shop, clinic):
        name = silo["name"]
        tables = [{"name": client, "table": f"{name}.{client}.csv"} for client in ("c1", "c2")]
        silo.update({"client": tables} if clients == "tables" else {"table": f"{name}.csv", "clients": clients})
    home = federation["data"]["folder"]
    for client in federation["silos"][0]["client"]:
        client["table"] = f"{home}/{client['table']}"
    federation["silos"] = [federation["silos"][0], shop, clinic]
    federation["data"]["folder"] = str(folder)
    federation["train"]["rounds"] = 2
    same_as_the_simulation(check_config(federation), tmp_path)
