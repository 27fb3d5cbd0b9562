"""How to run is settled in one place, and everything that runs a plan honours it."""

import json
import os
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tdcd.cli.app import app
from tdcd.compare import plan_all
from tdcd.compare.baselines import baseline_plans
from tdcd.config import check_config
from tdcd.config.resolve import plan
from tdcd.core.execution import Execution
from tdcd.training.train import simulate, train_plan

KEYS = {
    "data": {"source": "diabetes", "keep": "host"},
    "federation": {"clients": [5, 3]},
    "model": {"block": "linear", "l2": 0.1},
    "train": {"step_size": 0.05, "rounds": 3, "local_steps": 2, "precision": "float32"},
}
CHOSEN = Execution("host", "float32")


def test_a_plan_says_how_it_is_run(tmp_path):
    planned = plan(check_config(KEYS))
    assert planned.execution == CHOSEN
    assert simulate(planned).execution == CHOSEN
    assert train_plan(planned, tmp_path / "run").simulation.execution == CHOSEN


def test_baselines_run_as_the_plan_does():
    for (one,) in plan_all(check_config(KEYS), ["sgd", "fedbcd", "local-sgd"]).values():
        assert one.execution == CHOSEN
    assert baseline_plans("local-sgd", plan(check_config(KEYS)))["local-sgd/silo2"].execution == CHOSEN


@pytest.mark.parametrize("command", [("plan",), ("compare",), ("bound", "runs/none"), ("reproduce", "fig2b")])
def test_every_command_that_simulates_takes_devices(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(app, [*command, "--devices", "9"])
    assert told.exit_code == 2
    assert "9 devices were asked for, but this process has 1" in re.sub(r"\s+", " ", told.output)


def test_reproduce_refuses_to_change_the_experiment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(app, ["reproduce", "fig2b", "--set", "train.rounds=5"])
    assert told.exit_code == 2
    assert "only train.precision and data.keep can be set" in re.sub(r"\s+", " ", told.output)


ON_TWO = """
import sys
from pathlib import Path
from tdcd.training.train import train_silo_only
from tdcd.compare import compare, plan_all
from tdcd.config import check_config
from tdcd.reproduction.experiment import Experiment, ExperimentCurve
from tdcd.reproduction.sweep import run_experiment
from tdcd.core.network import PRESETS
from tdcd.planning import measure_bound, recommend_local_steps
from tdcd.training.train import simulate, train_plan
from tdcd.config.resolve import plan

keys, out = {keys!r}, Path(sys.argv[1])
two = 2
planned = plan(check_config(keys), devices=two)
assert simulate(planned).devices.count == 2
table = recommend_local_steps(planned, PRESETS["lan"], candidates=(1, 2), step_seconds=1e-3)
assert len(table.forecasts) == 2
train_plan(planned, out / "run")
train_silo_only(planned, out / "run")
check = measure_bound(out / "run", devices=two)
assert check.planned.execution.devices == 2
compare(plan_all(check_config(keys), ["local-sgd"], two), PRESETS["lan"], out / "compare", step_seconds=1e-3)
run_experiment(Experiment("fig2a", "", (ExperimentCurve("x", keys),), 2, ()), out / "sweep", devices=two)
"""


def test_plans_comparisons_bounds_and_experiments_run_on_several_devices(tmp_path):
    """The same numbers as on one device, up to the order of a sum over clients."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    keys = {**KEYS, "dtype": "float64"}
    command = [sys.executable, "-c", ON_TWO.format(keys=keys), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

    def losses(folder):
        return [json.loads(line)["train_loss"] for line in (folder / "history.jsonl").read_text().splitlines()]

    train_plan(plan(check_config(keys)), tmp_path / "one")
    expected = pytest.approx(losses(tmp_path / "one"), rel=1e-10)
    assert losses(tmp_path / "run") == expected
    assert losses(tmp_path / "compare" / "tdcd") == expected
    assert losses(tmp_path / "sweep" / "fig2a" / "x" / "seed-0") == expected
