"""Mapped files of M rows x 20 columns, trained and evaluated by four processes that each have a quarter of the rows.

Clients hold ranges of rows, and those of the second silo are at other processes than those of the first, so that phi of
evaluations travels. Memory is everything that is resident, pages of mapped files counted in, less what a process needs
for a tiny table; the share is a quarter of all features and labels. On a part of the table, one process gives the same.

``TDCD_MAPPED_ROWS`` sets M, 4,000,000 by default.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.hosts import HOSTS, Peak, free_address, losses, watched

ROWS = int(os.environ.get("TDCD_MAPPED_ROWS", "4000000"))
TINY, PART, COLUMNS, SILOS, CLIENTS, ROUNDS = 8000, 400_000, 20, 2, 8, 20
CHUNK = 1 << 20


def write(folder: Path, rows: int) -> Path:
    """Whole numbers of a byte per silo, and labels that follow from all of them."""
    folder.mkdir()
    rng, width = np.random.default_rng(0), COLUMNS // SILOS
    weights = rng.standard_normal((SILOS, width)).astype(np.float32) / 300
    tables = [
        np.lib.format.open_memmap(folder / f"silo{silo}.npy", "w+", "uint8", (rows, width)) for silo in range(SILOS)
    ]
    labels = np.lib.format.open_memmap(folder / "labels.npy", "w+", "float32", (rows,))
    for start in range(0, rows, CHUNK):
        size = min(CHUNK, rows - start)
        scores = rng.logistic(size=size)
        for table, own in zip(tables, weights, strict=True):
            part = np.frombuffer(rng.bytes(size * width), np.uint8).reshape(size, width)
            table[start : start + size] = part
            scores += (part - np.float32(127.5)) @ own
        labels[start : start + size] = scores > 0
    return folder


def train(folder: Path, out: Path, processes: int) -> list[Peak]:
    """What each process needed."""
    address = free_address()
    command = [sys.executable, "-m", "benchmarks.mapped_hosts", str(folder), str(out), address, str(processes)]
    return watched([[*command, str(process)] for process in range(processes)], out)


def work(folder: Path, out: Path, address: str, processes: int, process: int) -> None:
    """One process."""
    from tdcd import Federation, Linear, Objective, Settings, Silo  # noqa: PLC0415 - the others need no JAX
    from tdcd import train as trained  # noqa: PLC0415
    from tdcd.core.execution import Execution  # noqa: PLC0415
    from tdcd.federation.partition import equal_sizes, row_ranges  # noqa: PLC0415
    from tdcd.simulation.devices import join  # noqa: PLC0415

    if processes > 1:
        join(address, process, processes)
    labels = np.load(folder / "labels.npy", mmap_mode="r")
    rows = row_ranges(equal_sizes(len(labels), CLIENTS))
    silos = [
        Silo(f"silo{silo}", np.load(folder / f"silo{silo}.npy", mmap_mode="r"), rows[3 * silo :] + rows[: 3 * silo])
        for silo in range(SILOS)
    ]
    settings = Settings(local_steps=5, batch_size=1000, step_size=1e-6, draws="permutation")
    result = trained(
        Federation(tuple(silos), labels),
        Linear(),
        Objective("logistic", 1e-4),
        settings,
        rounds=ROUNDS,
        evaluate_every=ROUNDS,
        out=out,
        execution=Execution(devices=None if processes > 1 else 1),
        verbose=0,
    )
    print(result, flush=True)


def metrics(out: Path) -> list[dict[str, float]]:
    """The metrics of every line of the history."""
    return [json.loads(line)["metrics"]["train"] for line in (out / "history.jsonl").read_text().splitlines()]


def main() -> dict[str, float]:
    """Train the large table by four processes, and a part of it both ways."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("TDCD_MAPPED_FOLDER")) as name:
        folder = Path(name)
        tiny = _done(train(write(folder / "tiny", TINY), folder / "tiny-run", HOSTS), folder, "tiny-run")
        part = write(folder / "part", PART)
        _done(train(part, folder / "part-together", HOSTS), folder, "part-together")
        _done(train(part, folder / "part-alone", 1), folder, "part-alone")
        large = write(folder / "large", ROWS)
        together = _done(train(large, folder / "together", HOSTS), folder, "together")
        ours, theirs = losses(folder / "part-together"), losses(folder / "part-alone")
        figures_of_part = zip(metrics(folder / "part-together"), metrics(folder / "part-alone"), strict=True)
        course, reached = losses(folder / "together"), metrics(folder / "together")[-1]
    share = ROWS * (COLUMNS + 4) / HOSTS
    resident = [(one.resident - least.resident) / share for one, least in zip(together, tiny, strict=True)]
    data = [(one.data - least.data) / share for one, least in zip(together, tiny, strict=True)]
    figures = {
        "rows": float(ROWS),
        "share_mb": share / 1e6,
        "tiny_resident_mb": max(one.resident for one in tiny) / 1e6,
        "most_resident_mb": max(one.resident for one in together) / 1e6,
        "most_resident_in_shares": max(resident),
        "most_data_in_shares": max(data),
        "processor_s": sum(one.seconds for one in together),
        "loss_before": course[0],
        "loss_after": course[-1],
        "auc_after": reached["auc"],
        "part_largest_difference_of_losses": max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True)),
        "part_largest_difference_of_metrics": max(abs(a[key] - b[key]) for a, b in figures_of_part for key in b),
    }
    for what, figure in figures.items():
        print(f"{what.replace('_', ' '):34} {figure:.6g}")
    return figures


def _done(peaks: list[Peak], folder: Path, run: str) -> list[Peak]:
    """The same, if no process failed."""
    if any(one.status for one in peaks):
        raise SystemExit("\n".join((folder / f"{run}-{place}.log").read_text()[-2000:] for place in range(len(peaks))))
    return peaks


if __name__ == "__main__":
    work(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
