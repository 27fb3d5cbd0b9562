"""A federation of real processes that a test kills, stops and starts again; a supervisor gives every command anew."""

import json
import random
import signal
import time
from collections import Counter
from pathlib import Path

import lab
from proxy import Proxy

from support.in_process import noise_key
from tdcd.cli.terminal import EXIT_DIVERGED
from tdcd.records.history import Record
from tdcd.records.outcome import verdict
from tdcd.records.run_folder import toml_text
from tdcd.runtime.process.forking import environment, start_party
from tdcd.runtime.process.trial import Trial
from tdcd.runtime.storage import failpoints
from tdcd.runtime.storage.checkpoint import Checkpoints
from tdcd.runtime.storage.hub_folder import HubFolder
from tdcd.runtime.storage.keys import NOISE_KEY, answer_key

PATIENCE_S = 600.0
"""Only a guard against waiting for ever: how long things take is measured, and depends on the machine."""


class Processes:
    """The parties of a trial folder; :meth:`watch` restarts whoever was killed."""

    def __init__(self, folder, *, link=None, everywhere=False, rounds=60, **sections):
        """Proxies that can be made to fail: one in a ``link``, a hub that listens and a hub that dials it, or
        ``everywhere``, one before each hub for all who dial it."""
        config = {**lab.CONFIG, "runtime": {"resend_s": 1.0}, **sections}
        config["train"] = {**config["train"], "rounds": rounds}
        self.sections = config
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "shared.toml").write_text(toml_text(config))
        self.trial = Trial.prepare(folder / "shared.toml", [], folder / "trial")
        self.parties = [*self.trial.job.hubs]
        for silo in range(len(self.trial.job.hubs)):
            self.parties += self.trial.job.clients(silo)
        self.kills, self.recoveries, self.blows = Counter(), [], 0
        self.armed, self.codes, self.late = {}, {}, set()
        self.exit_status = 0
        """What every party ends with."""
        self.listens, self.proxies = {}, []
        if link is not None:
            listener, dialler = link
            self._put_before(listener, lambda port: holds_port(self.trial.processes[dialler].pid, port))
        for hub in self.trial.job.hubs if everywhere else []:
            self._put_before(hub, lambda port: True)

    def _put_before(self, listener, is_victim):
        """All dial the proxy at the hub's address in the shared file; faults befall the connections of victims."""
        silo = next(s for s in self.trial.job.config.silos if f"hub.{s.name}" == listener)
        self.listens[listener] = silo.hub
        self.proxies.append(Proxy(silo.hub, is_victim))
        shared = self.trial.folder / "federation.toml"
        shared.write_text(shared.read_text().replace(silo.hub, self.proxies[-1].address))

    @property
    def proxy(self):
        """The one in the link."""
        (found,) = self.proxies
        return found

    def give_noise(self):
        """Give hubs the secrets of the reference, whose noise is then theirs."""
        job = self.trial.job
        for silo, section in enumerate(job.config.silos):
            folder = HubFolder(self.trial.folder / "silos" / section.name, job, silo)
            (folder.path / NOISE_KEY).write_text(noise_key(job, silo).hex())
            folder.close()

    def reference_of_noise(self, folder):
        """The history to which nothing happens of clients that add noise: it follows from secrets in their files, and
        from the run, so the same parties in one process are given the secrets and the hubs' nonces of these files.
        """
        job, nonces, secrets = self.trial.job, {}, {}
        for silo, (name, section) in enumerate(zip(job.hubs, job.config.silos, strict=True)):
            hub = HubFolder(self.trial.folder / "silos" / section.name, job, silo)
            nonces[name] = hub.nonce
            hub.close()
            for client in job.clients(silo):
                secrets[client] = answer_key(self.trial.folder / "certs" / f"{client}.{job.digest[:16]}.key")
        _, data = lab.prepared(**self.sections)
        return lab.reference_of(job.config, data, folder, nonces, secrets)[0]

    # Processes.

    def start(self, party):
        """Give the party's command; ``armed`` has the failpoints at which it is to die, one a start."""
        trial = self.trial
        (trial.folder / "logs").mkdir(exist_ok=True)
        role, silo, *client = party.split(".")
        arguments = [role, str(trial.folder / "federation.toml"), "--silo", silo]
        arguments += ["--certs", str(trial.folder / "certs")]
        if role == "hub":
            arguments += ["--out", str(trial.folder / "silos" / silo)]
            arguments += ["--listen", self.listens[party]] if party in self.listens else []
        else:
            arguments += ["--client", client[0]]
        arguments += trial._options().get(party, [])
        variables = environment()
        if places := self.armed.get(party):
            variables[failpoints.VARIABLE] = places.pop(0)
        trial.processes[party] = start_party(arguments, trial.folder / "logs" / f"{party}.log", variables)

    def start_all(self):
        for party in self.parties:
            self.start(party)

    def kill(self, party, number=signal.SIGKILL):
        process = self.trial.processes[party]
        if process.poll() is None:
            process.send_signal(number)

    def watch(self):
        """Start again whoever was killed; the parties that this befell."""
        back = []
        for party, process in [*self.trial.processes.items()]:
            code = None if party in self.codes else process.poll()
            if code == -signal.SIGKILL:
                self.kills["hub" if party.startswith("hub.") else "client"] += 1
                self.start(party)
                back.append(party)
                if party.startswith("client.") and self._has_ended(hub_of(party)):
                    self.late.add(party)
            elif code is not None:
                assert code == self.exit_status, f"{party} ended with {code}:\n{self.trial._last_words(party)}"
                self.codes[party] = code
        self._dismiss()
        return back

    def _has_ended(self, hub):
        path = self.trial.folder / "silos" / hub.removeprefix("hub.") / "hub.json"
        return path.exists() and json.loads(path.read_text())["status"] is not None

    def _dismiss(self):
        """Stop clients that were killed after the end of the run, and came back when their hub had left: if they had
        confirmed the end before, they would dial for ever, as docs/reliability.md says."""
        for party in self.late - {*self.codes}:
            if hub_of(party) in self.codes:
                self.trial.processes[party].kill()
                self.codes[party] = 0

    @property
    def is_over(self):
        return len(self.codes) == len(self.parties)

    def until(self, condition, what, within=PATIENCE_S):
        """Keep everything running until something holds; how long that took."""
        began = time.monotonic()
        while not condition():
            self.watch()
            assert time.monotonic() - began < within, f"{what}: not within {within} s; {self.where()}"
            time.sleep(0.05)
        return time.monotonic() - began

    def where(self):
        return {h: {k: s[k] for k in ("phase", "round", "missing_s", "last_error")} for h, s in self.statuses().items()}

    def stop(self):
        for process in self.trial.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
        for proxy in self.proxies:
            proxy.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.stop()

    # What can be seen from outside.

    def statuses(self):
        found = {}
        for hub in self.trial.job.hubs:
            path = self.trial.folder / "silos" / hub.removeprefix("hub.") / "status.json"
            if path.exists():
                found[hub] = json.loads(path.read_text())
        return found

    def rounds(self):
        found = self.statuses()
        return [found[hub]["round"] if hub in found else -1 for hub in self.trial.job.hubs]

    def moved(self):
        """A condition: every hub gets further than it is now by a whole round, which takes everybody's part."""
        before = self.saved()
        return lambda: self.is_over or all(now >= then + 2 for now, then in zip(self.saved(), before, strict=True))

    def saved(self):
        """The newest checkpoint of each hub."""
        found = []
        for hub in self.trial.job.hubs:
            folder = self.trial.folder / "silos" / hub.removeprefix("hub.") / "checkpoint"
            newest = Checkpoints(folder, hub).newest
            found.append(0 if newest is None else newest.round)
        return found

    def histories(self):
        found = []
        for hub in self.trial.job.hubs:
            path = self.trial.folder / "silos" / hub.removeprefix("hub.") / "history.jsonl"
            lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
            found.append([lab.without_seconds(line) for line in lines])
        return found

    def check(self, reference):
        """Safety: whatever is on a disk is a beginning of the reference."""
        for history in self.histories():
            assert history == reference[: len(history)]


def reference(folder, *, rounds, **sections):
    """The history to which nothing happens, of the same parties in one process: they need not start for it."""
    train = {**sections.pop("train", lab.CONFIG["train"]), "rounds": rounds}
    found, _ = lab.reference_of(*lab.prepared(train=train, **sections), folder)
    return found


def hub_of(client):
    return f"hub.{client.split('.')[1]}"


def holds_port(pid, port):
    """Whether a process has a TCP connection that comes from a port of this machine."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {f"socket:[{words[9]}]" for words in lines if words[1].endswith(f":{port:04X}")}
    return bool(inodes & {_target(link) for link in Path(f"/proc/{pid}/fd").iterdir()})


def _target(link):
    try:
        return str(link.readlink())
    except OSError:
        return ""


def usage(process):
    """Resident memory in MB, open files and threads of a process."""
    home = Path(f"/proc/{process.pid}")
    facts = dict(line.split(":", 1) for line in (home / "status").read_text().splitlines() if ":" in line)
    return int(facts["VmRSS"].split()[0]) / 1024, len([*(home / "fd").iterdir()]), int(facts["Threads"])


def campaign(folder, expected, seed, kills, **keys):
    """Kill parties at random, several at once now and then, until there were ``kills``; then let it end.

    Args:
        expected: the reference; None where clients add noise, whose reference is of this federation's own secrets.
    """
    rng = random.Random(seed)
    with Processes(folder, **keys) as parties:
        if expected is None:
            expected = parties.reference_of_noise(folder / "reference")
        # A mode may be one that diverges: to every history the same happens.
        if verdict([Record.from_json(line) for line in expected], parties.trial.job.stopping):
            parties.exit_status = EXIT_DIVERGED
        if parties.trial.job.variant.is_private:
            parties.give_noise()
        parties.start_all()
        parties.until(lambda: min(parties.rounds()) >= 1, "the first round")
        while sum(parties.kills.values()) < kills and not parties.is_over:
            parties.blows += 1
            for victim in rng.sample(parties.parties, rng.choice([1, 1, 1, 2, 3, len(parties.parties)])):
                parties.kill(victim)
            began = time.monotonic()
            parties.watch()
            # Sometimes the next blow falls before they are back.
            if rng.random() < 0.3:
                time.sleep(rng.random() * 3)
                parties.watch()
            else:
                parties.until(parties.moved(), f"seed {seed}: a round after a kill")
                parties.recoveries.append(time.monotonic() - began)
                time.sleep(rng.random() * 0.3)
            parties.check(expected)
        parties.until(lambda: parties.is_over, f"seed {seed}: the end")
        assert all(history == expected for history in parties.histories())
        return parties
