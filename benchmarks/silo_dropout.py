"""A partner drops out: what the silos that are left reach, on breast cancer and credit data in three silos.

``python -m benchmarks.silo_dropout [--seeds 5] [--rates 0.3 ...] [--only NAME]`` prints tables of held-out log loss and
AUC. For each silo that is missing, and on average over them, it compares the best of the silos that are left, trained
alone; the model without silo dropout, with the missing phi replaced by its mean; and the model with it. The credit data
is that of docs/tutorial.md: TDCD_DATA/credit/guest.csv and host.csv; it is left out where there is none.
"""

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tdcd.compare.baselines import rewrite
from tdcd.config import check_config
from tdcd.config.resolve import Plan, plan
from tdcd.records.run_folder import RunFolder
from tdcd.training.train import Result, train, train_plan

Figures = dict[str, float]
LINEAR, MLP = {"block": "linear", "l2": 1e-3}, {"block": "mlp", "hidden": [16], "l2": 1e-3}
_KINDS = {
    "size": ("radius", "perimeter", "area"),
    "surface": ("texture", "smoothness", "symmetry", "fractal dimension"),
    "shape": ("compactness", "concavity", "concave points"),
}
BREAST: dict[str, Any] = {
    "data": {"source": "breast_cancer"},
    "train": {"rounds": 150, "local_steps": 5, "batch_size": 64, "step_size": 0.1},
    "silos": [
        {
            "name": silo,
            "clients": 3,
            "features": [name for kind in kinds for name in (f"mean {kind}", f"{kind} error", f"worst {kind}")],
        }
        for silo, kinds in _KINDS.items()
    ],
}
_STATISTICS = {"data": BREAST["data"], "train": BREAST["train"], "federation": {"silos": 3, "clients": 3}}
_DATA = Path(os.environ.get("TDCD_DATA", "")).absolute() / "credit"
CREDIT: dict[str, Any] = {
    "data": {"source": "files", "folder": str(_DATA)},
    "train": {"rounds": 400, "local_steps": 10, "batch_size": 256, "step_size": 0.05},
    "silos": [
        {
            "name": silo,
            "table": table,
            "clients": 2,
            "features": [f"x{index}" for index in columns],
            "label": "y" if silo == "amounts" else None,
        }
        for silo, table, columns in (
            ("amounts", "guest.csv", range(1, 13)),
            ("person", "host.csv", range(5)),
            ("repayment", "host.csv", range(5, 10)),
        )
    ],
}
PROBLEMS = {
    "breast by kind of measurement, linear": BREAST | {"model": LINEAR},
    "breast by kind of measurement, mlp": BREAST | {"model": MLP},
    "breast by statistic, linear": _STATISTICS | {"model": LINEAR},
    "credit, linear": CREDIT | {"model": LINEAR},
    "credit, mlp": CREDIT | {"model": MLP},
}


def of_subsets(planned: Plan) -> dict[tuple[str, ...], Figures]:
    """The held-out figures of every subset of silos."""
    with tempfile.TemporaryDirectory() as home:
        penalty = penalty_of(train_plan(planned, Path(home) / "run"))
        found = RunFolder(Path(home) / "run").subsets()["subsets"]
    return {tuple(one["silos"]): {"loss": one["loss"] - penalty, **one["metrics"]} for one in found}


def penalty_of(result: Result) -> float:
    """The regulariser, which is in the losses of a run: it grows with the number of silos."""
    return sum(float(result.simulation.objective.penalty(block)) for block in result.blocks.values())


def alone(planned: Plan, silo: str) -> Figures:
    """The held-out figures of a silo that trains alone."""
    own = rewrite(planned, "local-sgd", silo)
    rounds = own.config.train.rounds
    parts = (own.federation, own.blocks, own.objective, own.settings)
    result = train(*parts, rounds=rounds, evaluate_every=rounds, execution=own.execution, variant=own.variant)
    last = result.history[-1]
    assert last.test_loss is not None
    figures = {name: float(value or 0) for name, value in last.metrics["test"].items()}
    return {"loss": last.test_loss - penalty_of(result), **figures}


def compare(problem: dict[str, Any], rates: Sequence[float], seed: int) -> dict[str, dict[str, Figures]]:
    """By the silo that is missing, "nobody" among them, what each way of going without it reaches."""
    keys = problem | {"seed": seed, "data": problem["data"] | {"seed": seed}}
    keys["evaluate"] = {"every": problem["train"]["rounds"], "stratify": True}
    planned = plan(check_config(keys))
    names = [silo.name for silo in planned.federation.silos]
    ways = {"mean": of_subsets(planned)}
    for rate in rates:
        dropping = keys | {"train": problem["train"] | {"silo_dropout": rate}}
        ways[f"dropout {rate:g}"] = of_subsets(plan(check_config(dropping)))
    single = {name: alone(planned, name) for name in names}
    found = {}
    for missing in ("nobody", *names):
        left = tuple(name for name in names if name != missing)
        best = max((single[name] for name in left), key=lambda one: one["auc"])
        found[missing] = {"best alone": best, **{way: subsets[left] for way, subsets in ways.items()}}
    found["a silo, on average"] = {
        way: {key: float(np.mean([found[name][way][key] for name in names])) for key in ("loss", "auc")}
        for way in found["nobody"]
    }
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
        print(f"\n{name}, {given.seeds} seeds: held-out AUC (log loss)", flush=True)
        for missing in runs[0]:
            cells = []
            for way in runs[0][missing]:
                loss, auc = (float(np.mean([run[missing][way][key] for run in runs])) for key in ("loss", "auc"))
                figures[f"{name}, without {missing}, {way}"] = {"auc": auc, "loss": loss}
                cells.append(f"{way} {auc:.4f} ({loss:.4f})")
            print(f"  without {missing:20s} {'   '.join(cells)}", flush=True)
    return figures


if __name__ == "__main__":
    main()
