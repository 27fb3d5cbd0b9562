"""Modules that a configuration names are found beside it, then in the working directory, then on Python's path."""

import sys

import pytest
from typer.testing import CliRunner

from tdcd.cli.app import app
from tdcd.config import check_config, read_config
from tdcd.config.user_code import find_function
from tdcd.records.run_folder import RunFolder

TOML = """
[data]
source = "breast_cancer"
[federation]
clients = 2
[model]
block = "torch"
module = "my_layers:make"
[train]
rounds = 2
local_steps = 2
"""
MODULE = "from torch import nn\nfrom my_width import WIDTH\n\ndef make():\n    return nn.Linear(WIDTH, 1, bias=False)\n"


def write(folder, value):
    folder.mkdir(exist_ok=True)
    (folder / "answer.py").write_text(f"def make():\n    return {value!r}\n")
    return folder


@pytest.fixture(autouse=True)
def forgotten():
    """No test leaves its modules to the next."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name in ("answer", "deep", "deep.answer", "my_layers", "my_width"):
            del sys.modules[name]


def test_the_first_folder_that_has_the_file_counts(tmp_path):
    first, second = write(tmp_path / "first", 1), write(tmp_path / "second", 2)
    path = [*sys.path]
    assert find_function("answer:make", [first, second])() == 1
    assert find_function("answer:make", [second, first])() == 2
    assert find_function("answer:make", [tmp_path, first])() == 1
    assert find_function("answer:make", [first]) is find_function("answer:make", [first])
    assert sys.path == path


def test_packages_and_pythons_own_path_work_too(tmp_path):
    write(tmp_path / "deep", 3)
    assert find_function("deep.answer:make", [tmp_path])() == 3
    import json

    assert find_function("json:dumps", [tmp_path]) is json.dumps


def test_what_is_not_there_is_named_with_where_it_was_looked_for(tmp_path):
    with pytest.raises(ImportError, match=rf"there is no answer\.py in {tmp_path}"):
        find_function("answer:make", [tmp_path])
    (tmp_path / "answer.py").write_text("import no_such_package\n")
    with pytest.raises(ImportError, match="No module named 'no_such_package'"):
        find_function("answer:make", [tmp_path])
    with pytest.raises(ImportError, match=r"make was in the script that trained; .*put make into a file of its own"):
        find_function("__main__:make", [tmp_path])


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A configuration with its module beside it, and a working directory elsewhere with one that does not fit."""
    pytest.importorskip("torch", reason="PyTorch blocks need the extra tdcd[torch]")
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    for folder, width in ((home, 15), (elsewhere, 20)):
        folder.mkdir()
        (folder / "my_layers.py").write_text(MODULE.replace("from my_width import WIDTH", f"WIDTH = {width}"))
    (home / "my.toml").write_text(TOML)
    monkeypatch.chdir(elsewhere)
    return home


def test_a_run_takes_the_module_next_to_its_configuration(home, tmp_path):
    out = tmp_path / "run"
    told = CliRunner().invoke(app, ["run", str(home / "my.toml"), "--out", str(out)])
    assert told.exit_code == 0, told.output
    assert RunFolder.open(out).config()["model"]["folder"] == str(home)
    told = CliRunner().invoke(app, ["run", "--resume", str(out), "--set", "train.rounds=3", "--allow-code"])
    assert told.exit_code == 0, told.output


def test_without_one_there_it_takes_that_of_the_working_directory(home, tmp_path, monkeypatch):
    (tmp_path / "my.toml").write_text(TOML)
    monkeypatch.chdir(home)
    (home / "my_layers.py").write_text(MODULE)
    (home / "my_width.py").write_text("WIDTH = 15\n")
    told = CliRunner().invoke(app, ["run", str(tmp_path / "my.toml"), "--out", str(tmp_path / "run")])
    assert told.exit_code == 0, told.output


@pytest.mark.parametrize("command", ["run", "plan", "compare"])
def test_a_module_of_the_wrong_width_is_named_with_its_silo(home, tmp_path, command):
    (tmp_path / "my.toml").write_text(TOML)
    told = CliRunner().invoke(app, [command, str(tmp_path / "my.toml")])
    assert told.exit_code == 2
    words = "silo 'silo1': the module takes 20 features, but the silo has 15: give its first layer 15 inputs"
    assert f"model.module = 'my_layers:make': {words}" in " ".join(told.output.split())


def test_the_folder_is_each_partys_own(home):
    from tdcd.runtime.job import Job

    keys = read_config(home / "my.toml")
    keys["silos"], keys["federation"] = [{"name": "a", "hub": "h:1"}, {"name": "b", "hub": "h:2"}], {}
    other = {**keys, "model": {**keys["model"], "folder": "/elsewhere"}}
    assert Job(check_config(keys)).digest == Job(check_config(other)).digest
