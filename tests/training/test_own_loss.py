"""A loss of the user's own, named in a configuration or handed over in Python: run, described, found again."""

import csv
import json
import shutil
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from support.command import tdcd
from tdcd import Federation, Huber, Linear, Model, Objective, Settings, load, standardize, train
from tdcd.config import ConfigError, check_config, read_config
from tdcd.config.user_code import find_function
from tdcd.pages.live.server import Watcher
from tdcd.prediction.model import KEY
from tdcd.records.files import digest_of
from tdcd.records.run_folder import SweepFolder, toml_text
from tdcd.runtime.process.trial import Trial

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
    shown = tdcd("predict", folder / "run", *data, "--out", "new.csv", "--allow-code", cwd=elsewhere)
    assert shown.exit_code == 0, shown.output
    assert len((elsewhere / "new.csv").read_text().splitlines()) == COUNT + 1


def test_its_curvature_serves_the_bound(folder):
    tdcd("run", "own.toml", "--out", "run", "--set=train.rounds=2", cwd=folder)
    shown = tdcd("bound", "run", "--seconds", "20", "--allow-code", cwd=folder)
    assert shown.exit_code == 0, shown.output
    assert "own_loss:Quantile loss curves by 2.5 at most" in " ".join(shown.output.split())


def test_python_runs_are_described_and_others_are_not_resumed(tmp_path, quantile):
    federation = Federation.cut(*standardize(*load("diabetes").split(0.2, seed=0)), silos=2, clients=2)
    settings = Settings(batch_size=24, local_steps=2, step_size=0.05)

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


# Run folders and model files that somebody else made.

TRAP = """
from pathlib import Path
from own_loss import Quantile
from tdcd import Variant

with (Path(__file__).parent / "imported").open("a") as file:
    print("again", file=file)
variant = Variant()
"""
DATA = ("--data", "a=a.csv", "--data", "b=b.csv")


@pytest.fixture
def trap(folder):
    """A run whose loss and variant are in a module that leaves a mark whenever it is imported; it has just been."""
    (folder / "trap.py").write_text(TRAP)
    (folder / "own.toml").write_text(
        CONFIG.replace("own_loss:Quantile", "trap:Quantile").replace("[train]", '[train]\nvariant = "trap:variant"')
    )
    shown = tdcd("run", "own.toml", "--out", "run", "--set=train.rounds=2", "--set=evaluate.every=1", cwd=folder)
    assert shown.exit_code == 0, shown.output
    return folder


def imports(folder):
    """How often the trap was imported since the last look."""
    sys.modules.pop("trap", None)
    count = len((folder / "imported").read_text().splitlines()) if (folder / "imported").exists() else 0
    (folder / "imported").unlink(missing_ok=True)
    return count


REFUSED = [
    ("predict", "run", *DATA, "--out", "new.csv"),
    ("export", "run"),
    ("export", "run", "--scorecard"),
    ("audit", "run"),
    ("bound", "run"),
    ("verify", "run", "--replay"),
    ("run", "--resume", "run", "--set=train.rounds=3"),
    ("run", "--resume", "sweep"),
]


def test_code_that_a_folder_names_is_imported_only_if_the_command_asks_for_it(trap):
    keys = tomllib.loads((trap / "own.toml").read_text())
    SweepFolder(trap / "sweep").write({**keys, "seed": [0, 1]}, ["seed"], [])
    assert imports(trap) == 1
    for command in REFUSED:
        shown = tdcd(*command, cwd=trap)
        said = " ".join(shown.output.split())
        assert shown.exit_code == 2, (command, shown.output)
        assert "names code, which would be imported from" in said, command
        assert "model.loss = 'trap:Quantile'" in said, command
        assert "add --allow-code; in Python, allow_code=True" in said, command
    for command in (("verify", "run"), ("report", "run")):
        assert tdcd(*command, cwd=trap).exit_code == 0
    assert "tdcd run --resume run --allow-code" in (trap / "run/report.html").read_text()
    Watcher([trap / "run"]).state()
    with pytest.raises(ValueError, match=r"config.toml names code, .* and run: model.loss = 'trap:Quantile'\. Whoever"):
        Model.load(trap / "run")
    assert imports(trap) == 0
    assert Model.load(trap / "run", loss=find_function("own_loss:Quantile", [EXAMPLES])()).silos == ("a", "b")
    assert imports(trap) == 0
    for command in (REFUSED[0], REFUSED[5], REFUSED[6]):
        shown = tdcd(*command, "--allow-code", cwd=trap)
        assert shown.exit_code == 0, (command, shown.output)
        assert imports(trap) == 1
    Model.load(trap / "run", allow_code=True)
    assert imports(trap) == 1


def test_a_model_file_that_names_code_is_refused(tmp_path):
    about = {
        "model": {"loss": "os:abort", "block": "linear"},
        "dtype": "float32",
        "labels": {"task": "regression", "classes": [], "mean": 0.0, "scale": 1.0},
        "silos": [{"name": "a", "id": "id", "reading": {}, "feature_shape": [1], "preparation": {}}],
    }
    tensors = {"a/weight": np.zeros((1, 1), np.float32)}
    about["digest"] = digest_of(about, tensors)
    (tmp_path / "model.tdcd").write_bytes(save(tensors, {KEY: json.dumps(about)}))
    with pytest.raises(ValueError, match=r"model.tdcd names code, .*working directory.*model.loss = 'os:abort'"):
        Model.load(tmp_path / "model.tdcd")


def test_a_trial_that_is_continued_takes_code_of_the_file_that_was_given(folder, tmp_path_factory):
    """The folder of a trial may be somebody else's: of what it says, only the addresses are used."""
    (folder / "own.toml").write_text(CONFIG.replace("own_loss:Quantile", "trap:Quantile"))
    (folder / "trap.py").write_text("from own_loss import Quantile\n")
    elsewhere = tmp_path_factory.mktemp("theirs")
    (elsewhere / "trap.py").write_text(TRAP)
    theirs = check_config(read_config(folder / "own.toml")).model_dump()
    theirs["model"]["folder"] = str(elsewhere)
    for number, silo in enumerate(theirs["silos"], start=1):
        silo["hub"] = f"127.0.0.1:{number}"
    (folder / "trial").mkdir()
    (folder / "trial/federation.toml").write_text(toml_text(theirs))
    sys.modules.pop("trap", None)
    trial = Trial.prepare(folder / "own.toml", [], folder / "trial")
    assert not (elsewhere / "imported").exists()
    assert [silo.hub for silo in trial.job.config.silos] == ["127.0.0.1:1", "127.0.0.1:2"]
    assert read_config(folder / "trial/federation.toml")["model"]["folder"] == str(folder)
    sys.modules.pop("trap", None)
