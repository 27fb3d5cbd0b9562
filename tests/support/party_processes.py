"""Parties that are processes: start them, wait for them, and compare what they leave with a simulated run."""

import json
import signal
import subprocess
import time
from contextlib import contextmanager

import pytest
from safetensors.numpy import load_file

from support.command import tdcd
from support.patience import SOON
from tdcd.config import check_config, read_config
from tdcd.records.history import read_history
from tdcd.records.run_folder import toml_text
from tdcd.runtime.process.forking import environment, start_party
from tdcd.runtime.storage.failpoints import VARIABLE
from tdcd.training.run import run

ENVIRONMENT = environment()


@contextmanager
def processes(logs):
    """``start(party, *arguments)`` runs ``tdcd`` with them, its output in the party's log; none outlives its test.

    ``place`` is a failpoint at which it is killed.
    """
    started = []

    def start(party, *arguments, place=None):
        chosen = ENVIRONMENT if place is None else ENVIRONMENT | {VARIABLE: place}
        started.append(start_party([*map(str, arguments)], logs / f"{party}.log", chosen))
        return started[-1]

    try:
        yield start
    finally:
        end(started, logs)


def end(started, logs):
    """Ask all of them to leave; one that does not is ended, and its log, in the folder, says where it stood."""
    stuck = []
    for process in started:
        process.send_signal(signal.SIGTERM)
    for process in started:
        try:
            process.wait(SOON)
        except subprocess.TimeoutExpired:
            stuck.append(process.pid)
            process.send_signal(signal.SIGUSR1)
            time.sleep(1)
            process.kill()
            process.wait()
    last_words = [f"{path.name}:\n{path.read_text(errors='replace')[-3000:]}" for path in logs.glob("*.log")]
    assert not stuck, "\n".join([f"asked to leave, and did not: {stuck}", *last_words])


def up(path, out, *options):
    """``tdcd up``: its exit status and what it printed. Its parties are processes, it is not."""
    done = tdcd("up", path, "--out", out, *options, cwd=out.parent)
    return done.exit_code, done.output


def wait_until(happens, *alive):
    deadline = time.monotonic() + SOON
    while not happens():
        assert time.monotonic() < deadline, "it never happened"
        assert all(process.poll() is None for process in alive), "a process ended too early"
        time.sleep(0.05)


def status(home):
    path = home / "status.json"
    return json.loads(path.read_text()) if path.exists() else {}


def events(log):
    """The lines of a party's log that are for machines."""
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]


def written(folder, keys):
    folder.mkdir(exist_ok=True)
    (folder / "federation.toml").write_text(toml_text(check_config(keys).model_dump()))
    return folder / "federation.toml"


def simulated(path, out):
    """What ``tdcd run`` does with the file."""
    run(check_config(read_config(path), str(path)), out)
    return out


def assert_same_run(one, other, relative):
    """Two run folders have the same history and the same blocks."""
    ours, theirs = read_history(one / "history.jsonl"), read_history(other / "history.jsonl")
    assert [record.round for record in ours] == [record.round for record in theirs]
    assert ours[-1].train_loss < 0.9 * ours[0].train_loss
    for mine, wanted in zip(ours, theirs, strict=True):
        close = {"rel": relative, "abs": relative}
        assert mine.train_loss == pytest.approx(wanted.train_loss, **close)
        assert mine.test_loss == pytest.approx(wanted.test_loss, **close)
        for part, figures in wanted.metrics.items():
            assert mine.metrics[part] == pytest.approx(figures, **close)
        assert (mine.iteration, mine.bytes, mine.messages) == (wanted.iteration, wanted.bytes, wanted.messages)
    for path in (one / "model").glob("*.safetensors"):
        blocks, wanted = load_file(path), load_file(other / "model" / path.name)
        assert set(blocks) == set(wanted)
        for name, block in blocks.items():
            assert block == pytest.approx(wanted[name], rel=relative, abs=relative)


def assert_bit_identical(ours, theirs):
    """The same history and the same block, to the last bit."""
    histories = [read_history(home / "history.jsonl") for home in (ours, theirs)]
    facts = [
        [(r.round, r.iteration, r.train_loss, r.test_loss, r.metrics, r.bytes, r.messages) for r in history]
        for history in histories
    ]
    assert facts[0] == facts[1]
    for path in (ours / "model").glob("*.safetensors"):
        blocks, wanted = load_file(path), load_file(theirs / "model" / path.name)
        assert {name: block.tobytes() for name, block in blocks.items()} == {
            name: block.tobytes() for name, block in wanted.items()
        }
