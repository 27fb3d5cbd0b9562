"""A loss of the user's own, named in a configuration or handed over in Python: run, described, found again."""

import csv
import json
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest

from command import tdcd
from tdcd import Federation, Huber, Linear, Objective, Settings, load, standardize, train
from tdcd.config import ConfigError
from tdcd.config.named import find_function

EXAMPLES = Path(__file__).parents[2] / "examples"
CONFIG = """
[data]
source = "files"
[model]
block = "linear"
loss = "own_loss:Quantile"
[train]
rounds = 40
minibatches = "full"
step_size = 0.1
local_steps = 1
[evaluate]
every = 40
[[silos]]
name = "a"
table = "a.csv"
label = "y"
[[silos]]
name = "b"
table = "b.csv"
"""
COUNT = 60


@pytest.fixture
def quantile():
    return find_function("own_loss:Quantile", [EXAMPLES])


@pytest.fixture
def folder(tmp_path):
    """Two tables, a configuration, and the module beside it."""
    rng = np.random.default_rng(0)
    columns = {"a.csv": ["y", "age"], "b.csv": ["rent"]}
    for name, names in columns.items():
        with (tmp_path / name).open("w", newline="") as file:
            csv.writer(file).writerows([["id", *names], *([row, *rng.normal(size=len(names))] for row in range(COUNT))])
    (tmp_path / "own.toml").write_text(CONFIG)
    shutil.copy(EXAMPLES / "own_loss.py", tmp_path)
    return tmp_path


def test_a_configuration_names_it_and_predictions_find_it_again(folder, tmp_path_factory):
    shown = tdcd("run", "own.toml", "--out", "run", cwd=folder)
    assert shown.exit_code == 0, shown.output
    last = json.loads((folder / "run/history.jsonl").read_text().splitlines()[-1])
    assert last["metrics"]["train"]["below"] > 0.6
    assert tomllib.loads((folder / "run/config.toml").read_text())["model"]["loss"] == "own_loss:Quantile"
    assert 'model.loss = "own_loss:Quantile"' in json.loads((folder / "run/federation.json").read_text())["labels"]
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    data = [word for silo in "ab" for word in ("--data", f"{silo}={folder / silo}.csv")]
    shown = tdcd("predict", folder / "run", *data, "--out", "new.csv", cwd=elsewhere)
    assert shown.exit_code == 0, shown.output
    assert len((elsewhere / "new.csv").read_text().splitlines()) == COUNT + 1


def test_its_curvature_serves_the_bound(folder):
    tdcd("run", "own.toml", "--out", "run", "--set=train.rounds=2", cwd=folder)
    shown = tdcd("bound", "run", "--seconds", "20", cwd=folder)
    assert shown.exit_code == 0, shown.output
    assert "own_loss:Quantile loss curves by 2.5 at most" in " ".join(shown.output.split())


def test_python_runs_are_described_and_others_are_not_resumed(tmp_path, quantile):
    federation = Federation.cut(*standardize(*load("diabetes").split(0.2, seed=0)), silos=2, clients=2)
    settings = Settings(batch_size=24, local_steps=2)

    def run(loss, rounds, out, **keys):
        train(federation, Linear(), Objective(loss), settings, rounds=rounds, out=tmp_path / out, **keys)
        return tomllib.loads((tmp_path / out / "config.toml").read_text())["model"]

    # Another process can make the same one by its name.
    assert run(quantile(), 1, "named")["loss"] == "own_loss:Quantile"
    assert run(quantile(q=0.5), 1, "own")["loss"] == "own_loss.Quantile(q=0.5, width=0.1)"
    assert run(quantile(q=0.5), 2, "own", resume=True)["loss"] == "own_loss.Quantile(q=0.5, width=0.1)"
    with pytest.raises(ConfigError, match=r"model.loss = .*q=0.7, width.*: the run has .*q=0.5, width"):
        run(quantile(q=0.7), 3, "own", resume=True)
    described = run(Huber(0.5), 1, "huber")
    assert (described["loss"], described["huber_delta"]) == ("huber", 0.5)
    with pytest.raises(ConfigError, match=r"model.huber_delta = 0.6: the run has 0.5"):
        run(Huber(0.6), 2, "huber", resume=True)
