"""The worked examples: the commands of each page run as they stand, with fewer rounds, and so does its Python."""

import re
import runpy
import shlex
import shutil
from contextlib import chdir
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from support.command import tdcd

ROOT = Path(__file__).parents[1]
FEW = ["--set", "train.rounds=2", "--set", "evaluate.every=2"]
FEW_IMAGES = ["--set", "data.rows=150"]
FEWER = {'load("digits28")': 'load("digits28", rows=150)', "rounds=100": "rounds=2"}
"""The same in Python: one compiled program does for both."""
PAGES = {
    "hospitals": ["run", "predict", "compare"],
    "retail_bank": ["run", "export", "predict"],
    "images": ["run"],
}


@pytest.mark.filterwarnings("ignore:Limit of 2 rounds reached")
@pytest.mark.parametrize("name", list(PAGES))
def test_the_commands_and_the_python_of_an_example_run(name, tmp_path):
    shutil.copytree(ROOT / "examples" / name, tmp_path / "examples" / name)
    page = (ROOT / "docs" / "examples" / f"{name}.md").read_text(encoding="utf-8")
    folder, done = tmp_path, []
    for block in re.findall(r"^```console\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        for command, *words in (shlex.split(line) for line in re.findall(r"^\$ (.*)", block, re.MULTILINE)):
            if command == "cd":
                folder = folder / words[0]
            elif command == "python":
                with chdir(folder):
                    runpy.run_path(words[0])
            else:
                few = [*FEW, *(FEW_IMAGES if name == "images" else [])] if words[0] in ("run", "compare") else []
                result = tdcd(*words, *few, cwd=folder)
                assert result.exit_code == 0, result.output
                done.append(words[0])
    assert done == PAGES[name]
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    for whole, few in FEWER.items() if name == "images" else ():
        assert whole in code
        code = code.replace(whole, few)
    known = {}
    with chdir(folder):
        exec(compile(code, name, "exec"), known)
    if name == "hospitals":
        told = pd.read_csv(folder / "readmissions.csv")["probability_yes"]
        np.testing.assert_allclose(known["model"].predict_proba(known["new"])[:, 1], told, rtol=1e-5)


@pytest.mark.parametrize("name", list(PAGES))
def test_what_a_page_says_of_its_files_is_there(name):
    page = (ROOT / "docs" / "examples" / f"{name}.md").read_text(encoding="utf-8")
    settings = (ROOT / "examples" / name / f"{name}.toml").read_text(encoding="utf-8")
    for block in re.findall(r"^```toml\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        assert block in settings
    for target in re.findall(r"\]\(([^)#\s]*)", page):
        assert (ROOT / "docs" / "examples" / target).exists(), target
    picture = (ROOT / "docs" / "examples" / re.findall(r"!\[[^\]]*\]\(([^)]*)\)", page)[0]).stat()
    assert picture.st_size < 60_000
