"""Runs and their folders: reproducible, resumable bit for bit, and clear about divergence."""

import json
import shutil

import numpy as np
import pytest
from rich.console import Console
from sklearn.exceptions import ConvergenceWarning

from tdcd import Federation, Linear, Mlp, Objective, Settings, load, standardize, train
from tdcd.cli.console import show_result
from tdcd.config import ConfigError, check_config
from tdcd.config.resolve import plan
from tdcd.pages.report import write_report
from tdcd.training.run import resume, run

KEYS = {
    "data": {"source": "breast_cancer"},
    "train": {"step_size": 0.05, "rounds": 12, "batch_size": 64, "local_steps": 3},
}
SMALL = KEYS | {"evaluate": {"every": 4}, "federation": {"clients": [3, 2]}, "model": {"hidden": [4]}}


def contents(folder):
    """Every file of a run but the report; the seconds in the history are the only clock-made part."""
    files = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.suffix != ".jsonl"}
    # Times of the clock, and a key that was drawn.
    files = {name: content for name, content in files.items() if not name.startswith("manifest.")}
    lines = [line.split(b', "seconds"')[0] for line in (folder / "history.jsonl").read_bytes().splitlines()]
    return files, lines


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(check_config(SMALL), folder)
    return folder


def test_the_same_seed_gives_the_same_files_and_another_does_not(whole, tmp_path):
    run(check_config(SMALL), tmp_path / "again")
    assert contents(tmp_path / "again") == contents(whole)
    run(check_config(SMALL | {"seed": 1}), tmp_path / "other")
    files, lines = contents(tmp_path / "other")
    assert files["silo1.safetensors"] != contents(whole)[0]["silo1.safetensors"]
    assert lines[-1] != contents(whole)[1][-1]


@pytest.mark.parametrize("stop_after", [1, 2, 3])
def test_an_interrupted_and_resumed_run_is_the_whole_run_bit_for_bit(whole, tmp_path, stop_after):
    calls = []
    folder = tmp_path / "run"

    def should_stop():
        calls.append(None)
        return len(calls) > stop_after

    stopped = run(check_config(SMALL), folder, should_stop=should_stop)
    assert stopped.status == "interrupted"
    assert 0 < stopped.round < 12
    assert resume(folder, []).status == "finished"
    assert contents(folder) == contents(whole)


def test_a_resume_may_add_rounds_and_nothing_else(whole, tmp_path):
    folder = tmp_path / "run"
    shorter = {**SMALL, "train": SMALL["train"] | {"rounds": 8}}
    run(check_config(shorter), folder)
    with pytest.raises(ConfigError, match=r"--resume takes only --set train\.rounds"):
        resume(folder, ["train.step_size=0.1"])
    resume(folder, ["train.rounds=12"])
    assert contents(folder) == contents(whole)


def test_a_resume_may_not_add_rounds_to_a_schedule_that_ends_with_them(tmp_path):
    scheduled = {**SMALL, "train": SMALL["train"] | {"rounds": 4, "schedule": "cosine"}}
    run(check_config(scheduled), tmp_path / "run")
    with pytest.raises(ConfigError) as caught:
        resume(tmp_path / "run", ["train.rounds=8"])
    assert caught.value.problems == [
        "train.rounds = 8: train.schedule = 'cosine' lets the step size end with the run's 4 rounds; start a new run"
    ]
    assert resume(tmp_path / "run", []).status == "finished"


@pytest.mark.parametrize("engine", ["auto", "clients"])
def test_the_engine_that_ran_is_named_everywhere(tmp_path, engine, capsys):
    """In the result, the folder, the report and the line at the end."""
    keys = {
        "data": {"source": "diabetes"},
        "model": {"block": "linear"},
        "train": {"step_size": 0.05, "rounds": 1, "engine": engine},
    }
    result = run(check_config(keys), tmp_path / "run")
    assert result.engine == {"auto": "grouped", "clients": "clients"}[engine]
    assert json.loads((tmp_path / "run" / "federation.json").read_text())["engine"] == result.engine
    page = write_report(tmp_path / "run")
    assert f"simulated by the engine “{result.engine}”" in page.read_text(encoding="utf-8")
    show_result(Console(), result, page)
    assert f", engine {result.engine}\n" in capsys.readouterr().out


def test_history_has_line_0_before_training_and_counts_bytes(whole):
    from tdcd.records.run_folder import RunFolder

    history = RunFolder.open(whole).history()
    assert [record.round for record in history] == [0, 4, 8, 12]
    assert [record.iteration for record in history] == [0, 12, 24, 36]
    assert history[0].bytes.total == 0
    assert history[-1].bytes == history[1].bytes * 3
    assert set(history[0].metrics) == {"train", "test"}


@pytest.mark.parametrize(("block", "step"), [(Linear(), 1e30), (Mlp((4,)), 1e4)])
def test_divergence_stops_at_the_next_evaluation_and_keeps_the_last_finite_model(block, step, tmp_path):
    rows, held_out = standardize(*load("diabetes").split(0.2, seed=0))
    federation = Federation.cut(rows, held_out, silos=2, clients=2)
    settings = Settings(local_steps=4, batch_size=64, step_size=step)
    parts = (federation, block, Objective("squared"), settings)
    with pytest.warns(ConvergenceWarning, match="The loss stopped being a finite number by round"):
        result = train(*parts, rounds=100, evaluate_every=2, out=tmp_path / "r")
    assert result.status == "diverged"
    assert result.history[-1].diverged
    assert not any(record.diverged for record in result.history[:-1])
    assert result.round == result.history[-2].round == result.history[-1].round - 2
    assert all(np.isfinite(leaf).all() for leaf in result.blocks["silo1"].values() if not isinstance(leaf, list))


def test_the_last_round_is_always_evaluated():
    federation = Federation.cut(standardize(load("diabetes"))[0], silos=2, clients=2)
    settings = Settings(local_steps=4, batch_size=64, step_size=1e-3)
    result = train(federation, Linear(), Objective("squared"), settings, rounds=5, evaluate_every=2)
    assert [record.round for record in result.history] == [0, 2, 4, 5]
    assert result.history[0].test_loss is None


def test_scores_are_those_of_the_trained_model():
    rows, held_out = standardize(*load("diabetes").split(0.2, seed=0))
    federation = Federation.cut(rows, held_out, silos=2, clients=2)
    settings = Settings(local_steps=4, batch_size=64, step_size=1e-2)
    result = train(federation, Linear(), Objective("squared"), settings, rounds=20)
    scores = result.scores([silo.test_features for silo in federation.silos])
    weights = np.concatenate([result.blocks[name]["weight"] for name in ("silo1", "silo2")])
    np.testing.assert_allclose(scores, held_out.features @ weights, atol=1e-5)


def test_misfits_with_the_data_come_at_once():
    keys = {
        "model": {"loss": "squared"},
        "train": {"batch_size": 10**6},
        "federation": {"clients": 2000},
    }
    with pytest.raises(ConfigError) as caught:
        plan(check_config(keys))
    assert caught.value.problems == [
        "federation: silo 'silo1': 1,438 rows cannot be spread over 2,000 clients: every client needs a row",
        "model.loss = 'squared': 'digits' has 10 classes; use 'softmax'",
        "train.batch_size = 1000000: there are only 1,438 training samples",
    ]
    with pytest.raises(ConfigError, match="'diabetes' has columns, not images"):
        plan(check_config({"data": {"source": "diabetes"}, "federation": {"strips": True}}))


def test_defaults_that_depend_on_the_data_are_resolved():
    planned = plan(check_config({"data": {"source": "diabetes"}, "model": {"block": "linear"}}))
    assert planned.config.model.loss == "squared"
    assert planned.config.federation.bias is True
    assert planned.federation.silos[0].columns[-1] == "bias"
    images = plan(check_config({}))
    assert images.config.federation.strips is True
    assert images.federation.silos[0].feature_shape == (8, 4)


def test_bad_arguments_are_refused():
    federation = Federation.cut(load("diabetes"), silos=2, clients=2)
    with pytest.raises(ValueError, match="there are 2 silos, but 1 block"):
        train(federation, [Linear()], Objective(), Settings(batch_size=8, step_size=0.05), rounds=1)
    with pytest.raises(ValueError, match="batch_size = 1000: there are only 442 training samples"):
        train(federation, Linear(), Objective(), Settings(batch_size=1000, step_size=0.05), rounds=1)
    with pytest.raises(ValueError, match="rounds must be at least 0"):
        train(federation, Linear(), Objective(), Settings(batch_size=8, step_size=0.05), rounds=-1)
    for name, value in {"local_steps": 0, "batch_size": 0, "step_size": float("nan"), "seed": -1}.items():
        with pytest.raises(ValueError, match=name):
            Settings(**{name: value})


def test_a_torch_module_runs_from_the_configuration(tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="PyTorch blocks need the extra tdcd[torch]")
    layers = "nn.Linear(15, 4), nn.ReLU(), nn.Linear(4, 1, bias=False)"
    (tmp_path / "my_modules.py").write_text(f"from torch import nn\ndef make():\n    return nn.Sequential({layers})\n")
    monkeypatch.syspath_prepend(tmp_path)
    keys = {**SMALL, "model": {"block": "torch", "module": "my_modules:make"}}
    result = run(check_config(keys), tmp_path / "run")
    assert result.status == "finished"
    assert result.history[-1].train_loss < result.history[0].train_loss
    with pytest.raises(ConfigError, match=r"model\.module = 'my_modules:nothing'"):
        plan(check_config({**keys, "model": {"block": "torch", "module": "my_modules:nothing"}}))
    with pytest.raises(ConfigError, match=r"model\.module: is missing"):
        check_config({"model": {"block": "torch"}})


def test_a_class_that_only_held_out_rows_have_gets_a_score():
    digits = load("digits")
    nines = digits.labels == 9
    rows, held_out = digits.take(np.flatnonzero(~nines)), digits.take(np.flatnonzero(nines))
    federation = Federation.cut(rows, held_out, silos=2, clients=2)
    result = train(federation, Linear(), Objective("softmax"), Settings(batch_size=64, step_size=0.05), rounds=1)
    assert result.blocks["silo1"]["weight"].shape == (32, 10)
    assert np.isfinite(result.history[-1].test_loss)


def test_interrupting_a_run_that_blew_up_keeps_the_last_finite_model(tmp_path):
    federation = Federation.cut(standardize(load("diabetes"))[0], silos=2, clients=2)
    settings = Settings(local_steps=4, batch_size=64, step_size=1e30)
    asked = []

    def should_stop():
        asked.append(None)
        return len(asked) > 2

    options = {"rounds": 100, "evaluate_every": 50, "out": tmp_path / "run", "should_stop": should_stop}
    result = train(federation, Linear(), Objective("squared"), settings, **options)
    assert result.status == "interrupted"
    assert result.round == 0
    assert np.isfinite(result.blocks["silo1"]["weight"]).all()


def test_rounds_are_never_taken_back(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    with pytest.raises(ConfigError, match=r"train\.rounds = 4: .*run has 12 rounds already"):
        resume(tmp_path / "run", ["train.rounds=4"])


def test_more_rounds_after_an_odd_end_give_the_history_of_a_whole_run(whole, tmp_path):
    shorter = {**SMALL, "train": SMALL["train"] | {"rounds": 10}}
    run(check_config(shorter), tmp_path / "run")
    resume(tmp_path / "run", ["train.rounds=12"])
    assert contents(tmp_path / "run") == contents(whole)


@pytest.mark.parametrize("damage", [b"", b"12345678", b"\xff" * 200])
def test_a_damaged_block_is_named(whole, tmp_path, damage):
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "run" / "model" / "silo2.safetensors").write_bytes(damage)
    with pytest.raises(ValueError, match=r"silo2\.safetensors is damaged"):
        resume(tmp_path / "run", ["train.rounds=20"])


def test_labels_must_fit_the_loss():
    federation = Federation.cut(load("digits"), silos=2, clients=2)
    with pytest.raises(ValueError, match="logistic loss takes labels that are 0 or 1, not 2"):
        train(federation, Linear(), Objective("logistic"), Settings(batch_size=64, step_size=0.05), rounds=1)
    federation = Federation.cut(standardize(load("diabetes"))[0], silos=2, clients=2)
    with pytest.raises(ValueError, match="softmax loss takes labels that are whole numbers from 0 on"):
        train(federation, Linear(), Objective("softmax"), Settings(batch_size=64, step_size=0.05), rounds=1)
