"""All runs as one JSON document."""

import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tdcd.core.visible import all_visible
from tdcd.pages.live.folders import runs_in
from tdcd.pages.live.history import Budget
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
        # Pages that knew another server have points of other runs.
        self._nonce = secrets.token_hex(8)

    def state(self, have: Mapping[int, tuple[int, int]]) -> str:
        """What a page shows as JSON, without the points that it has.

        Args:
            have: by run, the version and the number of the points that the page has.
        """
        with self._lock:
            if self._clock() - self._looked_at >= LOOK_S or any(run.is_behind for run in self._runs.values()):
                self._look()
                self._looked_at = self._clock()
            runs = [_as_text(run, *have.get(run.number, (-1, 0))) for run in self._runs.values()]
        return f'{{"server": "{self._nonce}", "hidden": {self._hidden}, "runs": [{", ".join(runs)}]}}'

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


def _as_text(run: WatchedRun, version: int, count: int) -> str:
    """One run as JSON. What no file of a run should say must not keep the others from being shown."""
    if not run.problem:
        try:
            return json.dumps(all_visible(run.as_json(version, count)), allow_nan=False)
        except Exception as error:
            return json.dumps(all_visible(run.as_damaged(f"{error!r:.200}")))
    return json.dumps(all_visible(run.as_damaged(run.problem)))
