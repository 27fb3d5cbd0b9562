"""Predictions of a silo whose rows are at its clients: its hub gets what it would get from one table."""

import csv
from pathlib import Path

import numpy as np
import pytest
from test_align import talk_all
from test_label_silo_tables import assert_same_predictions, keys_of, processes, up, written

from tdcd.config import check_config
from tdcd.config.resolve import plan
from tdcd.prediction.model import Model
from tdcd.runtime.job import IncompatibleParties, Job
from tdcd.runtime.messages.messages import PredictModel, PredictRows
from tdcd.runtime.messages.structure import Array
from tdcd.runtime.messages.wire import RejectedMessage
from tdcd.runtime.process.predict import ModelOf, PredictHub, ScoringClient, ScoringHub
from tdcd.tables.errors import TableError
from tdcd.training.train import train_plan

MODEL = ModelOf("abc", "finished")
TABLES = {
    "bank.csv": [
        "id,age,city,bought",
        *(f"{n},{20 + n % 40},{'rome' if n % 3 else 'oslo'},{n % 2}" for n in range(60)),
    ],
    "shop.csv": ["id,visits", *(f"{n},{n % 7}" for n in range(60))],
    "north.csv": ["id,city,age", "1,oslo,31", "900,,44", "7,rome,"],
    "empty.csv": ["id,age,city"],
    "south.csv": ["id,age,city", "3,50,rome", "55,21,nowhere"],
    "bank_new.csv": ["id,age,city", "1,31,oslo", "900,44,", "7,,rome", "3,50,rome", "55,21,nowhere"],
    "shop_new.csv": ["id,visits", "55,3", "1,6", "8,2", "3,0"],
}


@pytest.fixture(scope="module", params=["linear", "mlp"])
def trained(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    for name, lines in TABLES.items():
        (folder / name).write_text("\n".join(lines) + "\n")
    silos = [
        {"name": "bank", "clients": ["n", "s"], "table": "bank.csv", "label": "bought", "categorical": ["city"]},
        {"name": "shop", "clients": 1, "table": "shop.csv"},
    ]
    head = {"head": "pairs"} if request.param == "mlp" else {}
    config = check_config(
        {
            "data": {"source": "files", "folder": str(folder)},
            "silos": silos,
            "model": {"block": request.param, "hidden": [3], **head},
            "train": {"rounds": 2, "step_size": 0.1, "batch_size": 16},
        }
    )
    train_plan(plan(config), folder / "run")
    return folder, Job(config), Model.load(folder / "run")


def parties(trained, tables=("north.csv", "south.csv"), others=None):
    folder, job, model = trained

    def of_rows(silo):
        return lambda scores, stand_ins: PredictHub(job, silo, scores, MODEL, stand_ins=stand_ins)

    bank = ScoringHub(others or job, 0, model, of_rows(0))
    each = zip(job.clients(0), tables, strict=True)
    clients = [ScoringClient(job, 0, name, folder / table) for name, table in each]
    return bank, of_rows(1)(model.silo_scores("shop", folder / "shop_new.csv"), None), *clients


def test_a_hub_without_rows_gets_what_it_would_get_from_one_table(trained):
    folder, job, model = trained
    bank, shop, *clients = parties(trained)
    outcomes = talk_all([bank, shop, *clients])
    assert {outcome.status for outcome in outcomes.values()} == {"finished"}, outcomes
    expected = model.silo_scores("bank", folder / "bank_new.csv")
    assert list(bank.hub.own.ids) == list(expected.ids)
    np.testing.assert_allclose(bank.hub.own.phi, expected.phi, rtol=1e-6, atol=1e-7)
    assert [client.num_rows for client in clients] == [3, 2]
    whole, other = (
        PredictHub(job, 0, expected, MODEL),
        PredictHub(job, 1, model.silo_scores("shop", folder / "shop_new.csv"), MODEL),
    )
    talk_all([whole, other])
    ours, theirs = bank.hub.parts["hub.shop"], whole.parts["hub.shop"]
    assert list(ours.ids) == list(theirs.ids) == ["1", "3", "55"]
    assert (ours.phi == theirs.phi).all()
    assert list(shop.parts["hub.bank"].ids) == ["55", "1", "3"]


def test_a_client_without_new_rows_gives_a_header(trained):
    folder, _, model = trained
    bank, shop, *clients = parties(trained, tables=("north.csv", "empty.csv"))
    outcomes = talk_all([bank, shop, *clients])
    assert {outcome.status for outcome in outcomes.values()} == {"finished"}, outcomes
    assert list(bank.hub.own.ids) == ["1", "900", "7"]
    assert [client.num_rows for client in clients] == [3, 0]
    with pytest.raises(TableError, match="has a header but no rows"):
        model.silo_scores("bank", folder / "empty.csv")


def test_an_id_that_two_clients_hold_is_refused(trained):
    outcomes = talk_all(parties(trained, tables=("north.csv", "bank_new.csv")))
    assert "id '1' is held by client.bank.n and by client.bank.s" in outcomes["hub.bank"].reason


def test_parties_with_different_files_are_distinguished(trained):
    _, job, _ = trained
    config = job.config.model_copy(update={"train": job.config.train.model_copy(update={"rounds": 7})})
    outcomes = talk_all(parties(trained, others=Job(config)))
    assert "train.rounds is" in outcomes["client.bank.n"].reason


def test_what_does_not_fit_is_refused(trained):
    _, job, model = trained
    bank, _, client, _ = parties(trained)
    (message, _) = bank.start()
    assert message.receiver == "client.bank.n"
    with pytest.raises(RejectedMessage, match="the part of the model does not fit"):
        client.receive(message.replace(preparation='{"age": {}}'))
    with pytest.raises(RejectedMessage, match="'preparation' is not JSON"):
        client.receive(message.replace(preparation="{"))
    with pytest.raises(RejectedMessage, match="the part of the model does not fit"):
        client.receive(message.replace(feature_shape=(3, 500)))
    with pytest.raises(RejectedMessage, match="it has no array"):
        client.receive(message.replace(block={}))
    (answer,) = client.receive(message)
    other = message.preparation.replace(" ", "  ", 1)
    assert isinstance(message, PredictModel)
    assert isinstance(answer, PredictRows)
    with pytest.raises(RejectedMessage, match=r"'absent' is uint8 \[3, 1\], not uint8 \[3, 0\]"):
        client.receive(message.replace(absent=Array.of(np.ones((3, 1), np.uint8))))
    with pytest.raises(RejectedMessage, match="'predict_rows' was not requested"):
        bank.receive(answer.replace(stands_in=True))
    narrow = Array.of(np.zeros((3, model.phi_width + 1), model.dtype))
    with pytest.raises(RejectedMessage, match="'phi' is float32"):
        bank.receive(answer.replace(phi=narrow))
    with pytest.raises(RejectedMessage, match="'ids' has an id twice"):
        bank.receive(answer.replace(ids=["1", "1", "2"]))
    with pytest.raises(RejectedMessage, match="'predict_rows' was not requested"):
        bank.receive(answer.replace(sender="hub.shop"))
    with pytest.raises(RejectedMessage, match="of the model of a process that has ended"):
        bank.receive(client.receive(message.replace(feature_shape=message.feature_shape, preparation=other))[0])
    with pytest.raises(IncompatibleParties, match=r"train\.rounds"):
        bank.receive(answer.replace(config={**job.shared, "train.rounds": 9}))


@pytest.mark.slow
def test_clients_and_hubs_as_processes(tmp_path):
    """Every party a process, with mutual TLS: the bank's hub writes what one table with all rows would give.

    The shop lacks some samples, so that the bank's clients are asked for stand-ins. Its rows are those of households.
    """
    keys = keys_of(tmp_path, [2, 1])
    keys["data"]["samples"] = "all"
    table = Path(keys["data"]["folder"]) / keys["silos"][1]["client"][0]["table"]
    (head, *rows), links = (
        csv.reader(table.read_text().splitlines()[:-30]),
        Path(keys["data"]["folder"]) / "members.csv",
    )
    key, own = head.index("id"), [["home", *(name for name in head if name != "id")]]
    own += [[f"h{home}", *row[:key], *row[key + 1 :]] for home, row in enumerate(rows[::2])]
    table.write_text("".join(f"{','.join(row)}\n" for row in own))
    links.write_text("id,home\n" + "".join(f"{row[key]},h{place // 2}\n" for place, row in enumerate(rows)))
    keys["silos"][1] |= {"key": "home", "link": links.name}
    path, out = written(tmp_path / "up", keys), tmp_path / "up" / "trial"
    code, text = up(path, out)
    assert code == 0, text
    folder, shared, new = Path(keys["data"]["folder"]), out / "federation.toml", tmp_path / "new.csv"
    bank, shop = keys["silos"]
    with processes(tmp_path) as start:
        common = ["predict", shared, "--certs", out / "certs", "--silo"]
        commands = {
            "bank": [*common, "bank", "--run", out / "silos" / "bank", "--out", new],
            "shop": [*common, "shop", "--run", out / "silos" / "shop", "--data", folder / shop["client"][0]["table"]],
        }
        # In one place the link table is that of the configuration.
        commands["shop"] += ["--link", links.rename(tmp_path / "links.csv")]
        for client in bank["client"]:
            commands[client["name"]] = [*common, "bank", "--client", client["name"], "--data", folder / client["table"]]
        started = [start(f"predict-{name}", *words) for name, words in commands.items()]
        assert [one.wait(240) for one in started] == [0] * 4
    names = [client["name"] for client in bank["client"]]
    assert "for the hub of silo 'bank'." in (tmp_path / f"predict-{names[0]}.log").read_text()
    rows = [[*csv.reader((folder / client["table"]).read_text().splitlines())] for client in bank["client"]]
    joined = tmp_path / "bank.csv"
    with joined.open("w", newline="") as file:
        csv.writer(file).writerows([*rows[0], *rows[1][1:]])
    tables = {"bank": joined, "shop": folder / shop["client"][0]["table"]}
    (tmp_path / "links.csv").rename(links)
    assert_same_predictions(new, out, tables, tmp_path / "together.csv")
