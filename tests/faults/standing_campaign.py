"""``python tests/faults/standing_campaign.py [--organisations 3] [--clients 3] [--proposals 50] [--minutes 60]``.

SIGKILL of services.

A federation that stands by, every party a process over mutual TLS. Each of some shared files first runs alone, and
nothing happens to it. Then jobs with them are proposed at random hubs in random order, and approved by policies; some
are outside these, and no person approves them. Meanwhile parties are killed at random, one or several at once, every
party at least once; also when they send their last goodbyes, and when a run's last file is written. All other jobs have
to finish, each with the history and blocks of the run alone, to the last bit, and the log has to be the same
everywhere, and in order. A job that is lost, as one of its steps was killed five times, is proposed again.

When ``--minutes`` are over, nothing more is proposed; what was has to end as above, and the summary says how many were.
Every party is killed all the same.
"""

import argparse
import math
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from support.party_processes import ENVIRONMENT, assert_bit_identical, end
from support.standing import StandingFederation
from tdcd.records.run_folder import toml_text
from tdcd.runtime.process.forking import start_party
from tdcd.runtime.storage.failpoints import VARIABLE
from tdcd.standing.home import Home, open_log_of
from tdcd.standing.jobs import Jobs

GOODBYES = {
    "hub": ["send.stop.before", "send.stop.after", "send.bye.before", "send.bye.after", "rename.shutdown.tdcd"],
    "client": ["send.bye.before", "send.bye.after"],
}
"""Places at the end of a run, by role."""
MOST_ROUNDS = 50
"""What policies allow."""
PATIENCE_S = 3600.0
CRASHED = b"step crashed"
MOST_WAITING = 4
"""Jobs that wait in the queue, or run."""
SHOWN_S = 30.0
"""How often it says how far it is."""


class Campaign:
    """The services, the jobs, and who was killed where."""

    def __init__(self, folder, organisations, clients, files, rng):
        silos = {f"org{number}": [f"c{index}" for index in range(clients)] for number in range(organisations)}
        columns = {silo: [f"{silo}_a", f"{silo}_b"] for silo in silos}
        self.federation = StandingFederation(folder, silos, columns=columns)
        self.rng, self.processes, self.kills, self.places = rng, {}, Counter(), Counter()
        self.armed = {}
        """By party: at what place its step is to die, and how often steps had crashed before."""
        self.homes: dict[str, Home] = {}
        """Read once, and read on: to check every signature again takes as long as a job."""
        self.hubs, self.parties = [*self.federation.hubs], self.federation.parties
        for hub in self.hubs:
            self.federation.write_policy(hub, rounds=MOST_ROUNDS, jobs_per_day=1000, jobs_per_month=1000)
        self.files = [self._file(f"job{seed}.toml", seed=seed) for seed in range(3)]
        masked = {"exchange": {"protect": "mask", "protect_blocks": True}}
        self.files = [self._file("masked.toml", **masked), *self.files][:files]
        self.outside = self._file("outside.toml", train=self.federation.keys["train"] | {"rounds": MOST_ROUNDS + 1})

    def _file(self, name, **changes):
        path = self.federation.folder / name
        path.write_text(toml_text(self.federation.keys | changes))
        return path

    def start(self, party, place=None):
        variables = ENVIRONMENT if place is None else ENVIRONMENT | {VARIABLE: place}
        words = ["party", str(self.federation.own(party))]
        self.processes[party] = start_party(words, self.log(party), variables)

    def log(self, party):
        return self.federation.folder / f"{party}.log"

    def kill(self, party, place=None):
        """Kill a service, and with it the step that it runs; start it again."""
        self.processes[party].kill()
        self.processes[party].wait()
        self.kills[party] += 1
        self.armed.pop(party, None)
        if place is not None:
            self.armed[party] = place, self._crashes(party)
        self.start(party, place)

    def watch(self):
        """Start services again that ended, and those anew whose steps died where they were to."""
        for party, process in [*self.processes.items()]:
            assert process.poll() is None, f"{party} ended with {process.poll()}: {self.log(party)}"
        for party, (place, before) in [*self.armed.items()]:
            if self._crashes(party) > before:
                self.places[place] += 1
                self.kill(party)

    def _crashes(self, party):
        return self.log(party).read_bytes().count(CRASHED)

    def home(self, party):
        if party not in self.homes:
            self.homes[party] = self.federation.home(party)
        return self.homes[party]

    def jobs(self, party=None):
        return self.home(party or self.hubs[0]).jobs()

    def propose(self, hub, path):
        return self.home(hub).propose(path, ("align", "train"), "test", "", 10.0).name

    def until(self, happens, what):
        deadline = time.monotonic() + PATIENCE_S
        while not happens():
            assert time.monotonic() < deadline, what
            self.watch()
            time.sleep(1.0)

    def ended(self, names, ending):
        """Those of some jobs that have ended so, as the first hub knows; None for those that have not."""
        states = self.jobs().states
        return [name for name in names if (states[name].closed if name in states else None) == ending]

    def runs(self, name, jobs):
        """The hubs' run folders of a job."""
        return [self.home(hub).job_folder(jobs.states[name]) / "run" for hub in self.hubs]

    def alone(self):
        """Each file's run to which nothing happens; by file."""
        found = {}
        for path in self.files:
            name = self.propose(self.hubs[0], path)
            self.until(lambda: self.jobs().states[name].closed, f"{path.name} alone")  # noqa: B023
            jobs = self.jobs()
            assert jobs.states[name].closed == "finished", self.why(jobs, name)
            found[path] = self.runs(name, jobs)
            print(f"{path.name} alone: finished", flush=True)
        return found

    def why(self, jobs, name):
        """A job's history, and what the parties that refused it wrote last."""
        state, words = jobs.states[name], [jobs.history(jobs.states[name])]
        for (party, call), ending in state.endings.items():
            if ending not in ("finished", "lost"):
                log = self.home(party).job_folder(state) / f"{call.step}.log"
                words += [f"{party}, {call.step}:", log.read_text()[-3000:], self.log(party).read_text()[-2000:]]
        return "\n".join(words)

    def blow(self, victims):
        """Kill several at once; some are to die at a goodbye the next time."""
        for party in victims:
            role = party.partition(".")[0]
            self.kill(party, self.rng.choice(GOODBYES[role]) if self.rng.random() < 0.5 else None)

    def is_same_everywhere(self):
        """Whether all parties have all entries."""
        counts = self.jobs().log.counts
        return all(self.jobs(party).log.counts == counts for party in self.parties)

    def check(self, proposed, outside, reference):
        """All that has to hold at the end."""
        self.until(lambda: {*self.jobs().states} >= {*proposed, *outside}, "all jobs at the first hub")
        self.until(self.is_same_everywhere, "the same log")
        jobs = self.jobs()
        for name, path in proposed.items():
            state = jobs.states[name]
            assert state.closed == "finished", (path.name, self.why(jobs, name))
            for ours, theirs in zip(self.runs(name, jobs), reference[path], strict=True):
                assert_bit_identical(ours, theirs)
        for name in outside:
            assert not jobs.states[name].calls
            assert not jobs.states[name].started
        for party in self.parties:
            home = self.home(party)
            # From files alone, as a third party.
            log = open_log_of(home.folder)
            assert {*Jobs.of(home.founding, log).states} >= {*proposed, *outside}
        return jobs

    def summary(self, proposed):
        """How far it is, in words."""
        finished = self.ended(proposed, "finished")
        steps = sum(len(state.calls) for state in self.jobs().states.values())
        kills = f"{sum(self.kills.values())} SIGKILLs of {len(self.kills)} of {len(self.parties)} parties"
        return f"{len(finished)} of {len(proposed)} jobs finished, {steps} calls, {kills}"


def memory(processes):
    """Of services and their steps, in MB: what belongs to each process alone, and what it shares in proportion."""
    total, pids = 0, [process.pid for process in processes]
    for pid in pids:
        try:
            pids += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total // 1024


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--organisations", type=int, default=3)
    options.add_argument("--clients", type=int, default=3, help="of each organisation")
    options.add_argument("--proposals", type=int, default=50)
    options.add_argument("--files", type=int, default=4, choices=range(1, 5), help="different jobs")
    options.add_argument("--every", type=float, default=20.0, help="seconds between blows, on average")
    options.add_argument("--minutes", type=float, default=60.0, help="how long to propose")
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    # So that services end, too, when it is stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    rng, home, began = random.Random(given.seed), Path(tempfile.mkdtemp(prefix="tdcd-standing-")), time.monotonic()
    it = Campaign(home / "it", given.organisations, given.clients, given.files, rng)
    try:
        for party in it.parties:
            it.start(party)
        reference = it.alone()
        print(f"all files alone: {time.monotonic() - began:.0f} s", flush=True)
        proposed, outside, most, lost, next_blow, next_words = {}, [], 0, 0, time.monotonic(), 0.0
        order = [rng.choice([*it.files, it.files[0], it.outside]) for _ in range(given.proposals)]
        waiting = rng.sample(it.parties, len(it.parties))
        until = began + 60 * given.minutes
        while order or waiting or it.ended(proposed, None):
            if order and time.monotonic() > until:
                print(f"{given.minutes:g} minutes are over: {len(order)} were not proposed", flush=True)
                order, until = [], math.inf
            # Few wait in the queue, so that all can end soon when the time is over.
            most_new = min(len(order), rng.randrange(3)) if len(it.ended(proposed, None)) < MOST_WAITING else 0
            for path in [order.pop() for _ in range(most_new)]:
                name = it.propose(rng.choice(it.hubs), path)
                outside += [name] * (path == it.outside)
                proposed |= {name: path} if path != it.outside else {}
            for name in it.ended(proposed, "lost"):
                lost += 1
                order.append(proposed.pop(name))
            if time.monotonic() > next_blow:
                number = rng.choice([1, 1, 1, 2, 3])
                victims = [waiting.pop() for _ in range(min(number, len(waiting)))]
                it.blow(victims or rng.sample(it.parties, number))
                next_blow = time.monotonic() + 2 * rng.random() * given.every
            if time.monotonic() > next_words:
                next_words = time.monotonic() + SHOWN_S
                most = max(most, memory(it.processes.values()))
                print(f"{time.monotonic() - began:.0f} s: {it.summary(proposed)}, {len(order)} to come", flush=True)
            it.watch()
            time.sleep(1.0)
            if time.monotonic() > began + 60 * given.minutes + PATIENCE_S:
                raise TimeoutError("it takes too long")
        jobs = it.check(proposed, outside, reference)
        print(f"{lost} jobs were lost by kills, and proposed again")
        attempts = sum(len(jobs.states[name].calls) for name in proposed)
        entries = sum(jobs.log.counts.values())
        print(f"{len(proposed)} jobs bit-identical to running alone, in {attempts} calls for {2 * len(proposed)} steps")
        print(
            f"{len(outside)} jobs outside the policies: none began; the log of {entries} entries is the same everywhere"
        )
        print(f"{sum(it.kills.values())} SIGKILLs of {len(it.kills)} parties; at last goodbyes: {dict(it.places)}")
        print(f"{time.monotonic() - began:.0f} s in all, at most {most} MB")
    finally:
        end(it.processes.values(), home)
    shutil.rmtree(home)


if __name__ == "__main__":
    main()
