"""``tdcd verify``: exit status and words, also of a run that is trained again."""

import json

import pytest

from support.command import tdcd
from tdcd import __version__
from tdcd.records.manifest import Manifest
from tdcd.records.run_folder import RunFolder

LINEAR = ["--set", "data.source=diabetes", "--set", "model.block=linear", "--set", "train.batch_size=32"]
SHORT = [*LINEAR, "--set", "train.rounds=6", "--set", "evaluate.every=3"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a sweep of two runs, which are trained together."""
    folder = tmp_path_factory.mktemp("verify")
    done = tdcd("run", *SHORT, "--set", "train.step_size=[0.05,0.02]", "--out", "sweep", cwd=folder)
    assert done.exit_code == 0, done.output
    return folder


@pytest.fixture
def run(home, tmp_path):
    done = tdcd("run", *SHORT, "--set", "evaluate.alone=true", "--out", tmp_path / "run", cwd=tmp_path)
    assert done.exit_code == 0, done.output
    return tmp_path / "run"


def test_a_run_comes_out_the_same_bit_for_bit(run):
    done = tdcd("verify", "run", "--replay", cwd=run.parent)
    assert done.exit_code == 0, done.output
    assert "run: as manifest.json says (SHA-256 " in done.stdout
    assert "run: trained again: the same history and model, bit for bit" in done.stdout
    assert "alone.json" in Manifest(RunFolder(run)).read()["files"]


def test_every_run_of_a_sweep_is_checked_and_trained_again(home):
    done = tdcd("verify", "sweep", "--replay", cwd=home)
    assert done.exit_code == 0, done.output
    for value in ("0.05", "0.02"):
        assert (
            f"sweep/step_size={value}: trained again: the same history and model, within 0.001; sweep adds up"
            in done.stdout
        )


def test_a_changed_file_is_named_and_status_1(run):
    config = run / "config.toml"
    config.write_text(config.read_text().replace("rounds = 6", "rounds = 7"))
    (run / "report.html").unlink()
    done = tdcd("verify", "run", "--replay", cwd=run.parent)
    assert (done.exit_code, done.stdout) == (1, "run: config.toml is not as it was written\n")


def test_a_forged_history_is_found_by_training_again(run):
    path = run / "history.jsonl"
    *lines, last = path.read_text().splitlines()
    forged = json.loads(last)
    honest, forged["train_loss"] = forged["train_loss"], 0.001
    path.write_text("\n".join([*lines, json.dumps(forged)]) + "\n")
    Manifest(RunFolder(run)).seal()
    assert tdcd("verify", "run", cwd=run.parent).exit_code == 0
    done = tdcd("verify", "run", "--replay", cwd=run.parent)
    assert done.exit_code == 1
    assert f"history: from round 6 on it differs: train_loss is 0.001 and is {honest} now" in done.stdout
    assert f"run: made by simulation with tdcd {__version__}, python 3." in done.stdout
    assert "model:" not in done.stdout


def test_what_cannot_be_checked_is_status_2(run, tmp_path):
    nowhere = tdcd("verify", "nowhere", cwd=tmp_path)
    assert nowhere.exit_code == 2
    assert "nowhere is not a run folder" in nowhere.stderr
    (run / "manifest.json").unlink()
    without = tdcd("verify", "run", cwd=tmp_path)
    assert without.exit_code == 2
    assert "run has no manifest: manifest.json is missing" in without.stderr


def test_a_run_that_is_not_over_is_not_trained_again(run):
    folder = RunFolder(run)
    folder.write_config(folder.config() | {"train": folder.config()["train"] | {"rounds": 9}})
    Manifest(folder).seal()
    done = tdcd("verify", "run", "--replay", cwd=run.parent)
    assert done.exit_code == 2
    assert "run ends at round 6 of 9: continue it first" in done.stderr
