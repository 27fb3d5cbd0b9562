"""``python tests/faults/machines.py``: three companies on 12 machines, as root.

Every company has a hub and three clients. Each of these parties has a network namespace with its own address, its own
folder and its own ``tdcd party``; a client's machine accepts no connection. A job is proposed at one company by one
command, and approved at the other two by one command each; then the same job by one command alone, with policies that
match. Both have the same history and the same blocks, to the last bit, as a job that was typed by hand at each machine.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from support.namespaces import listening, machines, unable
from support.party_processes import assert_bit_identical, end, wait_until
from support.standing import StandingFederation

COMPANIES = {"bank": ["north", "south", "west"], "shop": ["main", "mall", "web"], "bureau": ["a", "b", "c"]}


class Machines:
    """Where each party is, and what is started there."""

    def __init__(self, federation, spaces):
        self.federation, self.spaces, self.started = federation, spaces, []

    def run(self, party, *words):
        """A command that a person gives at a party's machine; what it prints."""
        print(f"{party}$ tdcd {' '.join(words)}", flush=True)
        done = subprocess.run(
            self._command(party, words), check=True, capture_output=True, text=True, cwd=self._at(party)
        )
        print(done.stdout, end="", flush=True)
        return done.stdout

    def start(self, party, *words, log="party.log"):
        with (self._at(party) / log).open("ab") as file:
            command = self._command(party, words)
            inside = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file, "cwd": self._at(party)}
            self.started.append(subprocess.Popen(command, **inside))
        return self.started[-1]

    def _at(self, party):
        return self.federation.folder / party

    def _command(self, party, words):
        return ["ip", "netns", "exec", self.spaces[party], sys.executable, "-m", "tdcd", *map(str, words)]


def over(federation, name):
    """Whether all know that a job is over, and how: the hubs' run folders."""
    for party in federation.parties:
        state = federation.home(party).jobs().states.get(name)
        if state is None or not state.is_over:
            return False
    state = federation.home("hub.bank").jobs().states[name]
    assert state.closed == "finished", state
    return True


def runs(federation, name):
    states = {hub: federation.home(hub) for hub in federation.hubs}
    return {hub: home.job_folder(home.jobs().states[name]) / "run" for hub, home in states.items()}


def by_hand(at, federation):
    """The same job, typed at each machine."""
    for step in ("align", "train"):
        started = []
        for party in federation.parties:
            _, silo, *client = party.split(".")
            words = [
                "federation.toml",
                "--silo",
                silo,
                *(["--client", client[0], "--data", "data.csv"] if client else []),
            ]
            if step == "align":
                words = ["align", *words, "--out", "ids.txt"]
            else:
                words = ["client", *words, "--ids", "ids.txt"] if client else ["hub", *words, "--out", "by-hand"]
            started.append(at.start(party, *words, log="by-hand.log"))
        assert [process.wait(600) for process in started] == [0] * len(started)
    return {hub: federation.folder / hub / "by-hand" for hub in federation.hubs}


def main():
    if why := unable():
        sys.exit(why)
    hosts = {silo: f"10.97.0.{number}" for number, silo in enumerate(COMPANIES, 1)}
    home = Path(tempfile.mkdtemp(prefix="tdcd-machines-"))
    federation = StandingFederation(home / "it", COMPANIES, hosts=hosts, rounds=40)
    addresses = {hub: hosts[hub.removeprefix("hub.")] for hub in federation.hubs}
    addresses |= {client: f"10.97.0.{number}" for number, client in enumerate(federation.clients, 101)}
    with machines(addresses) as spaces:
        at = Machines(federation, spaces)
        try:
            expected = by_hand(at, federation)
            services = [at.start(party, "party") for party in federation.parties]
            began = time.monotonic()
            name = at.run("hub.bank", "propose", "federation.toml", "--purpose", "test").split()[-1]
            for hub in ("hub.shop", "hub.bureau"):
                wait_until(lambda: name in federation.home(hub).jobs().states, *services)  # noqa: B023
                at.run(hub, "approve", name[:8])
            wait_until(lambda: over(federation, name), *services)
            print(f"one proposal, approved by all: finished after {time.monotonic() - began:.0f} s", flush=True)
            for hub in ("hub.shop", "hub.bureau"):
                federation.write_policy(hub)
            # A party's own file is read when its service starts.
            for process in services:
                process.terminate()
            services = [at.start(party, "party") for party in federation.parties]
            began = time.monotonic()
            again = at.run("hub.bank", "propose", "federation.toml", "--purpose", "test").split()[-1]
            wait_until(lambda: over(federation, again), *services)
            print(f"one proposal, and policies: finished after {time.monotonic() - began:.0f} s", flush=True)
            for job in (name, again):
                for hub, folder in runs(federation, job).items():
                    assert_bit_identical(folder, expected[hub])
                    assert (folder / "report.html").exists()
            print("both jobs are bit-identical to the commands typed by hand, with reports at all hubs")
            ports = {party: listening(space) for party, space in spaces.items()}
            print(f"ports: {ports}")
            at.run("client.shop.web", "verify", "standing", "--log")
        finally:
            end(at.started, home)
    shutil.rmtree(home)


if __name__ == "__main__":
    main()
