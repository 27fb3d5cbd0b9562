"""A real hub with 10 to 500 clients: what a round takes, and what a client takes of the hub's memory.

Two silos on loopback under mutual TLS. The first has all the clients, the second has one, with all rows. Hubs are those
of ``tdcd hub`` and clients those of ``tdcd client``, but many share a process: see :mod:`benchmarks.client_group`. They
also share the cores with the hub, so the hub's processor time is shown beside the time of a round.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tdcd.records.run_folder import toml_text
from tdcd.runtime.process.forking import environment
from tdcd.runtime.process.trial import Trial
from tdcd.runtime.storage.status import read_status

CLIENTS, PER_PROCESS, ROUNDS, WARM = (10, 30, 100, 200, 300, 500), 50, 60, 5
CLIENTS_OF_A = "clients of the first silo"
ROWS, BATCH = 40, 10
"""A client's rows, and its share of a minibatch: the same however many clients there are."""


class Sample(NamedTuple):
    """The hub at one moment."""

    round: int
    seconds: float
    processor_s: float
    resident_bytes: int


class ManyClients(Trial):
    """A trial whose first silo's clients share a few processes."""

    def start(self) -> None:
        """Start hubs and the second silo's client as they are, and the others in groups."""
        super().start()
        name = self.job.config.silos[0].name
        command = [sys.executable, "-m", "benchmarks.client_group", str(self.folder), name, str(PER_PROCESS)]
        with self._log(CLIENTS_OF_A).open("ab") as log:
            self.processes[CLIENTS_OF_A] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment()
            )

    def _start(self, party: str, role: str, options: list[str]) -> None:
        if party not in self.job.clients(0):
            super()._start(party, role, options)


class Observer:
    """Looks at the first hub now and then."""

    def __init__(self, trial: Trial) -> None:
        self._trial, self.samples = trial, list[Sample]()

    def look(self) -> None:
        """Take a sample, if the hub has begun and its process is there."""
        silo = self._trial.job.config.silos[0].name
        with suppress(OSError, ValueError, KeyError):
            status = read_status(self._trial.folder / "silos" / silo)
            process = Path(f"/proc/{self._trial.processes[self._trial.job.hubs[0]].pid}")
            words = (process / "stat").read_text().rpartition(")")[2].split()
            used = (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
            memory = int(words[21]) * os.sysconf("SC_PAGE_SIZE")
            self.samples.append(Sample(status["round"], time.monotonic(), used, memory))


def measure(clients: int, rounds: int = ROUNDS) -> dict[str, float]:
    """Seconds of a round, of the hub's processor time in it and until the first one, and the hub's memory."""
    config: dict[str, Any] = {
        "data": {"source": "superconductors", "rows": ROWS * clients},
        "model": {"block": "linear", "l2": 0.01},
        "train": {"rounds": rounds, "local_steps": 10, "batch_size": BATCH * clients, "step_size": 1e-3},
        "evaluate": {"holdout": 0.0, "every": rounds},
        "silos": [{"name": "a", "clients": clients}, {"name": "b", "clients": 1}],
    }
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "config.toml"
        path.write_text(toml_text(config))
        trial = ManyClients.prepare(path, [], Path(name) / "trial")
        observer, began = Observer(trial), time.monotonic()
        outcome = trial.run(observer.look, lambda: False)
        assert outcome.status == "finished", outcome
    trained = [sample for sample in observer.samples if WARM <= sample.round <= rounds]
    first, last = trained[0], next(sample for sample in trained if sample.round == trained[-1].round)
    done, begun = last.round - first.round, next(sample for sample in observer.samples if sample.round)
    return {
        "round_s": (last.seconds - first.seconds) / done,
        "hub_s": (last.processor_s - first.processor_s) / done,
        "start_s": begun.seconds - began,
        "hub_start_s": begun.processor_s,
        "resident_bytes": statistics.median(sample.resident_bytes for sample in trained),
    }


def main() -> dict[str, Any]:
    figures = {clients: measure(clients) for clients in CLIENTS}
    for clients, found in figures.items():
        print(
            f"hub with {clients:3d} clients: a round takes {1e3 * found['round_s']:7.1f} ms, of which the hub works "
            f"{1e3 * found['hub_s']:6.1f} ms ({1e3 * found['hub_s'] / clients:.2f} per client); "
            f"{found['resident_bytes'] / 2**20:.0f} MiB; first round after {found['start_s']:.0f} s, "
            f"{found['hub_start_s']:.1f} s of them the hub's work",
            flush=True,
        )
    least, most = figures[CLIENTS[0]], figures[CLIENTS[-1]]
    memory = (most["resident_bytes"] - least["resident_bytes"]) / (CLIENTS[-1] - CLIENTS[0])
    print(f"  memory per client at the hub: {memory / 2**20:.2f} MiB", flush=True)
    return {"clients": figures, "bytes_per_client": memory}
