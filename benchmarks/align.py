"""``python -m benchmarks.align [--ids 10000] [--population 15000]``: ``tdcd align`` of three hubs, as real processes.

Each hub has ``--ids`` ids out of a population, drawn at random, and labels everywhere, so that every two hubs compare.
The time is that from the first command to the end of the last, over mutual TLS on one machine; processor time is that
of all three.
"""

import argparse
import csv
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tdcd.config import check_config
from tdcd.records.run_folder import toml_text
from tdcd.runtime.process.trial import Trial

SILOS = ("bank", "shop", "bureau")


def main(arguments: Sequence[str] = ()) -> dict[str, float]:
    """Align, and print how long it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ids", type=int, default=10_000)
    parser.add_argument("--population", type=int, default=15_000)
    given = parser.parse_args([*arguments])
    with tempfile.TemporaryDirectory(prefix="tdcd-align-") as home:
        return aligned(Path(home), given.ids, given.population)


def aligned(folder: Path, ids: int, population: int) -> dict[str, float]:
    """The seconds, and the processor's seconds."""
    rng = np.random.default_rng(0)
    for silo in SILOS:
        with (folder / f"{silo}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", "age", "y"])
            writer.writerows(
                (f"k{sample}", sample % 70, sample % 2) for sample in rng.choice(population, ids, replace=False)
            )
    keys = {
        "data": {"source": "files", "folder": str(folder), "samples": "all"},
        "silos": [{"name": silo, "table": f"{silo}.csv", "clients": 1, "label": "y"} for silo in SILOS],
    }
    check_config(keys)
    (folder / "shared.toml").write_text(toml_text(keys))
    trial = Trial.prepare(folder / "shared.toml", [], folder / "trial")
    began, before = time.monotonic(), os.times()
    started = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "tdcd", "align", str(trial.folder / "federation.toml"), "--silo", silo),
                *("--certs", str(trial.folder / "certs"), "--data", str(folder / f"{silo}.csv")),
                *("--out", str(folder / f"{silo}.json")),
            ],
            stdout=subprocess.DEVNULL,
        )
        for silo in SILOS
    ]
    for process in started:
        if process.wait():
            raise RuntimeError(f"tdcd align ended with {process.returncode}")
    seconds, after = time.monotonic() - began, os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    print(
        f"{len(SILOS)} hubs with {ids:,} ids each: {seconds:.1f} s, {spent:.1f} s of processor time in all", flush=True
    )
    return {"seconds": seconds, "processor seconds": spent}


if __name__ == "__main__":
    main(sys.argv[1:])
