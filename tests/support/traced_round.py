"""Rounds of real parties in one thread, and the functions that they run through: ``python -m support.traced_round``.

A process of its own is like a hub or a client with linear blocks, in which JAX is not loaded.
"""

import json
import sys
import tempfile
from collections import Counter, deque
from pathlib import Path

import numpy as np

import tdcd
from tdcd.config import check_config
from tdcd.runtime.compute.client_data import ClientData
from tdcd.runtime.job import Job
from tdcd.runtime.machine.client import Client
from tdcd.runtime.machine.hub import Hub
from tdcd.runtime.process.driver import ClientDriver, HubDriver
from tdcd.runtime.storage.hub_folder import HubFolder
from tdcd.runtime.transport.transport import Joined, Received

PACKAGE = Path(tdcd.__file__).parent
ROUNDS, EVERY = 8, 4
START = {"plain": 2, "evaluated": EVERY}
"""The round that is traced, by kind."""


class OneThread:
    """All parties with their drivers and folders; each acts only when there is something for it."""

    def __init__(self, folder):
        job = Job(_config())
        self.drivers, self.ends = {}, {}
        for silo, name in enumerate(job.hubs):
            run = HubFolder(folder / name, job, silo)
            hub = Hub(job, silo, secret=bytes(32), nonce=run.nonce)
            self._join(
                name, (*hub.clients, *hub.peers), lambda end, hub=hub, run=run: HubDriver(hub, end, run, 60.0, _stopped)
            )
            for client in hub.clients:
                machine = Client(job, silo, client, _rows(client, job.clients(silo).index(client)))
                self._join(client, (hub.name,), lambda end, machine=machine: ClientDriver(machine, end))

    def _join(self, party, peers, driver):
        self.ends[party] = _End(self, party)
        self.ends[party].news.extend(Joined(peer) for peer in peers)
        self.drivers[party] = driver(self.ends[party])

    @property
    def hubs(self):
        return [driver.hub for driver in self.drivers.values() if isinstance(driver, HubDriver)]

    def play_until(self, round_index):
        """All messages until every hub is in a round."""
        while any(hub.round < round_index for hub in self.hubs):
            waiting = [party for party, end in self.ends.items() if end.news]
            assert waiting, "no party has anything to do"
            for party in waiting:
                self.drivers[party].step()


class _End:
    """A party's end of links on which nothing is lost."""

    def __init__(self, network, party):
        self.network, self.party, self.news = network, party, deque()
        self.dropped, self.unsealed, self.arriving = Counter(), Counter(), Counter()
        self.revoked, self.unfit, self.expiries = set(), {}, {}

    def send(self, receiver, data):
        self.network.ends[receiver].news.append(Received(self.party, data))

    def receive(self, timeout):
        return self.news.popleft() if self.news else None


def _stopped():
    """A clock that stands still: nothing is shown or reminded because of the time that a test takes."""
    return 0.0


def _config():
    return check_config(
        {
            "model": {"block": "linear", "loss": "logistic", "l2": 0.1},
            "train": {"rounds": ROUNDS, "local_steps": 2, "batch_size": 8, "step_size": 0.1},
            "evaluate": {"every": EVERY, "holdout": 0.25},
            "silos": [{"name": name, "hub": f"127.0.0.1:{port}", "clients": 2} for port, name in enumerate("ab", 1)],
        },
        "test",
    )


def _rows(client, index):
    ids = range(12 * index, 12 * index + 12)
    features = np.random.default_rng(len(client) + index).normal(size=(12, 3)).astype("float32")
    return ClientData([str(row) for row in ids], np.array([float(row % 2) for row in ids]), features)


def _trace(play):
    """The functions of the package that ``play`` runs through, by file and name."""
    functions = set()

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)) and not code.co_name.startswith("<"):
            functions.add((code.co_filename.removeprefix(f"{PACKAGE}/"), code.co_qualname))

    sys.setprofile(note)
    try:
        play()
    finally:
        sys.setprofile(None)
    return functions


def functions_of(kind):
    """The functions of one round, as lists of file and name."""
    with tempfile.TemporaryDirectory() as folder:
        parties, start = OneThread(Path(folder)), START[kind]
        parties.play_until(start if kind == "plain" else start - 1)
        return sorted(_trace(lambda: parties.play_until(start + 1)))


if __name__ == "__main__":
    print(json.dumps({"kinds": {kind: functions_of(kind) for kind in START}, "has_jax": "jax" in sys.modules}))
