"""What several hosts train, and one process for comparison."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from support.problems import Problem, Shape
from tdcd import Federation, train
from tdcd.blocks import Linear, Mlp
from tdcd.core.codecs.fixed_point import FixedBlocks, FixedPoint
from tdcd.core.codecs.quantised import Quantised
from tdcd.core.execution import Execution
from tdcd.core.family.dropout import SiloDropout
from tdcd.core.family.overlap import Overlap
from tdcd.core.family.participation import RandomClients
from tdcd.core.objective import Objective
from tdcd.core.variant import Variant

LOSS = Objective("softmax", 0.1)
LINEAR = Shape((3, 30), (3, 2), num_samples=200, batch_size=41)
MIXED = Shape((1, 3), (3, 2), num_samples=40, batch_size=7, blocks=(Linear(), Mlp((4,))))
"""All rows of the first silo are at one host."""
FAMILY = replace(MIXED, blocks=())
VARIANT = Variant(
    participation=RandomClients(0.6),
    exchange=FixedPoint(),
    client_exchange=Quantised(8),
    block_exchange=FixedBlocks(),
    timing=Overlap(1, (1, 2)),
    dropout=SiloDropout(0.3),
)
"""Every part that the place of a row or a client could change."""


RANGES = replace(LINEAR, clients=(4, 2))
"""Clients hold ranges of samples; silos with another number of them have them at other hosts."""


def mapped_problem(folder: Path, shape: Shape = LINEAR, objective: Objective = LOSS) -> Problem:
    """A problem whose features are files; and its labels, too, where clients hold ranges of samples."""
    problem = Problem.draw(shape, objective, 5, "aligned" if shape is RANGES else "shuffled")
    folder.mkdir(parents=True)
    silos, labels = [], problem.federation.labels
    for silo in problem.federation.silos:
        rows = silo.rows if shape is LINEAR else tuple(range(int(own[0]), int(own[-1]) + 1) for own in silo.rows)
        silos.append(replace(silo, features=mapped(folder / f"{silo.name}.npy", silo.features), rows=rows))
    if shape is RANGES:
        labels = mapped(folder / "labels.npy", labels)
    return replace(problem, federation=Federation(tuple(silos), labels))


def mapped(path: Path, array: Any) -> Any:
    """The array as a mapped file."""
    np.save(path, array)
    return np.load(path, mmap_mode="r")


def train_ranges(folder: Path, out: Path, rounds: int, resume: bool = False) -> Any:
    """Train on ranges of mapped files, in all processes that there are."""
    problem = mapped_problem(folder, RANGES, Objective("logistic", 0.1))
    settings, execution = replace(problem.settings, step_size=0.02), Execution(devices=None)
    return train(
        problem.federation,
        problem.blocks,
        problem.objective,
        settings,
        rounds=rounds,
        evaluate_every=2,
        out=out,
        resume=resume,
        execution=execution,
        verbose=0,
    )


def federation_config(rounds: int) -> dict[str, Any]:
    """Of the files that :func:`write_tables` writes, here."""
    clients = [{"name": f"c{k}", "table": f"bank/c{k}.csv"} for k in (1, 2, 3)]
    return {
        "dtype": "float64",
        "data": {"source": "files", "folder": "tables"},
        "model": {"block": "linear"},
        "train": {"step_size": 0.05, "rounds": rounds, "local_steps": 3, "batch_size": 16},
        "evaluate": {"every": 3},
        "silos": [
            {"name": "bank", "label": "sick", "categorical": ["job"], "client": clients},
            {"name": "clinic", "table": "clinic.csv", "clients": 2},
        ],
    }


def write_tables(folder: Path, clients: tuple[int, ...]) -> None:
    """The silos' tables; of the bank's only those of these clients."""
    folder /= "tables"
    rng = np.random.default_rng(4)
    (folder / "bank").mkdir(parents=True)
    jobs = np.array(["baker", "nurse", ""])
    for client in (1, 2, 3):
        lines = ["id,sick,income,job"]
        for number in range(client, 91, 3):
            income, job = rng.normal(10, 3), jobs[rng.integers(3)]
            lines.append(f"p{number},{int(income > 10)},{income if number % 7 else ''},{job}")
        if client in clients:
            (folder / "bank" / f"c{client}.csv").write_text("\n".join(lines) + "\n")
    rows = [f"p{number},{rng.normal()},{rng.normal()}" for number in rng.permutation(np.arange(1, 91))]
    (folder / "clinic.csv").write_text("\n".join(["id,age,weight", *rows]) + "\n")
