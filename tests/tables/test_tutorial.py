"""The tutorial's commands, as a reader gives them: each shown line is said, and the model is as good as promised."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from support.command import start_tdcd
from tdcd.config import check_config, read_config
from tdcd.config.resolve import plan
from tdcd.core.losses.figures import auc
from tdcd.data import data_folder
from tdcd.records.run_folder import RecordedRun

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)


def alike(shown, said):
    """Whether two lines are the same, but for blanks and the last digits of numbers."""
    words = [re.split(r"[\s,]+", line.strip()) for line in (shown, said)]
    if len(words[0]) != len(words[1]):
        return False
    for ours, theirs in zip(*words, strict=True):
        try:
            if float(ours) != pytest.approx(float(theirs), rel=0.01, abs=0.002):
                return False
        except ValueError:
            if ours != theirs:
                return False
    return True


def follow(block, folder):
    """Give the commands of one block, in a shell but for ours; what they say must have the lines shown, in order."""
    lines, said = block.splitlines(), []
    commands = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    started = []
    for command in commands:
        if command.startswith("tdcd "):
            log = folder / f"{len(list(folder.glob('*.log')))}.log"
            words = shlex.split(command.removesuffix("&"))[1:]
            started.append((start_tdcd(*words, cwd=folder, log=log), log))
        if command == "wait" or not command.endswith("&"):
            for process, log in started:
                assert process.wait(300) == 0, f"{command}\n{log.read_text()}"
                said += log.read_text().splitlines()
            started.clear()
        if not command.startswith("tdcd "):
            said += shell(command, folder).splitlines()
    rest = iter(said)
    for shown in lines:
        if not shown.startswith("$ ") and shown != "...":
            assert any(alike(shown, line) for line in rest), f"{commands}\ndo not say: {shown}\n{said}"


def shell(command, folder):
    """What a command prints."""
    variables = os.environ | {"TDCD_DATA": str(data_folder())}
    done = subprocess.run(
        ["bash", "-e", "-c", command], cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
def test_the_tutorial(tmp_path):
    if not (data_folder() / "credit" / "guest.csv").exists():
        pytest.skip(f"{data_folder()} has no credit/guest.csv: set TDCD_DATA to a folder with the two-party tables")
    (settings,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "credit.toml").write_text(settings, encoding="utf-8")
    for block in BLOCKS:
        follow(block, tmp_path)
    figures = check_figures(tmp_path)
    shown = re.findall(r"^\| (\w+ alone|together) \| ([\d.]+) \| ([\d.]+) \|$", PAGE, re.MULTILINE)
    assert len(shown) == 2
    assert shown[-1][0] == "together"
    assert float(shown[-1][2]) == pytest.approx(figures["auc"], abs=0.002)
    report = (tmp_path / "runs" / "credit" / "report.html").read_text(encoding="utf-8")
    table = re.findall(r'<th scope="row">([^<]*)</th><td>([\d.]+)</td><td>([\d.]+)</td>', report)
    for name, *numbers in shown:
        found = next(row for row in table if row[0] == name)
        assert [float(number) for number in found[1:]] == pytest.approx(
            [float(number) for number in numbers], abs=0.002
        )
    assert all(float(row[2]) < figures["auc"] for row in table if row[0].endswith(" alone"))


def check_figures(folder):
    """The run's held-out figures, after comparing them with a logistic regression on the joined table."""
    run = RecordedRun.read(folder / "runs" / "credit")
    assert run.history[-1].round < 200
    assert run.config["train"]["local_steps"] == 1
    federation = plan(check_config(read_config(folder / "credit.toml"))).federation
    joined = np.concatenate([silo.features for silo in federation.silos], axis=1)
    held_out = np.concatenate([silo.test_features for silo in federation.silos], axis=1)
    model = LogisticRegression(max_iter=2000).fit(joined, federation.labels)
    best = auc(model.decision_function(held_out), federation.test_labels == 1)
    figures = run.final.metrics["test"]
    assert figures["auc"] > best - 0.003
    (promised,) = re.findall(r"reaches (0\.\d+)", PAGE)
    assert float(promised) == pytest.approx(best, abs=0.0005)
    return figures
