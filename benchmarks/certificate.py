"""What a certificate costs, and how close it is: its part of a run's time, and the gap over the true distance.

The tables of ``python -m benchmarks defaults``, categories as columns of 0 and 1, two silos of three clients each,
default settings, evaluations every 10 rounds. The true distance is to the best model of a solver in float64. Times are
of runs in which everything is compiled, the best of several: of the whole of ``train``, and of its certificates.

Then the members of the family, and steps of one's own, on some of the tables.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from benchmarks.automatic import divided, federation_of
from benchmarks.defaults import tables
from tdcd import Federation, Linear, Objective, Overlap, Settings, Variant, train
from tdcd.core.certificate import Samples
from tdcd.core.codecs.fixed_point import FixedPoint
from tdcd.core.family.labels import LabelsAt
from tdcd.simulation.certificate import certify
from tdcd.training.train import Result

EVERY, REPEATS = 10, 7
SOLVED = 1e-9
"""The least distance that the solver in float64 tells."""
NAMES = ("breast", "credit", "superconductivity")
PLAIN = {"step_size": 0.1, "local_steps": 10}
MEMBERS: dict[str, tuple[dict[str, Any], Variant]] = {
    "masks": ({}, Variant(exchange=FixedPoint(terms=2))),
    "overlap": ({}, Variant(timing=Overlap(1))),
    "labels at one silo": ({}, Variant(knowledge=LabelsAt(1))),
    "period 2": ({}, Variant(timing=Overlap(0, (1, 2)))),
    "minibatches of 256": ({"batch_size": 256}, Variant()),
    "the same, labels at one silo": ({"batch_size": 256}, Variant(knowledge=LabelsAt(1))),
    "fixed steps, full": ({**PLAIN, "minibatches": "full"}, Variant()),
    "fixed steps, minibatches of 128": ({**PLAIN, "batch_size": 128}, Variant()),
}


def least_loss(federation: Federation, objective: Objective) -> float:
    """Of all linear models, in float64."""
    features = np.concatenate([np.asarray(silo.features, np.float64) for silo in federation.silos], axis=1)
    # As the run has them.
    labels = federation.labels.astype(objective.label_dtype("float32")).astype(objective.label_dtype("float64"))
    samples = Samples.of(objective, labels)
    outputs = objective.num_outputs([labels])

    def loss(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        block = flat.reshape(-1, outputs)
        scores = features @ block
        gradient = features.T @ samples.slopes(scores) + objective.l2 * block
        return float(samples.losses(scores).sum()) + objective.l2 / 2 * float((block**2).sum()), gradient.ravel()

    start = np.zeros(features.shape[1] * outputs)
    if objective.loss == "squared":
        curvature = features.T @ features / len(labels) + objective.l2 * np.eye(features.shape[1])
        return loss(np.linalg.solve(curvature, features.T @ labels / len(labels)))[0]
    options = {"maxiter": 50_000, "maxfun": 100_000, "maxcor": 50, "ftol": 1e-16, "gtol": 1e-11}
    return float(minimize(loss, start, jac=True, method="L-BFGS-B", options=options).fun)


def run(
    federation: Federation, objective: Objective, settings: dict[str, Any] | None = None, variant: Variant | None = None
) -> Result:
    """A run, to its end or 300 rounds."""
    return train(
        federation, Linear(), objective, settings or Settings(),
        rounds=300, evaluate_every=EVERY, variant=variant, quiet=True, verbose=0,
    )  # fmt: skip


def best_of(repeats: int, call: Callable[[], object]) -> float:
    """The least seconds of several calls."""
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def cost(federation: Federation, objective: Objective, result: Result) -> tuple[float, float]:
    """The seconds of a run like this one, and the certificates' part of them."""
    simulation, count = result.simulation, sum(line.gap is not None for line in result.history)
    # The window of rounds is as full as at the run's end.
    state = simulation.init()
    for round_index in range(0, result.n_iter, EVERY):
        state = simulation.advance(state, round_index, EVERY)
    seconds = best_of(REPEATS, lambda: run(federation, objective))
    return seconds, count * best_of(REPEATS, lambda: certify(simulation, 0, state)) / seconds


def closeness(result: Result, objective: Objective, least: float) -> tuple[int, float, float | None]:
    """Rounds, the distance in float64, and the gap over it where that is more than the solve may be off by."""
    last, silos = result.history[-1], result.federation.silos
    blocks = [np.asarray(result.blocks[silo.name]["weight"], np.float64) for silo in silos]
    scores = sum(np.asarray(silo.features, np.float64) @ block for silo, block in zip(silos, blocks, strict=True))
    labels = result.federation.labels.astype(objective.label_dtype("float32")).astype(objective.label_dtype("float64"))
    squares = sum(float((block**2).sum()) for block in blocks)
    distance = float(Samples.of(objective, labels).losses(scores).sum()) + objective.l2 / 2 * squares - least
    return last.round, distance, None if last.gap is None or distance < SOLVED else last.gap / distance


def main() -> dict[str, Any]:
    """Run and print."""
    figures: dict[str, Any] = {}
    print(
        f"{'table':18} {'rounds':>7} {'seconds':>8} {'certificates':>13} {'distance':>9} {'gap over it':>12} {'gap':>9}"
    )
    problems = {}
    for job in tables():
        federation, objective = federation_of(*divided(job))
        least, result = least_loss(federation, objective), run(federation, objective)
        rounds, distance, ratio = closeness(result, objective, least)
        seconds, part = cost(federation, objective, result)
        print(
            f"{job.name:18} {rounds:7d} {seconds:8.3f} {part:13.1%} {distance:9.1e} {ratio or np.nan:12.3g}"
            f" {result.history[-1].gap:9.1e}",
            flush=True,
        )
        figures[job.name] = {"rounds": rounds, "seconds": seconds, "part": part, "gap over distance": ratio}
        if job.name in NAMES:
            problems[job.name] = federation, objective, least
    print(f"\n{'':32} " + " ".join(f"{name:>18}" for name in problems))
    for member, (settings, variant) in MEMBERS.items():
        each = {}
        for name, (federation, objective, least) in problems.items():
            each[name] = closeness(run(federation, objective, settings, variant), objective, least)[2]
        figures[member] = each
        print(f"{member:32} " + " ".join(f"{ratio or np.nan:18.3g}" for ratio in each.values()), flush=True)
    return figures
