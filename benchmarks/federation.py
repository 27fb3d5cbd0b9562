"""A real federation's round against one that only echoes: 2 silos x 3 clients on loopback, each a process, mutual TLS.

Ridge regression, M = 20000, D = 82, Q = 10, B = 100. Both send messages of the same sizes over the same transport, and
take turns, since the speed of a machine that others share changes from minute to minute.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from tdcd.records.history import read_history
from tdcd.records.run_folder import toml_text
from tdcd.runtime.messages.messages import Part
from tdcd.runtime.messages.structure import Array
from tdcd.runtime.messages.wire import encode
from tdcd.runtime.process.forking import environment
from tdcd.runtime.process.trial import Trial

EVERY, ROUNDS, TURNS = 500, 1000, 5
CONFIG = {
    "data": {"source": "superconductors", "rows": 20000},
    "model": {"block": "linear", "l2": 0.01},
    "train": {"rounds": ROUNDS, "local_steps": 10, "batch_size": 100, "step_size": 1e-3},
    "evaluate": {"holdout": 0.0, "every": EVERY},
    "silos": [{"name": "a", "clients": 3}, {"name": "b", "clients": 3}],
}


def real_round(folder: Path, config: dict = CONFIG) -> float:
    """Seconds of a round after the first few hundred, with the evaluation of the last one in it."""
    path = folder / "config.toml"
    path.write_text(toml_text(config))
    trial = Trial.prepare(path, [], folder / "trial")
    outcome = trial.run(lambda: None, lambda: False)
    assert outcome.status == "finished", outcome
    history = read_history(folder / "trial" / "silos" / "a" / "history.jsonl")
    return (history[-1].seconds - history[1].seconds) / (history[-1].round - history[1].round)


def echo_round(folder: Path) -> float:
    """Seconds of a round of messages alone; the slower of the two hubs' figures."""
    sizes = {
        "block": _size(np.zeros((42, 1), np.float32)),
        "phi": _size(np.zeros((333, 1), np.float32)),
        "exchange": _size(np.zeros((1000, 1), np.float32)),
    }
    parties = [f"hub.{s}" for s in "ab"] + [f"client.{s}.c{k}" for s in "ab" for k in (1, 2, 3)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.echo", party, str(folder / "trial"), json.dumps(sizes)],
            stdout=subprocess.PIPE,
            env=environment(),
        )
        for party in parties
    ]
    printed = [process.communicate(timeout=120)[0].decode().strip() for process in processes]
    return max(float(line) for line in printed if line)


def _size(phi: np.ndarray) -> int:
    return len(encode(Part("client.a.c1", "hub.a", 100, "0" * 32, flow="phi", arrays={"100.phi": Array.of(phi)})))


def _turn() -> tuple[float, float, float]:
    """Seconds of a round, of its messages alone, and their ratio."""
    with tempfile.TemporaryDirectory() as name:
        real, echo = real_round(Path(name)), echo_round(Path(name))
    return real, echo, real / echo


def main() -> dict[str, float]:
    turns = [_turn() for _ in range(TURNS)]
    real, echo, ratio = (statistics.median(column) for column in zip(*turns, strict=True))
    ratios = sorted(one for _, _, one in turns)
    figures = {"round_ms": 1e3 * real, "echo_ms": 1e3 * echo, "ratio": ratio}
    print(
        f"federation of 2 silos x 3 clients, loopback, mutual TLS: a round takes {figures['round_ms']:.2f} ms, "
        f"its messages alone {figures['echo_ms']:.2f} ms: {ratio:.1f} times "
        f"(medians of {TURNS} turns, from {ratios[0]:.1f} to {ratios[-1]:.1f} times)",
        flush=True,
    )
    return figures
