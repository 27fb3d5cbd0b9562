"""Runs the worked examples and draws their pictures next to this file: ``python docs/pictures/draw_examples.py``.

It takes a few minutes. Each example runs in a copy of its folder, with the commands of its page in docs/examples.
"""

import csv
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from tdcd.data import load
from tdcd.pages.kit.chart import Curve
from tdcd.pages.reproduction import save_png
from tdcd.records.history import read_history

HERE = Path(__file__).parent
EXAMPLES, PAGES = HERE.parents[1] / "examples", HERE.parent / "examples"
SHOWN = 8
"""Digits in the picture of the images."""


def follow(name: str, folder: Path) -> Path:
    """Give the commands of an example's page in a copy of its folder, which is returned."""
    own = folder / name
    shutil.copytree(EXAMPLES / name, own)
    for block in re.findall(r"^```console\n(.*?)^```", (PAGES / f"{name}.md").read_text(), re.DOTALL | re.MULTILINE):
        for line in re.findall(r"^\$ (.*)", block, re.MULTILINE):
            words = line.split()
            if words[0] in ("python", "tdcd"):
                start = [sys.executable] + (["-m"] if words[0] == "tdcd" else [])
                subprocess.run([*start, *words[words[0] == "python" :]], cwd=own, check=True)
    return own


def hospitals(folder: Path) -> None:
    """Held-out AUC over rounds, with and without the laboratory."""
    runs = {"hospital and laboratory": "tdcd", "hospital alone": "local-sgd/hospital"}
    curves = []
    for label, name in runs.items():
        history = read_history(folder / "runs" / "joining" / name / "history.jsonl")
        figures = [record.metrics["test"]["auc"] for record in history]
        curves.append(Curve(label, [record.round for record in history], np.array(figures, np.float64)))
    save_png(HERE / "hospitals.png", curves, "communication rounds", "held-out AUC")


def retail_bank(folder: Path) -> None:
    """The columns that decide most."""
    sys.path.insert(0, str(HERE))
    from draw_scorecard import picture  # noqa: PLC0415 - a script next to this one

    (HERE / "retail_bank.svg").write_text(picture(folder / "runs" / "card"), encoding="utf-8")


def images(folder: Path) -> None:
    """Some held-out digits as the two silos hold them, with what the model says of them, and accuracy over rounds."""
    run = folder / "runs" / "images"
    history = read_history(run / "history.jsonl")
    _, held_out = load("digits28").split(0.2, 0)
    assert held_out is not None
    with (run / "held-out.csv").open() as file:
        rows = list(csv.DictReader(file))
    wrong = [place for place, row in enumerate(rows) if row["label"] != row["prediction"]]
    right = [place for place in range(len(rows)) if place not in wrong]
    chosen = [*right[: SHOWN - 2], *wrong[:2]]
    drawing = Figure(figsize=(8, 3.9), layout="constrained")
    grid = drawing.add_gridspec(2, SHOWN, height_ratios=(1, 1.6))
    for place, number in enumerate(chosen):
        axes, image = drawing.add_subplot(grid[0, place]), held_out.features[number]
        gap = np.full((28, 3), np.nan)
        axes.imshow(np.hstack([image[:, :14], gap, image[:, 14:]]), cmap="gray_r")
        row = rows[number]
        axes.set_title(
            f"{row['label']}: says {row['prediction']}", fontsize=9, color="#b3261e" if number in wrong else "#1b2430"
        )
        axes.set_axis_off()
    axes = drawing.add_subplot(grid[1, :], xlabel="communication rounds", ylabel="accuracy")
    for split, label in (("train", "training"), ("test", "held out")):
        accuracy = [record.metrics[split]["accuracy"] for record in history]
        axes.plot([record.round for record in history], accuracy, marker="o", markersize=3.5, label=label)
    axes.grid(alpha=0.15)
    axes.legend(frameon=False, loc="lower right")
    drawing.savefig(HERE / "images.png", dpi=100, facecolor="white")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        for example in (hospitals, retail_bank, images):
            example(follow(example.__name__, Path(temporary)))
