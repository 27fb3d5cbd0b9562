"""Parties that are copies of one process."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.patience import SOON
from tdcd import __version__
from tdcd.runtime.process.forking import environment, start_party


def test_the_command_runs_with_its_own_arguments_folder_and_log(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = start_party(["--version"], tmp_path / "first.log", environment())
    second = start_party(["status", "."], tmp_path / "second.log", environment())
    assert (first.wait(SOON), second.wait(SOON)) == (0, 2)
    assert (first.poll(), second.returncode) == (0, 2)
    assert (tmp_path / "first.log").read_text() == f"tdcd {__version__}\n"
    assert "has no status.json" in (tmp_path / "second.log").read_text()


def test_a_signal_ends_one_party_alone(tmp_path):
    # It reads its federation from a pipe, and so waits.
    pipe = tmp_path / "federation.toml"
    os.mkfifo(pipe)
    arguments = ["hub", str(pipe), "--silo", "bank"]
    parties = [start_party(arguments, tmp_path / "log", environment()) for _ in range(2)]
    with pytest.raises(subprocess.TimeoutExpired):
        parties[0].wait(0.01)
    while os.getsid(parties[0].pid) != parties[0].pid:
        time.sleep(0.01)
    parties[0].kill()
    assert parties[0].wait(SOON) == -signal.SIGKILL
    assert parties[1].poll() is None
    pipe.write_text("nonsense = ")
    assert parties[1].wait(SOON) == 2


def test_a_party_whose_watcher_was_killed_counts_as_killed_when_it_ends(tmp_path):
    pipe = tmp_path / "federation.toml"
    os.mkfifo(pipe)
    party = start_party(["hub", str(pipe), "--silo", "bank"], tmp_path / "log", environment())
    watcher = int(Path(f"/proc/{party.pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(watcher, signal.SIGKILL)
    with pytest.raises(subprocess.TimeoutExpired):
        party.wait(0.01)
    pipe.write_text("nonsense = ")
    assert party.wait(SOON) == -signal.SIGKILL


def test_a_party_shows_where_it_stands_and_continues(tmp_path):
    pipe, log = tmp_path / "federation.toml", tmp_path / "log"
    os.mkfifo(pipe)
    party = start_party(["hub", str(pipe), "--silo", "bank"], log, environment())
    with pipe.open("w") as writer:  # It reads by now.
        party.send_signal(signal.SIGUSR1)
        while "read_config" not in log.read_text():
            assert party.poll() is None
            time.sleep(0.01)
        writer.write("nonsense = ")
    assert party.wait(SOON) == 2


def test_who_starts_parties_leaves_nothing_open_at_its_end(tmp_path):
    program = (
        "import sys; from pathlib import Path; from tdcd.runtime.process.forking import environment, start_party; "
        "assert start_party(['--version'], Path(sys.argv[1]), environment()).wait(60) == 0"
    )
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", program, tmp_path / "log"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
