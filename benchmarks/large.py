"""Data larger than the device: M x 50 mapped from files, against the same run with the data in memory.

``TDCD_LARGE_ROWS`` sets M, 10,000,000 by default: 2 GB of float32.
"""

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from benchmarks.timing import alternate
from tdcd import Federation, Linear, Objective, Settings, Silo, Simulation
from tdcd.federation.partition import contiguous_rows, equal_sizes

ROWS = int(os.environ.get("TDCD_LARGE_ROWS", "10000000"))
COLUMNS, SILOS, CLIENTS, BATCH_SIZE, LOCAL_STEPS, ROUNDS = 50, 2, 10, 1000, 10, 50
CHUNK = 1 << 18


def write(folder: Path, dtype: str) -> list[Path]:
    """One file a silo, of random numbers, written in chunks."""
    rng, paths = np.random.default_rng(0), []
    for silo in range(SILOS):
        paths.append(folder / f"silo{silo}.npy")
        table = np.lib.format.open_memmap(paths[-1], "w+", dtype, (ROWS, COLUMNS // SILOS))
        for begin in range(0, ROWS, CHUNK):
            shape = table[begin : begin + CHUNK].shape
            part = rng.standard_normal(shape, np.float32) if dtype == "float32" else rng.integers(0, 256, shape)
            table[begin : begin + CHUNK] = part
        table.flush()
    return paths


def simulation(tables: list[NDArray[Any]]) -> Simulation:
    rows = contiguous_rows(ROWS, equal_sizes(ROWS, CLIENTS))
    silos = tuple(Silo(f"silo{index}", table, rows) for index, table in enumerate(tables))
    labels = np.random.default_rng(1).standard_normal(ROWS, np.float32)
    settings = Settings(local_steps=LOCAL_STEPS, batch_size=BATCH_SIZE, step_size=1e-6)
    return Simulation(Federation(silos, labels), [Linear()] * SILOS, Objective("squared"), settings)


@contextmanager
def watched() -> Iterator[list[int]]:
    """The memory of this process's own, mapped files not counted in, every 20 ms while the block runs; in bytes."""
    seen, over = [0], threading.Event()

    def look() -> None:
        while not over.wait(0.02):
            lines = Path("/proc/self/status").read_text().splitlines()
            seen.extend(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

    thread = threading.Thread(target=look)
    thread.start()
    yield seen
    over.set()
    thread.join()


def main() -> dict[str, float]:
    """Time of a round and the most memory used, both ways."""

    def advance(engine: Simulation) -> None:
        jax.block_until_ready(engine.advance(engine.init(), 0, ROUNDS))

    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for dtype in ("float32", "uint8"):
            paths = write(Path(folder), dtype)
            with watched() as seen:
                mapped = simulation([np.load(path, mmap_mode="r") for path in paths])
                advance(mapped)
                mapped.scores(mapped.init().blocks)
            held = simulation([np.load(path) for path in paths])
            ours, theirs = (s / ROUNDS for s in alternate([partial(advance, e) for e in (mapped, held)], repetitions=3))
            figures |= {f"{dtype}_mapped_ms": ours * 1e3, f"{dtype}_memory_ms": theirs * 1e3}
            figures[f"{dtype}_gigabytes"] = max(seen) / 1e9
            print(
                f"{ROWS:,} x {COLUMNS} {dtype}: {ours * 1e3:.2f} ms a round from a mapped file, {theirs * 1e3:.2f} ms "
                f"from memory ({theirs / ours:.0%} of its rate); {max(seen) / 1e9:.2f} GB besides the file"
            )
            del mapped, held
    return figures
