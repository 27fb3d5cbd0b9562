"""A sweep: 32 ridge runs that differ in seed, step size and l2, batched in one program against one after another.

M = 2000, D = 82, N = 4, K = 2, B = 20, Q = 4, 200 rounds with an evaluation every 2; compiling is counted in.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.figures import peak_memory
from tdcd.training.run import finish
from tdcd.training.sweep.grid import expand
from tdcd.training.sweep.runner import planned
from tdcd.training.sweep.sweep import run_sweep

KEYS = {
    "seed": [0, 1, 2, 3, 4, 5, 6, 7],
    "data": {"source": "superconductors", "rows": 2000},
    "federation": {"silos": 4, "clients": 2},
    "model": {"block": "linear", "l2": [0.0, 0.01]},
    "train": {"rounds": 200, "local_steps": 4, "batch_size": 20, "step_size": [0.001, 0.005]},
    "evaluate": {"every": 2, "holdout": 0.0},
}


def main() -> dict[str, Any]:
    """Seconds for all runs."""
    grid = expand(KEYS)
    planned(grid.settings[0].config)
    with tempfile.TemporaryDirectory() as name:
        began = time.perf_counter()
        run_sweep(grid, Path(name) / "together")
        together = time.perf_counter() - began
        began = time.perf_counter()
        for setting in grid.settings:
            finish(planned(setting.config), Path(name) / "alone" / setting.name)
        alone = time.perf_counter() - began
    figures = {"together_s": together, "alone_s": alone, "ratio": alone / together, "runs": len(grid.settings)}
    print(
        f"sweep of {len(grid.settings)} ridge runs: {together:.1f} s batched, {alone:.1f} s one after another "
        f"({alone / together:.1f} times); peak memory {peak_memory() / 1e9:.2f} GB"
    )
    return figures
