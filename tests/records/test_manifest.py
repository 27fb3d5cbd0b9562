"""``manifest.json``: what it says of a run, and that no byte changes unnoticed."""

import hashlib
import json
import platform
import stat

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tdcd
from tdcd import Federation, Linear, Objective, Settings, load, standardize, train
from tdcd.core.schedule import batch_ids
from tdcd.records.files import digest_of
from tdcd.records.manifest import (
    Manifest,
    client_digests,
    commit_of,
    covered,
    differences,
    keyed,
    schedule_of,
    versions,
)
from tdcd.records.run_folder import RunFolder

ROWS, HELD_OUT = standardize(*load("breast_cancer").split(0.2, seed=0))
FEDERATION = Federation.cut(ROWS, HELD_OUT, silos=2, clients=[3, 2], bias=True)
SETTINGS = Settings(local_steps=2, batch_size=32, step_size=0.1)


def trained(folder, rounds=4, **options):
    train(FEDERATION, Linear(), Objective("logistic"), SETTINGS, rounds=rounds, evaluate_every=2, out=folder, **options)
    return Manifest(RunFolder(folder))


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("manifest") / "run")


def test_it_says_what_the_run_was_made_with(manifest):
    found = manifest.read()
    (session,) = found["sessions"]
    assert session["by"] == "simulation"
    assert session["started"] <= session["ended"]
    assert session["versions"]["tdcd"] == tdcd.__version__
    assert session["versions"]["python"] == platform.python_version()
    assert session["versions"]["numpy"] == np.__version__
    assert session["hardware"]["cores"] >= 1
    assert session["hardware"]["memory"] > 2**20
    assert found["history"][0] == 3
    assert set(found["model"]) == {"silo1", "silo2"}
    assert set(found["data"]) == {f"client.silo{silo}.c{k}" for silo, k in ((1, 1), (1, 2), (1, 3), (2, 1), (2, 2))}
    for name, digest in found["files"].items():
        assert hashlib.sha256((manifest.run.path / name).read_bytes()).hexdigest() == digest
    assert {"config.toml", "federation.json", "history.jsonl", "held-out.csv"} < set(found["files"])


def test_a_commit_is_named_only_for_a_checkout(manifest):
    commit = versions().get("commit")
    assert commit is None or len(commit.removesuffix("-dirty")) == 40


def test_the_schedule_is_that_of_the_first_rounds(manifest):
    schedule = manifest.read()["schedule"]
    ids = batch_ids(0, [0, 1, 2], num_samples=FEDERATION.num_samples, batch_size=32, local_steps=2)
    assert schedule["digest"] == digest_of("", {"ids": ids})
    assert (
        schedule_of(Settings(local_steps=2, batch_size=32, seed=1, step_size=0.05), 455)["digest"] != schedule["digest"]
    )
    full = schedule_of(Settings(minibatches="full", step_size=0.05), 455)
    assert full["batch_size"] == 455


@given(place=st.floats(0, 1, exclude_max=True), change=st.integers(1, 255), file=st.integers(0, 20))
def test_no_byte_changes_unnoticed(manifest, place, change, file):
    names = covered(manifest.run)
    name = names[file % len(names)]
    path = manifest.run.path / name
    before = path.read_bytes()
    at = int(place * len(before))
    try:
        path.write_bytes(before[:at] + bytes([before[at] ^ change]) + before[at + 1 :])
        (line,) = differences(manifest)
        assert line.startswith(f"{name} is not as it was written")
    finally:
        path.write_bytes(before)
    assert differences(manifest) == []


def test_what_is_missing_or_added_is_named(tmp_path):
    manifest = trained(tmp_path / "run")
    model = tmp_path / "run" / "model"
    (model / "silo2.safetensors").rename(model / "silo3.safetensors")
    assert differences(manifest) == ["model/silo2.safetensors is missing", "model/silo3.safetensors was added"]


def test_a_history_says_whether_its_numbers_were_changed(tmp_path):
    manifest = trained(tmp_path / "run")
    path = tmp_path / "run" / "history.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line | {"seconds": 9.0}) + "\n" for line in lines))
    assert differences(manifest) == [
        "history.jsonl is not as it was written: times or spacing were changed, the numbers were not"
    ]
    path.write_text("".join(json.dumps(line | {"train_loss": 0.1}) + "\n" for line in lines))
    assert differences(manifest) == ["history.jsonl is not as it was written: its numbers were changed"]


def test_a_changed_manifest_is_refused(tmp_path):
    manifest = trained(tmp_path / "run")
    text = manifest.file.read_text()
    manifest.file.write_text(text.replace('"seed": 0', '"seed": 1'))
    with pytest.raises(ValueError, match=r"manifest.json is damaged: it does not match its own digest"):
        differences(manifest)
    manifest.file.unlink()
    with pytest.raises(FileNotFoundError, match=r"run has no manifest: manifest.json is missing"):
        differences(manifest)


def test_digests_of_data_are_comparable_with_the_key_and_reveal_nothing_without(manifest, tmp_path):
    key, found = manifest.key(), manifest.read()["data"]
    assert keyed(key, client_digests(FEDERATION)) == found
    assert stat.S_IMODE(manifest.key_file.stat().st_mode) == 0o600
    assert key.hex() not in manifest.file.read_text()
    assert not set(found.values()) & set(client_digests(FEDERATION).values())
    other = Federation.cut(ROWS, HELD_OUT, silos=2, clients=[3, 2], bias=True)
    other.silos[0].features[0, 0] += 1e-6
    changed = keyed(key, client_digests(other))
    assert [client for client in found if changed[client] != found[client]] == ["client.silo1.c1"]
    assert not set(trained(tmp_path / "again").read()["data"].values()) & set(found.values())


def test_a_resumed_run_has_two_sessions_and_one_key(tmp_path):
    manifest = trained(tmp_path / "run", rounds=2)
    before = manifest.read()
    resumed = trained(tmp_path / "run", rounds=4, resume=True).read()
    assert len(resumed["sessions"]) == 2
    assert (resumed["data"], resumed["schedule"]) == (before["data"], before["schedule"])
    assert resumed["history"][0] == 3
    assert differences(manifest) == []


def test_a_run_that_continues_has_nothing_to_check_yet(tmp_path):
    manifest = trained(tmp_path / "run", rounds=2)
    manifest.begin("simulation")
    with pytest.raises(
        ValueError, match=r"was not completed: the run is still running, or was killed; continue it first"
    ):
        differences(manifest)


def test_a_copy_of_a_checkout_gets_its_commit(tmp_path, monkeypatch):
    assert commit_of(tmp_path / "tdcd") == ""
    monkeypatch.setenv("TDCD_COMMIT", "0123abc")
    assert commit_of(tmp_path / "tdcd") == "0123abc"
