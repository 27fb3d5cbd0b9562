"""Clients that stay away for longer than the grace period, in the laboratory and as real processes."""

import json
import signal
from collections import Counter
from dataclasses import replace

import pytest
from lab import CONFIG, ORDERLY, ROUGH, Lab, prepared
from processes import PATIENCE_S, Processes

from tdcd.cli.federation import in_words
from tdcd.records.history import Record
from tdcd.runtime.job import Job
from tdcd.runtime.machine.instructions import Absence
from tdcd.runtime.storage.hub_folder import HubFolder

NORTH, SOUTH, HUB = "client.lab.north", "client.lab.south", "hub.lab"
GRACE = {"federation": {"client_grace_s": 5.0}, "train": {**CONFIG["train"], "rounds": 12}}


@pytest.fixture(scope="module")
def graceful():
    return prepared(**GRACE)


class Leaving(Lab):
    """North is gone for a while from round 4 on. Whatever a disk ever held must be a beginning of the history."""

    leaves_at, returns_after = 4, 40.0

    def __init__(self, *options):
        super().__init__(*options)
        self.found, self.window, self.gone = [], [], False

    def check(self, hub):
        self.found.append(self.history(hub))

    def step(self):
        hub = self.drivers[HUB].hub if HUB in self.drivers else None
        if not self.gone and hub is not None and hub.round == self.leaves_at and NORTH in self.drivers:
            self.gone = True
            self.window.append(Counter(self.failpoints))
            self.crash(NORTH)
            self.down[NORTH] = self.now + self.returns_after
        if len(self.window) == 1 and hub is not None and hub.left_out() and hub.round == self.leaves_at + 3:
            self.window.append(Counter(self.failpoints))
        super().step()

    def run(self):
        super().run()
        assert set(self.outcomes.values()) == {"finished"}, self.outcomes
        final = self.history(HUB)
        assert self.history("hub.clinic") == final
        for found in self.found:
            assert found == final[: len(found)]
        return [Record.from_json(line) for line in final]


def test_a_run_continues_without_a_client_and_with_it_again(graceful, tmp_path):
    lab = Leaving(*graceful, tmp_path, 0)
    lab.returns_after = 7.0
    history = lab.run()
    absent = [one for record in history for one in record.absent.get(NORTH, [])]
    assert absent == [*range(absent[0], absent[-1] + 1)]
    assert absent[0] == 4
    noted = [json.loads(line) for line in (tmp_path / HUB / "absences.jsonl").read_text().splitlines()]
    assert [one["round"] for one in noted if one["client"] == NORTH] == [4, absent[-1] + 1][: len(noted)]
    assert not (tmp_path / "hub.clinic" / "absences.jsonl").exists()


def test_a_crash_at_every_failpoint_around_the_decision(graceful, tmp_path):
    first = Leaving(*graceful, tmp_path / "first", 0)
    first.run()
    before, after = first.window
    places = {
        (place, hit)
        for place in after
        if place.startswith("hub") and after[place] > before[place]
        for hit in (before[place] + 1, after[place])
    }
    assert {"hub absence.before", "hub absence.after", "hub send.phi.before", "hub save.after"} <= {
        p for p, _ in places
    }
    for place, hit in sorted(places):
        lab = Leaving(*graceful, tmp_path / f"{place} {hit}", 0)
        lab.crash_at = place, hit
        history = lab.run()
        assert lab.counts["crash of a hub"] == 1, (place, hit)
        told = (tmp_path / f"{place} {hit}" / HUB / "absences.jsonl").exists()
        assert told == any(NORTH in record.absent for record in history), (place, hit)


@pytest.mark.parametrize("seed", range(6))
def test_crashes_bad_links_and_short_patience(tmp_path, seed):
    """Everything at once, with a grace period so short that clients are left out again and again."""
    train = {**CONFIG["train"], "rounds": 24}
    config, data = prepared(federation={"client_grace_s": 1.5}, train=train)
    lab = Leaving(config, data, tmp_path, seed, replace(ROUGH, crashed=0.007))
    history = lab.run()
    assert lab.counts["crash of a hub"] + lab.counts["crash of a client"] > 5
    assert any(record.absent for record in history)


def test_a_torn_line_of_the_absences_is_none(graceful, tmp_path):
    job = Job(graceful[0])
    folder = HubFolder(tmp_path / "run", job, 1)
    for absence in (Absence(NORTH, 4, "block"), Absence(NORTH, 6, None)):
        folder.note_absence(absence)
    folder.close()
    path = tmp_path / "run" / "absences.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    folder = HubFolder(tmp_path / "run", job, 1)
    assert folder.absences == [Absence(NORTH, 4, "block")]
    folder.note_absence(Absence(NORTH, 6, None))
    folder.close()
    assert path.read_bytes() == whole


def test_all_clients_of_a_silo_gone_are_waited_for(graceful, tmp_path):
    lab = Lab(*graceful, tmp_path, 0, ORDERLY).begin()
    lab.until(lambda: lab.drivers[HUB].hub.round == 4)
    for client in (NORTH, SOUTH):
        lab.crash(client)
        lab.down[client] = lab.now + 100
    before = lab.now
    lab.until(lambda: lab.now > before + 60)
    hub = lab.drivers[HUB].hub
    assert (hub.round, hub.left_out(), {NORTH, SOUTH} >= {*hub.missing()}) == (4, [], True)
    lab.until_over()
    assert set(lab.outcomes.values()) == {"finished"}
    assert not any(json.loads(line).get("absent") for line in lab.history(HUB))


@pytest.mark.slow
def test_a_client_killed_for_good_does_not_stop_real_processes(tmp_path):
    sections = {"federation": {"client_grace_s": 5.0}, "runtime": {"linger_s": 1.0}, "evaluate": {"every": 20}}
    with Processes(tmp_path, rounds=120, **sections) as parties:
        parties.start_all()
        parties.until(lambda: min(parties.rounds()) >= 5, "the first rounds")
        parties.kill(NORTH)
        names = [party for party in parties.parties if party != NORTH]
        ended = {party: parties.trial.processes[party].wait(PATIENCE_S) for party in names}
        assert ended == dict.fromkeys(names, 0)
        assert parties.trial.processes[NORTH].wait() == -signal.SIGKILL
        one, other = parties.histories()
        assert one == other
        lines = [Record.from_json(line) for line in one]
        absent = [index for record in lines for index in record.absent.get(NORTH, [])]
        assert absent == [*range(absent[0], 120)]
        assert lines[-1].unscored == [NORTH]
        status = parties.statuses()[HUB]
        assert status["left_out"] == [NORTH]
        assert f"left out    {NORTH}" in in_words({**status, "alive": False})
        log = (parties.trial.folder / "logs" / f"{HUB}.log").read_text()
        assert log.count('"event": "left out"') == 1
        assert NORTH in (parties.trial.folder / "silos" / "clinic" / "report.html").read_text()
