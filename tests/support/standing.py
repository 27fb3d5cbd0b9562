"""A federation that stands by, in a folder: tables, certificates, and a folder of its own for every party."""

import csv
import math
import shutil
import time
from pathlib import Path

import numpy as np

from support.ports import free_ports
from tdcd.config.reading import read_toml
from tdcd.federation import client_of, hub_of
from tdcd.records.run_folder import toml_text
from tdcd.runtime.certificates.issue import issue, throwaway
from tdcd.runtime.transport.transport import LocalNetwork
from tdcd.standing.home import Home
from tdcd.standing.service import Desk

ROWS = 60
SILOS = {"bank": ["north", "south"], "shop": ["main"]}
COLUMNS = {
    "bank": ["age", "income"],
    "shop": ["debt", "visits"],
    "bureau": ["score", "loans"],
    "insurer": ["claims", "years"],
}


class StandingFederation:
    """Its files. Every silo lacks some rows that others have.

    Those of ``later`` are not in the first shared file: :meth:`enlarged` writes the next one, with further clients or
    silos.
    """

    def __init__(self, folder: Path, silos=None, later=(), *, columns=COLUMNS, hosts=None, **train) -> None:
        self.folder, self.founders = folder, silos or SILOS
        self.silos = {silo: [*clients] for silo, clients in self.founders.items()}
        for silo, clients in later:
            self.silos.setdefault(silo, []).extend(clients)
        self.columns = columns
        hosts = hosts or dict.fromkeys(self.silos, "127.0.0.1")
        ports = dict(zip(self.silos, free_ports(len(self.silos)), strict=True))
        self.hubs = {hub_of(silo): f"{hosts[silo]}:{port}" for silo, port in ports.items()}
        self.clients = [client_of(silo, client) for silo, clients in self.silos.items() for client in clients]
        self.parties = parties_in(self.founders)
        self._everyone = [*self.hubs, *self.clients]
        self.keys = {
            "data": {"source": "files"},
            "model": {"block": "linear"},
            "train": {"rounds": 4, "local_steps": 2, "batch_size": 16, "step_size": 0.1} | train,
            "evaluate": {"every": 2},
            "silos": self.sections(self.founders),
        }
        folder.mkdir(exist_ok=True)
        self.shared = folder / "federation.toml"
        self.shared.write_text(toml_text(self.keys))
        throwaway(folder / "issuer", {hub_of(silo): [host] for silo, host in hosts.items()}, self.clients)
        self._write_tables()
        for party in self._everyone:
            self._write_party(party)
        self.reset()

    def sections(self, silos) -> list:
        return [
            {"name": silo, "hub": self.hubs[hub_of(silo)], "clients": clients, "features": self.columns[silo]}
            | {"label": "bought"}
            for silo, clients in silos.items()
        ]

    def enlarged(self, silos, name="enlarged.toml", **sections) -> Path:
        """A shared file with these silos and clients; parties that are new find it next to their own file."""
        path, self.parties = self.folder / name, parties_in(silos)
        path.write_text(toml_text(self.keys | {"silos": self.sections(silos)} | sections))
        for party in parties_in(silos):
            if party not in parties_in(self.founders):
                shutil.copy(path, self.folder / party / name)
                self.write_own(party, joins=name)
        return path

    def home(self, party) -> Home:
        return Home(self.own(party))

    def own(self, party) -> Path:
        return self.folder / party / "party.toml"

    def reset(self) -> None:
        """No policies, and nothing was ever said."""
        for party in self._everyone:
            _, silo, *client = party.split(".")
            own = {"silo": silo} | ({"client": client[0], "data": "data.csv", "new": "new.csv"} if client else {})
            self.own(party).write_text(toml_text(own))
            shutil.rmtree(self.folder / party / "standing", ignore_errors=True)

    def write_policy(self, party, **keys) -> None:
        silo = party.split(".")[1]
        allowed = {"proposers": [*self.silos], "purposes": ["test"], "columns": ["id", *self.columns[silo], "bought"]}
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

    def common_ids(self) -> set:
        """Of all rows that there are now, those that no silo lacks that takes part."""
        silos = {party.split(".")[1] for party in self.parties}
        return {f"k{row}" for row in range(self._rows) if all(self._has(silo, row) for silo in silos)}

    def add_rows(self, count, former="former.csv") -> None:
        """New rows of all clients; what they had before is in another file, too."""
        for client in self.clients:
            shutil.copy(self.folder / client / "data.csv", self.folder / client / former)
        self._rows += count
        self._write_rows(range(self._rows - count, self._rows), "a")

    def _has(self, silo, row) -> bool:
        return row % max(10, 2 * len(self.silos)) != [*self.silos].index(silo)

    def _write_tables(self) -> None:
        self._rows, self._rng = ROWS, np.random.default_rng(3)
        for client in self.clients:
            (self.folder / client).mkdir()
        self._write_rows(range(ROWS), "w")

    def _write_rows(self, rows, mode) -> None:
        rng = self._rng
        columns = {name: rng.normal(5, 3, len(rows)) for names in self.columns.values() for name in names}
        first, second = ([*columns][place] for place in (0, 2))
        labels = columns[first] - columns[second] + rng.normal(0, 1, len(rows)) > 0
        for silo, clients in self.silos.items():
            present = [row for row in rows if self._has(silo, row)]
            for index, client in enumerate(clients):
                home, names = self.folder / client_of(silo, client), self.columns[silo]
                kept = [(row, row - rows[0]) for row in present[index :: len(clients)]]
                with (home / "data.csv").open(mode, newline="") as file:
                    writer = csv.writer(file)
                    writer.writerows([["id", *names, "bought"]] * (mode == "w"))
                    for row, place in kept:
                        cells = [f"{columns[name][place]:.4f}" for name in names]
                        writer.writerow([f"k{row}", *cells, "yes" if labels[place] else "no"])
                with (home / "new.csv").open(mode, newline="") as file:
                    writer = csv.writer(file)
                    writer.writerows([["id", *names]] * (mode == "w"))
                    for row, place in kept:
                        writer.writerow([f"n{row}", *(f"{2 * columns[name][place]:.4f}" for name in names)])


def parties_in(silos) -> list[str]:
    clients = [client_of(silo, client) for silo, clients in silos.items() for client in clients]
    return [*map(hub_of, silos), *clients]


class Office:
    """Every party's desk, each asked in turn."""

    def __init__(self, files):
        self.files, self.network, self.clock = files, LocalNetwork(), time.time()
        self.homes = {party: files.home(party) for party in parties_in(files.founders)}
        self.desks = {}
        for party in self.homes:
            self.join(party)

    def join(self, party):
        home = self.homes[party]
        self.desks[party] = Desk(home, self.network.join(party, home.partners), clock=lambda: self.clock)

    def arrive(self, party):
        """One that is new."""
        self.homes[party] = self.files.home(party)
        self.join(party)

    def open_again(self, party):
        """With its files as they are now."""
        self.homes[party] = self.desks[party].home = self.files.home(party)

    def settle(self):
        """Until all is said; by party the call that it follows."""
        calls, said, quiet = {}, None, 0
        while quiet < 2:
            for party, desk in [*self.desks.items()]:
                home, partners = self.homes[party], [*self.homes[party].partners]
                for _ in range(6):
                    desk.decided_at = -math.inf
                    calls[party] = desk.step()
                if home.partners != partners:
                    # As the service does.
                    desk.endpoint.transport.close()
                    self.join(party)
            before, said = said, [dict(desk.endpoint.transport.sent_bytes) for desk in self.desks.values()]
            quiet = quiet + 1 if said == before else 0
        return calls

    def jobs(self, party="hub.shop"):
        return self.homes[party].jobs()

    def propose(self, **changes):
        given = {"steps": ("align", "train"), "purpose": "test", "contact": "", "days": 1.0}
        return self.homes["hub.bank"].propose(**{"path": self.files.shared, **given, **changes})
