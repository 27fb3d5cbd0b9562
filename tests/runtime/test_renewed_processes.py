"""Real parties get new certificates while they train: none is restarted, and no bit of the result changes."""

import json
import shutil
from pathlib import Path

import pytest

from support.party_processes import SOON, events, processes, status, wait_until, written
from support.simulated import RIDGE
from tdcd.federation import client_of, hub_of
from tdcd.runtime.certificates.issue import issue
from tdcd.runtime.process.trial import Trial

pytestmark = pytest.mark.slow
SILOS = {"bank": ["north", "south"], "shop": ["east"]}
BANK, SHOP, NORTH, SOUTH, EAST = "hub.bank", "hub.shop", "client.bank.north", "client.bank.south", "client.shop.east"
COMPANY = "authority.bank"
ROUNDS, STOPS = 400, 380


class Federation:
    """Parties of a trial as processes, each with certificates of its own."""

    def __init__(self, folder, start):
        silos = [{"name": silo, "clients": clients} for silo, clients in SILOS.items()]
        keys = {"silos": silos, "train": RIDGE["train"] | {"rounds": ROUNDS}, "evaluate": {"every": 40}}
        keys |= {"runtime": {"resend_s": 0.2}}
        self.home, self.folder, self._start = folder / "trial", folder, start
        Trial.prepare(written(folder, RIDGE | keys), [], self.home)
        # The bank's clients have certificates of their company's own authority.
        issue(self.home / "certs", COMPANY)
        for client in (NORTH, SOUTH):
            issue(self.home / "certs", client, renew=True)
        self._rows = json.loads((self.home / "data" / "options.json").read_text())
        self.hubs = [hub_of(silo) for silo in SILOS]
        self.clients = [client_of(silo, client) for silo, clients in SILOS.items() for client in clients]

    def certs(self, party):
        folder = self.folder / "certs" / party
        if not folder.exists():
            folder.mkdir(parents=True)
            files = [f"{party}.pem", f"{party}.key", "ca.pem"]
            files += ["federation.secret"] if party in self.hubs else []
            files += [f"{COMPANY}.pem"] if party in (BANK, NORTH, SOUTH) else []
            for name in files:
                shutil.copy(self.home / "certs" / name, folder)
        return folder

    def begin(self, run, party, place=None):
        _, silo, *client = party.split(".")
        words = ["client", *self._rows[party], "--client", *client] if client else ["hub", "--out", run / party]
        words[1:1] = [self.home / "federation.toml", "--silo", silo, "--certs", self.certs(party)]
        return self._start(f"{run.name}.{party}", *words, place=place)

    def renew(self, party):
        """A new key, too; the key is there a moment after the certificate."""
        issue(self.home / "certs", party, ["127.0.0.1"] * (party in self.hubs), renew=True)
        for end in (".pem", ".key"):
            shutil.copy(self.home / "certs" / f"{party}{end}", self.certs(party))


def renewals(log):
    return [line["why"] for line in events(log) if line["event"] == "certificate" and "in use from now" in line["why"]]


def files_of(hub: Path):
    """What a run has come to."""
    names = ("round", "iteration", "train_loss", "test_loss", "metrics", "bytes", "messages")
    lines = [json.loads(line) for line in (hub / "history.jsonl").read_text().splitlines()]
    blocks = {path.name: path.read_bytes() for path in (hub / "model").glob("*.safetensors")}
    assert blocks
    return [{name: line.get(name) for name in names} for line in lines], blocks


def test_a_training_goes_on_with_new_certificates_and_the_same_bits(tmp_path):
    with processes(tmp_path) as start:
        federation = Federation(tmp_path, start)
        plain, renewed = tmp_path / "plain", tmp_path / "renewed"
        parties = [federation.begin(plain, party) for party in (*federation.hubs, *federation.clients)]
        assert [party.wait(SOON) for party in parties] == [0] * len(parties)
        stays = {party: federation.begin(renewed, party) for party in (*federation.hubs, NORTH, EAST)}
        # However fast the machine is: the run does not end before all have new certificates.
        south = federation.begin(renewed, SOUTH, f"send.block.before:{STOPS}")

        def at():
            return status(renewed / BANK).get("round", 0)

        wait_until(lambda: at() > 3, *stays.values())
        for party in stays:
            federation.renew(party)
            wait_until(lambda: renewals(tmp_path / f"renewed.{party}.log"), *stays.values())  # noqa: B023
        assert south.wait(SOON) == -9
        wait_until(lambda: status(renewed / BANK)["missing"] == [SOUTH], *stays.values())
        federation.renew(SOUTH)
        last = federation.begin(renewed, SOUTH)
        assert [party.wait(SOON) for party in (*stays.values(), last)] == [0] * 5
    for hub in federation.hubs:
        assert files_of(renewed / hub) == files_of(plain / hub)
