"""Parties as on machines of their own: one network namespace each, with its own address."""

import json
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest

from support.namespaces import listening, machines, unable
from support.party_processes import end
from support.patience import SOON
from support.simulated import RIDGE
from tdcd.config import check_config
from tdcd.config.resolve import plan
from tdcd.records.history import read_history
from tdcd.records.run_folder import toml_text
from tdcd.runtime.certificates.issue import issue_all
from tdcd.runtime.compute.client_data import shards
from tdcd.training.run import run

pytestmark = pytest.mark.slow
ADDRESSES = {
    "hub.clinic": "10.99.0.1",
    "hub.lab": "10.99.0.2",
    "client.clinic.c1": "10.99.0.3",
    "client.lab.c1": "10.99.0.4",
}
KEYS = RIDGE | {
    "silos": [
        {"name": "clinic", "clients": 1, "hub": "10.99.0.1:7447"},
        {"name": "lab", "clients": 1, "hub": "10.99.0.2:7447"},
    ],
    "train": {**RIDGE["train"], "rounds": 200},
    "evaluate": {"every": 50},
}


@pytest.fixture
def spaces():
    """One network namespace a party, by the party's name, all on one switch."""
    if why := unable():
        pytest.skip(why)
    with ExitStack() as stack:
        try:
            found = stack.enter_context(machines(ADDRESSES))
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this machine makes no network namespaces: {error.stderr.strip()}")
        yield found


def test_training_where_clients_accept_no_connections(spaces, tmp_path):
    config = check_config(KEYS)
    path = tmp_path / "federation.toml"
    path.write_text(toml_text(config.model_dump()))
    hubs = {hub: [ADDRESSES[hub]] for hub in ("hub.clinic", "hub.lab")}
    issue_all(tmp_path / "certs", hubs, ["client.clinic.c1", "client.lab.c1"])
    for client, rows in shards(plan(config)).items():
        rows.save(tmp_path / f"{client}.safetensors")

    def start(party):
        role, silo, *client = party.split(".")
        own = ["--client", *client, "--data", f"{party}.safetensors"] if client else ["--out", silo]
        command = [sys.executable, "-m", "tdcd", role, path, "--silo", silo, "--certs", "certs", *own]
        with (tmp_path / f"{party}.log").open("wb") as log:
            inside = ["ip", "netns", "exec", spaces[party], *command]
            return subprocess.Popen(inside, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=tmp_path)

    processes = {party: start(party) for party in ADDRESSES}
    try:
        status, deadline = tmp_path / "clinic" / "status.json", time.monotonic() + SOON
        while not status.exists() or json.loads(status.read_text())["round"] < 1:
            assert time.monotonic() < deadline
            assert all(process.poll() is None for process in processes.values())
            time.sleep(0.05)
        ports = {party: listening(space) for party, space in spaces.items()}
        codes = {party: process.wait(SOON) for party, process in processes.items()}
    finally:
        end(processes.values(), tmp_path)
    assert ports == {"hub.clinic": ["7447"], "hub.lab": ["7447"], "client.clinic.c1": [], "client.lab.c1": []}
    assert codes == dict.fromkeys(ADDRESSES, 0)
    wanted = run(config, tmp_path / "run").history
    for silo in ("clinic", "lab"):
        history = read_history(tmp_path / silo / "history.jsonl")
        assert [record.round for record in history] == [record.round for record in wanted]
        for record, other in zip(history, wanted, strict=True):
            assert record.train_loss == pytest.approx(other.train_loss, rel=1e-10)
            assert record.test_loss == pytest.approx(other.test_loss, rel=1e-10)
