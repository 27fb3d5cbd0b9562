"""All runs, as of the last look."""

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tdcd.pages.live.folders import runs_in
from tdcd.pages.live.history import Budget
from tdcd.pages.live.page import NOTHING_ASKED, Asked, Drawn, as_json
from tdcd.pages.live.run import WatchedRun

LOOK_S = 0.5
"""However many pages ask, the folders are read no more often."""
MOST_RUNS = 100
"""Further ones are counted."""


class Watcher:
    """Reads the folders when a page asks, and else does nothing."""

    def __init__(self, folders: Sequence[Path], clock: Callable[[], float] = time.monotonic) -> None:
        """Watch the runs in ``folders``, which need not be there yet."""
        self._folders, self._clock = [*folders], clock
        self._runs: dict[Path, WatchedRun] = {}
        self._lock, self._looked_at = threading.Lock(), -LOOK_S
        self._begun = self._hidden = 0
        # Pages that knew another server have parts of other runs.
        self._nonce = secrets.token_hex(8)
        self._drawn = Drawn(clock)

    def state(self, asked: Asked = NOTHING_ASKED) -> str:
        """What a page shows as JSON, without the parts that it has."""
        with self._lock:
            runs = self._facts()
            is_reading = any(run["state"] == "reading" for run in runs)
            return as_json(runs, self._hidden, self._drawn, asked, server=self._nonce, is_reading=is_reading)

    def facts(self) -> list[dict[str, Any]]:
        """What there is to show of every run."""
        with self._lock:
            return self._facts()

    def _facts(self) -> list[dict[str, Any]]:
        if self._clock() - self._looked_at >= LOOK_S or any(run.is_behind for run in self._runs.values()):
            self._look()
            self._looked_at = self._clock()
        return [*map(_facts_of, self._runs.values())]

    def _look(self) -> None:
        found = {run.path: run for run in runs_in(self._folders)}
        self._hidden = max(0, len(found) - MOST_RUNS)
        for path in [*found][:MOST_RUNS]:
            if path not in self._runs:
                self._runs[path] = WatchedRun(found[path], self._begun)
                self._begun += 1
        budget = Budget()
        for path, run in [*self._runs.items()]:
            try:
                run.look(found.get(path), budget)
            except Exception as error:
                # Of any kind: one folder must not keep the others from being shown.
                run.problem = f"{error!r:.200}"
            # A place where no run has begun is only worth a line while it is asked for.
            if path not in found and not run.has_begun:
                del self._runs[path]


def _facts_of(run: WatchedRun) -> dict[str, Any]:
    """One run. What no file of a run should say must not keep the others from being shown."""
    if run.problem:
        return run.as_damaged(run.problem)
    try:
        return run.facts()
    except Exception as error:
        return run.as_damaged(f"{error!r:.200}")
