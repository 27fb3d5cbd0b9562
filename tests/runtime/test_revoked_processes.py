"""Real processes, one of which is revoked in the middle of a run."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from support.party_processes import (
    ENVIRONMENT,
    SOON,
    assert_same_run,
    events,
    processes,
    simulated,
    status,
    wait_until,
    written,
)
from support.simulated import RIDGE
from tdcd.cli.app import app
from tdcd.runtime.certificates.issue import issue, revoke
from tdcd.runtime.process.trial import Trial

pytestmark = pytest.mark.slow
NORTH, SOUTH, WEST = "client.bank.north", "client.bank.south", "client.bank.west"


class Bank:
    """One silo with two clients, of whom one has a folder of its own without the list of revoked certificates."""

    def __init__(self, folder, start, clients=("north", "south"), **keys):
        silos = [{"name": "bank", "clients": [*clients]}]
        self.path = written(folder, RIDGE | {"silos": silos, "runtime": {"resend_s": 0.2}} | keys)
        self.home, self.site = folder / "trial", folder / "site"
        self.trial, self._start = Trial.prepare(self.path, [], self.home), start
        self.certs = self.home / "certs"
        shutil.copytree(self.certs, self.site)
        self._rows = json.loads((self.home / "data" / "options.json").read_text())
        self.hub = self._run("hub.bank", "hub", "--certs", self.certs, "--out", self.home / "hub")

    def client(self, party, certs):
        name = party.rpartition(".")[2]
        return self._run(party, "client", "--client", name, "--certs", certs, *self._rows[party])

    def _run(self, party, role, *options):
        return self._start(party, role, self.home / "federation.toml", "--silo", "bank", *options)

    def status(self):
        return status(self.home / "hub")


def test_the_run_waits_for_a_revoked_client_and_ends_with_its_replacement(tmp_path, monkeypatch):
    with processes(tmp_path) as start:
        bank = Bank(tmp_path, start)
        north = bank.client(NORTH, bank.site)
        # The run stands still in round 2 while this one is away.
        with monkeypatch.context() as during:
            during.setitem(ENVIRONMENT, "TDCD_FAILPOINT", "send.block.before:3")
            assert bank.client(SOUTH, bank.certs).wait(SOON) == -9
        revoke(bank.certs, [NORTH])
        wait_until(lambda: bank.status().get("revoked") == [NORTH], bank.hub, north)
        south = bank.client(SOUTH, bank.certs)
        wait_until(lambda: bank.status()["missing"] == [NORTH], bank.hub, north, south)
        log = tmp_path / "hub.bank.log"
        wait_until(lambda: any(NORTH in line.get("revoked", []) for line in events(log)), bank.hub, north, south)
        (told,) = [line for line in events(log) if line["event"] == "revocation list"]
        assert told["why"].endswith(f"revoked.crl: list 1 is in force; newly revoked: {NORTH}")
        said = CliRunner().invoke(app, ["status", str(bank.home / "hub")]).output
        assert f"  revoked     {NORTH}, until it has a new certificate" in said
        # To close a link it looks through its open files, the lock of its folder among them.
        assert ", alive" in said.splitlines()[0]
        assert bank.status()["round"] <= 3
        issue(bank.certs, NORTH)
        replacement = bank.client(NORTH, bank.certs)
        assert [process.wait(SOON) for process in (bank.hub, south, replacement)] == [0, 0, 0]
        assert north.poll() is None, "the old one waits for a hub that does not hear it"
    assert bank.status()["revoked"] == []
    assert_same_run(bank.home / "hub", simulated(bank.path, tmp_path / "run"), 1e-10)


def test_with_a_grace_period_the_run_continues_without_a_revoked_client(tmp_path):
    endless = {"train": RIDGE["train"] | {"rounds": 10**6}, "evaluate": {"every": 10**6}}
    with processes(tmp_path) as start:
        bank = Bank(tmp_path, start, federation={"client_grace_s": 1.0}, **endless)
        parties = [bank.hub, bank.client(NORTH, bank.site), bank.client(SOUTH, bank.certs)]
        wait_until(lambda: bank.status().get("round", 0) > 3, *parties)
        revoke(bank.certs, [NORTH])
        wait_until(lambda: NORTH in bank.status()["left_out"] and NORTH in bank.status()["revoked"], *parties)
        before = bank.status()["round"]
        wait_until(lambda: bank.status()["round"] > before + 3, *parties)
        assert bank.status()["connected"] == [SOUTH]
        # A party that learns that it is revoked ends by itself.
        (bank.site / "revoked.crl").write_bytes((bank.certs / "revoked.crl").read_bytes())
        assert parties[1].wait(SOON) == 2
        last = (tmp_path / f"{NORTH}.log").read_text().replace("\n", " ")
        assert f"the certificate of {NORTH} was revoked (list 1, " in last


def test_with_protected_blocks_the_replacement_has_a_new_key_and_no_other_ends(tmp_path):
    """Clients without the list wait, and say which file they need; with it they make new masks, and the run goes on."""
    endless = {"train": RIDGE["train"] | {"rounds": 10**6}, "evaluate": {"every": 10**6}}
    with processes(tmp_path) as start:
        names = ("north", "south", "west")
        bank = Bank(tmp_path, start, names, exchange={"protect_blocks": True}, **endless)
        north, *others = (bank.client(party, bank.site) for party in (NORTH, SOUTH, WEST))
        wait_until(lambda: bank.status().get("round", 0) > 3, bank.hub, north, *others)
        revoke(bank.certs, [NORTH])
        wait_until(lambda: bank.status()["revoked"] == [NORTH], bank.hub, north, *others)
        issue(bank.certs, NORTH)
        stays = [bank.hub, *others, bank.client(NORTH, bank.certs)]

        def asks_for_the_list(party):
            whys = [line.get("why", "") for line in events(tmp_path / f"{party}.log") if line["event"] == "refused"]
            return any("copy the issuer's latest revoked.crl here" in why for why in whys)

        wait_until(lambda: asks_for_the_list(SOUTH) and asks_for_the_list(WEST), *stays)
        before = bank.status()["round"]
        (bank.site / "revoked.crl").write_bytes((bank.certs / "revoked.crl").read_bytes())
        wait_until(lambda: bank.status()["round"] > before + 3, *stays)
