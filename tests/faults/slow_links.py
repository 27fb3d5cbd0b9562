"""``python tests/faults/slow_links.py [--delays 0.1 0.3 ...] [--rates 10 25 ...]``: real processes over slow links.

For each delay (seconds each way) and each rate (kB/s each way) a federation of 2 silos x 2 clients, every link of which
passes a proxy, must finish with the history of the run over fast links. Beside the times: how often a link was opened
(5 if none was ever lost), and how many bytes passed, as a multiple of the run over fast links.
"""

import argparse
import itertools
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from processes import Processes
from slow_link import SlowLink

LINKS = 5
"""Two clients to each of two hubs, and one hub to the other."""
SMALL = {"rounds": 4, "evaluate": {"every": 2}}
"""Messages of a few kB: what the delay costs."""
LARGE = {
    "rounds": 3,
    "train": {"local_steps": 100, "batch_size": 340, "step_size": 0.001},
    "evaluate": {"every": 3},
}
"""Hubs exchange 136 kB a round, and so does each hub with its clients together, up and down: what the rate costs."""


class SlowProcesses(Processes):
    """Processes whose every link has a delay and a rate."""

    def __init__(self, folder, *, delay_s=0.0, bytes_per_s=None, **sections):
        super().__init__(folder, **sections)
        self.links = []
        shared = self.trial.folder / "federation.toml"
        for silo in self.trial.job.config.silos:
            link = SlowLink(silo.hub, delay_s, bytes_per_s)
            self.links.append(link)
            self.listens[f"hub.{silo.name}"] = silo.hub
            shared.write_text(shared.read_text().replace(silo.hub, link.address))

    def stop(self):
        super().stop()
        for link in self.links:
            link.close()


class Measured(NamedTuple):
    """What happened in a federation."""

    history: list
    first_s: float
    """Until the first round is over everywhere."""
    round_s: float
    """Of each round after it, with its share of the end."""
    opened: int
    """Links, each as often as it was opened."""
    carried: int
    """Bytes over all links."""


def measure(folder, seconds, **keys):
    """Run a federation to its end; fails if that takes longer than ``seconds``."""
    with SlowProcesses(folder, **keys) as parties:
        began = time.monotonic()
        parties.start_all()
        first = parties.until(lambda: min(parties.rounds()) >= 1, "the first round", seconds)
        parties.until(lambda: parties.is_over, "the end", seconds)
        histories = parties.histories()
        assert all(history == histories[0] for history in histories)
        each = (time.monotonic() - began - first) / (parties.trial.job.config.train.rounds - 1)
        opened, carried = (sum(getattr(link, name) for link in parties.links) for name in ("connections", "carried"))
        return Measured(histories[0], first, each, opened, carried)


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--delays", type=float, nargs="*", default=[0.1, 0.3, 0.5, 1.0, 2.0])
    options.add_argument("--rates", type=float, nargs="*", default=[200, 100, 50, 25, 10])
    options.add_argument("--both", action="store_true", help="every delay with every rate")
    options.add_argument("--seconds", type=float, default=600, help="after which a run counts as not ending")
    given = options.parse_args()
    cases = [(delay, None, SMALL) for delay in given.delays] + [(0.0, rate, LARGE) for rate in given.rates]
    if given.both:
        cases = [(delay, rate, LARGE) for delay, rate in itertools.product(given.delays, given.rates)]
    references = {}
    with tempfile.TemporaryDirectory(prefix="tdcd-slow-") as home:
        for number, (delay, rate, sections) in enumerate(cases):
            if id(sections) not in references:
                references[id(sections)] = measure(Path(home) / f"fast{number}", 120, **sections)
            fast = references[id(sections)]
            where = f"{delay:.1f} s each way, {'any rate' if rate is None else f'{rate:.0f} kB/s'}"
            link = {"delay_s": delay, "bytes_per_s": None if rate is None else 1000 * rate}
            try:
                found = measure(Path(home) / f"slow{number}", given.seconds, **link, **sections)
            except AssertionError as error:
                print(f"{where}: {error}", flush=True)
                continue
            verdict = "exact" if found.history == fast.history else "DIFFERENT"
            times = f"round 1 after {found.first_s:.1f} s, then {found.round_s:.1f} s per round"
            traffic = f"links opened {found.opened} (of {LINKS}), bytes x {found.carried / fast.carried:.2f}"
            print(f"{where}: {verdict}; {times}; {traffic}", flush=True)


if __name__ == "__main__":
    main()
