"""Commands of the pages, as they stand there, in a folder with a small my.toml and small runs."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from support.command import tdcd

PAGES = Path(__file__).parents[1] / "docs"
MY = """
[data]
source = "diabetes"
rows = 200
[federation]
silos = 2
clients = 2
[train]
rounds = 4
local_steps = 2
batch_size = 32
step_size = 0.05
[evaluate]
every = 2
"""
COMMANDS = {
    "sweeps.md": (
        "tdcd run my.toml --set 'train.local_steps=[1,5,10]'",
        "tdcd run my.toml --set 'federation.clients=[[2,2],[5,5],[20,20]]'",
    ),
    "planning.md": ("tdcd bound runs/my-1",),
    "comparing.md": (
        "tdcd compare my.toml --with sgd,fedbcd --network mobile",
        "tdcd compare my.toml --with tdcd,participation=0.5 --with tdcd,clients=20",
    ),
    "operating.md": (
        "tdcd verify runs/digits-1",
        "tdcd verify runs/digits-1 --replay",
        "tdcd doctor",
        "tdcd init --silos bank,bureau --clients 3,2 --label default --tables bank.csv,bureau.csv",
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where they run."""
    place = tmp_path_factory.mktemp("pages")
    (place / "my.toml").write_text(MY)
    rng = np.random.default_rng(0)
    for name, columns in (("bank", ("age", "default")), ("bureau", ("score",))):
        rows = [",".join(map(str, [number, *rng.integers(0, 2, len(columns))])) for number in range(30)]
        (place / f"{name}.csv").write_text("\n".join([",".join(["id", *columns]), *rows]) + "\n")
    for run in ("my-1", "digits-1"):
        assert tdcd("run", "my.toml", "--out", f"runs/{run}", cwd=place).exit_code == 0
    return place


@pytest.mark.parametrize(("page", "line"), [(page, line) for page, lines in COMMANDS.items() for line in lines])
def test_a_command_of_a_page_runs_as_it_stands(page, line, folder):
    shown = re.sub(r"\\\n\s*", "", (PAGES / page).read_text())
    assert line in re.sub(r" {2,}", " ", shown)
    done = tdcd(*shlex.split(line)[1:], cwd=folder)
    assert done.exit_code == 0, done.output
