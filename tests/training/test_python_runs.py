"""Run folders that Python writes: the rules of every other run folder."""

import re
from dataclasses import dataclass, replace

import jax.numpy as jnp
import pytest
from typer.testing import CliRunner

from tdcd import Federation, Linear, Mlp, Objective, Settings, load, standardize, train
from tdcd.cli.app import app
from tdcd.config import ConfigError, check_config
from tdcd.config.resolve import plan
from tdcd.core.execution import Execution
from tdcd.pages.report import write_report
from tdcd.records.run_folder import RunFolder
from tdcd.training.run import run

ROWS, HELD_OUT = standardize(*load("breast_cancer").split(0.2, seed=0))
FEDERATION = Federation.cut(ROWS, HELD_OUT, silos=2, clients=[3, 2])
BLOCK = Mlp((4,))
SETTINGS = Settings(local_steps=3, batch_size=64, step_size=0.05)
KEYS = {
    "data": {"source": "breast_cancer"},
    "federation": {"clients": [3, 2]},
    "model": {"hidden": [4]},
    "train": {"step_size": 0.05, "rounds": 4, "batch_size": 64, "local_steps": 3},
    "evaluate": {"every": 2},
}


def go(out, block=BLOCK, settings=SETTINGS, federation=FEDERATION, **options):
    options = {"rounds": 4, "evaluate_every": 2} | options
    return train(federation, block, Objective("logistic"), settings, out=out, **options)


@pytest.fixture
def folder(tmp_path):
    go(tmp_path / "run")
    return tmp_path / "run"


def test_its_settings_are_in_the_words_of_a_configuration(folder):
    keys = RunFolder.open(folder).config()
    assert keys["data"] == {"source": "python", "keep": "auto"}
    assert keys["model"] == {"block": "mlp", "hidden": [4], "loss": "logistic", "l2": 0.0}
    named = {**keys, "data": {"source": "breast_cancer"}}
    assert check_config(named).train == check_config(KEYS).train


@pytest.mark.parametrize(
    "command",
    [
        ("run", "--resume", "RUN"),
        ("run", "RUN/config.toml"),
        ("bound", "RUN"),
    ],
)
def test_commands_say_in_a_sentence_that_its_data_was_handed_over_in_python(folder, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    before = (folder / "config.toml").read_bytes()
    said = CliRunner().invoke(app, [part.replace("RUN", str(folder)) for part in command])
    assert said.exit_code == 2
    words = re.sub(r"\s+", " ", said.output)
    assert "config.toml has 1 problem: data.source = 'python': train() was handed this run's data in Python" in words
    assert "continue in Python, with train(..., out=FOLDER, resume=True)" in words
    assert (folder / "config.toml").read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"settings": replace(SETTINGS, step_size=0.1)}, "train.step_size = 0.1: the run has 0.05"),
        ({"settings": replace(SETTINGS, seed=3)}, "seed = 3: the run has 0"),
        ({"block": Mlp((5,))}, "model.hidden = [5]: the run has [4]"),
        ({"block": Mlp(())}, "model.hidden = []: the run has [4]"),
        ({"block": Linear()}, "model.block = 'linear': the run has 'mlp'"),
        ({"evaluate_every": 1}, "evaluate.every = 1: the run has 2"),
        ({"execution": Execution(precision="float32")}, "train.precision = 'float32': the run has 'tf32'"),
        ({"rounds": 2}, "train.rounds = 2: RUN has 4 rounds already"),
        (
            {"federation": Federation.cut(ROWS, HELD_OUT, silos=2, clients=[2, 3])},
            "federation.silos.silo1.clients = [228, 227]: the run has [152, 151, 152]",
        ),
        (
            {"federation": Federation.cut(ROWS, silos=2, clients=[3, 2])},
            "federation.num_test = 0: the run has 114",
        ),
    ],
)
def test_other_settings_are_refused_with_both_values(folder, changes, line):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=re.escape(f"resuming {folder} has ")) as caught:
        go(folder, **({"rounds": 6} | changes), resume=True)
    assert line.replace("RUN", str(folder)) in [problem.partition(";")[0] for problem in caught.value.problems]
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_more_rounds_are_the_only_change_that_a_resume_makes(folder, tmp_path):
    before = (folder / "config.toml").read_text()
    assert go(folder, resume=True).round == 4
    assert (folder / "config.toml").read_text() == before
    resumed = go(folder, rounds=6, resume=True)
    assert (folder / "config.toml").read_text() == before.replace("rounds = 4", "rounds = 6")
    whole = go(tmp_path / "whole", rounds=6)
    assert [record.train_loss for record in resumed.history] == [record.train_loss for record in whole.history]


def test_python_continues_with_a_run_of_the_command(tmp_path):
    out = tmp_path / "run"
    run(check_config(KEYS), out)
    before = (out / "config.toml").read_text()
    federation = plan(check_config(KEYS)).federation
    with pytest.raises(ConfigError, match=r"train\.step_size = 0\.1: the run has 0\.05"):
        go(out, settings=replace(SETTINGS, step_size=0.1), federation=federation, rounds=6, resume=True)
    assert go(out, federation=federation, rounds=6, resume=True).round == 6
    assert (out / "config.toml").read_text() == before.replace("rounds = 4", "rounds = 6")
    assert CliRunner().invoke(app, ["run", "--resume", str(out), "--set", "train.rounds=8"]).exit_code == 0


class Doubled(Linear):
    """A block that no configuration has words for, and that Python shows with its address."""

    __repr__ = object.__repr__

    def phi(self, block, features):
        return 2 * super().phi(block, features)


def test_a_block_of_ones_own_is_known_again(tmp_path):
    go(tmp_path / "run", block=[Doubled(), Linear()])
    blocks = RunFolder.open(tmp_path / "run").config()["model"]["block"]
    assert [name.rpartition(".")[2] for name in blocks] == ["Doubled()", "Linear()"]
    assert go(tmp_path / "run", block=[Doubled(), Linear()], rounds=6, resume=True).status == "finished"
    with pytest.raises(ConfigError, match=r"model\.block = 'linear': the run has \["):
        go(tmp_path / "run", block=Linear(), rounds=8, resume=True)


def test_blocks_of_different_widths_are_distinguished(tmp_path):
    go(tmp_path / "run", block=[Mlp((4,)), Mlp((5,))])
    assert RunFolder.open(tmp_path / "run").config()["model"]["block"] == ["Mlp(hidden=(4,))", "Mlp(hidden=(5,))"]


def test_the_report_says_how_to_continue(folder):
    page = write_report(folder).read_text(encoding="utf-8")
    assert "train() with the same arguments, and resume=True" in page
    assert "tdcd run --resume" not in page


@dataclass(frozen=True)
class Wide:
    """A block that takes one column more than there is."""

    def init(self, key, feature_shape, num_outputs):
        return {"weight": jnp.zeros((feature_shape[0] + 1, num_outputs))}

    def phi(self, block, features):
        return features @ block["weight"]


@dataclass(frozen=True)
class Flat(Wide):
    """A block that gives one number per sample rather than a row of them."""

    def phi(self, block, features):
        return features @ block["weight"][1:, 0]


def test_a_block_that_does_not_fit_is_named_with_its_silo():
    with pytest.raises(ValueError, match=r"silo 'silo2': Wide does not take samples of shape \(15,\)"):
        go(None, block=[Linear(), Wide()])
    with pytest.raises(
        ValueError, match=r"silo 'silo1': Flat maps 2 samples .* phi of shape \(2,\), .* needs \(2, 1\)"
    ):
        go(None, block=Flat())


def test_a_run_with_randomised_labels_is_resumed_as_such_only(tmp_path):
    def run_with(objective, **options):
        return train(FEDERATION, Linear(), objective, SETTINGS, out=tmp_path / "run", rounds=2, **options)

    run_with(Objective("logistic", label_epsilon=2.0))
    with pytest.raises(ValueError, match=r"federation\.label_epsilon = None: the run has 2\.0"):
        run_with(Objective("logistic"), resume=True)
    run_with(Objective("logistic", label_epsilon=2.0), resume=True)
