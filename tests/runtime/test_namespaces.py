"""Parties as on machines of their own: one network namespace each, with its own address."""

import json
import os
import secrets
import shutil
import subprocess
import sys
import time

import pytest

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


def ip(*words):
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def machines():
    """One network namespace a party, by the party's name, all on one switch."""
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("ss") is None:
        pytest.skip("needs Linux, root and the commands ip and ss")
    mark = secrets.token_hex(2)
    switch, spaces = f"tdcd-{mark}", {party: f"tdcd-{mark}-{place}" for place, party in enumerate(ADDRESSES)}
    try:
        try:
            ip("netns", "add", switch)
            ip("-n", switch, "link", "add", "bridge", "type", "bridge")
            ip("-n", switch, "link", "set", "bridge", "up")
            for place, (party, space) in enumerate(spaces.items()):
                ip("netns", "add", space)
                ip("-n", space, "link", "add", "eth", "type", "veth", "peer", "name", f"port{place}", "netns", switch)
                ip("-n", switch, "link", "set", f"port{place}", "master", "bridge", "up")
                ip("-n", space, "address", "add", f"{ADDRESSES[party]}/24", "dev", "eth")
                ip("-n", space, "link", "set", "eth", "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this machine makes no network namespaces: {error.stderr.strip()}")
        yield spaces
    finally:
        for space in (switch, *spaces.values()):
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)


def listening(space):
    """The ports on which somebody in a namespace accepts connections."""
    lines = subprocess.run(["ip", "netns", "exec", space, "ss", "-Hltn"], check=True, capture_output=True, text=True)
    return [line.split()[3].rpartition(":")[2] for line in lines.stdout.splitlines()]


def test_training_where_clients_accept_no_connections(machines, tmp_path):
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
            inside = ["ip", "netns", "exec", machines[party], *command]
            return subprocess.Popen(inside, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=tmp_path)

    processes = {party: start(party) for party in ADDRESSES}
    try:
        status, deadline = tmp_path / "clinic" / "status.json", time.monotonic() + SOON
        while not status.exists() or json.loads(status.read_text())["round"] < 1:
            assert time.monotonic() < deadline
            assert all(process.poll() is None for process in processes.values())
            time.sleep(0.05)
        ports = {party: listening(space) for party, space in machines.items()}
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
