"""Progress is shown in a terminal and in a notebook while a run lasts, and nowhere else."""

import io
import os
import pty
import re
import sys
import threading
import types

import pytest

from tdcd import Federation, Settings, load, standardize, train

SETTINGS = Settings(local_steps=1, batch_size=32, step_size=0.1)


@pytest.fixture(scope="module")
def run():
    rows, _ = standardize(load("breast_cancer", rows=64))
    federation = Federation.cut(rows, silos=2)

    def run(**keys):
        return train(federation, "linear", "logistic", SETTINGS, rounds=6, evaluate_every=2, **keys)

    return run


class Terminal:
    """A real terminal as standard error; after the ``with`` block, what was drawn on it."""

    def __enter__(self):
        self._leader, follower = pty.openpty()
        self._parts = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._before, sys.stderr = sys.stderr, os.fdopen(follower, "w")
        return self

    def _read(self):
        try:
            while part := os.read(self._leader, 1 << 16):
                self._parts.append(part)
        except OSError:  # the terminal is closed
            pass

    def __exit__(self, *_):
        sys.stderr.close()
        sys.stderr = self._before
        self._reader.join()
        os.close(self._leader)
        self.drawn = b"".join(self._parts).decode()


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    return Terminal()


def test_a_terminal_shows_the_round_and_the_loss_and_keeps_nothing(run, terminal):
    with terminal:
        result = run()
    assert f"round 6/6, loss {result.final.train_loss:.4g}" in terminal.drawn
    assert terminal.drawn.endswith("\x1b[2K")  # the line is erased


def test_verbose_0_shows_nothing(run, terminal):
    with terminal:
        run(verbose=0)
    assert terminal.drawn == ""


def test_a_thread_shows_nothing(run, terminal):
    with terminal:
        worker = threading.Thread(target=run)
        worker.start()
        worker.join()
    assert terminal.drawn == ""


def test_without_a_terminal_nothing_is_written(run, capfd, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    run()
    assert sys.stderr.getvalue() == ""
    assert capfd.readouterr() == ("", "")


def test_a_notebook_shows_a_bar_until_the_run_ends(run, monkeypatch):
    """IPython, which is not installed with the tests, as far as it is used."""
    shown = []
    handle = types.SimpleNamespace(update=lambda one: shown.append(one._repr_html_()))
    display = types.SimpleNamespace(display=lambda one, display_id: handle)
    shell = types.SimpleNamespace(kernel=object())
    ipython = types.SimpleNamespace(get_ipython=lambda: shell, display=display)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    run()
    first, *_, last = shown
    assert re.fullmatch(r'<progress value="0" max="6"></progress> round 0/6, loss [\d.]+', first)
    assert last == ""
    shown.clear()
    run(verbose=0)
    assert shown == []


def test_the_bar_ends_with_a_run_that_fails(run, terminal):
    def failing(progress):
        raise RuntimeError("the observer fails")

    with terminal, pytest.raises(RuntimeError, match="the observer fails"):
        run(observe=failing)
    assert terminal.drawn.endswith("\x1b[2K")
