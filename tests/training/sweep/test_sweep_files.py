"""Every file that resuming a sweep reads, damaged before: the same table comes out, or a sentence says why not."""

import json
import re
import shutil

import pytest
from typer.testing import CliRunner

from tdcd.cli.app import app

KEYS = ["data.source=diabetes", "train.rounds=4", "evaluate.every=2", "train.batch_size=16", "train.step_size=0.05"]
RUN = "local_steps=2"


def tdcd(*words):
    return CliRunner().invoke(app, ["run", *(str(word) for word in words)])


def begun(folder, steps):
    sets = [word for key in (*KEYS, f"train.local_steps={steps}") for word in ("--set", key)]
    result = tdcd("--out", folder, *sets)
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory):
    home = tmp_path_factory.mktemp("sweeps")
    return begun(home / "one", "[1,2]"), begun(home / "other", "[1,3]")


def truncated(path, other):
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])


def emptied(path, other):
    path.write_bytes(b"")


def changed(path, other):
    content = path.read_text()
    pattern = r'(?<="rounds": )4' if path.name == "sweep.json" else r"(?<=loss\": 0\.)\d|(?<=step_size = 0\.)\d"
    path.write_text(re.sub(pattern, lambda digit: "8" if digit[0] != "8" else "9", content, count=1))
    assert path.read_text() != content


def of_another(path, other):
    found = other / "sweep.json" if path.name == "sweep.json" else other / "local_steps=3" / path.name
    shutil.copy(found, path)


def five(path, other):
    path.write_text("5\n")


def results(folder):
    found = json.loads((folder / "sweep.json").read_text())["runs"]
    return [{key: value for key, value in run.items() if key != "seconds"} for run in found]


@pytest.mark.parametrize("how", [truncated, emptied, changed, of_another, five], ids=lambda how: how.__name__)
@pytest.mark.parametrize("file", ["sweep.json", f"{RUN}/history.jsonl", f"{RUN}/config.toml"])
def test_a_file_damaged_before_a_sweep_is_resumed(sweeps, tmp_path, file, how):
    source, other = sweeps
    folder = shutil.copytree(source, tmp_path / "sweep")
    how(folder / file, other)
    result = tdcd("--resume", folder)
    if file.endswith("history.jsonl") and how in (truncated, emptied):
        # A run that lost lines is run again, which gives the same.
        assert result.exit_code == 0, result.output
        assert results(folder) == results(source)
        return
    assert result.exit_code == 2, result.output
    assert (folder / file).name in result.output.replace("\n", "") or "of other settings" in result.output
    shutil.copy(source / "sweep.json", folder)
    shutil.copy(source / file, folder / file)
    assert tdcd("--resume", folder).exit_code == 0
    assert results(folder) == results(source)
