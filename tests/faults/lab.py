"""A federation in one process under faults that a seed chooses: real drivers, state machines and run folders.

Parties crash at failpoints and start again from their folders; links lose, repeat, reorder and corrupt messages. Time
is a number that moves only when nothing else does. The checker asks two things separately: every history that is ever
on a disk is a beginning of the reference (safety), and the run comes to its end (liveness).
"""

import itertools
import random
import shutil
import tempfile
from collections import Counter, deque
from dataclasses import dataclass, replace
from pathlib import Path

from support.in_process import noise_key
from support.party_files import data_of
from tdcd.config import check_config
from tdcd.config.resolve import plan
from tdcd.runtime.certificates.agreement import Keys, SharedSecret
from tdcd.runtime.compute.client_data import shards
from tdcd.runtime.job import Job
from tdcd.runtime.machine.client import Client
from tdcd.runtime.machine.hub import Hub, Shutdown
from tdcd.runtime.messages.wire import IN_FILES, decode
from tdcd.runtime.process.driver import ClientDriver, HubDriver
from tdcd.runtime.process.trial import write_rows
from tdcd.runtime.storage import failpoints
from tdcd.runtime.storage.checkpoint import Checkpoints
from tdcd.runtime.storage.hub_folder import HubFolder
from tdcd.runtime.storage.keys import mask_key
from tdcd.runtime.transport.transport import Joined, Left, Received

SECRET = bytes(range(32))

CONFIG = {
    "data": {"source": "diabetes"},
    "silos": [{"name": "clinic", "clients": 2}, {"name": "lab", "clients": ["north", "south"]}],
    "model": {"block": "linear", "l2": 0.01},
    "train": {"rounds": 6, "local_steps": 3, "batch_size": 32, "step_size": 0.05},
    "evaluate": {"every": 2},
}


def _mode(overlap, period, bits):
    """Sections of rounds that overlap, of a slow silo and of few bits, where they are not as in Algorithm 1."""
    clinic, slow = CONFIG["silos"]
    sections = {"train": {"overlap": overlap}} if overlap else {}
    if period > 1:
        sections["silos"] = [clinic, {**slow, "period": period}]
    if bits < 32:
        sections["exchange"] = {"phi_bits": bits, "block_bits": bits}
    return sections


MODES = {
    ", ".join(f"{word} {value}" for word, value in zip(("overlap", "period", "bits"), mode, strict=True)): _mode(*mode)
    for mode in itertools.product((0, 1, 3), (1, 4), (32, 8))
}
"""Members of the family by name, as sections that change :data:`CONFIG`."""
LABELS = "labels"
MODES[LABELS] = {"federation": {"labels": "lab"}, "silos": [*CONFIG["silos"], {"name": "bank", "clients": 1}]}
ENCRYPT = "encrypt"
MODES[ENCRYPT] = {"federation": {"labels": "lab", "protect_labels": "encrypt"}, "train": {"local_steps": 1}}
_THREE = [*CONFIG["silos"], {"name": "shop", "clients": 2}]
MODES["mask"] = {"silos": _THREE, "exchange": {"protect": "mask"}}
MODES["mask, overlap 1, period 4"] = {
    "silos": [*_THREE[:2], {**_THREE[2], "period": 4}],
    "exchange": {"protect": "mask"},
    "train": {"overlap": 1},
}
_MORE = [{"name": name, "clients": 3} for name in ("clinic", "lab", "shop")]
MODES["protect blocks"] = {"silos": _MORE[:2], "exchange": {"protect_blocks": True}}
MODES[NOISE_OF_CLIENTS := "noise on blocks"] = {
    "silos": _MORE[:2],
    "exchange": {"protect_blocks": True, "block_epsilon": 4.0, "block_clip": 0.02},
}
MODES["mask, protect blocks"] = {"silos": _MORE, "exchange": {"protect": "mask", "protect_blocks": True}}
_NOISY = {"rounds": 60, "step_size": 0.2, "batch_size": 16}
MODES["patience"] = {"train": _NOISY, "evaluate": {"every": 2, "patience": 3, "keep": "best"}}
MODES["patience, overlap 3, period 4"] = {
    **_mode(3, 4, 32),
    "train": {**_NOISY, "overlap": 3},
    "evaluate": {"every": 2, "patience": 5, "keep": "best"},
}
MODES["silo dropout"] = {"train": {"silo_dropout": 0.3, "overlap": 1}, "exchange": {"phi_bits": 8}}
_MEMBERS = str(Path(__file__).parents[1] / "support")
MODES["head"] = {"model": {**CONFIG["model"], "head": "hidden", "head_units": 2}, "train": {"overlap": 1}}
MODES["pairs"] = {"model": {**CONFIG["model"], "head": "pairs", "head_rank": 2}, "exchange": {"phi_bits": 8}}
MODES["client memory"] = {"train": {"variant": "members:lasting", "folder": _MEMBERS}}
MODES["drawn clients"] = {"silos": _MORE[:2], "train": {"participation": 0.5}}
MODES["noise"] = {"train": {"variant": "members:noisy", "folder": _MEMBERS}}
MODES["auto"] = {"train": {"step_size": "auto", "tol": 1e-7}}
"""Scaled steps on minibatches: 26 of 95 lines are taken back before it converges in round 950."""
_EVERY_SAMPLE = {"rounds": 12, "step_size": "auto", "tol": 0.0, "local_steps": 1, "minibatches": "full"}
MIXTURES = "auto, every sample", "auto, every sample, labels", "auto, every sample, mask"
"""Steps from mixtures of the last rounds' models."""
MODES |= {
    name: {**mode, "train": _EVERY_SAMPLE}
    for name, mode in zip(MIXTURES, ({}, MODES[LABELS], MODES["mask"]), strict=True)
}
_TABLES = {"source": "files", "folder": str(Path(__file__).parent / "tables"), "samples": "all"}
_LACKING = [{**silo, "table": f"{silo['name']}.csv"} for silo in _THREE]
ALL_SAMPLES = "all samples", "all samples, labels everywhere, mask, overlap 1", "all samples, silo dropout"
"""Tables of which every one lacks samples of the others; the laboratory's alone has labels, or all have."""
MODES[ALL_SAMPLES[0]] = {
    "data": _TABLES,
    "silos": [{**silo, **({"label": "y"} if silo["name"] == "lab" else {"ignore": ["outcome"]})} for silo in _LACKING],
    "federation": {"labels": "lab"},
}
MODES[ALL_SAMPLES[1]] = {
    "data": _TABLES,
    "silos": [{**silo, "label": "y" if silo["name"] == "lab" else "outcome"} for silo in _LACKING],
    "exchange": {"protect": "mask"},
    "train": {"overlap": 1},
}
MODES[MANY := "rows of many samples"] = {
    **MODES[ALL_SAMPLES[0]],
    "train": {"local_steps": 1, "minibatches": "full"},
    "silos": [
        *MODES[ALL_SAMPLES[0]]["silos"][:2],
        {**_THREE[2], "table": "households.csv", "key": "home", "link": "members.csv"},
    ],
}
MODES[ALL_SAMPLES[2]] = {**MODES[ALL_SAMPLES[0]], "train": {"silo_dropout": 0.3}}
IN_STEP = "overlap 0, period 1, bits 32"


def in_mode(name, **sections):
    """The sections of a mode, with some changed further."""
    chosen = MODES[name]
    mixed = {key: sections.get(key, chosen.get(key)) for key in {*sections, *chosen}}
    for key in ("train", "evaluate"):
        mixed[key] = {**CONFIG[key], **chosen.get(key, {}), **sections.get(key, {})}
    return mixed


class Crash(BaseException):
    """The party's process is gone, in the middle of whatever it did."""


@dataclass(frozen=True)
class Faults:
    """How often things go wrong."""

    lost: float = 0.0
    repeated: float = 0.0
    reordered: float = 0.0
    corrupted: float = 0.0
    crashed: float = 0.0
    """At each failpoint."""
    cut: float = 0.0
    """At each delivery: the link between two parties goes down, and up again later."""
    damaged: float = 0.0
    """At each crash of a hub: its newest checkpoint is damaged too."""
    max_crashes: int = 50


ROUGH = Faults(
    lost=0.02, repeated=0.2, reordered=0.05, corrupted=0.01, crashed=0.01, cut=0.003, damaged=0.2, max_crashes=40
)
ORDERLY = Faults()


class Folder(HubFolder):
    """A run folder without the drawing of curves, which takes longer than all the rest."""

    def report(self):
        pass


class LabTransport:
    """A party's end of the laboratory's network."""

    def __init__(self, lab, party):
        self.party, self.lab = party, lab
        self.sent_bytes, self.dropped, self.arriving = Counter(), Counter(), Counter()
        self.unsealed = Counter()
        self.revoked, self.unfit, self.expiries = set(), {}, {}
        self.news = deque()

    def send(self, receiver, data):
        self.lab.post(self.party, receiver, data)

    def receive(self, timeout):
        return self.news.popleft() if self.news else None


class Lab:
    """The federation; :meth:`run` plays it to its end."""

    def __init__(self, config, data, folder, seed, faults=ORDERLY):
        self.job, self.data, self.folder, self.faults = Job(config), data, Path(folder), faults
        self.rng = random.Random(seed)
        self.secret = SECRET
        self.nonces, self.client_secrets = {}, {}
        """Those of other parties' files, where these are to draw the same noise."""
        self.now = 0.0
        self.drivers, self.outcomes, self.down = {}, {}, {}
        self.queues, self.seen = {}, {}
        self.counts = Counter()
        self.running, self.sessions = None, 0
        self.parties = {}
        for silo, hub in enumerate(self.job.hubs):
            self.parties[hub] = silo
            self.parties |= dict.fromkeys(self.job.clients(silo), silo)
        self.failpoints = Counter()
        self.crash_at = None

    # Processes.

    def start(self, party):
        """Give the party's command, the first time or again."""
        silo, transport = self.parties[party], LabTransport(self, party)
        self.down.pop(party, None)
        self.running, folder = party, None
        try:
            self.sessions += 1
            if party in self.job.hubs:
                folder = Folder(self.folder / party, self.job, silo)
                self.check(party)
                if folder.is_over:
                    self.outcomes[party] = folder.about["status"]
                    folder.close()
                    return
                hub = Hub(
                    self.job,
                    silo,
                    secret=self.secret,
                    nonce=self.nonces.get(party, folder.nonce),
                    restored=folder.restored,
                    absences=folder.absences,
                    keys=None
                    if isinstance(folder.restored, Shutdown)
                    else Keys(party, mask_key(folder.path), SharedSecret(self.secret)),
                    first_call=1000 * self.sessions,
                    noise_key=noise_key(self.job, silo),
                    listed=self.data.get(party),
                )
                driver = HubDriver(hub, transport, folder, 2.0, lambda: self.now)
            else:
                secret = self.client_secrets.get(party, b"")
                client = Client(self.job, silo, party, self.data[party], str(self.sessions), secret=secret)
                driver = ClientDriver(client, transport)
        except Crash:
            if folder is not None:
                folder.close()
            self.counts["crash of a hub"] += 1
            self.down[party] = self.now
            return
        finally:
            self.running = None
        self.drivers[party] = driver
        for other in self.neighbours(party):
            if other in self.drivers:
                self.link(party, other)

    def neighbours(self, party):
        silo = self.parties[party]
        if party not in self.job.hubs:
            return [self.job.hubs[silo]]
        return [*self.job.clients(silo), *self.job.peers(silo)]

    def link(self, one, other):
        for sender, receiver in ((one, other), (other, one)):
            self.queues.setdefault((sender, receiver), deque()).append(Joined(sender))

    def unlink(self, one, other, lost=()):
        """What was on its way to ``lost`` is gone; what it sent may still arrive before the news that it left."""
        for sender, receiver in ((one, other), (other, one)):
            queue = self.queues.setdefault((sender, receiver), deque())
            if receiver in lost:
                queue.clear()
            elif any(isinstance(event, Joined) for event in queue):
                while queue and queue[-1] != Joined(sender):
                    queue.pop()
                queue.pop()
            if receiver in self.drivers:
                queue.append(Left(sender))

    def crash(self, party):
        """SIGKILL, and a restart a while later."""
        self.counts["crash of a hub" if party in self.job.hubs else "crash of a client"] += 1
        driver = self.drivers.pop(party)
        for other in self.neighbours(party):
            if other in self.drivers:
                self.unlink(party, other, lost=(party,))
            else:
                self.queues.pop((other, party), None)
                self.queues.pop((party, other), None)
        if isinstance(driver, ClientDriver) and driver.client.outcome is not None:
            # It has said good-bye: its hub may be gone, and nobody is left to tell it so again.
            self.outcomes[party] = driver.client.outcome.status
            return
        if isinstance(driver, HubDriver):
            driver.folder.close()
            self.check(party)
            if self.rng.random() < self.faults.damaged:
                self.damage(party)
        self.down[party] = self.now + self.rng.choice([0.0, 0.0, 1.0, 5.0, 20.0])

    def damage(self, party):
        folder = self.folder / party / "checkpoint"
        found, files = Checkpoints(folder, party), sorted(folder.glob("*.tdcd"))
        # The state before the newest must be there to go back to.
        if len(files) > 1 and not found.complaints:
            self.counts["damaged checkpoint"] += 1
            contents = {path: path.read_bytes() for path in files}
            newest = max(
                files, key=lambda path: decode(contents[path], sender=party, receiver=party, form=IN_FILES).round
            )
            newest.write_bytes(contents[newest][: self.rng.randrange(len(contents[newest]))])

    # The network.

    def post(self, sender, receiver, data):
        if receiver not in self.drivers:
            return
        queue, rng, faults = self.queues.setdefault((sender, receiver), deque()), self.rng, self.faults
        if rng.random() < faults.lost:
            self.counts["lost"] += 1
            return
        if rng.random() < faults.corrupted:
            self.counts["corrupted"] += 1
            place = rng.randrange(len(data))
            data = data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]
        queue.append(Received(sender, data))
        if rng.random() < faults.repeated:
            self.counts["repeated"] += 1
            queue.append(Received(sender, data))
        if rng.random() < faults.reordered and len(queue) > 1 and isinstance(queue[-2], Received):
            self.counts["reordered"] += 1
            queue[-1], queue[-2] = queue[-2], queue[-1]

    # Time.

    def step(self):
        """One event, at whoever's turn it is."""
        for party in [party for party, when in self.down.items() if when <= self.now]:
            self.start(party)
        waiting = [pair for pair, queue in self.queues.items() if queue and pair[1] in self.drivers]
        if not waiting:
            self.now += 1.0
            for party in [party for party in self.job.hubs if party in self.drivers]:
                self.turn(party)
            return
        sender, receiver = self.rng.choice(waiting)
        self.now += 0.001
        if self.rng.random() < self.faults.cut and {sender, receiver} <= set(self.drivers):
            self.counts["cut"] += 1
            self.unlink(sender, receiver)
            self.link(sender, receiver)
        self.drivers[receiver].endpoint.transport.news.append(self.queues[sender, receiver].popleft())
        self.turn(receiver)

    def turn(self, party):
        driver, self.running = self.drivers[party], party
        try:
            outcome = driver.step()
        except Crash:
            self.crash(party)
            return
        finally:
            self.running = None
        if outcome is not None:
            self.outcomes[party] = outcome.status
            del self.drivers[party]
            if isinstance(driver, HubDriver):
                driver.folder.close()
            for other in self.neighbours(party):
                if other in self.drivers:
                    self.queues.setdefault((party, other), deque()).append(Left(party))

    def hit(self, name):
        if self.running is None:
            return
        place = f"{'hub' if self.running in self.job.hubs else 'client'} {name}"
        self.failpoints[place] += 1
        wanted = self.crash_at is not None and self.crash_at == (place, self.failpoints[place])
        crashes = self.counts["crash of a hub"] + self.counts["crash of a client"]
        if wanted or (crashes < self.faults.max_crashes and self.rng.random() < self.faults.crashed):
            raise Crash

    # The checker.

    def history(self, hub):
        path = self.folder / hub / "history.jsonl"
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        return [without_seconds(line) for line in lines]

    def check(self, hub):
        """Safety: what is on the disk is a beginning of the reference."""
        if self.reference is not None:
            found = self.history(hub)
            assert found == self.reference[: len(found)], f"{hub} has another history"

    def begin(self, reference=None):
        """Start every party."""
        self.reference = reference
        for party in self.parties:
            self.start(party)
        return self

    def until(self, condition, steps=20_000):
        """Liveness: play until something holds, within ``steps`` events."""
        for _ in range(steps):
            if condition():
                return
            self.step()
        raise AssertionError(self.stuck())

    def until_over(self):
        """Play until every party has ended."""
        self.until(lambda: len(self.outcomes) == len(self.parties), 20_000 + 100 * self.job.config.train.rounds)

    def run(self, reference=None):
        """Play it all, with crashes."""
        failpoints.arm(self.hit)
        try:
            self.begin(reference).until_over()
        finally:
            failpoints.arm(lambda name: None)
        for hub in self.job.hubs:
            self.check(hub)
            if reference is not None:
                assert self.history(hub) == reference, hub
        return self

    def stuck(self):
        where = {
            party: (driver.hub.phase, driver.hub.round, driver.hub.missing(), driver.endpoint.last_refusal)
            for party, driver in self.drivers.items()
            if isinstance(driver, HubDriver)
        }
        return f"it does not end: {where}, ended {self.outcomes}, down {self.down}, {dict(self.counts)}"


def without_seconds(line):
    from tdcd.records.history import Record

    return replace(Record.from_json(line), seconds=0.0).to_json()


def prepared(**sections):
    """The small federation with some keys changed, its clients' rows and, if they have any, its hubs' lists."""
    config = check_config({**CONFIG, **sections})
    planned = plan(config)
    if planned.assembled is None:
        return config, shards(planned)
    with tempfile.TemporaryDirectory() as folder:
        return config, data_of(config, write_rows(planned, Path(folder)))


def reference_of(config, data, folder, nonces=None, client_secrets=None):
    """The history of the run to which nothing happens, and the failpoints that it passes."""
    lab = Lab(config, data, folder, seed=0)
    lab.nonces, lab.client_secrets = nonces or {}, client_secrets or {}
    lab.run()
    found = lab.history(lab.job.hubs[0])
    shutil.rmtree(folder)
    return found, lab.failpoints
