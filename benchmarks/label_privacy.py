"""What randomised labels cost: held-out AUC and accuracy over epsilon, scored with the true labels.

``python -m benchmarks.label_privacy [--out FOLDER] [--seeds 10]`` prints a table and draws label_privacy.svg. The
credit data is that of docs/tutorial.md: TDCD_DATA/credit/guest.csv and host.csv. It takes a few minutes.
"""

import argparse
import os
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from tdcd.config import check_config
from tdcd.config.resolve import plan
from tdcd.core.losses import metrics
from tdcd.core.randomized import Response
from tdcd.training.train import train

EPSILONS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, None)
LINEAR = {"block": "linear"}
PROBLEMS: dict[str, dict[str, Any]] = {
    "breast (455 training rows)": {
        "data": {"source": "breast_cancer"},
        "federation": {"silos": 2, "clients": 3},
        "model": LINEAR | {"l2": 0.1},
        "train": {"rounds": 100, "local_steps": 5, "batch_size": 64, "step_size": 0.05},
    },
    "credit (24,000 training rows)": {
        "data": {"source": "files", "folder": str(Path(os.environ.get("TDCD_DATA", "")).absolute() / "credit")},
        "federation": {},
        "model": LINEAR | {"l2": 0.01},
        "train": {"rounds": 200, "local_steps": 10, "batch_size": 512, "step_size": 0.05},
        "silos": [
            {"name": "bank", "table": "guest.csv", "clients": 5, "label": "y"},
            {"name": "bureau", "table": "host.csv", "clients": 3},
        ],
    },
}
FIGURES = ("auc", "accuracy")


def scored(problem: dict[str, Any], epsilon: float | None, seed: int) -> list[float]:
    """AUC and accuracy on held-out samples and their true labels, of a model that saw randomised ones only."""
    keys = problem | {"seed": seed, "data": problem["data"] | {"seed": seed}}
    truth = plan(check_config(keys)).federation
    if epsilon is not None:
        classes = {"label_classes": [0, 1]} if problem["data"]["source"] == "files" else {}
        keys["federation"] = keys["federation"] | {"label_epsilon": epsilon} | classes
    planned = plan(check_config(keys))
    rounds = planned.config.train.rounds
    result = train(
        planned.federation,
        planned.blocks,
        planned.objective,
        planned.settings,
        rounds=rounds,
        evaluate_every=rounds,
    )
    assert truth.test_labels is not None
    scores = result.scores([silo.test_features for silo in truth.silos if silo.test_features is not None])
    found = metrics(planned.objective.loss, scores, truth.test_labels)
    return [found[name] or 0.0 for name in FIGURES]


def main() -> None:
    """Parse, run, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    _, panels = plt.subplots(1, len(FIGURES), figsize=(9, 3.6), layout="constrained")
    print("| data | epsilon | labels kept | AUC | accuracy |\n| --- | --- | --- | --- | --- |")
    for marker, (name, problem) in zip("os", PROBLEMS.items(), strict=True):
        found = np.array([[scored(problem, one, seed) for seed in range(options.seeds)] for one in EPSILONS])
        mean, deviation = found.mean(axis=1), found.std(axis=1)
        for epsilon, average, spread in zip(EPSILONS, mean, deviation, strict=True):
            kept = 100.0 if epsilon is None else 100 * Response.of(epsilon, 2).keep
            cells = " | ".join(f"{one:.3f} ± {two:.3f}" for one, two in zip(average, spread, strict=True))
            print(f"| {name} | {'none' if epsilon is None else f'{epsilon:g}'} | {kept:.0f} % | {cells} |", flush=True)
        for panel, place in zip(panels, range(len(FIGURES)), strict=True):
            x, known = EPSILONS[:-1], slice(None, -1)
            line = panel.errorbar(x, mean[known, place], deviation[known, place], marker=marker, capsize=3, label=name)
            panel.axhline(mean[-1, place], linestyle=":", color=line[0].get_color())
    for panel, title in zip(panels, ("held-out AUC", "held-out accuracy"), strict=True):
        panel.set(xscale="log", xlabel="epsilon", title=title)
        panel.set_xticks(EPSILONS[:-1], [f"{one:g}" for one in EPSILONS[:-1]])
        panel.minorticks_off()
    panels[0].legend(title="dotted: true labels")
    plt.savefig(options.out / "label_privacy.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
