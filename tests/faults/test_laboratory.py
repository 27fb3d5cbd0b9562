"""Crashes, bad links and bad disks in the in-process laboratory: the history is always the one of the quiet run."""

import json
import re
import resource
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from lab import IN_STEP, ORDERLY, ROUGH, Lab, in_mode, prepared, reference_of

from tdcd.records.manifest import Manifest, differences
from tdcd.records.run_folder import RunFolder
from tdcd.runtime.job import Job
from tdcd.runtime.machine.instructions import HubState
from tdcd.runtime.messages.messages import Checkpoint, Part, ScoresFacts
from tdcd.runtime.messages.structure import Array
from tdcd.runtime.messages.wire import FORMAT, IN_FILES, PROTOCOL, RejectedMessage, decode, encode
from tdcd.runtime.storage.checkpoint import Checkpoints
from tdcd.runtime.storage.hub_folder import HubFolder
from tdcd.runtime.storage.status import is_alive
from tdcd.runtime.transport.transport import Received


@pytest.fixture(scope="module")
def quiet(tmp_path_factory):
    """Config, rows, the history to which nothing happened, and the failpoints on its way."""
    config, data = prepared()
    return config, data, *reference_of(config, data, tmp_path_factory.mktemp("quiet") / "run")


@pytest.mark.parametrize("seed", range(8))
def test_crashes_and_bad_links(quiet, tmp_path, seed):
    config, data, reference, _ = quiet
    lab = Lab(config, data, tmp_path, seed, ROUGH).run(reference)
    assert set(lab.outcomes.values()) == {"finished"}
    assert lab.counts["crash of a hub"] + lab.counts["crash of a client"] > 0
    assert lab.counts["repeated"] > 20


def test_the_same_seed_is_the_same_trial(quiet, tmp_path):
    config, data, reference, _ = quiet
    counts = [Lab(config, data, tmp_path / name, 3, ROUGH).run(reference).counts for name in "ab"]
    assert counts[0] == counts[1]


def test_a_crash_at_every_failpoint(quiet, tmp_path):
    config, data, reference, failpoints = quiet
    assert {place.split(".")[0] for place in failpoints} >= {"hub send", "hub save", "hub append", "hub rename"}
    for place, hits in sorted(failpoints.items()):
        for hit in {1, hits}:
            lab = Lab(config, data, tmp_path / f"{place} {hit}", 0)
            lab.crash_at = place, hit
            lab.run(reference)
            assert set(lab.outcomes.values()) == {"finished"}, place
            assert sum(lab.counts.values()) == 1, (place, hit)


LATE = ["overlap 1, period 1, bits 8", "overlap 0, period 4, bits 32", "overlap 3, period 4, bits 8"]
"""All modes: see campaign.py."""


@pytest.fixture(scope="module", params=LATE)
def late(request, tmp_path_factory):
    """The same of rounds that overlap, of a slow silo and of few bits."""
    config, data = prepared(**in_mode(request.param, train={"rounds": 10}))
    return config, data, *reference_of(config, data, tmp_path_factory.mktemp("late") / "run")


@pytest.mark.parametrize("seed", range(2))
def test_crashes_and_bad_links_where_no_party_waits(late, tmp_path, seed):
    config, data, reference, _ = late
    lab = Lab(config, data, tmp_path, seed, ROUGH).run(reference)
    assert set(lab.outcomes.values()) == {"finished"}
    assert lab.counts["crash of a hub"] + lab.counts["crash of a client"] > 0


@pytest.mark.parametrize("late", LATE[-1:], indirect=True)
def test_a_crash_at_every_failpoint_where_no_party_waits(late, tmp_path):
    config, data, reference, failpoints = late
    for place, hits in sorted(failpoints.items()):
        lab = Lab(config, data, tmp_path / place, 0)
        lab.crash_at = place, (hits + 1) // 2
        lab.run(reference)
        assert set(lab.outcomes.values()) == {"finished"}, place


@pytest.mark.parametrize("mode", [IN_STEP, *LATE])
@pytest.mark.parametrize("seed", range(2))
def test_the_same_divergence_after_crashes(tmp_path, mode, seed):
    config, data = prepared(**in_mode(mode, train={"step_size": 1e30}, evaluate={"every": 1}))
    reference, _ = reference_of(config, data, tmp_path / "reference")
    assert json.loads(reference[-1])["diverged"]
    lab = Lab(config, data, tmp_path / "run", seed, replace(ROUGH, crashed=0.03)).run(reference)
    assert set(lab.outcomes.values()) == {"diverged"}


@pytest.mark.parametrize("seed", range(2))
def test_a_shared_model_after_crashes(tmp_path, seed):
    config, data = prepared(federation={"share_model": True})
    reference, _ = reference_of(config, data, tmp_path / "reference")
    lab = Lab(config, data, tmp_path / "run", seed, ROUGH).run(reference)
    models = [{p.name: p.read_bytes() for p in (tmp_path / "run" / hub / "model").iterdir()} for hub in lab.job.hubs]
    assert models[0] == models[1]
    assert set(models[0]) == {"clinic.safetensors", "lab.safetensors"}
    for hub in lab.job.hubs:
        assert differences(Manifest(RunFolder(tmp_path / "run" / hub))) == []


# Checkpoints


def state(round_index):
    phi = {"phi": Array.of(np.ones((2, 1)))}
    word = Part("hub.a", "", round_index - 1, "run", flow="phi", digests={"hub.b": "x"}, arrays=phi)
    return HubState("run", round_index, {"weights": np.full((2, 1), round_index)}, (word,), {5: {"hub.b": "y"}})


def test_a_checkpoint_of_an_earlier_protocol_is_continued(tmp_path):
    """It was written when the protocol had number 5, and parts had a structure for each flow: it is continued, and what
    it holds is sent as it is sent now.
    """
    shutil.copy(Path(__file__).with_name("checkpoint_of_format_5.tdcd"), tmp_path / "0.tdcd")
    checkpoints = Checkpoints(tmp_path, "hub.bank", "0123456789abcdef" * 2)
    assert not checkpoints.complaints
    state = checkpoints.newest
    assert (state.round, state.recorded, state.hubs) == (5, 4, {})
    assert (state.block["w"] == np.linspace(0, 1, 4).reshape(4, 1)).all()
    assert [(part.flow, part.round, [*part.arrays]) for part in state.outbox] == [
        ("phi", 4, ["phi"]),
        ("scores", 4, ["train", "test"]),
    ]
    assert state.outbox[0].digests == {"hub.shop": "ab" * 16}
    assert state.outbox[0].arrays["phi"].values.shape == (1, 6, 1)
    assert state.outbox[1].facts == ScoresFacts(penalty=0.25)
    checkpoints.save(state)
    checkpoints.settle()
    # On a link it would be refused, and so would a message be in a file.
    content = (tmp_path / "0.tdcd").read_bytes()
    own = {"sender": "hub.bank", "receiver": "hub.bank"}
    with pytest.raises(RejectedMessage, match=f"^it is not a message of protocol {PROTOCOL}: run the same version"):
        decode(content, **own)
    (tmp_path / "0.tdcd").write_bytes(encode(decode(content, **own, form=IN_FILES)))
    (complaint,) = Checkpoints(tmp_path, "hub.bank").complaints
    text = f"it is not of format {FORMAT}, which this version of tdcd reads: continue with the version that wrote it"
    assert complaint == f"{tmp_path / '0.tdcd'} is not used: {text}"


def test_a_checkpoint_comes_back_as_it_was(tmp_path):
    for index in range(1, 6):
        # A hub that restarts goes on with the files that are there.
        Checkpoints(tmp_path, "hub.a").save(state(index))
    own = {"sender": "hub.a", "receiver": "hub.a", "form": IN_FILES}
    rounds = [decode(path.read_bytes(), **own).round for path in sorted(tmp_path.iterdir())]
    assert sorted(rounds) == [3, 4, 5]
    checkpoints = Checkpoints(tmp_path, "hub.a")
    assert not checkpoints.complaints
    found = checkpoints.newest
    assert (found.run, found.round, found.digests) == ("run", 5, {5: {"hub.b": "y"}})
    assert found.block["weights"].tolist() == [[5], [5]]
    assert [encode(word) for word in found.outbox] == [encode(word) for word in state(5).outbox]


def test_a_damaged_or_foreign_checkpoint_is_refused_and_the_one_before_it_used(tmp_path):
    checkpoints = Checkpoints(tmp_path, "hub.a")
    for index in (1, 5, 6):
        checkpoints.save(state(index))
    older, middle, newest = (tmp_path / f"{index}.tdcd" for index in range(3))
    old, whole, foreign = older.read_bytes(), newest.read_bytes(), encode(Checkpoint("hub.b", "hub.b", 6, block={}))
    places = range(len(whole))
    flipped = [whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :] for place in places]
    # What a crash leaves of a file that is written over: the new one's beginning, or that and the old one's end.
    torn = [whole[:place] + old[place:] for place in places if whole[place:] != old[place:]]
    for content in [*(whole[:length] for length in places), *flipped, *torn[1:], foreign]:
        newest.write_bytes(content)
        found = Checkpoints(tmp_path, "hub.a")
        assert found.newest.round == 5
        assert [f"{newest} is not used" in complaint for complaint in found.complaints] == [True]
    # The next state takes the place of the damaged one.
    found.save(state(6))
    assert newest.read_bytes() == whole
    assert middle.exists()


def test_states_that_the_disk_did_not_take_cost_one_old_state_at_most(tmp_path):
    checkpoints = Checkpoints(tmp_path, "hub.a")
    for index in range(1, 4):
        checkpoints.save(state(index))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        for index in range(4, 8):
            with pytest.raises(OSError, match="too large"):
                checkpoints.save(state(index))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    found = Checkpoints(tmp_path, "hub.a")
    assert (found.newest.round, len(found.complaints)) == (3, 1)
    checkpoints.save(state(8))
    assert Checkpoints(tmp_path, "hub.a").newest.round == 8


def test_two_processes_do_not_share_a_run_folder(tmp_path):
    import subprocess
    import sys

    path = tmp_path / "run"
    folder = HubFolder(path, Job(prepared()[0]), 0)
    ask = "from pathlib import Path; from tdcd.runtime.storage.status import is_alive; "
    ask += f"print(is_alive(Path({str(path)!r})))"
    answer = [subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True).stdout]
    folder.close()
    answer.append(subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True).stdout)
    assert answer == ["True\n", "False\n"]
    assert not is_alive(tmp_path)


# Disks


class FullDisk(Lab):
    """The disk of one hub takes no file beyond some bytes, for a while."""

    limit, hub = 1500, "hub.lab"

    def turn(self, party):
        driver = self.drivers[party]
        if party != self.hub or driver.hub.round >= self.full_until or driver.hub.phase == "ending":
            return super().turn(party)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.limit, before[1]))
        try:
            super().turn(party)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        self.errors.add(driver._last_error)
        return None


def test_a_full_disk_is_reported_and_training_continues(quiet, tmp_path):
    config, data, reference, _ = quiet
    lab = FullDisk(config, data, tmp_path, 0)
    lab.full_until, lab.errors = 3, set()
    lab.run(reference)
    assert set(lab.outcomes.values()) == {"finished"}
    assert any("hub.lab could not be written" in error for error in lab.errors)
    assert len([*(tmp_path / "hub.lab" / "checkpoint").iterdir()]) <= 3


@pytest.mark.parametrize("mode", [IN_STEP, "overlap 3, period 4, bits 32"])
@pytest.mark.parametrize("outcome", ["room again", "crash", "stopped"])
def test_a_hub_whose_disk_stays_full_waits_before_the_others_forget_what_it_needs(mode, outcome, tmp_path):
    """Whatever comes then, the run goes on: also if the hub has to go back to the last state that the disk took."""
    config, data = prepared(**in_mode(mode, train={"rounds": 24}))
    reference, _ = reference_of(config, data, tmp_path / "quiet")
    lab = FullDisk(config, data, tmp_path, 0).begin(reference)
    lab.errors, lab.full_until = set(), 0
    driver, other = lab.drivers["hub.lab"], lab.drivers["hub.clinic"]
    lab.until(lambda: driver.folder.checkpoints.durable > 0)
    lab.full_until = 99
    lab.until(lambda: driver._is_held)
    held = driver.hub.round
    for _ in range(300):
        lab.step()
    assert (driver.hub.round, driver._is_held) == (held, True)
    assert other.hub.round < config.train.rounds
    lab.full_until = 0
    if outcome == "crash":
        lab.crash("hub.lab")
    elif outcome == "stopped":
        lab.full_until = 99
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (lab.limit, before[1]))
        outcome = driver._leave()
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        lab.full_until, durable = 0, driver.folder.checkpoints.durable
        said = f"in round {held}; the same command continues from round {durable}, whose state is durable. "
        assert outcome.reason.startswith(said + str(tmp_path / "hub.lab"))
        lab.crash("hub.lab")
    lab.until_over()
    assert set(lab.outcomes.values()) == {"finished"}
    assert [lab.history(hub) for hub in lab.job.hubs] == [reference] * 2


# Parties that are not what they were


def test_a_client_with_other_rows_is_turned_away_and_the_right_one_continues(quiet, tmp_path):
    config, data, reference, _ = quiet
    north, right = "client.lab.north", dict(data)
    lab = Lab(config, dict(data), tmp_path, 0).begin(reference)
    lab.until(lambda: lab.drivers["hub.lab"].hub.round == 2)
    lab.crash(north)
    lab.data[north] = replace(data[north], labels=data[north].labels[::-1].copy())
    lab.until(lambda: north in lab.outcomes)
    assert lab.outcomes.pop(north) == "refused"
    error = lab.drivers["hub.lab"]._last_error
    assert error == f"{north} was turned away: {north} came back with other rows than it had when the run began"
    lab.data = right
    lab.start(north)
    lab.until_over()
    assert set(lab.outcomes.values()) == {"finished"}
    assert lab.history("hub.lab") == reference


class Liar(Lab):
    """One hub's phi of one round differs by a little between two of its peers."""

    def post(self, sender, receiver, data):
        if (sender, receiver) == ("hub.a", "hub.c"):
            message = decode(data, sender=sender, receiver=receiver)
            if message.kind == "phi" and message.round == 2:
                phi = message.arrays["phi"].values
                data = encode(message.replace(arrays={"phi": Array.of(phi + phi.dtype.type(1e-3))}))
        super().post(sender, receiver, data)


def test_a_hub_that_sends_two_others_different_things_is_named_by_both(tmp_path):
    config, data = prepared(silos=[{"name": name, "clients": 1} for name in "abc"])
    lab = Liar(config, data, tmp_path, 0).begin()
    lab.until_over()
    assert set(lab.outcomes.values()) == {"refused"}
    for hub in lab.job.hubs:
        reason = json.loads((tmp_path / hub / "status.json").read_text())["last_error"]
        assert re.search(r"hub\.a sent hub\.[abc] and hub\.[abc] different things", reason), reason
        assert "hub.c" in reason


# Input that was never sent


def test_ten_thousand_mutated_messages_change_nothing(quiet, tmp_path):
    config, data, reference, _ = quiet
    lab = Mutated(config, data, tmp_path, 0, replace(ORDERLY))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lab.run(reference)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert set(lab.outcomes.values()) == {"finished"}
    assert lab.sent > 10_000
    assert lab.refused == lab.sent
    assert grown < 50


class Mutated(Lab):
    """Every message is followed by bit flips, truncations and random bytes of it."""

    sent = refused = 0

    def turn(self, party):
        driver = self.drivers[party]
        news = driver.endpoint.transport.news
        copies = [] if not news or not isinstance(news[0], Received) else [*self.mutations(news[0])]
        super().turn(party)
        for copy in copies:
            if party in self.drivers:
                before = sum(driver.endpoint.refused.values())
                news.append(copy)
                super().turn(party)
                self.sent += 1
                self.refused += sum(driver.endpoint.refused.values()) - before

    def mutations(self, received):
        rng, data = self.rng, received.data
        for _ in range(20):
            place = rng.randrange(len(data))
            yield Received(
                received.sender, data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]
            )
            yield Received(received.sender, data[:place])
            yield Received(received.sender, rng.randbytes(rng.randrange(200)))
