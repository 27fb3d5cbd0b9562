"""A partner drops out: held-out loss and AUC of the silos that are left, of breast cancer and of credit data.

``python -m benchmarks.silo_dropout [--seeds 5] [--rates 0.3 ...] [--only NAME]`` prints tables. For each silo that is
missing it compares, on the same held-out samples, the model with silo dropout; the model without it, with the missing
phi replaced by its mean; and the best of the silos that are left, trained alone. The credit data is that of
docs/tutorial.md: TDCD_DATA/credit/guest.csv and host.csv; it is left out where there is none.
"""

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tdcd.config import check_config
from tdcd.config.baselines import rewrite
from tdcd.config.resolve import Plan, plan
from tdcd.records.run_folder import RunFolder
from tdcd.training.run import execute
from tdcd.training.train import train

Figures = dict[str, float]
LINEAR, MLP = {"block": "linear", "l2": 1e-3}, {"block": "mlp", "hidden": [16], "l2": 1e-3}
BREAST: dict[str, Any] = {
    "data": {"source": "breast_cancer"},
    "federation": {"silos": 3, "clients": 3},
    "train": {"rounds": 150, "local_steps": 5, "batch_size": 64, "step_size": 0.1},
}
_DATA = Path(os.environ.get("TDCD_DATA", "")).absolute() / "credit"
CREDIT: dict[str, Any] = {
    "data": {"source": "files", "folder": str(_DATA)},
    "train": {"rounds": 150, "local_steps": 10, "batch_size": 256, "step_size": 0.05},
    "silos": [
        {
            "name": "amounts",
            "table": "guest.csv",
            "clients": 2,
            "label": "y",
            "features": [f"x{i}" for i in range(1, 13)],
        },
        {"name": "person", "table": "host.csv", "clients": 2, "features": [f"x{i}" for i in range(5)]},
        {"name": "repayment", "table": "host.csv", "clients": 2, "features": [f"x{i}" for i in range(5, 10)]},
    ],
}
PROBLEMS = {
    "breast, linear": BREAST | {"model": LINEAR},
    "breast, mlp": BREAST | {"model": MLP},
    "credit, linear": CREDIT | {"model": LINEAR},
    "credit, mlp": CREDIT | {"model": MLP},
}


def of_subsets(planned: Plan) -> dict[tuple[str, ...], Figures]:
    """The held-out figures of every subset of silos."""
    with tempfile.TemporaryDirectory() as home:
        execute(planned, Path(home) / "run")
        found = RunFolder(Path(home) / "run").subsets()["subsets"]
    return {tuple(one["silos"]): {"loss": one["loss"], **one["metrics"]} for one in found}


def alone(planned: Plan, silo: str) -> Figures:
    """The held-out figures of a silo that trains alone."""
    own = rewrite(planned, "local-sgd", silo)
    rounds = own.config.train.rounds
    parts = (own.federation, own.blocks, own.objective, own.settings)
    last = train(*parts, rounds=rounds, evaluate_every=rounds, execution=own.execution, variant=own.variant).history[-1]
    assert last.test_loss is not None
    return {"loss": last.test_loss, **{name: float(value or 0) for name, value in last.metrics["test"].items()}}


def compare(problem: dict[str, Any], rates: Sequence[float], seed: int) -> dict[str, dict[str, Figures]]:
    """By the silo that is missing ("" for none), what each way of going without it reaches."""
    keys = problem | {"seed": seed, "data": problem["data"] | {"seed": seed}}
    keys["evaluate"] = {"every": problem["train"]["rounds"], "stratify": True}
    planned = plan(check_config(keys))
    names = [silo.name for silo in planned.federation.silos]
    ways = {"mean": of_subsets(planned)}
    for rate in rates:
        ways[f"dropout {rate:g}"] = of_subsets(
            plan(check_config(keys | {"train": problem["train"] | {"silo_dropout": rate}}))
        )
    single = {name: alone(planned, name) for name in names}
    found = {}
    for missing in ("", *names):
        left = tuple(name for name in names if name != missing)
        best = min((single[name] for name in left), key=lambda one: one["loss"])
        found[missing] = {"best alone": best, **{way: subsets[left] for way, subsets in ways.items()}}
    return found


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Print a table per problem; its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.3])
    parser.add_argument("--only", default="", help="problems whose name begins with this")
    given, figures = parser.parse_args(arguments), {}
    for name, problem in PROBLEMS.items():
        if not name.startswith(given.only) or (problem["data"]["source"] == "files" and not _DATA.is_dir()):
            continue
        runs = [compare(problem, given.rates, seed) for seed in range(given.seeds)]
        print(f"\n{name}, {given.seeds} seeds: mean held-out loss (AUC)", flush=True)
        for missing in runs[0]:
            cells = []
            for way in runs[0][missing]:
                loss, auc = (np.mean([run[missing][way][key] for run in runs]) for key in ("loss", "auc"))
                figures[f"{name}, without {missing or 'nobody'}, {way}"] = float(loss)
                cells.append(f"{way} {loss:.4f} ({auc:.4f})")
            wins = [
                sum(
                    run[missing][way]["loss"] < min(run[missing][w]["loss"] for w in ("mean", "best alone"))
                    for run in runs
                )
                for way in runs[0][missing]
                if way.startswith("dropout")
            ]
            print(f"  without {missing or 'nobody':10s} {'  '.join(cells)}  wins {wins}", flush=True)
    return figures


if __name__ == "__main__":
    main()
