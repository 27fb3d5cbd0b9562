"""A federation that stands by, in a folder: tables, certificates, and a folder of its own for every party."""

import csv
import shutil
from pathlib import Path

import numpy as np

from support.ports import free_ports
from tdcd.config.reading import read_toml
from tdcd.federation import client_of, hub_of
from tdcd.records.run_folder import toml_text
from tdcd.runtime.certificates.issue import issue, throwaway
from tdcd.standing.home import Home

ROWS = 60
SILOS = {"bank": ["north", "south"], "shop": ["main"]}
COLUMNS = {"bank": ["age", "income"], "shop": ["debt", "visits"], "bureau": ["score", "loans"]}


class StandingFederation:
    """Its files. Every silo lacks some rows that others have."""

    def __init__(self, folder: Path, silos=None, **train) -> None:
        self.folder, self.silos = folder, silos or SILOS
        ports = free_ports(len(self.silos))
        self.hubs = {hub_of(silo): f"127.0.0.1:{port}" for silo, port in zip(self.silos, ports, strict=True)}
        self.clients = [client_of(silo, client) for silo, clients in self.silos.items() for client in clients]
        self.parties = [*self.hubs, *self.clients]
        self.keys = {
            "data": {"source": "files"},
            "model": {"block": "linear"},
            "train": {"rounds": 4, "local_steps": 2, "batch_size": 16, "step_size": 0.1} | train,
            "evaluate": {"every": 2},
            "silos": [
                {"name": silo, "hub": self.hubs[hub_of(silo)], "clients": clients, "features": COLUMNS[silo]}
                | {"label": "bought"}
                for silo, clients in self.silos.items()
            ],
        }
        folder.mkdir(exist_ok=True)
        self.shared = folder / "federation.toml"
        self.shared.write_text(toml_text(self.keys))
        throwaway(folder / "issuer", {hub: ["127.0.0.1"] for hub in self.hubs}, self.clients)
        self._write_tables()
        for party in self.parties:
            self._write_party(party)
        self.reset()

    def home(self, party) -> Home:
        return Home(self.own(party))

    def own(self, party) -> Path:
        return self.folder / party / "party.toml"

    def reset(self) -> None:
        """No policies, and nothing was ever said."""
        for party in self.parties:
            _, silo, *client = party.split(".")
            own = {"silo": silo} | ({"client": client[0], "data": "data.csv", "new": "new.csv"} if client else {})
            self.own(party).write_text(toml_text(own))
            shutil.rmtree(self.folder / party / "standing", ignore_errors=True)

    def write_policy(self, party, **keys) -> None:
        silo = party.split(".")[1]
        allowed = {"proposers": [*self.silos], "purposes": ["test"], "columns": ["id", *COLUMNS[silo], "bought"]}
        weak = {"protect": "none", "protect_blocks": False, "rows": 10}
        (self.folder / party / "policy.toml").write_text(toml_text(allowed | weak | keys))
        self.write_own(party, policy="policy.toml")

    def renew(self, party) -> None:
        """A new certificate and key, while the party runs."""
        issue(self.folder / "issuer", party, ["127.0.0.1"] * (party in self.hubs), renew=True)
        for name in (f"{party}.pem", f"{party}.key"):
            shutil.copy(self.folder / "issuer" / name, self.folder / party / "certs" / name)

    def write_own(self, party, **keys) -> None:
        self.own(party).write_text(toml_text(read_toml(self.own(party)) | keys))

    def _write_party(self, party) -> None:
        home, issuer = self.folder / party, self.folder / "issuer"
        (home / "certs").mkdir(parents=True)
        files = [f"{party}.pem", f"{party}.key", "ca.pem", *(["federation.secret"] if party in self.hubs else [])]
        for name in files:
            shutil.copy(issuer / name, home / "certs" / name)
        shutil.copy(self.shared, home / "federation.toml")

    def _write_tables(self) -> None:
        rng = np.random.default_rng(3)
        columns = {name: rng.normal(5, 3, ROWS) for names in COLUMNS.values() for name in names}
        labels = columns["age"] - columns["debt"] + rng.normal(0, 1, ROWS) > 0
        for number, (silo, clients) in enumerate(self.silos.items()):
            present = [row for row in range(ROWS) if row % 10 != number]
            for index, client in enumerate(clients):
                home = self.folder / client_of(silo, client)
                home.mkdir()
                kept, names = present[index :: len(clients)], COLUMNS[silo]
                with (home / "data.csv").open("w", newline="") as file:
                    writer = csv.writer(file)
                    writer.writerow(["id", *names, "bought"])
                    for row in kept:
                        cells = [f"{columns[name][row]:.4f}" for name in names]
                        writer.writerow([f"k{row}", *cells, "yes" if labels[row] else "no"])
                with (home / "new.csv").open("w", newline="") as file:
                    writer = csv.writer(file)
                    writer.writerow(["id", *names])
                    writer.writerows([f"n{row}", *(f"{2 * columns[name][row]:.4f}" for name in names)] for row in kept)
