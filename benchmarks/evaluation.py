"""Evaluation: the scores and the loss of the ridge workload's and of the CNN workload's training samples."""

from typing import Any

import jax

from benchmarks import cnn, ridge
from benchmarks.figures import report
from benchmarks.limits import limit
from benchmarks.timing import alternate
from tdcd import Objective, Settings, Simulation
from tdcd.blocks import Cnn


def main() -> dict[str, Any]:
    """Seconds for all training samples."""
    data = ridge.federation()
    images = cnn.federation(2, 10, 4096 if jax.default_backend() == "cpu" else 60_000)
    network = Simulation(images, [Cnn()] * 2, Objective("softmax"), Settings(batch_size=640, step_size=0.05))
    figures = {}
    for name, engine, labels, flops, moved in (
        ("ridge", ridge.simulation(data), data.labels, 2 * 82, 4 * 82),
        ("cnn", network, images.labels, 2 * cnn.FLOPS, 2 * 4 * 28 * 14),
    ):
        blocks = engine.init().blocks

        def evaluate(engine: Simulation = engine, blocks: Any = blocks, labels: Any = labels) -> None:
            engine.loss(blocks, engine.scores(blocks), labels)

        (taken,) = alternate([evaluate], repetitions=5)
        least = limit(flops * len(labels), moved * len(labels), data=moved * len(labels))
        figures[name] = report(f"evaluation, {name}, {len(labels):,} samples", taken, least)
    return figures
