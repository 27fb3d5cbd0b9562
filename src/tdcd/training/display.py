"""The progress of a run in a terminal or in a notebook, while it lasts."""

import multiprocessing
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import rich.progress
from rich.console import Console

from tdcd.core.words import duration

if TYPE_CHECKING:
    from tdcd.training.train import Progress

SECONDS_BETWEEN = 0.1
"""At least so long a notebook shows the same."""


@contextmanager
def progress_shown(verbose: int | bool) -> Iterator[Callable[["Progress"], None]]:
    """What to call with the progress of a run, so that it is shown until the run ends.

    Nothing is shown if ``verbose`` is 0, if there is neither a terminal nor a notebook, and by workers: several that
    draw on one terminal would draw over each other.
    """
    console, notebook = Console(stderr=True), _notebook()
    if not _is_watched(verbose, console, notebook):
        yield lambda news: None
    elif notebook is None:
        with _TerminalBar(console) as bar:
            yield bar.observe
    else:
        display = _NotebookBar(notebook)
        try:
            yield display.observe
        finally:
            display.end()


def say(sentence: str, verbose: int | bool) -> None:
    """Print a sentence where progress is shown."""
    console = Console(stderr=True)
    if _is_watched(verbose, console, _notebook()):
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)


def _is_watched(verbose: int | bool, console: Console, notebook: Any) -> bool:
    is_main = threading.current_thread() is threading.main_thread() and multiprocessing.parent_process() is None
    return bool(verbose) and is_main and (notebook is not None or console.is_terminal)


class _TerminalBar(rich.progress.Progress):
    """A bar that disappears at its end."""

    def __init__(self, console: Console) -> None:
        words = rich.progress.TextColumn("{task.description}", markup=False)
        super().__init__(rich.progress.BarColumn(), words, console=console, transient=True)
        self._task, self._words = self.add_task("starting", total=None), _WordDisplay()

    def observe(self, news: "Progress") -> None:
        """Show how far the run is."""
        self.update(self._task, total=news.rounds, completed=news.round, description=self._words.after(news))


class _NotebookBar:
    """A bar in the output of a cell, which disappears at its end."""

    def __init__(self, ipython: Any) -> None:
        self._handle = ipython.display.display(_Shown(""), display_id=True)
        self._words, self._shown_at = _WordDisplay(), 0.0

    def observe(self, news: "Progress") -> None:
        """Show how far the run is."""
        words, now = self._words.after(news), time.monotonic()
        if now - self._shown_at > SECONDS_BETWEEN:
            self._shown_at = now
            bar = f'<progress value="{news.round}" max="{news.rounds}"></progress> {words}'
            self._handle.update(_Shown(words, bar))

    def end(self) -> None:
        """Leave nothing."""
        self._handle.update(_Shown(""))


class _Shown:
    """A text, and what a notebook shows of it."""

    def __init__(self, text: str, markup: str = "") -> None:
        self._text, self._markup = text, markup

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return self._markup


class _WordDisplay:
    """How far a run is, in words."""

    def __init__(self) -> None:
        self._loss, self._start, self._began = "", 0, 0.0

    def after(self, news: "Progress") -> str:
        """The round, the loss of the last evaluation and the time left."""
        now = time.monotonic()
        if not self._began:
            self._start, self._began = news.round, now
        if news.record is not None:
            self._loss = f", loss {news.record.train_loss:.4g}"
        done = news.round - self._start
        left = (now - self._began) / done * (news.rounds - news.round) if done else 0.0
        return f"round {news.round:,}/{news.rounds:,}{self._loss}" + (f", {duration(left)} left" if left >= 1 else "")


def _notebook() -> Any:
    """IPython where it runs a notebook; only then it has been imported, and has a kernel."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return ipython if hasattr(shell, "kernel") else None
