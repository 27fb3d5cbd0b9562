"""What noise on phi costs: held-out AUC and log loss over epsilon, of the model without noise in its scores.

``python -m benchmarks.phi_privacy [--out FOLDER] [--seeds 5]`` prints a table and draws phi_privacy.svg. The data are
those of docs/tutorial.md and docs/benchmarks.md: TDCD_DATA/credit and TDCD_DATA/tables. It takes a few minutes.
"""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from benchmarks.defaults import PERSON
from tdcd.config import check_config
from tdcd.config.resolve import plan
from tdcd.core.losses import metrics
from tdcd.training.train import train_plan

EPSILONS = (0.3, 1.0, 3.0, 10.0, 30.0, None)
ROUNDS, CLIP = 3, 0.3
PLAIN_ROUNDS = 100
FIGURES = ("auc", "log loss")
ALONE = "alone"
"""In place of an epsilon: each silo trains without the others, and the better one is shown."""


def problems(scratch: Path) -> dict[str, dict[str, Any]]:
    """The data, as the configuration has them."""
    data = Path(os.environ.get("TDCD_DATA", "")).absolute()
    rows = pd.read_csv(data / "tables" / "adult.csv.gz")
    columns = [name for name in rows.columns if name not in ("income", *PERSON)]
    rows[["id", *PERSON, "income"]].to_csv(scratch / "person.csv", index=False)
    rows[columns].to_csv(scratch / "work.csv", index=False)
    return {
        "breast (455 training rows)": {"data": {"source": "breast_cancer"}, "federation": {"silos": 2, "clients": 3}},
        "credit (24,000 training rows)": {
            "data": {"source": "files", "folder": str(data / "credit")},
            "silos": [
                {"name": "bank", "table": "guest.csv", "clients": 5, "label": "y"},
                {"name": "bureau", "table": "host.csv", "clients": 3},
            ],
        },
        "adult (26,049 training rows)": {
            "data": {"source": "files", "folder": str(scratch)},
            "silos": [
                {
                    "name": "person",
                    "table": "person.csv",
                    "clients": 5,
                    "label": "income",
                    "categorical": [name for name in PERSON if name != "age"],
                },
                {
                    "name": "work",
                    "table": "work.csv",
                    "clients": 3,
                    "categorical": ["workclass", "education", "occupation"],
                },
            ],
        },
    }


def scored(problem: dict[str, Any], epsilon: float | str | None, seed: int) -> list[float]:
    """AUC and log loss on held-out samples, by the exact scores of the model."""
    rounds = ROUNDS if isinstance(epsilon, float) else PLAIN_ROUNDS
    keys = problem | {
        "seed": seed,
        "data": problem["data"] | {"seed": seed},
        "model": {"block": "linear"},
        "train": {"rounds": rounds, "tol": 0.0},
        "evaluate": {"every": rounds},
        "exchange": {"epsilon": epsilon, "clip": CLIP} if isinstance(epsilon, float) else {},
    }
    if epsilon == ALONE:
        names = [silo["name"] for silo in problem.get("silos", [])] or ["silo1", "silo2"]
        alone = [_trained(keys | {"train": keys["train"] | {"algorithm": "local-sgd", "silo": name}}) for name in names]
        return max(alone)
    return _trained(keys)


def _trained(keys: dict[str, Any]) -> list[float]:
    planned = plan(check_config(keys))
    result = train_plan(planned)
    federation, simulation = planned.federation, result.simulation
    features = [silo.test_features for silo in federation.silos]
    scores = simulation.scores([result.blocks[silo.name] for silo in federation.silos], features)
    figures = metrics(planned.objective.loss, planned.objective.scores(scores), federation.test_labels)
    plain = planned.objective.losses(scores, federation.test_labels)
    return [figures["auc"] or 0.0, float(np.mean(plain))]


def main() -> None:
    """Parse, run, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    _, panels = plt.subplots(1, len(FIGURES), figsize=(9, 3.6), layout="constrained")
    print("| data | epsilon | AUC | log loss |\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as scratch:
        for marker, (name, problem) in zip("os^", problems(Path(scratch)).items(), strict=True):
            cases = (*EPSILONS, ALONE)
            found = np.array([[scored(problem, case, seed) for seed in range(options.seeds)] for case in cases])
            mean, deviation = found.mean(axis=1), found.std(axis=1)
            for epsilon, average, spread in zip(cases, mean, deviation, strict=True):
                said = epsilon if isinstance(epsilon, str) else "none" if epsilon is None else f"{epsilon:g}"
                cells = " | ".join(f"{center:.3f} ± {off:.3f}" for center, off in zip(average, spread, strict=True))
                print(f"| {name} | {said} | {cells} |", flush=True)
            for place, panel in enumerate(panels):
                line = panel.errorbar(
                    EPSILONS[:-1], mean[:-2, place], deviation[:-2, place], marker=marker, capsize=3, label=name
                )
                panel.axhline(mean[-2, place], linestyle=":", color=line[0].get_color())
                panel.axhline(mean[-1, place], linestyle="--", linewidth=0.7, color=line[0].get_color())
    for panel, title in zip(panels, (f"held-out {name}" for name in FIGURES), strict=True):
        panel.set(xscale="log", xlabel="epsilon", title=title)
        panel.set_xticks(EPSILONS[:-1], [f"{epsilon:g}" for epsilon in EPSILONS[:-1]])
        panel.minorticks_off()
    panels[0].legend(title="dotted: no noise; dashed: one silo alone")
    plt.savefig(options.out / "phi_privacy.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
