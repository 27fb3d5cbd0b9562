"""The command as a user runs it: real processes, real signals."""

import json
import os
import signal
import subprocess
import sys
import time
from importlib.metadata import version

import pytest

from support.command import start_tdcd, tdcd
from support.ports import free_address

COMMAND = [sys.executable, "-c", "from tdcd.cli import main; main()"]
BREAST = ["--set", "data.source=breast_cancer", "--set", "train.batch_size=64", "--set", "model.hidden=[4]"]


def process(*arguments, cwd):
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


def history(folder):
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def test_run_writes_a_folder_and_says_where(tmp_path):
    done = tdcd("run", *BREAST, "--set", "train.rounds=10", cwd=tmp_path)
    assert done.exit_code == 0, done.stderr
    assert "round 10/10" in done.stdout
    assert "held out" in done.stdout
    assert "Run folder: runs/breast_cancer-1" in done.stdout
    folder = tmp_path / "runs" / "breast_cancer-1"
    assert {path.name for path in folder.iterdir()} == {
        "config.toml",
        "federation.json",
        "held-out.csv",
        "history.jsonl",
        "labels.json",
        "manifest.json",
        "manifest.key",
        "model",
        "preparation",
        "report.html",
        "subsets.json",
    }
    assert (folder / "report.html").read_text().startswith("<!DOCTYPE html>")
    again = tdcd("report", folder, cwd=tmp_path)
    assert again.exit_code == 0
    assert "report.html" in again.stdout


def test_bad_input_is_status_2_and_loses_nothing(tmp_path):
    (tmp_path / "bad.toml").write_text("[train]\nrouns = 3\nstep_size = 'fast'\n")
    failed = tdcd("run", "bad.toml", cwd=tmp_path)
    assert failed.exit_code == 2
    assert "Error: bad.toml has 2 problems:" in failed.stderr
    assert "train.rouns: there is no such key; did you mean 'rounds'?" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert not (tmp_path / "runs").exists()
    missing = tdcd("run", "--resume", "nowhere", cwd=tmp_path)
    assert missing.exit_code == 2
    assert "nowhere is not a run folder" in missing.stderr


def test_divergence_is_status_3_with_advice(tmp_path):
    failed = tdcd("run", *BREAST, "--out", "r", "--set", "train.step_size=1e30", cwd=tmp_path)
    assert failed.exit_code == 3
    assert "Try a smaller train.step_size" in " ".join(failed.stdout.split())
    assert history(tmp_path / "r")[-1]["train_loss"] is None


@pytest.mark.optimised
def test_interrupted_twice_and_resumed_equals_uninterrupted(tmp_path):
    """Ctrl-C in the middle of a run, SIGTERM after --resume, --resume again: every bit is that of a whole run."""
    settings = [*BREAST, "--set", "train.rounds=1500", "--set", "evaluate.every=15"]
    for number, *command in ((signal.SIGINT, *settings, "--out", "cut"), (signal.SIGTERM, "--resume", "cut")):
        begun = len(history(tmp_path / "cut")) if (tmp_path / "cut").exists() else 0
        log = tmp_path / f"{number}.log"
        running = start_tdcd("run", *command, cwd=tmp_path, log=log)
        deadline = time.monotonic() + 300
        while not (tmp_path / "cut" / "history.jsonl").exists() or len(history(tmp_path / "cut")) < begun + 3:
            assert time.monotonic() < deadline, "the run did not start"
            assert running.poll() is None, "the run ended before it could be interrupted"
            time.sleep(0.02)
        running.send_signal(number)
        assert running.wait(300) == 130, log.read_text()
        assert "To continue: tdcd run --resume cut" in log.read_text()
        assert (tmp_path / "cut" / "report.html").exists()
    last = [["--resume", "cut"], [*settings, "--out", "whole"]]
    assert [start_tdcd("run", *words, cwd=tmp_path, log=tmp_path / "log").wait(300) for words in last] == [0, 0]
    for name in ("silo1", "silo2"):
        model = f"model/{name}.safetensors"
        assert (tmp_path / "cut" / model).read_bytes() == (tmp_path / "whole" / model).read_bytes()
    drop = {"seconds": None}
    assert [r | drop for r in history(tmp_path / "cut")] == [r | drop for r in history(tmp_path / "whole")]


def test_help_teaches(tmp_path):
    shown = tdcd("run", "--help", cwd=tmp_path)
    for words in ("--resume", "--set", "Exit status"):
        assert words in shown.stdout


def test_simulations_need_nothing_of_the_real_federation():
    heavy = "zenoh", "cryptography", "rbcl", "torch"
    code = f"import sys, tdcd.cli.app; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def imports(cwd, *arguments):
    """The modules that a command imports in a process of its own, by Python's list of them."""
    command = [sys.executable, "-X", "importtime", "-m", "tdcd", *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}


def test_help_version_check_and_status_start_without_jax(tmp_path):
    rows = "".join(f"{number},{number * 7 % 5},{number % 2}\n" for number in range(20))
    (tmp_path / "all.csv").write_text("id,x,y\n" + rows)
    (tmp_path / "shared.toml").write_text(
        '[data]\nsource = "files"\n'
        '[[silos]]\nname = "bank"\nlabel = "y"\n[[silos.client]]\nname = "c1"\ntable = "all.csv"\n'
    )
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "status.json").write_text(
        '{"party": "hub.bank", "phase": "end", "round": 3, "rounds": 3, "train_loss": 0.5, "test_loss": null,'
        ' "status": "finished", "connected": [], "refused": {}, "last_error": null, "pid": 1}'
    )
    site = ("--silo", "bank", "--client", "c1", "--data", "all.csv")
    for arguments in (("--help",), ("--version",), ("check", "shared.toml", *site), ("status", "hub")):
        found = imports(tmp_path, *arguments)
        assert "tdcd.cli.app" in found
        assert not {"jax", "jaxlib"} & found, arguments


def test_the_version_is_that_of_the_package(tmp_path):
    done = process("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"tdcd {version('tdcd')}\n")


def test_public_names_are_what_they_were_whichever_module_was_imported_first():
    code = """
import sys, tdcd, tdcd.pages.live.server
assert "jax" not in sys.modules
import tdcd.training.train
assert tdcd.train is sys.modules["tdcd.training.train"].train
from tdcd import *
assert {name: globals()[name] for name in tdcd.__all__} == {name: getattr(tdcd, name) for name in tdcd.__all__}
assert set(tdcd.__all__) <= set(dir(tdcd)) and callable(train)
try:
    tdcd.nothing
except AttributeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "module 'tdcd' has no attribute 'nothing'\n"


def test_pages_of_tables_have_the_name_of_the_configuration(tmp_path):
    rows = "".join(f"{number},{number * 7 % 5},{number % 2}\n" for number in range(40))
    (tmp_path / "all.csv").write_text("id,x,y\n" + rows)
    keys = (
        '[data]\nsource = "files"\n[train]\nrounds = 1\nbatch_size = 8\nstep_size = 0.05\n[model]\nblock = "linear"\n'
    )
    silo = '[[silos]]\nname = "bank"\nlabel = "y"\ntable = "all.csv"\n'
    (tmp_path / "credit.toml").write_text(keys + silo)
    (tmp_path / "other.toml").write_text('name = "Loans & cards"\n' + keys + silo)
    for file, title in (("credit", "credit"), ("other", "Loans &amp; cards")):
        done = tdcd("run", f"{file}.toml", "--out", file, cwd=tmp_path)
        assert done.exit_code == 0, done.stderr
        page = (tmp_path / file / "report.html").read_text()
        assert f"<title>{title} · tdcd run</title>" in page
        assert ">files<" not in page.split("<table")[0]
    bound = tdcd("bound", "credit", cwd=tmp_path)
    assert bound.exit_code == 0, bound.stderr
    assert "<title>credit · tdcd bound</title>" in (tmp_path / "credit" / "bound.html").read_text()


def test_ctrl_c_while_aligning_says_what_is_true(tmp_path):
    (tmp_path / "all.csv").write_text("id,x\n1,2\n")
    (tmp_path / "shared.toml").write_text(
        f'[[silos]]\nname = "bank"\nhub = "{free_address()}"\n[[silos]]\nname = "shop"\nhub = "127.0.0.1:1"\n'
    )
    options = ["--silo", "bank", "--data", "all.csv", "--out", "ids.txt", "--insecure"]
    process = subprocess.Popen(
        [*COMMAND, "align", "shared.toml", *options],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert "aligning; waiting for hub.shop" in process.stdout.readline()
    os.kill(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 130, output
    assert "Stopping; once more to stop at once." in output
    assert "round" not in output
    assert "Interrupted: nothing was written" in output
