"""What a run is called: the same in its folder, on its page and in the command; and one thing is never "1 things"."""

import re

import pytest

from support.command import tdcd
from tdcd.config import check_config

SMALL = """
[data]
source = "diabetes"
[federation]
silos = 1
clients = 1
[model]
block = "linear"
[train]
rounds = 1
local_steps = 1
"""


def test_folder_page_and_command_have_one_name_and_one_of_a_thing_is_singular(tmp_path):
    (tmp_path / "credit.toml").write_text(SMALL)
    done = tdcd("run", "credit.toml", cwd=tmp_path)
    assert done.exit_code == 0, done.output
    assert "Run folder: runs/credit-1" in done.stdout
    page = (tmp_path / "runs/credit-1/report.html").read_text()
    assert "<title>credit · tdcd run</title>" in page
    assert "diabetes · 1 silo · 1 client" in re.sub(r"<[^>]+>", "", page)
    assert "1 round, 1 local step, " in done.stdout
    text = done.stdout + re.sub(r"<(style|svg).*?</\1>", "", page, flags=re.DOTALL)
    assert re.findall(r"(?<![\w.,-])1 (?:silos|clients|rounds|rows|local steps|messages|columns|samples)\b", text) == []
    # The name stays with the settings: the same run again, from its folder.
    done = tdcd("run", "runs/credit-1/config.toml", cwd=tmp_path)
    assert "Run folder: runs/credit-2" in done.stdout


@pytest.mark.parametrize(("name", "folder"), [("credit", "credit"), ("../a b/c", "a-b-c"), ("...", "run")])
def test_a_name_is_never_a_path(name, folder):
    assert check_config({"name": name}).folder_name == folder
