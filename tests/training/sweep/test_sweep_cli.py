"""A sweep as a user runs it: real processes, real signals."""

import html
import json
import re
import shlex
import signal
import time

import pytest

from support.command import start_tdcd, tdcd

LINEAR = ["--set", "data.source=diabetes", "--set", "model.block=linear", "--set", "train.batch_size=32"]


def test_lists_in_the_file_and_on_the_command_line(tmp_path):
    (tmp_path / "my.toml").write_text(
        "seed = [0, 1]\n[data]\nsource = 'diabetes'\n[model]\nblock = 'linear'\n[train]\nbatch_size = 32\nrounds = 10\n"
    )
    shown = tdcd("run", "my.toml", "--set", "train.local_steps=[1,5]", cwd=tmp_path)
    assert shown.exit_code == 0, shown.stderr
    folder = tmp_path / "runs" / "sweep-my-seed-local_steps"
    assert f"Page:         {folder.relative_to(tmp_path)}/sweep.html" in shown.stdout
    assert shown.stdout.count("kB") == 4
    runs = {path.name for path in folder.iterdir() if path.is_dir()}
    assert runs == {f"seed={seed},local_steps={q}" for seed in (0, 1) for q in (1, 5)}
    again = tdcd("run", "my.toml", "--set", "train.local_steps=[1,5]", cwd=tmp_path)
    assert again.exit_code == 0
    assert "local_steps=5 and" not in again.stdout


def test_a_sweep_of_which_a_run_diverged_is_status_3(tmp_path):
    settings = [*LINEAR, "--set", "train.rounds=4", "--set", "train.step_size=[0.01,500.0]", "--out", "sweep"]
    shown = tdcd("run", *settings, cwd=tmp_path)
    assert shown.exit_code == 3, shown.output
    assert "diverged" in shown.stdout
    assert "Page:         sweep/sweep.html" in shown.stdout
    assert tdcd("run", "--resume", "sweep", cwd=tmp_path).exit_code == 3


def test_finished_runs_are_gathered_without_their_data(tmp_path):
    """A thousand of them are not planned again: the table is gone, and nobody misses it."""
    rows = "".join(f"{row},{row % 7},{row % 5},{row % 2}\n" for row in range(60))
    (tmp_path / "all.csv").write_text("id,a,b,y\n" + rows)
    split = tdcd("split", "all.csv", "--silos", 2, "--clients", 2, "--label", "y", "--out", "trial", cwd=tmp_path)
    assert split.exit_code == 0, split.output
    settings = ["--set", "train.rounds=2", "--set", "train.batch_size=8", "--out", "sweep"]
    lists = ["--set", "train.step_size=[0.01,0.02]", "--set", "model.block=linear"]
    assert tdcd("run", "trial/federation.toml", *lists, *settings, cwd=tmp_path).exit_code == 0
    before = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    for table in (tmp_path / "trial").rglob("*.csv"):
        table.unlink()
    again = tdcd("run", "--resume", "sweep", cwd=tmp_path)
    assert again.exit_code == 0, again.output
    assert json.loads((tmp_path / "sweep" / "sweep.json").read_text()) == before


def test_bad_lists_are_status_2_and_run_nothing(tmp_path):
    failed = tdcd("run", "--set", "train.step_size=[0.1,-1.0]", cwd=tmp_path)
    assert failed.exit_code == 2
    assert "train.step_size = -1.0: must be greater than 0" in failed.stderr
    assert not (tmp_path / "runs").exists()
    both = tdcd("run", "--set", "seed=[0,1]", "--devices", "1", cwd=tmp_path)
    assert both.exit_code == 2
    assert "a sweep runs in one process, on one device: leave --devices and --coordinator out" in both.stderr


@pytest.mark.optimised
def test_interrupted_and_resumed_equals_uninterrupted(tmp_path):
    settings = [*LINEAR, "--set", "seed=[0,1,2]", "--set", "train.rounds=6000", "--set", "evaluate.every=100"]
    log = tmp_path / "log"
    running = start_tdcd("run", *settings, "--out", "cut", cwd=tmp_path, log=log)
    history = tmp_path / "cut" / "seed=0" / "history.jsonl"
    deadline = time.monotonic() + 300
    while not history.exists() or len(history.read_text().splitlines()) < 3:
        assert time.monotonic() < deadline, "the sweep did not start"
        assert running.poll() is None, "the sweep ended before it could be interrupted"
        time.sleep(0.02)
    running.send_signal(signal.SIGINT)
    assert running.wait(300) == 130, log.read_text()
    assert "To continue: tdcd run --resume cut" in log.read_text()
    assert (tmp_path / "cut" / "sweep.html").exists()
    refused = tdcd("run", "--resume", "cut", "--set", "train.rounds=5", cwd=tmp_path)
    assert "leave CONFIG, --out and --set out" in refused.stderr
    for words in (["--resume", "cut"], [*settings, "--out", "whole"]):
        assert start_tdcd("run", *words, cwd=tmp_path, log=log).wait(300) == 0, log.read_text()
    for seed in (0, 1, 2):
        cut, whole = ((tmp_path / name / f"seed={seed}").joinpath for name in ("cut", "whole"))
        assert cut("model/silo1.safetensors").read_bytes() == whole("model/silo1.safetensors").read_bytes()
        for one, other in zip(*(run("history.jsonl").read_text().splitlines() for run in (cut, whole)), strict=True):
            assert json.loads(one) | {"seconds": 0} == json.loads(other) | {"seconds": 0}


def test_the_commands_on_the_page_work_as_printed(tmp_path):
    settings = [*LINEAR, "--set", "seed=[0,1]", "--set", "train.rounds=2"]
    done = tdcd("run", *settings, "--out", "runs/my first sweep", cwd=tmp_path)
    assert done.exit_code == 0, done.stderr
    page = (tmp_path / "runs/my first sweep/sweep.html").read_text()
    printed = [html.unescape(line) for line in re.findall(r"tdcd (?:run|report) .*?(?=\n|<)", page)]
    assert [line.split()[1] for line in printed] == ["run", "report"]
    for line in printed:
        again = tdcd(*shlex.split(line)[1:], cwd=tmp_path)
        assert again.exit_code == 0, line + again.stderr
