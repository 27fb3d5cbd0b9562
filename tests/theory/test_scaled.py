"""Steps scaled by each silo's own curvature are plain steps in other variables, and Theorem 1 holds there."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ridge_problem import Ridge, expected_square, federation_of

from tdcd import Linear, Objective, Settings
from tdcd.core.family.scaled import Scaled
from tdcd.core.schedule import batch_ids
from tdcd.theory import Constants, RoundMap, bound, initial_gap, max_step_size, sigmas
from tdcd.theory.full_objective import FullObjective
from tdcd.theory.scaled import (
    StepScaling,
    largest_with_momentum,
    own_curvature,
    scaled_constants,
    scaled_map,
    strong_convexity,
)

EPS = 0.01


def squared_norm(scaling: StepScaling, gradient: np.ndarray) -> float:
    """Of a gradient ``[D]`` in the old variables: the sum of the squares of its parts times the inverse roots."""
    outputs = len(gradient) // sum(map(len, scaling.inverse_roots))
    edges = outputs * np.cumsum([0, *map(len, scaling.inverse_roots)])
    parts = [gradient[begin:end].reshape(-1, outputs) for begin, end in pairwise(edges.tolist())]
    return sum(float(np.sum((root @ part) ** 2)) for root, part in zip(scaling.inverse_roots, parts, strict=True))


def scaled(problem: Ridge, objective: Objective) -> tuple[list[np.ndarray], StepScaling]:
    """Every silo's own curvature, and the change of variables."""
    ridge = objective.l2 + EPS
    scales = [own_curvature(silo, objective.curvature, ridge) for silo in problem.federation().silos]
    return scales, StepScaling.of(scales)


@given(seed=st.integers(0, 2**31), num_silos=st.integers(1, 5), loss=st.sampled_from(["squared", "logistic"]))
@settings(max_examples=60)
def test_no_silo_curves_by_more_than_one_and_the_whole_by_no_more_than_n(seed, num_silos, loss):
    problem = Ridge.replicated(seed, num_silos, 1, num_rows=7)
    objective = Objective(loss, l2=problem.l2)
    scales, scaling = scaled(problem, objective)
    for scale, root, part in zip(scales, scaling.inverse_roots, problem.features, strict=True):
        own = objective.curvature * part.T @ part / len(part) + (problem.l2 + EPS) * np.eye(part.shape[1])
        assert scale == pytest.approx(own)
        assert root @ scale @ root == pytest.approx(np.eye(len(scale)), abs=1e-9)
    found = scaled_constants(problem.federation(), scaling, objective)
    whole = scaled_map(problem.federation(), scaling, objective)
    assert max(np.linalg.norm(whole.hessian[block, block], 2) for block in whole.blocks) <= 1
    assert num_silos >= found.L
    assert found.L_max <= num_silos**0.5
    assert found.kind == ("exact" if loss == "squared" else "upper bound")
    # The step size has no unit: one for all data is inside.
    for local_steps in (1, 10):
        anywhere = max_step_size(Constants(num_silos, (num_silos**0.5,), "exact", ""), local_steps, num_silos)
        assert anywhere == pytest.approx(2 / (num_silos * (1 + (1 + 4 * local_steps**2) ** 0.5)))
        assert anywhere <= max_step_size(found, local_steps, num_silos) * (1 + 1e-12)


def test_silos_that_hold_the_same_column_curve_by_n_and_diverge_at_three_times_the_largest_step_size():
    problem = Ridge([np.ones((4, 1))] * 6, np.zeros(4), [[np.arange(4)]] * 6, 0.0, [np.ones(1)] * 6)
    scaling = StepScaling.of([own_curvature(silo, 1.0, 1e-9) for silo in problem.federation().silos])
    found = scaled_constants(problem.federation(), scaling, Objective())
    assert [found.L, found.L_max] == pytest.approx([6, 6**0.5])
    rounds = RoundMap(scaled_map(problem.federation(), scaling, Objective()).hessian + 1e-9 * np.eye(6), _ones(6))
    assert rounds.radius(max_step_size(found, 10, 6), 10) <= 1 < rounds.radius(3 * max_step_size(found, 10, 6), 10)


def _ones(count: int) -> tuple[slice, ...]:
    return tuple(slice(j, j + 1) for j in range(count))


@given(seed=st.integers(0, 2**31), num_silos=st.integers(1, 4), local_steps=st.integers(1, 6), step=st.floats(0.01, 1))
@settings(max_examples=40)
def test_the_map_of_a_round_is_that_of_scaled_steps(seed, num_silos, local_steps, step):
    problem = Ridge.replicated(seed, num_silos, 1, num_rows=7)
    objective = Objective(l2=problem.l2)
    scales, scaling = scaled(problem, objective)
    edges, steps = np.cumsum([0, *map(len, scales)]), np.zeros_like(problem.hessian)
    for scale, (begin, end) in zip(scales, pairwise(edges), strict=True):
        own, one = slice(begin, end), np.eye(end - begin)
        for _ in range(local_steps):
            steps[own, own] += step * one @ np.linalg.inv(scale)
            one = one - step * np.linalg.solve(scale, problem.hessian[own, own]) @ one
    expected = np.abs(np.linalg.eigvals(np.eye(len(steps)) - steps @ problem.hessian)).max()
    rounds = scaled_map(problem.federation(), scaling, objective)
    # A root of the Hessian is needed, which a flat direction has not.
    if problem.l2:
        assert rounds.radius(step, local_steps) == pytest.approx(expected, rel=1e-6)
        safe = max_step_size(scaled_constants(problem.federation(), scaling, objective), local_steps, num_silos)
        assert rounds.radius(safe, local_steps) <= 1


@given(
    seed=st.integers(0, 2**31),
    num_silos=st.integers(1, 4),
    num_clients=st.integers(1, 3),
    local_steps=st.integers(1, 5),
    batch=st.floats(0.05, 1),
)
@settings(max_examples=40)
def test_the_bound_holds_in_every_run(seed, num_silos, num_clients, local_steps, batch):
    problem = Ridge.replicated(seed, num_silos, num_clients)
    objective, federation = Objective(l2=problem.l2), problem.federation()
    scales, scaling = scaled(problem, objective)
    known = scaled_constants(federation, scaling, objective)
    step_size, rounds = max_step_size(known, local_steps, num_silos), -(-20 // local_steps)
    total, measured, largest = len(problem.labels), [], 0.0
    batch_size = max(1, round(batch * total))
    for run in range(3):
        hubs = list(problem.start)
        for index in range(rounds):
            ids = batch_ids(run, [index], num_samples=total, batch_size=batch_size, local_steps=local_steps)[0]
            phis = [part @ hub for part, hub in zip(problem.features, hubs, strict=True)]
            clients = [[hub for _ in rows] for hub, rows in zip(hubs, problem.rows, strict=True)]
            for ids_now in ids:
                model = [np.mean(silo, axis=0) for silo in clients]
                measured.append(squared_norm(scaling, problem.gradient(model)))
                for j, (part, scale, root) in enumerate(
                    zip(problem.features, scales, scaling.inverse_roots, strict=True)
                ):
                    for k, rows in enumerate(problem.rows[j]):
                        block = clients[j][k]
                        slopes = part * (part @ block + sum(phis) - phis[j] - problem.labels)[:, None]
                        largest = max(largest, expected_square(slopes @ root, rows, batch_size))
                        data = total / (len(rows) * batch_size) * slopes[np.intersect1d(ids_now, rows)].sum(axis=0)
                        clients[j][k] = block - step_size * np.linalg.solve(scale, data + problem.l2 * block)
            hubs = [np.mean(silo, axis=0) for silo in clients]
    limit = bound(
        known,
        largest**0.5,
        step_size=step_size,
        local_steps=local_steps,
        num_silos=num_silos,
        num_clients=num_clients,
        iterations=rounds * local_steps,
        gap=problem.gap,
    )
    assert np.mean(measured) <= limit.total


@given(seed=st.integers(0, 2**31), num_silos=st.integers(1, 4), loss=st.sampled_from(["squared", "logistic"]))
@settings(max_examples=40)
def test_fixed_scaled_steps_leave_no_more_of_the_distance_than_promised(seed, num_silos, loss):
    problem = replace(Ridge.replicated(seed, num_silos, 1, num_rows=7), l2=0.05)
    objective, federation = Objective(loss, l2=problem.l2), problem.federation()
    scales, scaling = scaled(problem, objective)
    known, convexity = (f(federation, scaling, objective) for f in (scaled_constants, strong_convexity))
    assert convexity <= known.L
    # The regulariser alone curves by this much.
    assert convexity >= min(problem.l2 / np.linalg.norm(scale, 2) for scale in scales) * (1 - 1e-9)
    if loss != "squared":
        return
    inverse, hessian = np.linalg.inv(_block_diagonal(scales)), problem.hessian
    # From any distance to the least loss.
    error = np.concatenate(problem.start)
    for _ in range(5):
        before = error @ hessian @ error
        error = error - inverse @ hessian @ error / known.L
        assert error @ hessian @ error <= (1 - convexity / known.L) * before + 1e-15


def _block_diagonal(blocks: list[np.ndarray]) -> np.ndarray:
    edges, whole = np.cumsum([0, *map(len, blocks)]), np.zeros((sum(map(len, blocks)),) * 2)
    for block, (begin, end) in zip(blocks, pairwise(edges), strict=True):
        whole[begin:end, begin:end] = block
    return whole


def test_a_flat_direction_curves_by_nothing():
    problem = Ridge([np.ones((4, 1))] * 2, np.zeros(4), [[np.arange(4)]] * 2, 0.0, [np.ones(1)] * 2)
    scaling = StepScaling.of([own_curvature(silo, 1.0, 1e-3) for silo in problem.federation().silos])
    assert strong_convexity(problem.federation(), scaling, Objective()) == 0.0


def test_the_objective_in_the_new_variables():
    rng = np.random.default_rng(3)
    parts, labels = [rng.normal(size=(12, 2)), rng.normal(size=(12, 3))], rng.integers(0, 3, 12)
    federation, objective, linear = federation_of(parts, labels, [5, 7]), Objective("softmax", l2=0.2), [Linear()] * 2
    scaling = StepScaling.of([own_curvature(silo, objective.curvature, 0.2 + EPS) for silo in federation.silos])
    model = [{"weight": rng.normal(size=(part.shape[1], 3))} for part in parts]
    moved, scaled_federation = scaling.model(model), scaling.federation(federation)
    before, after = (FullObjective(each, linear, Objective("softmax")) for each in (federation, scaled_federation))
    loss, gradient = before.loss_and_gradient(before.flatten(model))
    new_loss, new_gradient = after.loss_and_gradient(after.flatten(moved))
    assert new_loss == pytest.approx(loss)
    assert squared_norm(scaling, gradient) == pytest.approx(new_gradient @ new_gradient)
    for new, old, root in zip(moved, model, scaling.inverse_roots, strict=True):
        np.testing.assert_allclose(root @ new["weight"], old["weight"], atol=1e-12)
    # Two clients with rows of their own: what they differ by is seen in the new variables.
    noise = sigmas(scaled_federation, linear, objective, Settings(minibatches="full", step_size=0.05), [moved])
    shards = [
        FullObjective(federation, linear, Objective("softmax"), rows).loss_and_gradient(before.flatten(model))[1]
        for rows in federation.silos[0].rows
    ]
    biases = [
        [(root @ (shard - gradient)[part].reshape(-1, 3)) for shard in shards]
        for part, root in zip(before.parts, scaling.inverse_roots, strict=True)
    ]
    assert noise.bias == pytest.approx([max(np.linalg.norm(each) for each in silo) for silo in biases])
    assert initial_gap(federation, linear, objective, model) > 0


def test_wide_blocks_take_the_sum_of_the_silos_own(monkeypatch):
    problem = Ridge.replicated(5, 3, 1, num_rows=7)
    objective = Objective(l2=problem.l2)
    _, scaling = scaled(problem, objective)
    exact = scaled_constants(problem.federation(), scaling, objective)
    monkeypatch.setattr("tdcd.theory.scaled.NARROW", 2)
    wide = scaled_constants(problem.federation(), scaling, objective)
    assert exact.L <= wide.L <= 3
    assert all(a <= b <= 3**0.5 for a, b in zip(exact.per_silo, wide.per_silo, strict=True))
    assert wide.kind == "upper bound"


def test_a_curvature_that_is_not_positive_is_refused():
    with pytest.raises(ValueError, match="must be positive definite, and its least eigenvalue is 0"):
        StepScaling.of([np.zeros((2, 2))])


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_hubs_that_hold_the_same_column_are_stable_up_to_the_limit_with_momentum(momentum):
    """The member itself: every hub has the gradient of the sum, and takes a scaled step with momentum."""
    num_silos, limit = 4, largest_with_momentum(4.0, momentum)
    for share, is_stable in ((0.97, True), (1.03, False)):
        update = Scaled(share * limit, 1.0, momentum)
        blocks = [{"weight": np.ones((1, 1))} for _ in range(num_silos)]
        states = [update.start(block) for block in blocks]
        sizes = []
        for _ in range(400):
            gradient = sum(block["weight"] for block in blocks)
            moved = [
                update.step(block, {"weight": block["weight"] - gradient}, state)
                for block, state in zip(blocks, states, strict=True)
            ]
            blocks, states = ([each[part] for each in moved] for part in (0, 1))
            sizes.append(abs(float(gradient[0, 0])))
        assert (sizes[-1] < 1e-3) == is_stable
        assert is_stable or sizes[-1] > sizes[200] > 1
