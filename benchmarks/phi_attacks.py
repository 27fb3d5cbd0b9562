"""Whether attacks stay under the bound of noise on phi: the audit's, in 20 runs with noise of their own.

``python -m benchmarks.phi_attacks [--runs 20]`` prints a table. Breast cancer, three linear silos with labels
everywhere, every sample in each of three rounds. "Two rows" is how often an attacker is right who knows the silo's
blocks and two rows of which one is the sample's, the other being the one that is easiest to tell from it; the bound is
the accountant's, for what was sent. It takes about five minutes.
"""

import argparse
from typing import Any

import numpy as np

from tdcd.audit import Audit, audit, modes_of
from tdcd.config import check_config
from tdcd.config.resolve import plan

EPSILONS = (0.3, 1.0, 3.0, 10.0)
KEYS: dict[str, Any] = {
    "data": {"source": "breast_cancer"},
    "federation": {"silos": 3, "clients": 3},
    "model": {"block": "linear"},
    "train": {"rounds": 3, "minibatches": "full", "tol": 0.0},
    "evaluate": {"every": 3},
}


def attacked(epsilon: float, seed: int) -> Audit:
    """One run in the mode with noise, and all attacks on it."""
    config = check_config({**KEYS, "seed": seed, "exchange": {"epsilon": epsilon, "clip": 0.3}})
    planned = plan(config)
    noisy = next(mode for mode in modes_of(planned, 1.0) if mode.noise is not None)
    return audit(planned, modes=[noisy])


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    options = parser.parse_args()
    print("| epsilon | two rows: mean | most of all runs and silos | bound | columns, 12 known rows | 25 known rows |")
    print("| --- | --- | --- | --- | --- | --- |")
    for epsilon in EPSILONS:
        audits = [attacked(epsilon, seed) for seed in range(options.runs)]
        findings = [finding for each in audits for finding in each.findings]
        rows = [finding for finding in findings if finding.line == "two rows"]
        right = np.array([finding.recovered or 0.0 for finding in rows])
        few, more = (
            max(finding.recovered or 0.0 for finding in findings if finding.line == line)
            for line in ("few known rows", "known rows")
        )
        bound = f"{rows[0].bound:.3f}"
        print(
            f"| {epsilon:g} | {right.mean():.3f} | {right.max():.3f} | {bound} | {few:.3f} | {more:.3f} |", flush=True
        )


if __name__ == "__main__":
    main()
