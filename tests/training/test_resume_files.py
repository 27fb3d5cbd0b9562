"""Every file that ``tdcd run --resume`` reads, damaged before: the history is exact, or a sentence says why not."""

import json
import re
import shutil

import pytest
from typer.testing import CliRunner

from tdcd.cli.app import app
from tdcd.records.history import read_history

TABLES = {
    "bank": "id,age,sum,default\n" + "".join(f"{i},{20 + i % 37},{i * 7 % 101},{i * i % 2}\n" for i in range(60)),
    "shop": "id,visits,spent\n" + "".join(f"{i},{i % 11},{i * 13 % 29}\n" for i in range(60)),
}
CONFIG = """
[data]
source = "files"
folder = "{folder}"
[[silos]]
name = "bank"
label = "default"
table = "bank.csv"
clients = 2
[[silos]]
name = "shop"
table = "shop.csv"
clients = 2
[model]
block = "linear"
[train]
rounds = 6
local_steps = 2
batch_size = 16
step_size = {step}
[evaluate]
every = 2
"""


def tdcd(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def begun(home, step=0.05):
    """A run of four rounds, to be resumed for six, and its tables."""
    home.mkdir()
    for name, content in TABLES.items():
        (home / f"{name}.csv").write_text(content)
    (home / "run.toml").write_text(CONFIG.format(folder=home, step=step))
    result = tdcd("run", home / "run.toml", "--out", home / "run", "--set", "train.rounds=4")
    assert result.exit_code == 0, result.output
    return home / "run"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run to resume, one of another step size, and the history of the whole run."""
    home = tmp_path_factory.mktemp("runs")
    other = begun(home / "other", 0.01)
    folder = begun(home / "one")
    result = tdcd("run", home / "one" / "run.toml", "--out", home / "uninterrupted")
    assert result.exit_code == 0, result.output
    return folder, other, read_history(home / "uninterrupted" / "history.jsonl")


def truncated(path, other):
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])


def emptied(path, other):
    path.write_bytes(b"")


def changed(path, other):
    content = path.read_bytes()
    # Seconds may be any.
    searched = re.sub(rb'"seconds": [0-9.]+', lambda match: b" " * len(match[0]), content)
    places = [match.start() for match in re.finditer(rb"[0-9]", searched)]
    place = places[len(places) // 2] if path.suffix != ".safetensors" else len(content) - 3
    path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])


def of_another_run(path, other):
    shutil.copy(next(other.rglob(path.name)), path)


def of_another_silo(path, other):
    names = {"bank": "shop", "shop": "bank"}
    shutil.copy(path.with_name(path.name.replace(path.stem, names[path.stem])), path)


FILES = ["config.toml", "history.jsonl", "federation.json", "model/bank.safetensors", "model/shop.safetensors"]
HEALED = {"federation.json", "preparation/bank.json", "labels.json"}
"""They follow from the rest, and are written anew."""
CASES = [
    *((file, how) for file in [*FILES, *sorted(HEALED - {*FILES})] for how in (truncated, emptied, changed)),
    *((file, of_another_run) for file in FILES),
    ("model/bank.safetensors", of_another_silo),
    ("../bank.csv", truncated),
    ("../bank.csv", emptied),
    ("../bank.csv", changed),
    ("../bank.csv", of_another_silo),
    ("../shop.csv", changed),
]


@pytest.mark.parametrize(("file", "how"), CASES, ids=lambda value: getattr(value, "__name__", value))
def test_a_file_damaged_before_a_run_is_resumed(runs, tmp_path, file, how):
    source, other, reference = runs
    shutil.copytree(source.parent, tmp_path / "copy")
    folder = tmp_path / "copy" / "run"
    config = folder / "config.toml"
    config.write_text(config.read_text().replace(str(source.parent), str(folder.parent)))
    backup = shutil.copytree(folder.parent, tmp_path / "backup")
    path = (folder / file).resolve()
    how(path, other)
    result = tdcd("run", "--resume", folder, "--set", "train.rounds=6")
    if file in HEALED:
        assert result.exit_code == 0, result.output
    else:
        assert result.exit_code == 2, result.output
        text = result.output.replace("\n", "")
        assert path.name in text or "the data of" in text
        shutil.rmtree(folder.parent)
        shutil.copytree(backup, folder.parent)
        assert tdcd("run", "--resume", folder, "--set", "train.rounds=6").exit_code == 0
    assert read_history(folder / "history.jsonl") == reference
    assert json.loads((folder / "federation.json").read_text())["num_samples"] > 0
