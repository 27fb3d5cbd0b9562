"""``tdcd init``, shell completion and ``--version``."""

import os
import pty
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from support.command import tdcd
from tdcd import __version__
from tdcd.config import check_config, read_config

COMMAND = [sys.executable, "-c", "import sys; sys.argv[0] = 'tdcd'; from tdcd.cli import main; main()"]


@pytest.fixture
def home(tmp_path):
    """Tables of a bank, which knows who defaulted, and of a bureau."""
    draw, ids = np.random.default_rng(0), np.arange(60)
    late = draw.poisson(1, 60)
    bank = pd.DataFrame({"nr": ids, "age": draw.uniform(20, 70, 60), "city": draw.choice(["rome", "oslo"], 60)})
    bank["default"] = np.where(late > 0, "yes", "no")
    bank.to_csv(tmp_path / "bank.csv", index=False)
    pd.DataFrame({"nr": ids, "late": late}).to_csv(tmp_path / "bureau.csv", index=False)
    return tmp_path


def test_what_it_writes_is_taken_by_check_and_run(home):
    options = ["--silos", "bank,bureau", "--clients", "2,1", "--label", "default", "--id", "nr"]
    done = tdcd("init", *options, cwd=home)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == ["Written: federation.toml", "Next: tdcd run federation.toml"]
    config = check_config(read_config(home / "federation.toml"))
    assert config.federation.labels == "bank"
    assert [silo.categorical for silo in config.silos] == [["city"], []]
    assert config.train.step_size == "auto"
    check = tdcd("check", "federation.toml", "--silo", "bank", "--client", "c1", "--data", "bank.csv", cwd=home)
    assert check.exit_code == 0, check.output
    short = ["--set", "train.rounds=2", "--set", "evaluate.every=1", "--out", "run"]
    run = tdcd("run", "federation.toml", *short, cwd=home)
    assert run.exit_code == 0, run.output
    again = tdcd("init", *options, cwd=home)
    assert again.exit_code == 2
    assert "federation.toml is there already: choose another name, or replace it with --force" in again.stderr
    assert tdcd("init", *options, "--force", "--block", "mlp", cwd=home).exit_code == 0
    assert read_config(home / "federation.toml")["model"]["block"] == "mlp"


def test_auto_trains_candidates_and_writes_the_chosen_settings_down(home):
    options = ["--silos", "bank,bureau", "--clients", "2,1", "--label", "default", "--id", "nr", "--model", "auto"]
    done = tdcd("init", *options, "--time-limit", "1e-3", cwd=home)
    assert done.exit_code == 0, done.output
    lines, text = done.stdout.splitlines(), (home / "federation.toml").read_text()
    assert lines[0].startswith("linear: held-out AUC ")
    assert lines[-3].startswith("Chosen: ")
    # Of so short a time nothing is left after the first candidate.
    assert lines[1:4] == [f"{name}: not tried: no time was left" for name in ("bins", "ensemble", "ensemble with head")]
    for line in lines[:-2]:
        assert f"# {line}\n" in text
    model = check_config(read_config(home / "federation.toml")).model
    assert (model.block, model.encoding, model.head) == ("linear", "standard", "sum")
    run = tdcd("run", "federation.toml", "--set", "train.rounds=2", "--out", "run", cwd=home)
    assert run.exit_code == 0, run.output


def test_tables_may_come_later(tmp_path):
    done = tdcd("init", "new.toml", "--silos", "a,b,c", "--label", 'odd "name"', "--labels-at", "b", cwd=tmp_path)
    assert done.exit_code == 0, done.output
    assert "a.csv is not there yet: put it there, or change 'table' in new.toml" in done.stdout
    config = check_config(read_config(tmp_path / "new.toml"))
    assert [silo.label for silo in config.silos] == [None, 'odd "name"', None]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--label", "y"], "--silos is missing: give it, or start tdcd init on a terminal, where it asks"),
        (["--silos", "a,b"], "--label is missing"),
        (
            ["--silos", "a,b", "--label", "y", "--clients", "1,2,3"],
            "--clients: there are 2 silos, a, b, but 3 are given",
        ),
        (["--silos", "a,b", "--label", "y", "--clients", "few"], "--clients few: write a number, or one for each silo"),
        (
            ["--silos", "a,b", "--label", "y", "--labels-at", "c"],
            "--labels-at c: there is no such silo; there are a, b",
        ),
        (["--silos", "a,b", "--label", "y", "--block", "tree"], "--block tree: choose linear or mlp or ensemble"),
        (["--silos", "a,b", "--label", "y", "--model", "best"], "--model best: it takes auto"),
        (["--silos", "a,b", "--label", "y", "--model", "auto", "--block", "mlp"], "--block mlp: --model auto chooses"),
        (["--silos", "a,b", "--label", "y", "--time-limit", "5"], "--time-limit 5: it goes with --model auto"),
        (
            ["--silos", "bank,b", "--label", "default", "--id", "nr", "--model", "auto"],
            "--model auto trains on all tables here, and b.csv is not there",
        ),
        (["--silos", "a b,c", "--label", "y"], "silos.0.name = 'a b'"),
        (["--silos", "bank,bureau", "--label", "income", "--id", "nr"], "--label income: no table has such a column"),
    ],
)
def test_bad_answers_are_status_2_and_write_nothing(home, options, words):
    done = tdcd("init", *options, cwd=home)
    assert done.exit_code == 2
    assert words in done.stderr
    assert not (home / "federation.toml").exists()


def test_it_asks_on_a_terminal(home):
    ours, theirs = pty.openpty()
    os.write(ours, b"bank,bureau\n2\n\ndefault\nnr\n\n")
    asked = subprocess.run(
        [*COMMAND, "init"], cwd=home, stdin=theirs, capture_output=True, text=True, timeout=120, check=False
    )
    os.close(ours)
    os.close(theirs)
    assert asked.returncode == 0, asked.stderr
    assert "Silos, the organisations, by name (bank,bureau): " in asked.stdout
    assert "Block (linear or mlp or ensemble) [linear]: " in asked.stdout
    config = check_config(read_config(home / "federation.toml"))
    assert (config.client_counts, config.silos[0].id) == ([2, 2], "nr")


def test_the_shell_completes_commands(tmp_path):
    words = os.environ | {"_TDCD_COMPLETE": "complete_bash", "COMP_WORDS": "tdcd ver", "COMP_CWORD": "1"}
    done = subprocess.run(COMMAND, env=words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["verify"]
    assert "--install-completion" in tdcd("--help", cwd=tmp_path).stdout


def test_the_version(tmp_path):
    assert tdcd("--version", cwd=tmp_path).stdout == f"tdcd {__version__}\n"
