"""``tdcd plan`` and ``tdcd bound`` as a user gives them, with a real signal."""

import html
import os
import signal
import subprocess
import sys

import pytest

from support.command import tdcd

COMMAND = [sys.executable, "-c", "from tdcd.cli import main; main()"]
SETTINGS = (
    '[data]\nsource = "diabetes"\n[federation]\nclients = 3\n[model]\nblock = "linear"\nl2 = 0.01\n'
    "[train]\nrounds = 10\nlocal_steps = 5\nbatch_size = 64\nstep_size = 0.005\n[network]\nstep_ms = 0.1\n"
)


@pytest.fixture(autouse=True)
def settings(tmp_path):
    (tmp_path / "small.toml").write_text(SETTINGS)


def words(text):
    """The output without its line breaks."""
    return " ".join(text.split())


def test_a_plan_is_printed_and_nothing_is_written(tmp_path):
    done = tdcd("plan", "small.toml", "--network", "mobile", "--target", "0.4", "--seconds", "3600", cwd=tmp_path)
    assert done.exit_code == 0, done.stderr
    shown = words(done.stdout)
    for expected in (
        "Target loss 0.4000: before training it is 0.5000, the least possible is",
        "client to hub 50 ms, 10 Mbit/s; hub to hub 30 ms, 100 Mbit/s",
        "exact, norms of the Hessian",
        "Q safe step size pilot's step size rounds predicted time rounds by Theorem 1",
        "Q client to hub hub to client hub to hub sent in all",
        "is the fastest on this network",
        "- Rounds are counted in pilot runs of the simulation",
        "a round bytes per round rounds predicted time",
        "- Overlap",
        "- phi_bits = 8 would send",
        "To take it, write: [train] local_steps = ",
    ):
        assert expected in shown
    assert [path.name for path in tmp_path.iterdir()] == ["small.toml"]


def test_a_run_is_held_against_its_bound(tmp_path):
    assert tdcd("run", "small.toml", "--out", "r", cwd=tmp_path).exit_code == 0
    done = tdcd("bound", "r", "--seconds", "3600", cwd=tmp_path)
    assert done.exit_code == 0, done.stderr
    for expected in ("T = 50", "staleness: eta^2 L_max^2 sigma^2 Q^2 N^2", "The bound holds", "Page: r/bound.html"):
        assert expected in words(done.stdout)
    assert "bound, sigma at the ends of its interval" in words(done.stdout)
    page = (tmp_path / "r" / "bound.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "95 % interval of sigma_max" in page
    for text in (words(done.stdout), page):
        assert "sampled with 64 minibatches at the run's start and 64 at its end" in html.unescape(text)
    failed = tdcd("bound", "r", "--seconds", "0.001", cwd=tmp_path)
    assert failed.exit_code == 2
    assert "time was up when sigma rested on 1 minibatch, and it takes at least 10: give more seconds" in words(
        failed.stderr
    )


def test_a_plan_without_time_recommends_nothing(tmp_path):
    done = tdcd("plan", "small.toml", "--seconds", "0.001", cwd=tmp_path)
    assert done.exit_code == 0, done.stderr
    shown = words(done.stdout)
    assert "Nothing is recommended: time was up before any pilot run took a round. Give more seconds." in shown
    assert "upper bound, time was up, and the trace of X^T X / M" in shown
    assert "To take it" not in shown


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["plan", "small.toml", "--target", "2"], "target = 2: the loss before training is 0.5; give a lower target"),
        (
            ["plan", "small.toml", "--set", "train.local_steps=0"],
            "train.local_steps = 0: must be greater than or equal",
        ),
        (["plan", "small.toml", "--network", "moon"], "there is no network 'moon'; there are lan, wan, mobile"),
        (["bound", "nowhere"], "nowhere is not a folder: give the folder that a run wrote"),
        (["bound", "."], ". is not a run folder: it has no config.toml"),
    ],
)
def test_bad_input_is_status_2(tmp_path, arguments, sentence):
    failed = tdcd(*arguments, cwd=tmp_path)
    assert failed.exit_code == 2
    assert sentence in words(failed.stderr)
    assert "Traceback" not in failed.stderr


def test_ctrl_c_ends_a_plan(tmp_path):
    process = subprocess.Popen(
        [*COMMAND, "plan", "small.toml"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    # The first line is an estimate that is finished; pilot runs come next.
    assert process.stdout.readline()
    os.kill(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 130, output
    assert "Interrupted; nothing was written." in output
