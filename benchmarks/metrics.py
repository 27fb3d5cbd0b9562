"""What ``tdcd hub --metrics`` costs a hub: processor time of a round with and without, read once a second.

The same federation as in :mod:`benchmarks.federation`, with and without in turns. Two such runs differ by more than 1 %
anyway, so the parts are measured by themselves too: one update of the snapshot, of which there are about four in a
second, and one reading.
"""

import re
import statistics
import tempfile
import time
import urllib.request
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.federation import CONFIG
from tdcd.core.ledger import Traffic
from tdcd.records.history import Record
from tdcd.records.run_folder import toml_text
from tdcd.records.timeline import MOST_SPANS, Timeline
from tdcd.runtime.process.endpoint import Endpoint
from tdcd.runtime.process.metrics import Metrics, exposition
from tdcd.runtime.process.trial import Trial
from tdcd.runtime.transport.transport import LocalNetwork

TURNS, UPDATES, READINGS = 3, 4.0, 1.0
"""Turns, and updates and readings in a second."""


class Measured(Trial):
    """A trial whose hubs answer Prometheus, or do not."""

    answers = False

    def _start(self, party: str, role: str, options: list[str]) -> None:
        super()._start(party, role, [*options, *(["--metrics", "0"] if self.answers and role == "hub" else [])])


class Watch:
    """Reads the hubs' figures once a second, and their processor time."""

    def __init__(self, trial: Measured) -> None:
        self.trial, self.seconds, self._read_at = trial, dict.fromkeys(trial.job.hubs, 0.0), 0.0

    def show(self) -> None:
        """Called a few times a second."""
        for hub in self.trial.job.hubs:
            with suppress(OSError, KeyError, ValueError):
                words = Path(f"/proc/{self.trial.processes[hub].pid}/stat").read_text().rpartition(")")[2].split()
                self.seconds[hub] = max(self.seconds[hub], (int(words[11]) + int(words[12])) / 100)
        if self.trial.answers and time.monotonic() - self._read_at > 1 / READINGS:
            self._read_at = time.monotonic()
            for hub in self.trial.job.hubs:
                log = (self.trial.folder / "logs" / f"{hub}.log").read_text()
                for address in re.findall(r'"(http://\S+/metrics)"', log):
                    with suppress(OSError):
                        urllib.request.urlopen(address, timeout=5).read()


def hub_seconds(answers: bool) -> float:
    """Processor time of both hubs, over a whole run."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "config.toml"
        path.write_text(toml_text(CONFIG))
        trial = Measured.prepare(path, [], Path(name) / "trial")
        trial.answers = answers
        watch = Watch(trial)
        outcome = trial.run(watch.show, lambda: False)
        assert outcome.status == "finished", outcome
        return sum(watch.seconds.values())


def parts() -> tuple[float, float]:
    """Seconds of processor time of an update and of a reading, with a timeline as long as it gets."""
    timeline, partners = Timeline("hub.a", ""), tuple(f"client.a.c{number}" for number in range(8))
    for number in range(MOST_SPANS):
        timeline.add(number, float(number), number + 0.5)
        timeline.add(number, number + 0.5, number + 1.0, partners)
    facts: dict[str, Any] = dict.fromkeys(("round", "rounds", "train_loss", "test_loss"), 1.0)
    facts |= {"party": "hub.a", "phase": "stepping", "status": None, "metrics": {}, "connected": [], "missing_s": {}}
    facts |= {"left_out": [], "refused": {}, "dropped": {}}
    metrics = Metrics(Path(), partners)
    endpoint, record = (
        Endpoint(LocalNetwork().join("hub.a", partners)),
        Record(1, 1, 1.0, None, {}, Traffic(), Traffic(), 1.0),
    )
    update = partial(metrics.update, facts, endpoint, timeline, record)
    update()
    assert metrics.snapshot is not None
    return _processor_time(update), _processor_time(partial(exposition, metrics.snapshot))


def _processor_time(call: Any, times: int = 300) -> float:
    began = time.thread_time()
    for _ in range(times):
        call()
    return (time.thread_time() - began) / times


def main() -> dict[str, float]:
    update, reading = parts()
    share = UPDATES * update + READINGS * reading
    print(
        f"metrics: an update takes {1e6 * update:.0f} microseconds of processor time, a reading {1e6 * reading:.0f}: "
        f"{100 * share:.2f} % of one core with a reading per second",
        flush=True,
    )
    turns = [(hub_seconds(True), hub_seconds(False)) for _ in range(TURNS)]
    ratio = statistics.median(with_it / without for with_it, without in turns)
    listed = ", ".join(f"{with_it:.2f} / {without:.2f}" for with_it, without in turns)
    print(f"  hubs' processor time of a run with and without: {listed} s; median ratio {ratio:.3f}", flush=True)
    return {"metrics_core_share": share, "metrics_ratio": ratio}
