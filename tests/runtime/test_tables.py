"""Clients with their own tables, as state machines, against the simulation of the same file."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from in_process import InProcess, largest_difference

from tdcd.config import check_config, read_config
from tdcd.run import plan, run
from tdcd.runtime.client_data import ClientData
from tdcd.runtime.hub_folder import HubFolder
from tdcd.runtime.party import PartySection, read_data
from tdcd.runtime.trial_data import write_rows
from tdcd.tables.split import split_table

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


def data_of(config, options):
    """What each client's process would read."""
    data = {}
    for client, given in options.items():
        named = dict(zip((one.removeprefix("--") for one in given[::2]), given[1::2], strict=True))
        silo = [silo.name for silo in config.silos].index(client.split(".")[1])
        data[client] = read_data(config, silo, PartySection(**named))
    return data


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
        assert machine.meeting.preparation == planned.assembled.preparations[hub.removeprefix("hub.")]


def test_every_client_its_own_table(federation, tmp_path):
    same_as_the_simulation(check_config(federation), tmp_path)


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
        folder = HubFolder(tmp_path / hub, machine.job, machine.meeting.silo)
        folder.describe(machine.meeting)
        folder.save_held_out(machine.meeting, office.test_scores[hub])
        folder.close()
        with (tmp_path / hub / "held-out.csv").open(newline="") as file:
            found = list(csv.DictReader(file))
        assert [(row["id"], row["label"], row["prediction"]) for row in found] == [
            (row["id"], row["label"], row["prediction"]) for row in wanted
        ]
        chances = [[float(row["probability_yes"]) for row in rows] for rows in (found, wanted)]
        np.testing.assert_allclose(*chances, rtol=1e-10)
        # Of a client that was absent there are no scores.
        folder.save_held_out(
            machine.meeting, np.where(np.arange(len(wanted))[:, None] == 2, np.nan, office.test_scores[hub])
        )
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
