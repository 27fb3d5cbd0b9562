"""How the cost of a round and the memory grow with the clients of a silo, 5 to 500."""

import math
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ridge import advance, federation, simulation
from benchmarks.timing import alternate
from tdcd import Federation, Silo
from tdcd.federation import aligned_empty
from tdcd.partition import shuffled_rows

CLIENTS = (5, 16, 50, 158, 500)
ROWS_PER_CLIENT = 4000


def main() -> dict[str, Any]:
    """Rows per client fixed, in all and in the minibatch (20 each): the work per client is fixed."""
    seconds = []
    for clients in CLIENTS:
        engine = simulation(federation(clients, 400), batch_size=20 * clients)
        rounds = max(4, 640 // clients)
        (taken,) = alternate([partial(advance, engine, rounds)], repetitions=3)
        seconds.append(taken / rounds)
        print(f"K={clients:4d}: {seconds[-1] * 1e3:8.3f} ms a round, {seconds[-1] / clients * 1e6:6.1f} us a client")
    slope = math.log(seconds[-1] / seconds[0]) / math.log(CLIENTS[-1] / CLIENTS[0])
    print(f"growth exponent from K={CLIENTS[0]} to K={CLIENTS[-1]}: {slope:.2f} (1 is linear)")
    memory = float(subprocess.check_output([sys.executable, "-m", "benchmarks.clients"], text=True))
    print(f"peak memory at K=500, {500 * ROWS_PER_CLIENT:,} rows: {memory:.2f} times the data")
    return {"clients": CLIENTS, "seconds": seconds, "exponent": slope, "memory_over_data": memory}


def peak_memory_over_data() -> float:
    """Peak resident memory of a run at K=500 above that of a tiny one, over the bytes of the features."""
    advance(simulation(federation(5, 40)), 2)
    before = peak_memory()
    rng = np.random.default_rng(0)
    num_samples = 500 * ROWS_PER_CLIENT
    silos = []
    for index in range(4):
        features = aligned_empty((num_samples, 20), np.float32)
        rng.standard_normal(out=features, dtype=np.float32)
        rows = shuffled_rows(num_samples, [ROWS_PER_CLIENT] * 500, np.random.default_rng(index))
        silos.append(Silo(f"silo{index}", features, rows))
    data = Federation(tuple(silos), rng.standard_normal(num_samples, np.float32))
    engine = simulation(data)
    engine.scores(engine.init())
    advance(engine, 64)
    size = sum(silo.features.nbytes for silo in silos)
    return (peak_memory() - before) / size


def peak_memory() -> int:
    """The most bytes this process has had resident; unlike getrusage, without its parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    print(peak_memory_over_data())
