"""Run folders that somebody else made: pipes, devices, endless lines and thousands of brackets end with a sentence."""

import json
import os
import shutil
import signal
from contextlib import contextmanager

import pytest

from support.command import tdcd
from tdcd.pages.live.server import Watcher
from tdcd.records.files import MOST_DEPTH, open_plain, parse_json, parse_toml, plain_lines, read_plain
from tdcd.records.manifest import Manifest
from tdcd.records.run_folder import RunFolder
from tdcd.records.timeline import Timeline

pytestmark = pytest.mark.quick

SHORT = ["data.source=diabetes", "model.block=linear", "train.batch_size=32", "train.rounds=2", "evaluate.every=1"]
STATUS = {
    "party": "hub.lab",
    "phase": "stepping",
    "round": 2,
    "rounds": 2,
    "train_loss": 0.5,
    "test_loss": None,
    "connected": [],
    "missing_s": {},
    "refused": {},
    "last_error": "",
    "status": "finished",
}
FILES = [
    "config.toml",
    "federation.json",
    "history.jsonl",
    "manifest.json",
    "labels.json",
    "held-out.csv",
    "subsets.json",
    "alone.json",
    "timeline.json",
    "status.json",
    "hub.lock",
    "hub.json",
    "model/silo1.safetensors",
    "preparation/silo1.json",
]
BRACKETS = b"[" * 200_000 + b"\n"


def brackets(path):
    path.write_bytes(b"a = " * (path.suffix == ".toml") + BRACKETS)


def pipe(path):
    os.mkfifo(path)


def endless(path):
    path.symlink_to("/dev/zero")


@contextmanager
def ending_soon():
    """A guard: a command that waits for ever would keep all other tests waiting, too."""

    def give_up(number, frame):
        raise AssertionError("it waits, or reads without end")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(120)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    home = tmp_path_factory.mktemp("good")
    words = [word for setting in SHORT for word in ("--set", setting)]
    done = tdcd("run", *words, "--out", "run", cwd=home)
    assert done.exit_code == 0, done.output
    (home / "run/alone.json").write_text('{"silo1": {"rmse": 1.0, "r2": 0.1}}')
    Manifest(RunFolder(home / "run")).seal()
    timeline = Timeline("hub.lab", "nonce")
    timeline.add(0, 1000.0, 1001.0)
    (home / "run/timeline.json").write_bytes(timeline.to_json())
    (home / "run/status.json").write_text(json.dumps(STATUS))
    (home / "run/hub.lock").touch()
    (home / "run/hub.json").write_text("{}")
    return home / "run"


@pytest.mark.slow
@pytest.mark.parametrize("put", [brackets, pipe, endless])
@pytest.mark.parametrize("name", FILES)
def test_commands_and_the_page_of_all_runs_get_past_it(good, tmp_path, name, put):
    bad = tmp_path / "runs" / "bad"
    shutil.copytree(good, bad)
    shutil.copytree(good, bad.parent / "good")
    (bad / name).unlink()
    put(bad / name)
    with ending_soon():
        for command in ("verify", "report", "status"):
            done = tdcd(command, bad, cwd=tmp_path)
            assert done.exit_code in (0, 1, 2), (command, done.exception)
            assert done.exception is None or isinstance(done.exception, SystemExit), (command, done.exception)
            said = " ".join(done.output.split())
            assert done.exit_code == 0 or name.rpartition("/")[2] in said, (command, said)
        runs = {run["name"]: run for run in Watcher([bad.parent]).facts()}
    assert runs["good"]["round"] == 2
    assert runs["good"]["problems"] == []


def test_only_plain_files_are_read_and_within_limits(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"one\ntwo\nthr")
    (tmp_path / "link").symlink_to(file)
    assert read_plain(tmp_path / "link") == file.read_bytes()
    assert [*plain_lines(file)] == [(1, b"one"), (2, b"two")]
    with pytest.raises(OSError, match=r"file is too large to be what its name says: it has more than 10 bytes"):
        read_plain(file, 10)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name, kind in (("pipe", "a pipe"), ("zero", "a device"), (".", "a folder")):
        with ending_soon(), pytest.raises(OSError, match=f"is {kind}, not a plain file, and is not read"):
            open_plain(tmp_path / name)


def test_a_line_without_an_end_is_named(tmp_path):
    with (tmp_path / "history.jsonl").open("wb") as file:
        # A hole: no room is taken on the disk.
        file.truncate(1 << 34)
    with ending_soon(), pytest.raises(ValueError, match=r"history.jsonl, line 1 has more than 16777216 bytes"):
        list(plain_lines(tmp_path / "history.jsonl"))


@pytest.mark.parametrize("depth", [MOST_DEPTH + 1, 900, 200_000])
def test_what_is_too_deep_is_no_document(depth):
    deep = "[" * depth + "]" * depth
    assert parse_json("[" * MOST_DEPTH + "]" * MOST_DEPTH)
    with pytest.raises(ValueError, match=f"more than {MOST_DEPTH} deep in each other"):
        parse_json(deep)
    with pytest.raises(ValueError, match=f"more than {MOST_DEPTH} deep in each other"):
        parse_toml(f"a = {deep}".encode())


@pytest.mark.parametrize("part", ["a", '"a.b\\""', "'a\"' \t"])
@pytest.mark.parametrize("around", ["{} = 1", "[{}]", "b = {{c = 2, {} = 1}}"])
def test_dotted_keys_are_tables_in_each_other_and_found_too_deep_before_they_are_parsed(part, around, monkeypatch):
    assert parse_toml(around.format(".".join([part] * (MOST_DEPTH - 1))).encode())
    # Parsing takes time in the square of the length.
    monkeypatch.setattr("tomllib.loads", lambda text: pytest.fail("it was parsed"))
    for parts in (MOST_DEPTH + 1, 10_000):
        with pytest.raises(ValueError, match=f"more than {MOST_DEPTH} deep in each other"):
            parse_toml(around.format(".".join([part] * parts)).encode())
