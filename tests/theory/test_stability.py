"""The map of a round is that of Algorithm 1, and its spectral radius says which runs diverge."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ridge_problem import Ridge, run_plainly

from tdcd import Federation, Linear, Objective, Settings, Simulation, load, standardize
from tdcd.theory import RoundMap, constants, max_step_size


def as_matrix(problem, step_size, local_steps):
    """I - S H, written out: every silo's own steps one after the other."""
    hessian, edge, steps = problem.hessian, 0, np.zeros_like(problem.hessian)
    for part in problem.features:
        own = slice(edge, edge := edge + part.shape[1])
        one = np.eye(part.shape[1])
        for _ in range(local_steps):
            steps[own, own] += step_size * one
            one = one - step_size * hessian[own, own] @ one
    return np.eye(len(hessian)) - steps @ hessian


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**31),
    num_silos=st.integers(1, 4),
    num_clients=st.integers(1, 3),
    local_steps=st.integers(1, 6),
    fraction=st.floats(0.1, 3),
)
def test_the_map_of_a_round_is_algorithm_1(seed, num_silos, num_clients, local_steps, fraction):
    """Every client holds a copy of the same rows, and every minibatch is all of them: nothing is random."""
    problem = Ridge.replicated(seed, num_silos, num_clients)
    problem = Ridge(problem.features, problem.labels, problem.rows, 0.1, problem.start)
    step_size = fraction * max_step_size(problem.constants, local_steps, num_silos)
    run = run_plainly(
        problem, rounds=3, local_steps=local_steps, step_size=step_size, batch_size=len(problem.labels), seed=0
    )
    best = np.linalg.solve(problem.hessian, problem.matrix.T @ problem.labels / len(problem.labels))
    before, after = (np.concatenate(run.models[place * local_steps]) - best for place in (0, 2))
    matrix = as_matrix(problem, step_size, local_steps)
    np.testing.assert_allclose(after, matrix @ matrix @ before, rtol=1e-9, atol=1e-9)
    found = RoundMap.of(problem.federation(), 0.1).radius(step_size, local_steps)
    assert found == pytest.approx(np.abs(np.linalg.eigvals(matrix)).max(), rel=1e-6)


@pytest.fixture(scope="module")
def federation():
    rows, _ = standardize(load("diabetes"))
    return Federation.cut(rows, silos=5, clients=1)


def test_constants_are_those_of_the_theorem(federation):
    found, expected = RoundMap.of(federation, 0.01).constants, constants(federation, [Linear()] * 5, Objective(l2=0.01))
    assert pytest.approx(expected.L, rel=1e-6) == found.L
    assert found.per_silo == pytest.approx(expected.per_silo, rel=1e-6)


def test_runs_diverge_beyond_the_largest_stable_step_size_and_not_below(federation):
    rounds = RoundMap.of(federation, 0.01)
    largest = rounds.largest_stable(8, max_step_size(rounds.constants, 8, 5))
    assert rounds.radius(0.999 * largest, 8) < 1 < rounds.radius(1.001 * largest, 8)
    for share in (0.9, 1.1):
        settings = Settings(local_steps=8, step_size=share * largest, minibatches="full", dtype="float64")
        simulation = Simulation(federation, [Linear()] * 5, Objective(l2=0.01), settings)
        early = simulation.advance(simulation.init(), 0, 120)
        late = simulation.advance(early, 120, 20)
        norms = [np.linalg.norm(np.concatenate([block["weight"] for block in state.blocks])) for state in (early, late)]
        if share < 1:
            assert max(norms) < 10
        else:
            assert (norms[1] / norms[0]) ** (1 / 20) == pytest.approx(rounds.radius(share * largest, 8), rel=1e-3)


def test_a_start_that_is_not_stable_is_refused(federation):
    with pytest.raises(ValueError, match="rounds of 8 local steps are not stable at the step size 10"):
        RoundMap.of(federation, 0.01).largest_stable(8, 10.0)


@pytest.mark.skipif(
    not (Path(os.environ.get("TDCD_DATA", "")) / "superconduct").is_dir(),
    reason="TDCD_DATA names no folder with the real Superconductivity table in superconduct/",
)
def test_the_printed_condition_admits_divergence_on_the_papers_own_table():
    rows, _ = standardize(load("superconductivity", rows=20_000))
    rounds = RoundMap.of(Federation.cut(rows, silos=16, clients=5, bias=True), 0.01)
    proof, printed = (max_step_size(rounds.constants, 50, 16, condition) for condition in ("proof", "printed"))
    assert (proof, printed) == pytest.approx((0.00047, 0.00184), rel=0.01)
    assert rounds.radius(proof, 50) < 1 < rounds.radius(0.0018, 50)
    assert printed > 0.0018
