"""Real processes that need not wait for each other: ridge regression, one process per hub and client, mutual TLS.

A proxy delays what hubs send each other, so that an exchange takes about as long as computing. Clients sleep for as
long as they are to compute: the times do not depend on how busy the machine is, within reason.

- overlap: two silos, equally fast, with D = 0 and D = 1: rounds per second.
- slow silo: four silos, one of which computes four times as slowly, in step and with overlap, period and both: time to
  the loss at which the run in step ends, and how far apart the final losses are.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.far_hubs import FarHub, holds_port
from tdcd.config import check_config
from tdcd.records.history import Record, read_history
from tdcd.records.run_folder import toml_text
from tdcd.reproduction.experiment import merge
from tdcd.reproduction.results import MeasuredCurve, MeasuredTimes
from tdcd.reproduction.sweep import predicted_ends
from tdcd.runtime.process.forking import environment
from tdcd.runtime.process.trial import Trial

Q, STEP_MS, DELAY_MS, SLOWER = 10, 20.0, 200.0, 4
PHI_SHARE = 0.05
"""What phi takes of the time of a round's local steps: 0.044 to 0.050 in a client of the paper's ridge regression."""
EVERY, ROUNDS, EXTRA = 5, 60, 10
"""The run in step has ``ROUNDS``; the others have more, to get to where it ends."""
FAST_LINK = {"latency_ms": 0.2, "mbit_s": 1000}
CONFIG: dict[str, Any] = {
    "data": {"source": "superconductors", "rows": 2000},
    "model": {"block": "linear", "l2": 0.01},
    "train": {"rounds": ROUNDS, "local_steps": Q, "batch_size": 100, "step_size": 1e-3},
    "evaluate": {"holdout": 0.0, "every": EVERY},
    "network": {
        "client_hub": FAST_LINK,
        "hub_hub": {"latency_ms": DELAY_MS, "mbit_s": 1000},
        "step_ms": STEP_MS,
    },
}
SLOW = "slow"


class SlowTrial(Trial):
    """A trial whose hubs are far from each other, and whose clients compute at a given pace."""

    def _start(self, party: str, role: str, options: list[str]) -> None:
        command, shared = [sys.executable, "-m"], str(self.folder / "federation.toml")
        if role == "hub":
            command += ["tdcd", "hub", shared, *options, "--listen", self.behind[party]]
        else:
            steps = STEP_MS / 1e3 * Q * (SLOWER if party.split(".")[1] == SLOW else 1)
            command += ["benchmarks.slow_client", str(PHI_SHARE * steps), str(steps), shared, *options]
        with (self.folder / "logs" / f"{party}.log").open("ab") as log:
            self.processes[party] = subprocess.Popen(command, stdout=log, stderr=log, env=environment())

    def seconds(self) -> tuple[list[Record], list[float]]:
        """Run it to its end: the history, and when all hubs had each line of it, from the first on."""
        hubs = zip(self.job.hubs, self.job.config.silos, strict=True)
        self.behind = {hub: str(silo.hub) for hub, silo in hubs}
        links = {address: FarHub(address, DELAY_MS / 1e3, self._is_a_hub) for address in self.behind.values()}
        shared = self.folder / "federation.toml"
        for address, link in links.items():
            shared.write_text(shared.read_text().replace(address, link.address))
        try:
            outcome = self.run(lambda: None, lambda: False)
        finally:
            for link in links.values():
                link.close()
        assert outcome.status == "finished", outcome
        homes = [self.folder / "silos" / silo.name for silo in self.job.config.silos]
        histories = [read_history(home / "history.jsonl") for home in homes]
        times = [[line.seconds - history[0].seconds for line in history] for history in histories]
        return histories[0], [max(of_line) for of_line in zip(*times, strict=True)]

    def _is_a_hub(self, port: int) -> bool:
        return any(holds_port(self.processes[hub].pid, port) for hub in self.behind if hub in self.processes)


def measure(label: str, names: list[str], rounds: int, overlap: int = 0, period: int = 1) -> MeasuredCurve:
    """Run a federation of these silos, two clients each."""
    silos = [{"name": name, "clients": 2, "period": period if name == SLOW else 1} for name in names]
    slower = {SLOW: SLOWER} if SLOW in names else {}
    own = {"silos": silos, "train": {"rounds": rounds, "overlap": overlap}, "network": {"slower": slower}}
    config = merge(CONFIG, own)
    with tempfile.TemporaryDirectory(prefix="tdcd-stragglers-") as name:
        path = Path(name) / "config.toml"
        path.write_text(toml_text(config))
        history, seconds = SlowTrial.prepare(path, [], Path(name) / "trial").seconds()
    ends = predicted_ends(check_config(config), rounds, PHI_SHARE)
    return MeasuredCurve(
        label=label,
        rounds=[line.round for line in history],
        losses=[line.train_loss for line in history],
        seconds=seconds,
        predicted=[ends[line.round] for line in history],
    )


def overlap() -> dict[str, float]:
    """Two silos alike, with and without overlap."""
    rates = []
    for depth in (0, 1):
        curve = measure(f"D = {depth}", ["a", "b"], ROUNDS // 2, overlap=depth)
        rates.append((rate(curve.rounds, curve.seconds), rate(curve.rounds, curve.predicted)))
    (plain, plain_model), (late, late_model) = rates
    print(
        f"2 silos, exchange {DELAY_MS:.0f} ms, computing {computing_ms():.0f} ms: D = 0 {plain:.2f} rounds/s, "
        f"D = 1 {late:.2f} rounds/s: {late / plain:.2f} times (predicted {late_model / plain_model:.2f} times)",
        flush=True,
    )
    return {"in_step_rounds_per_s": plain, "overlap_rounds_per_s": late, "overlap_gain": late / plain}


def rate(rounds: list[int], seconds: list[float]) -> float:
    """Rounds per second."""
    return rounds[-1] / (seconds[-1] - seconds[0])


def computing_ms() -> float:
    """Of a round, in a silo that is not slow."""
    return STEP_MS * Q * (1 + PHI_SHARE)


def slow_silo() -> dict[str, Any]:
    """Four silos, one of them slow."""
    names, more = ["a", "b", "c", SLOW], ROUNDS + EXTRA
    curves = [
        measure("in step", names, ROUNDS),
        measure("overlap", names, more, overlap=1),
        measure("period", names, more, period=SLOWER),
        measure("both", names, more, overlap=1, period=SLOWER),
    ]
    plain = curves[0]
    gains, excesses = {}, {}
    for curve in curves[1:]:
        level = plain.losses[-1]
        gains[curve.label] = plain.seconds[-1] / curve.until(level, curve.seconds)
        predicted = plain.predicted[-1] / curve.until(level, curve.predicted)
        excesses[curve.label] = curve.losses[curve.rounds.index(ROUNDS)] / plain.losses[-1] - 1
        print(
            f"4 silos, one {SLOWER} times slower, {curve.label}: {gains[curve.label]:.2f} times sooner at the loss of "
            f"the run in step (predicted {predicted:.2f}), {100 * excesses[curve.label]:+.2f} % after as many rounds",
            flush=True,
        )
    about = (
        f"4 silos x 2 clients, each a process of its own, mutual TLS; a proxy delays what hubs send each other by "
        f"{DELAY_MS:.0f} ms. Clients sleep for as long as they are to compute: {computing_ms():.0f} ms per round, and "
        f"{SLOWER} times that in the slow silo. Ridge regression on 2,000 rows, Q = {Q}; losses are those of the hubs, "
        "from one run each. On the left, when rounds are over by the network model; on the right, when they were."
    )
    return {"gain": gains, "excess": excesses, **MeasuredTimes(about=about, curves=curves).model_dump()}


def main() -> dict[str, Any]:
    return {**overlap(), **slow_silo()}
