"""Poisson regression over two silos against scikit-learn's on the joined table: held-out deviance of both.

``python -m benchmarks.counts TABLE.csv --label COLUMN`` takes any table of counts, gives the first half of its other
columns to one silo and the rest to the other, and trains with the Poisson loss. scikit-learn's PoissonRegressor gets
the same prepared features, column of ones, l2 and held-out rows.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
from sklearn.linear_model import PoissonRegressor
from sklearn.metrics import mean_poisson_deviance

from tdcd.config import check_config
from tdcd.config.resolve import Plan, plan
from tdcd.training.train import train


def planned_for(table: Path, label: str, folder: Path, options: argparse.Namespace) -> Plan:
    """The columns dealt out to two silos with three clients each."""
    whole = pa.csv.read_csv(table)
    names = [name for name in whole.column_names if name != label and name not in options.ignore]
    halves = {"insurer": names[: len(names) // 2], "partner": names[len(names) // 2 :]}
    ids = pa.array(np.arange(len(whole)))
    for silo, columns in halves.items():
        own = whole.select([*columns, *([label] if silo == "insurer" else [])])
        pa.csv.write_csv(own.add_column(0, "row_id", ids), folder / f"{silo}.csv")
    texts = {field.name for field in whole.schema if pa.types.is_string(field.type)}
    silos: list[dict[str, Any]] = [
        {
            "name": silo,
            "table": f"{silo}.csv",
            "id": "row_id",
            "clients": 3,
            "categorical": [name for name in columns if name in texts],
        }
        for silo, columns in halves.items()
    ]
    silos[0]["label"] = label
    keys = {
        "data": {"source": "files", "folder": str(folder)},
        "model": {"block": "linear", "loss": "poisson", "l2": options.l2},
        "train": {"local_steps": 10, "batch_size": options.batch_size, "step_size": options.step_size},
        "silos": silos,
    }
    return plan(check_config(keys))


def main() -> None:
    """Parse, train, compare."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.counts", description=__doc__)
    parser.add_argument("table", type=Path)
    parser.add_argument("--label", required=True)
    parser.add_argument("--ignore", nargs="*", default=[], help="columns to leave out")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--step-size", type=float, default=0.05)
    parser.add_argument("--l2", type=float, default=1e-4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        planned = planned_for(options.table, options.label, Path(folder), options)
    federation = planned.federation
    result = train(federation, planned.blocks, planned.objective, planned.settings, rounds=options.rounds)
    features = np.hstack([np.asarray(silo.features, np.float64) for silo in federation.silos])
    held_out = np.hstack([np.asarray(silo.test_features, np.float64) for silo in federation.silos])
    theirs = PoissonRegressor(alpha=options.l2, fit_intercept=False, max_iter=10_000, tol=1e-7)
    theirs.fit(features, federation.labels)
    # Labels are counts divided by their mean.
    unit = federation.label_scale
    counts = unit * np.asarray(federation.test_labels, np.float64)
    deviance = mean_poisson_deviance(counts, unit * theirs.predict(held_out))
    mean = mean_poisson_deviance(counts, np.full(len(counts), unit))
    ours = result.history[-1].metrics["test"]["deviance"]
    assert ours is not None
    print(f"{options.table.name}: {len(features)} training rows, {features.shape[1]} features, {len(counts)} held out")
    print(f"held-out deviance: mean alone {mean:.4f}, scikit-learn {deviance:.4f}, tdcd {ours:.4f}")
    print(f"tdcd / scikit-learn: {ours / deviance:.4f}")


if __name__ == "__main__":
    main()
