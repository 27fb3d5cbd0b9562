"""How the cost of a round and the memory grow with the clients of a silo, 10 to 1,000, at a fixed minibatch."""

import subprocess
import sys
from functools import partial
from typing import Any

import numpy as np

from benchmarks.figures import peak_memory
from benchmarks.ridge import advance, federation, simulation
from benchmarks.timing import alternate
from tdcd import Federation, Silo
from tdcd.federation.partition import aligned_empty, shuffled_rows

CLIENTS = (10, 30, 100, 300, 1000)
NUM_SAMPLES, BATCH_SIZE = 120_000, 10_000
ROWS_PER_CLIENT = 4000


def main() -> dict[str, Any]:
    """Rows fixed, in all and in the minibatch: only the number of clients grows."""
    engines = [simulation(federation(clients, NUM_SAMPLES // clients), BATCH_SIZE) for clients in CLIENTS]
    seconds = [taken / 4 for taken in alternate([partial(advance, engine, 4) for engine in engines], repetitions=3)]
    for clients, taken in zip(CLIENTS, seconds, strict=True):
        print(f"K={clients:4d}: {taken * 1e3:8.2f} ms a round of B={BATCH_SIZE}")
    growth = seconds[-1] / seconds[0]
    print(f"a round with {CLIENTS[-1]} clients a silo takes {growth:.2f} times as long as one with {CLIENTS[0]}")
    memory = float(subprocess.check_output([sys.executable, "-m", "benchmarks.clients"], text=True))
    print(f"peak memory at K=500, {500 * ROWS_PER_CLIENT:,} rows: {memory:.2f} times the data")
    return {"clients": CLIENTS, "seconds": seconds, "growth": growth, "memory_over_data": memory}


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
    engine.scores(engine.init().blocks)
    advance(engine, 64)
    size = sum(silo.features.nbytes for silo in silos)
    return (peak_memory() - before) / size


if __name__ == "__main__":
    print(peak_memory_over_data())
