"""A checkpoint reaches the disk while the clients step: what a crash, or a disk that fails, does meanwhile."""

import os

import pytest
from lab import CONFIG, Faults, Lab, prepared, reference_of

from tdcd.runtime.machine.instructions import HubState
from tdcd.runtime.storage.checkpoint import Checkpoints


@pytest.fixture(scope="module")
def quiet(tmp_path_factory):
    """Config, rows, the history to which nothing happened, and the failpoints on its way."""
    config, data = prepared()
    return config, data, *reference_of(config, data, tmp_path_factory.mktemp("quiet") / "run")


class Pipe:
    """A file that takes what is written, and that no disk will ever keep: its sync fails."""

    def __init__(self, path):
        os.mkfifo(path)
        self._path, self._reader = path, os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def remove(self):
        os.close(self._reader)
        self._path.unlink()


class Watched(Lab):
    """Notes the failpoints that each party passes."""

    def hit(self, name):
        self.places.setdefault(self.running, []).append(name)
        super().hit(name)


@pytest.mark.parametrize("num_silos", [2, 1])
def test_nothing_follows_from_a_state_before_it_is_durable(num_silos, tmp_path):
    """Also at a silo alone, whose clients step in all of its time."""
    config, data = prepared(silos=CONFIG["silos"][:num_silos])
    lab = Watched(config, data, tmp_path, 0)
    lab.places = {}
    lab.run()
    for hub in lab.job.hubs:
        meanwhile, is_syncing, saved = [], False, 0
        for name in lab.places[hub]:
            is_syncing = name == "save.written" or (is_syncing and name != "save.after")
            saved += name == "save.after"
            meanwhile += [name] if is_syncing and name.startswith("send.") else []
        assert (meanwhile, saved) == ([], config.train.rounds)


def test_a_crash_that_takes_the_unsynced_state_with_it_costs_one_round(quiet, tmp_path):
    config, data, reference, failpoints = quiet
    for hit in (3, 7, failpoints["hub save.written"]):
        lab = Lab(config, data, tmp_path / str(hit), 0, Faults(damaged=1.0))
        lab.crash_at = "hub save.written", hit
        lab.run(reference)
        assert set(lab.outcomes.values()) == {"finished"}
        assert (lab.counts["crash of a hub"], lab.counts["damaged checkpoint"]) == (1, 1), hit


def test_a_state_that_the_disk_did_not_keep_leaves_its_place_to_the_next(tmp_path):
    checkpoints = Checkpoints(tmp_path, "hub.a")
    checkpoints.save(HubState("run", 1, {}))
    checkpoints.settle()
    pipe = Pipe(tmp_path / "1.tdcd")
    checkpoints.save(HubState("run", 2, {}))
    with pytest.raises(OSError, match="Invalid argument"):
        checkpoints.settle()
    pipe.remove()
    checkpoints.settle()
    checkpoints.save(HubState("run", 3, {}))
    checkpoints.settle()
    found = Checkpoints(tmp_path, "hub.a")
    assert [(path.name, state.round) for path, state in found.states.items()] == [("1.tdcd", 3), ("0.tdcd", 1)]


def test_who_waits_for_a_state_gets_any_error(monkeypatch, tmp_path):
    def fail(file):
        raise MemoryError

    checkpoints = Checkpoints(tmp_path, "hub.a")
    with monkeypatch.context() as failing:
        failing.setattr(os, "fdatasync", fail, raising=False)
        checkpoints.save(HubState("run", 1, {}))
        with pytest.raises(MemoryError):
            checkpoints.settle()
    checkpoints.save(HubState("run", 2, {}))
    checkpoints.settle()
    assert [state.round for state in Checkpoints(tmp_path, "hub.a").states.values()] == [2]


def test_a_sync_that_fails_is_reported_and_training_continues(quiet, tmp_path):
    config, data, reference, _ = quiet
    lab = Lab(config, data, tmp_path, 0).begin(reference)
    folder, driver = tmp_path / "hub.lab" / "checkpoint", lab.drivers["hub.lab"]
    lab.until((folder / "0.tdcd").exists)
    pipe = Pipe(folder / "1.tdcd")
    lab.until(lambda: driver._last_error)
    assert driver._last_error == f"{tmp_path / 'hub.lab'} could not be written: [Errno 22] Invalid argument"
    pipe.remove()
    lab.until_over()
    assert set(lab.outcomes.values()) == {"finished"}
    assert lab.history("hub.lab") == reference
    assert (folder / "1.tdcd").is_file()
