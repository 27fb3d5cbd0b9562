"""One of two processes that train together: ``python host_process.py ADDRESS PROCESS FOLDER``.

What it finds wrong ends it with a traceback; what the files gave is in FOLDER.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
from host_cases import FAMILY, LINEAR, LOSS, MIXED, RANGES, VARIANT, federation_config, mapped_problem, train_ranges

from support.problems import Problem, arrays, distance
from tdcd import Simulation
from tdcd.config import check_config
from tdcd.config.resolve import plan
from tdcd.core.execution import Execution
from tdcd.core.losses import metrics
from tdcd.core.objective import Objective
from tdcd.federation.hosts import HostLabels, HostRows
from tdcd.simulation import host_evaluation
from tdcd.simulation.devices import Devices, join
from tdcd.training.run import resume
from tdcd.training.train import train_plan


def simulation_of(problem: Problem, keep: str, variant=None) -> Simulation:
    execution = Execution(keep, devices=None)
    return Simulation(problem.federation, problem.blocks, problem.objective, problem.settings, execution, variant)


def check_law(problem: Problem, keep: str) -> None:
    """Blocks are the oracle's, scores those of all rows, and only this process's rows are here."""
    simulation = simulation_of(problem, keep)
    start = simulation.state_of(problem.start)
    blocks = simulation.advance(simulation.advance(start, 0, 3), 3, 1).blocks
    assert distance(arrays(blocks), problem.solve(4)) < 1e-10
    phis = zip(problem.blocks, blocks, problem.federation.silos, strict=True)
    with jax.enable_x64(True):
        scores = sum(np.asarray(model.phi(block, np.asarray(silo.features))) for model, block, silo in phis)
    assert abs(simulation.scores(blocks) - scores).max() < 1e-10
    check_sums(simulation, problem, blocks, scores)
    for silo, every in zip(simulation.federation.silos, problem.federation.silos, strict=True):
        has = simulation.hosts.has(len(silo.rows))
        held = np.concatenate([np.empty(0, np.int64), *(own for own, here in zip(silo.rows, has, strict=True) if here)])
        assert isinstance(silo.features, HostRows)
        numbers = silo.features.held.numbers()
        assert numbers.tolist() == sorted(held)
        np.testing.assert_array_equal(silo.features[numbers], every.features[numbers])


def check_sums(simulation: Simulation, problem: Problem, blocks: list, scores: np.ndarray) -> None:
    """What hosts add up are loss and metrics of all scores, exactly or with an AUC of bins, and labels are where rows
    are.
    """
    federation, objective = problem.federation, problem.objective
    labels = np.asarray(federation.labels)
    with jax.enable_x64(True):
        losses = np.asarray(objective.losses(scores, labels))
        loss = np.average(losses, weights=federation.weights) + sum(map(objective.penalty, blocks))
    known = metrics(objective.loss, scores, labels)
    for exact in (host_evaluation.EXACT, 0):
        host_evaluation.EXACT, before = exact, host_evaluation.EXACT
        ours, figures = simulation.measured(blocks, "train")
        host_evaluation.EXACT = before
        assert abs(ours - loss) < 1e-12
        assert figures.keys() == known.keys()
        assert all(
            abs(figures[name] - known[name]) < (2e-3 if name == "auc" and not exact else 1e-12) for name in known
        )
    here = simulation.federation.labels
    assert isinstance(here, HostLabels)
    assert (here.min(), here.max()) == (labels.min(), labels.max())
    own = {*np.concatenate([silo.features.held.numbers() for silo in simulation.federation.silos]).tolist()}
    assert here.held.numbers().tolist() == sorted(own)
    np.testing.assert_array_equal(here[here.held.numbers()], labels[sorted(own)])


def main(address: str, process: int, folder: Path) -> None:
    join(address, process, 2)
    # So that small problems have several parts.
    host_evaluation.SAMPLES_AT_ONCE = 7
    for shape in (LINEAR, MIXED):
        check_law(Problem.draw(shape, LOSS, 3, "shuffled"), "device")
    drawn = Problem.draw(MIXED, LOSS, 3, "shuffled")
    weights = np.random.default_rng(0).random(len(drawn.federation.labels))
    check_law(replace(drawn, federation=replace(drawn.federation, weights=weights)), "device")
    mapped = mapped_problem(folder / f"mapped{process}")
    check_law(mapped, "auto")
    assert all(isinstance(s.features.rows, np.memmap) for s in simulation_of(mapped, "auto").federation.silos)
    ranges = mapped_problem(folder / f"ranges{process}", RANGES, Objective("logistic", 0.1))
    check_law(ranges, "auto")
    check_law(ranges, "device")
    labels = simulation_of(ranges, "auto").federation.labels
    assert isinstance(labels.rows, np.memmap)
    assert len(labels.held) < len(labels)
    train_ranges(folder / f"trained{process}", folder / "ranges-together", rounds=4)
    simulation = simulation_of(Problem.draw(FAMILY, LOSS, 3, "shuffled"), "host", VARIANT)
    expected = np.load(folder / "expected.npz")
    for block, known in zip(simulation.advance(simulation.init(), 0, 4).blocks, expected.values(), strict=True):
        np.testing.assert_allclose(block["weight"], known, rtol=0, atol=1e-9)
    hosts = Devices.first(None).hosts
    os.chdir(folder / f"host{process}")
    config = check_config(federation_config(rounds=3))
    train_plan(plan(config, devices=None, hosts=hosts), folder / "together")
    resume(folder / "together", ["train.rounds=6"], None, hosts)
    # What one process finds wrong ends all.
    Path("tables/bank/c3.csv").unlink(missing_ok=True)
    try:
        plan(config, devices=None, hosts=hosts)
    except ValueError as error:
        (folder / f"error{process}").write_text(str(error))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
