"""Federations of real processes over mutual TLS, against the simulation of the same file."""

import csv
import json
import logging
import shutil
import signal
from urllib.request import urlopen

import pytest
from sklearn.datasets import load_diabetes
from typer.testing import CliRunner

from support.command import tdcd
from support.party_processes import (
    SOON,
    assert_same_run,
    events,
    processes,
    simulated,
    status,
    up,
    wait_until,
    written,
)
from support.ports import free_ports
from support.simulated import RIDGE
from tdcd.cli.app import app
from tdcd.config import check_config, read_config
from tdcd.config.resolve import plan
from tdcd.pages.timeline import Lane
from tdcd.prediction.model import Model
from tdcd.records.history import read_history
from tdcd.records.run_folder import toml_text
from tdcd.records.timeline import Timeline
from tdcd.runtime.compute.client_data import shards
from tdcd.runtime.storage.checkpoint import Checkpoints
from tdcd.tables.split import split_table

pytestmark = pytest.mark.slow


def fetched(url):
    with urlopen(url, timeout=SOON) as answer:
        return answer.read()


def models(folder):
    return {path.stem for path in (folder / "model").iterdir()}


# All parties on one machine


def test_ridge_of_2_silos_with_3_clients(tmp_path, monkeypatch):
    path = written(tmp_path, RIDGE | {"evaluate": {"every": 2, "alone": True}})
    out, pages = tmp_path / "up", []
    monkeypatch.setenv("BROWSER", "ours")
    monkeypatch.setattr("webbrowser.open", lambda url: pages.append((url, fetched(f"{url}state"))))
    code, text = up(path, out, "--watch")
    assert code == 0
    ((url, page),) = pages
    assert f"Watch at {url}\n" in text
    assert b"It is starting" in page
    whole = simulated(path, tmp_path / "run")
    assert_same_run(out, whole, 1e-10)
    assert (out / "alone.json").read_bytes() == (whole / "alone.json").read_bytes()
    assert "What joining gains" in (out / "report.html").read_text()
    assert models(out) == {"clinic", "lab"}
    assert (out / "preparation" / "lab.json").read_bytes() == (whole / "preparation" / "lab.json").read_bytes()
    assert Model.load(out).label_encoding == Model.load(whole).label_encoding
    assert f"Run folder: {out}" in text
    assert text.count("6/6") >= 2
    assert_times_add_up(out)
    verified = tdcd("verify", out, "--replay", cwd=tmp_path)
    assert verified.exit_code == 0, verified.output
    assert f"{out}: trained again: the same history and model, within 1e-08" in verified.stdout
    assert verified.stdout.count("as manifest.json says") == 3
    made, simulation = (json.loads((folder / "manifest.json").read_text()) for folder in (out, whole))
    assert set(made["data"]) == set(simulation["data"])
    assert made["schedule"] == simulation["schedule"]


def assert_times_add_up(out):
    """Each hub worked or waited from its first round to the last line of the history; page and status say so."""
    page, done = (out / "report.html").read_text(), CliRunner().invoke(app, ["status", str(out)])
    assert done.output.count("  time  ") == 2
    for silo, other in (("clinic", "lab"), ("lab", "clinic")):
        home = out / "silos" / silo
        timeline, history = Timeline.read(home / "timeline.json"), read_history(home / "history.jsonl")
        waited = timeline.waited
        assert set(waited) <= {f"hub.{other}"}
        length = timeline.end - timeline.spans[0].start
        assert timeline.worked + sum(waited.values()) == pytest.approx(length, abs=1e-4)
        assert history[-1].seconds - history[0].seconds <= length <= history[-1].seconds + SOON
        assert [span.first for span in timeline.spans] == [*range(7)]
        words = Lane(silo, timeline).in_words()
        assert f"{words}." in page
        assert f"{words}." in (home / "report.html").read_text()
    assert "<svg" in (out / "report.html").read_text()
    homes = [out / "silos" / name for name in ("clinic", "lab")]
    assert read_history(homes[0] / "history.jsonl") == read_history(homes[1] / "history.jsonl")
    for home in homes:
        assert models(home) == {home.name}, "a silo has its own block only"
        assert "<svg" in (home / "report.html").read_text()
        found = status(home)
        assert (found["status"], found["missing"], found["round"]) == ("finished", [], 6)
        assert (found["ended"], found["gap"]) == ("limit", read_history(home / "history.jsonl")[-1].gap)
        assert found["payload_bytes_sent"] < found["bytes_sent"]
        facts = json.loads((home / "federation.json").read_text())
        assert [len(silo["clients"]) for silo in facts["silos"]] == [3, 3]
    for log in (out / "logs").iterdir():
        assert {event["party"] for event in events(log)} == {log.stem}


def test_logistic_of_3_silos_that_share_their_model(tmp_path):
    """2, 1 and 1 clients, their rows split unevenly and in each silo differently, in float32."""
    keys = RIDGE | {
        "dtype": "float32",
        "data": {"source": "breast_cancer"},
        "silos": [{"name": "a", "clients": 2}, {"name": "b", "clients": 1}, {"name": "c", "clients": 1}],
        "federation": {"rows": "dirichlet", "alpha": 1.0, "share_model": True},
    }
    path, out = written(tmp_path, keys), tmp_path / "up"
    assert up(path, out)[0] == 0
    whole = simulated(path, tmp_path / "run")
    assert_same_run(out, whole, 1e-5)
    for name in "abc":
        assert models(out / "silos" / name) == {"a", "b", "c"}
        assert_same_run(out / "silos" / name, whole, 1e-5)


def test_a_cnn_that_is_interrupted_and_continues(tmp_path):
    keys = RIDGE | {
        "data": {"source": "digits", "rows": 300},
        "silos": [{"name": "left", "clients": 1}, {"name": "right", "clients": 1}],
        "model": {"block": "cnn", "channels": [4], "kernel": [3, 3], "embedding": 8},
        "train": {"rounds": 300, "local_steps": 2, "batch_size": 40, "step_size": 0.1},
        "evaluate": {"every": 50},
    }
    path, out = written(tmp_path, keys), tmp_path / "up"
    with processes(tmp_path) as start:
        process = start("first", "up", path, "--out", out)
        wait_until(lambda: status(out / "silos" / "left").get("round", 0) >= 5, process)
        process.send_signal(signal.SIGINT)
        assert process.wait(SOON) == 130
    assert "Interrupted: the same command continues from here" in (tmp_path / "first.log").read_text()
    done = Checkpoints(out / "silos" / "left" / "checkpoint", "hub.left").newest.round
    assert 5 <= done < 300
    assert not (out / "report.html").exists()
    assert up(path, out)[0] == 0
    restored = [event for event in events(out / "logs" / "hub.left.log") if event["event"] == "restored"]
    assert [event["round"] for event in restored] == [done]
    assert_same_run(out, simulated(path, tmp_path / "run"), 1e-10)
    other = written(tmp_path / "other", keys | {"seed": 1})
    code, text = up(other, out)
    assert code == 2
    assert "holds a trial of other settings: choose another --out" in text


@pytest.mark.parametrize("step_size", [1e200, 3.0])
def test_a_run_that_diverges_ends_with_status_3(step_size, tmp_path):
    """Whether a number overflows, or the model is only worse than before."""
    keys = RIDGE | {"silos": [{"name": "a", "clients": 1}], "train": {**RIDGE["train"], "step_size": step_size}}
    path = written(tmp_path, keys)
    code, text = up(path, tmp_path / "up")
    assert code == 3
    assert "Diverged: " in text
    last = read_history(tmp_path / "up" / "history.jsonl")[-1]
    assert last.diverged == (step_size > 3)
    assert last.worse_than == ("" if last.diverged else "start")
    assert "This run diverged: the" in (tmp_path / "up" / "report.html").read_text()
    assert ("the training loss ended at" in text) == (not last.diverged)
    if not last.diverged:
        # The same command again waits for nobody.
        code, text = up(path, tmp_path / "up")
        assert (code, "holds the whole run already" in text) == (3, True)


def test_a_trial_of_tables_says_what_it_takes_labels_for_and_keeps_what_was_held_out(tmp_path):
    with (tmp_path / "all.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["customer", "visits", "a", "b"])
        writer.writerows([number, number % 5, number % 7, number % 11] for number in range(100))
    path = split_table(
        tmp_path / "all.csv", tmp_path / "split", silos=2, clients=[2, 1], id_column="customer", label="visits"
    )
    keys = read_config(path) | {"dtype": "float64", "train": {"step_size": 0.05, "rounds": 3, "batch_size": 20}}
    keys["evaluate"] = {"stratify": True}
    path, out = written(tmp_path, keys), tmp_path / "up"
    code, text = up(path, out)
    assert code == 0, text
    words = '5 classes 0 to 4 (model.loss = "softmax" decided from the values; set model.loss = "squared" to predict '
    assert f"Labels: {words}amounts)" in text
    whole = simulated(path, tmp_path / "run")
    tables = [list(csv.DictReader((folder / "held-out.csv").read_text().splitlines())) for folder in (out, whole)]
    assert [list(row)[:3] for row in tables[0][:1]] == [["customer", "label", "prediction"]]
    assert sorted(row["label"] for row in tables[0]) == [str(count) for count in range(5) for _ in range(4)]
    for ours, theirs in zip(*tables, strict=True):
        assert {name: float(cell) for name, cell in ours.items()} == pytest.approx(
            {name: float(cell) for name, cell in theirs.items()}, rel=1e-9
        )
    for folder in (out, out / "silos" / "silo2"):
        assert "Labels: 5 classes 0 to 4" in (folder / "report.html").read_text()
        assert (folder / "held-out.csv").read_bytes() == (out / "held-out.csv").read_bytes()


# Parties started by hand


@pytest.fixture
def tables(tmp_path):
    """A federation of files: two silos, with two clients and one."""
    data = load_diabetes()
    with (tmp_path / "all.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "y", *data.feature_names])
        writer.writerows([number, data.target[number], *row] for number, row in enumerate(data.data))
    path = split_table(tmp_path / "all.csv", tmp_path / "split", silos=2, clients=[2, 1], label="y")
    keys = read_config(path)
    for silo, port in zip(keys["silos"], free_ports(2), strict=True):
        silo["hub"] = f"127.0.0.1:{port}"
    keys |= {"dtype": "float64", "train": {**RIDGE["train"], "rounds": 400}, "evaluate": {"every": 50}}
    path.write_text(toml_text(check_config(keys).model_dump()))
    return path


def own_certificates(everything, folder, party):
    """What one is told to give to a party, and nothing else."""
    folder.mkdir()
    for name in ("ca.pem", "federation.secret", f"{party}.pem", f"{party}.key"):
        shutil.copy(everything / name, folder / name)
    return folder


def says(folder):
    """``tdcd status`` of a party, as a probe asks for it: the exit status and the first line."""
    done = tdcd("status", folder, cwd=folder)
    return done.exit_code, done.output.splitlines()[0]


def test_hubs_and_clients_started_by_hand(tables, tmp_path):
    """Two hubs and three clients, each with its own files: one is late, a hub is stopped and started again."""
    out = {silo: tmp_path / f"run-{silo}" for silo in ("silo1", "silo2")}
    with processes(tmp_path) as start:
        assert start("certs", "certs", "issue", tables, "--out", tmp_path / "certs").wait(SOON) == 0
        parties = ("hub.silo1", "hub.silo2", "client.silo1.c1", "client.silo1.c2", "client.silo2.c1")
        certs = {party: own_certificates(tmp_path / "certs", tmp_path / party, party) for party in parties}

        def hub(silo):
            party = f"hub.{silo}"
            return start(party, "hub", tables, "--silo", silo, "--certs", certs[party], "--out", out[silo])

        def client(silo, name):
            party, data = f"client.{silo}.{name}", tables.parent / silo / f"{name}.csv"
            own = ("--certs", certs[party], "--data", data, "--out", tmp_path / f"said-{party}")
            return start(party, "client", tables, "--silo", silo, "--client", name, *own)

        one, two, early, other = hub("silo1"), hub("silo2"), client("silo1", "c1"), client("silo2", "c1")
        wait_until(lambda: status(out["silo1"]).get("missing") == ["client.silo1.c2"], one, two, early, other)
        wait_until(lambda: status(out["silo2"]).get("missing") == ["hub.silo1"], one, two, early, other)
        assert status(out["silo1"])["phase"] == "gathering"
        assert not (out["silo1"] / "history.jsonl").read_text()
        said = tmp_path / "said-client.silo1.c1"
        wait_until(lambda: status(said).get("connected") == ["hub.silo1"], one, two, early, other)
        assert says(said) == (0, "client.silo1.c1: joining, alive")
        late = client("silo1", "c2")
        wait_until(lambda: status(out["silo1"]).get("round", 0) >= 20, one, two, early, other, late)
        one.send_signal(signal.SIGTERM)
        assert one.wait(SOON) == 130
        last = events(tmp_path / "hub.silo1.log")[-1]
        assert (last["event"], last["status"], last["party"]) == ("failed", "interrupted", "hub.silo1")
        assert last["why"].startswith("in round")
        wait_until(lambda: "hub.silo1" in status(out["silo2"])["missing"], two, early, other, late)
        wait_until(lambda: status(said)["phase"] == "dialling", two, early, other, late)
        assert says(said) == (0, "client.silo1.c1: dialling, alive")
        assert [process.wait(SOON) for process in (hub("silo1"), two, early, other, late)] == [0] * 5
        assert says(said) == (0, "client.silo1.c1: finished, ended")
        assert status(said)["round"] == 399
        assert hub("silo1").wait(SOON) == 0
    assert "holds the whole run already" not in (tmp_path / "hub.silo2.log").read_text()
    whole = simulated(tables, tmp_path / "run")
    for silo, folder in out.items():
        assert_same_run(folder, whole, 1e-10)
        assert models(folder) == {silo}
        facts = json.loads((folder / "federation.json").read_text())
        assert [bool(one["columns"]) for one in facts["silos"]] == [silo == "silo1", silo == "silo2"]
    assert read_history(out["silo1"] / "history.jsonl") == read_history(out["silo2"] / "history.jsonl")


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"seed": 7}, "seed is 7 at client.a.c1 and 0 at hub.a"),
        ({"federation": {"run": "may"}}, "federation.run is 'may' at client.a.c1 and 'june' at hub.a"),
    ],
)
def test_parties_that_do_not_fit_end_with_status_2_and_say_why(tmp_path, other, why):
    """Without TLS, on loopback: a hub, and a client with another file, or of another run."""
    silo = {"name": "a", "clients": 1, "hub": f"127.0.0.1:{free_ports(1)[0]}"}
    keys = RIDGE | {"silos": [silo], "federation": {"run": "june"}}
    planned = plan(check_config(keys))
    shards(planned)["client.a.c1"].save(tmp_path / "rows.safetensors")
    ours, theirs = written(tmp_path / "ours", keys), written(tmp_path / "theirs", keys | other)
    with processes(tmp_path) as start:
        hub = start("hub", "hub", ours, "--silo", "a", "--insecure", "--out", tmp_path / "run")
        rows = ("--data", tmp_path / "rows.safetensors")
        client = start("client", "client", theirs, "--silo", "a", "--client", "c1", "--insecure", *rows)
        assert [hub.wait(SOON), client.wait(SOON)] == [2, 2]
    for party in ("hub", "client"):
        lines = (tmp_path / f"{party}.log").read_text().splitlines()
        # Every line is JSON, the last one too.
        assert len(events(tmp_path / f"{party}.log")) == len(lines)
        last = json.loads(lines[-1])
        assert (last["level"], last["event"], last["status"]) == ("error", "failed", "refused")
        assert last["why"] == f"the shared files differ: {why}"


def test_the_log_level_leaves_out_what_is_less_and_bad_input_is_json_too(tmp_path):
    """A level of "error" leaves the last line alone; a defect is a line with its traceback."""
    silo = {"name": "a", "clients": 1, "hub": f"127.0.0.1:{free_ports(1)[0]}"}
    path = written(tmp_path, RIDGE | {"silos": [silo]})
    for command, why in (
        (("hub", path, "--silo", "b"), "there is no silo 'b'"),
        (("client", path, "--silo", "a", "--client", "c1", "--insecure"), "data: is missing; a client needs --data"),
        (("party", tmp_path / "none.toml"), "none.toml"),
    ):
        done = tdcd(*command, "--log-level", "error", cwd=tmp_path)
        (line,) = done.stderr.splitlines()
        last = json.loads(line)
        assert (done.exit_code, last["event"], last["level"]) == (2, "failed", "error")
        assert why in last["why"]
    assert not logging.getLogger("tdcd").handlers


def test_no_tls_is_refused_for_other_machines(tables, tmp_path):
    keys = read_config(tables)
    keys["silos"][0]["hub"] = "lab.example:7447"
    path = str(written(tmp_path / "other", keys))
    rows = ["--data", str(tables.parent / "silo1" / "c1.csv")]
    for command in (
        ["hub", path, "--silo", "silo2", "--insecure", "--out", str(tmp_path / "hub")],
        ["client", path, "--silo", "silo1", "--client", "c1", "--insecure", *rows],
    ):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 2
        assert "--insecure: hub.silo1 is at lab.example:7447, which is not this machine's own address" in result.stderr
