"""Jobs that other systems publish, run by real parties here: two silos of three clients, labels at one of them.

- bank: the Bank Marketing table with ``duration``. SecretFlow's boosted trees: AUC 0.92, 136 s on a LAN, 602 s at 10
  Mbit/s and 50 ms.
- credit: default of credit card clients, the first 24,000 ids for training and the rest for the test. FLARE's vertical
  XGBoost: AUC 0.785.

Every hub and client is a process of its own, with mutual TLS; a proxy of ours makes the links between hubs slow. The
seconds are those from the first process's start to the last one's end: reading tables, handshake, training, evaluations
and early stopping by a validation part of the training rows. What the others encrypt, these runs send as it is.
"""

import os
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score

from benchmarks.far_hubs import FarHub, holds_port
from tdcd import Model
from tdcd.records.run_folder import RunFolder, toml_text
from tdcd.runtime.process.trial import Trial

CALLS = ("contact", "day", "month", "campaign", "duration", "pdays", "previous", "poutcome")


class Network(NamedTuple):
    """The link between two hubs."""

    name: str
    delay_s: float
    bytes_per_s: float


NETWORKS = (Network("LAN", 0.0002, 1e9 / 8), Network("10 Mbit/s, 50 ms", 0.05, 1e7 / 8))


class Job(NamedTuple):
    """The silos' tables with a column ``id``, the first of them with the labels ``y``; which rows are for the test."""

    name: str
    tables: dict[str, pd.DataFrame]
    is_test: Any
    others: str


def jobs() -> list[Job]:
    """The jobs whose tables are in the folder that TDCD_DATA names."""
    folder = Path(os.environ.get("TDCD_DATA", ""))
    rows = pd.read_csv(folder / "tables" / "bank_full.csv.gz")
    calls = rows[["id", "y", *CALLS]]
    customers = rows.drop(columns=["y", *CALLS])
    is_test = np.random.default_rng(0).permutation(len(rows)) >= len(rows) * 4 // 5
    bank = Job("bank", {"calls": calls, "customers": customers}, is_test, "SecretFlow 0.92 in 136 s and 602 s")
    guest, host = (pd.read_csv(folder / "credit" / f"{side}.csv").sort_values("id") for side in ("guest", "host"))
    is_test = np.arange(len(guest)) >= 24_000
    return [bank, Job("credit", {"guest": guest, "host": host}, is_test, "FLARE 0.785")]


class FarTrial(Trial):
    """A trial whose hubs have a slow link between them."""

    def seconds(self, network: Network) -> float:
        """Run it to its end, from the start of the first process."""
        shared, hubs = self.folder / "federation.toml", self.job.hubs
        # A hub listens where its file says; the others dial the proxy.
        addresses = dict(zip(hubs, (str(silo.hub) for silo in self.job.config.silos), strict=True))

        def is_a_hub(port: int) -> bool:
            return any(holds_port(self.processes[hub].pid, port) for hub in hubs if hub in self.processes)

        links = {
            address: FarHub(address, network.delay_s, is_a_hub, network.bytes_per_s) for address in addresses.values()
        }
        self.listening = addresses
        for address, link in links.items():
            shared.write_text(shared.read_text().replace(address, link.address))
        began = time.perf_counter()
        try:
            outcome = self.run(lambda: None, lambda: False)
        finally:
            for link in links.values():
                link.close()
        assert outcome.status == "finished", outcome
        return time.perf_counter() - began

    def _start(self, party: str, role: str, options: list[str]) -> None:
        listen = ["--listen", self.listening[party]] if role == "hub" else []
        super()._start(party, role, [*options, *listen])


def measured(job: Job, network: Network) -> dict[str, Any]:
    """Train by real parties, and score the test rows with the model that they made."""
    (first, labelled), *_ = job.tables.items()
    with tempfile.TemporaryDirectory(prefix="tdcd-other-systems-") as name:
        folder = Path(name)
        silos = []
        for silo, table in job.tables.items():
            table[~job.is_test].to_csv(folder / f"{silo}.csv", index=False)
            texts = [str(column) for column in table.select_dtypes(exclude="number") if column != "y"]
            label = {"label": "y"} if silo == first else {}
            silos.append({"name": silo, "table": f"{silo}.csv", "clients": 3, "categorical": texts, **label})
        config: dict[str, Any] = {
            "data": {"source": "files"},
            "federation": {"labels": first},
            "model": {"block": "mlp", "encoding": "piecewise", "loss": "logistic"},
            "evaluate": {"holdout": 0.15, "patience": 3, "keep": "best"},
            "silos": silos,
        }
        (folder / "config.toml").write_text(toml_text(config))
        trial = FarTrial.prepare(folder / "config.toml", [], folder / "trial")
        seconds = trial.seconds(network)
        trial.gather()
        last, model = RunFolder(folder / "trial").history()[-1], Model.load(folder / "trial")
        chances = model.predict_proba({silo: table[job.is_test] for silo, table in job.tables.items()})
    scores = np.asarray(chances)[:, 1]
    labels = labelled["y"][job.is_test].to_numpy()
    auc = float(roc_auc_score(labels == np.unique(labels)[1], scores))
    evaluations = last.evaluation_bytes.hub_to_hub if last.evaluation_bytes else 0
    return {"auc": auc, "seconds": seconds, "rounds": last.round, "bytes": last.bytes.hub_to_hub + evaluations}


def main() -> dict[str, Any]:
    """Run every job over every network."""
    figures: dict[str, Any] = {}
    for job in jobs():
        for network in NETWORKS:
            figure = measured(job, network)
            sent = f"{figure['rounds']} rounds, {figure['bytes'] / 1e6:.0f} MB between hubs"
            own = f"AUC {figure['auc']:.4f} in {figure['seconds']:.1f} s, {sent}"
            print(f"{job.name}, {network.name}: {own} ({job.others})", flush=True)
            figures[f"{job.name}, {network.name}"] = figure
    return figures
