"""`tdcd up` as a process: a client that dies, and a user who presses Ctrl-C twice."""

import contextlib
import json
import os
import signal
import time
from pathlib import Path

import pytest

from support.command import start_tdcd
from support.patience import SOON
from support.simulated import RIDGE
from tdcd.records.history import read_history
from tdcd.records.run_folder import toml_text

pytestmark = pytest.mark.slow
SILOS = [{"name": "clinic", "clients": 1}, {"name": "lab", "clients": ["north", "south"]}]
NORTH = "client.lab.north"


class Up:
    """`tdcd up` of a small federation; none of its processes outlives the test."""

    def __init__(self, folder, **sections):
        (folder / "shared.toml").write_text(toml_text(RIDGE | sections))
        self.out, self.log = folder / "up", folder / "up.log"
        self.process = start_tdcd("up", folder / "shared.toml", "--out", self.out, cwd=folder, log=self.log)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.kill()
        for pid in self.parties().values():
            send(pid, signal.SIGKILL)

    def parties(self):
        """The processes of parties, by name: those whose output goes to a party's log."""
        logs = (self.out / "logs").resolve()
        found = {}
        for place in Path("/proc").glob("[0-9]*/fd/1"):
            try:
                log = place.readlink()
            except OSError:
                continue
            if log.parent == logs:
                found[log.stem] = int(place.parts[2])
        return found

    def status(self, silo):
        path = self.out / "silos" / silo / "status.json"
        return json.loads(path.read_text()) if path.exists() else {"round": -1, "needs_all": True}

    def until(self, happens):
        deadline = time.monotonic() + SOON
        while not happens():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)


def send(pid, number):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def test_a_dead_client_does_not_end_a_trial_with_a_grace_period(tmp_path):
    train = {**RIDGE["train"], "rounds": 200}
    with Up(tmp_path, silos=SILOS, train=train, federation={"client_grace_s": 1.0}, evaluate={"every": 100}) as up:
        up.until(lambda: not up.status("lab")["needs_all"])
        send(up.parties()[NORTH], signal.SIGKILL)
        assert up.process.wait(SOON) == 0, up.log.read_text()
    words = " ".join(up.log.read_text().split())
    # The table that stays on the screen marks the client.
    assert "left out: north" in words
    assert f"without {NORTH}, which ended early: see {up.out}/logs/{NORTH}.log" in words
    last = read_history(up.out / "history.jsonl")[-1]
    assert (last.round, last.unscored) == (200, [NORTH])
    assert (up.out / "report.html").exists()


def test_without_enough_clients_a_trial_ends(tmp_path):
    train = {**RIDGE["train"], "rounds": 100_000}
    with Up(tmp_path, silos=SILOS[:1], train=train, federation={"client_grace_s": 1.0}) as up:
        up.until(lambda: up.status("clinic")["round"] >= 2)
        send(up.parties()["client.clinic.c1"], signal.SIGKILL)
        assert up.process.wait(SOON) == 2
        assert not up.parties()
    assert "Refused: client.clinic.c1 ended" in up.log.read_text()


def test_ctrl_c_twice_ends_every_party_at_once(tmp_path):
    train = {**RIDGE["train"], "rounds": 100_000}
    with Up(tmp_path, silos=SILOS[:1], train=train) as up:
        up.until(lambda: up.status("clinic")["round"] >= 2)
        # A party that cannot leave when it is asked to: the first Ctrl-C waits for it.
        send(up.parties()["client.clinic.c1"], signal.SIGSTOP)
        up.process.send_signal(signal.SIGINT)
        up.until(lambda: "once more to end them at once" in up.log.read_text())
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(SOON) == 130
        assert not up.parties()
    assert "Interrupted at once" in up.log.read_text()
    assert "Traceback" not in up.log.read_text()
