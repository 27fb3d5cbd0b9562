"""What a certificate costs, and how close it is: its part of a run's time, and the gap over the true distance.

The tables of ``python -m benchmarks automatic``, two silos of three clients each, default settings, evaluations every
10 rounds. The true distance is to the best model of a solver in float64. Times are of a second run, when everything is
compiled; the part is that of all certificates of the run, in one process.
"""

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from benchmarks.automatic import NAMES, Problem, problem_of
from benchmarks.defaults import tables
from tdcd import Linear, Settings, train
from tdcd.core.certificate import Samples
from tdcd.simulation.certificate import certify
from tdcd.training.train import measure

EVERY = 10


def least_loss(problem: Problem) -> float:
    """Of all linear models, in float64."""
    federation, objective = problem.federation, problem.objective
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


def measured(problem: Problem) -> tuple[int, float, float, float, float]:
    """Rounds, seconds, the certificates' part of them, the distance, and the gap over it."""
    federation, objective = problem.federation, problem.objective
    result = train(federation, Linear(), objective, Settings(), rounds=500, evaluate_every=EVERY, quiet=True)
    simulation, last = result.simulation, result.history[-1]
    assert last.gap is not None
    state, began = simulation.init(), time.perf_counter()
    for round_index in range(0, last.round, EVERY):
        state = simulation.advance(state, round_index, min(EVERY, last.round - round_index))
        measure(simulation, state.blocks, round_index + EVERY)
    run, began = time.perf_counter() - began, time.perf_counter()
    count = sum(line.gap is not None for line in result.history)
    for _ in range(count):
        certify(simulation, 0, state)
    seconds, distance = time.perf_counter() - began, last.train_loss - least_loss(problem)
    return last.round, run, seconds / (run + seconds), distance, last.gap / distance


def main() -> dict[str, Any]:
    """Run and print."""
    figures = {}
    print(f"{'table':18} {'rounds':>7} {'seconds':>8} {'certificates':>13} {'distance':>9} {'gap over it':>12}")
    for job in tables():
        if job.name in NAMES:
            rounds, seconds, part, distance, ratio = measured(problem_of(job))
            print(f"{job.name:18} {rounds:7d} {seconds:8.2f} {part:13.1%} {distance:9.1e} {ratio:12.3g}", flush=True)
            figures[job.name] = {"rounds": rounds, "seconds": seconds, "part": part, "gap over distance": ratio}
    return figures
