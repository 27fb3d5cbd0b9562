"""The bound holds on plain runs, its terms and step sizes are the theorem's, and nothing outside it is answered."""

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ridge_problem import Array, Ridge, federation_of, mean_squared_gradient, run_plainly

from tdcd import Federation, Linear, Objective, Settings, Silo
from tdcd.federation.partition import contiguous_rows
from tdcd.theory import Constants, Noise, bound, caveats, effective_clients, initial_gap, max_step_size


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    num_silos=st.integers(1, 4),
    num_clients=st.integers(1, 3),
    local_steps=st.integers(1, 6),
    batch=st.floats(0.01, 1),
    fraction=st.floats(0.2, 1),
)
def test_the_bound_holds_on_ridge_runs(seed, num_silos, num_clients, local_steps, batch, fraction):
    problem = Ridge.replicated(seed, num_silos, num_clients)
    step_size = fraction * max_step_size(problem.constants, local_steps, num_silos)
    batch_size = math.ceil(batch * len(problem.labels))
    rounds = 60 // local_steps
    runs = [
        run_plainly(
            problem, rounds=rounds, local_steps=local_steps, step_size=step_size, batch_size=batch_size, seed=run
        )
        for run in range(3)
    ]
    limit = bound(
        problem.constants,
        max(sigma_squared for _, sigma_squared in runs) ** 0.5,
        step_size=step_size,
        local_steps=local_steps,
        num_silos=num_silos,
        num_clients=num_clients,
        iterations=rounds * local_steps,
        gap=problem.gap,
    )
    assert np.mean([mean_squared_gradient(problem, models) for models, _ in runs]) <= limit.total


def test_the_bound_is_twice_too_large_at_most_where_nothing_is_noisy_or_stale():
    problem = Ridge.replicated(0, num_silos=2, num_clients=1)
    chosen = {"step_size": 0.1 * max_step_size(problem.constants, 1, 2), "local_steps": 1}
    models, sigma_squared = run_plainly(problem, rounds=5000, batch_size=5, seed=0, **chosen)
    assert sigma_squared == 0
    limit = bound(problem.constants, 0.0, num_silos=2, num_clients=1, iterations=len(models), gap=problem.gap, **chosen)
    assert limit.total / 2.1 < mean_squared_gradient(problem, models) < limit.total


def test_the_printed_condition_admits_a_run_that_breaks_the_bound():
    # Nine silos with the same column: each makes up for the whole error by itself, and together they overshoot.
    column = np.ones((4, 1))
    rows = [[np.arange(4)]] * 9
    problem = Ridge([column] * 9, np.zeros(4), rows, 0.0, [np.ones(1)] * 9)
    assert [problem.constants.L, *problem.constants.per_silo] == pytest.approx([9, *[3] * 9])
    found = {}
    for condition in ("printed", "proof"):
        step_size = max_step_size(problem.constants, 50, 9, condition)
        models, _ = run_plainly(problem, rounds=30, local_steps=50, step_size=step_size, batch_size=4, seed=0)
        limit = bound(
            problem.constants,
            0.0,
            step_size=step_size,
            local_steps=50,
            num_silos=9,
            num_clients=1,
            iterations=len(models),
            gap=problem.gap,
            condition=condition,
        )
        found[condition] = mean_squared_gradient(problem, models) / limit.total
    assert found["proof"] < 1
    assert found["printed"] > 100


SOME = Constants(L=4.0, per_silo=(3.0, 3.5, 2.0), kind="exact", note="")
CHOSEN = {"step_size": 1e-3, "local_steps": 10, "num_silos": 3, "num_clients": 5, "iterations": 1000, "gap": 2.0}


def terms(**changes: float) -> Array:
    limit = bound(SOME, 0.7, **{**CHOSEN, **changes})
    return np.array([limit.initial, limit.variance, limit.staleness])


def test_the_terms_are_those_of_the_theorem():
    expected = [2 * 2.0 / (1e-3 * 1000), 1e-3 * 4 * 3 * 0.49 / 5, 3.5**2 * 1e-6 * 0.49 * 100 * 9]
    assert terms() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("change", "factors"),
    [
        ({"local_steps": 20}, (1, 1, 4)),
        ({"num_silos": 6}, (1, 2, 4)),
        ({"num_clients": 10}, (1, 1 / 2, 1)),
        ({"step_size": 2e-3}, (1 / 2, 2, 4)),
        ({"iterations": 2000}, (1 / 2, 1, 1)),
        ({"gap": 4.0}, (2, 1, 1)),
    ],
    ids=["Q", "N", "K", "eta", "T", "gap"],
)
def test_each_term_moves_as_the_theorem_says(change, factors):
    assert terms(**change) / terms() == pytest.approx(factors)


def test_the_bound_at_another_number_of_iterations():
    longer = bound(SOME, 0.7, **{**CHOSEN, "iterations": 4000})
    assert bound(SOME, 0.7, **CHOSEN).at(4000).total == pytest.approx(longer.total)
    assert longer.total == pytest.approx(longer.initial + longer.variance + longer.staleness)


@given(
    whole=st.floats(1e-3, 1e3),
    share=st.floats(0.01, 1),
    local_steps=st.integers(1, 1000),
    num_silos=st.integers(1, 50),
)
def test_the_largest_step_size_is_the_root_of_the_condition(whole, share, local_steps, num_silos):
    chosen = Constants(whole, (share * whole,), "exact", "")
    for condition, silos in (("proof", num_silos), ("printed", 1)):
        eta = max_step_size(chosen, local_steps, num_silos, condition)
        stale = eta**2 * chosen.L_max**2 * local_steps**2 * silos
        assert 1 - eta * whole - stale == pytest.approx(0, abs=1e-12)
    assert max_step_size(chosen, local_steps, num_silos) <= max_step_size(chosen, local_steps, num_silos, "printed")


@pytest.mark.parametrize("scale", [1e-160, 1e160])
def test_the_largest_step_size_neither_cancels_nor_overflows(scale):
    # With little staleness the textbook root is a difference of two nearly equal numbers.
    nearly = Constants(scale, (1e-9 * scale,), "exact", "")
    assert max_step_size(nearly, 1, 1) * scale == pytest.approx(1, rel=1e-15)
    assert max_step_size(Constants(0.0, (0.0,), "exact", ""), 1, 1) == math.inf


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"local_steps": 0}, "local_steps must be at least 1, not 0"),
        ({"num_silos": 0}, "num_silos must be at least 1, not 0"),
        ({"num_clients": 0}, "num_clients must be at least 1, not 0"),
        ({"iterations": 0}, "iterations must be at least 1, not 0"),
        ({"gap": -1.0}, "gap must be a finite number of at least 0, not -1.0"),
        ({"condition": "wished"}, "condition must be 'proof' or 'printed', not 'wished'"),
        (
            {"step_size": 0.5},
            "step_size = 0.5 is outside the theorem's range for local_steps = 10 and num_silos = 3: "
            "1 - eta L - eta^2 L_max^2 Q^2 N >= 0 with L = 4 and L_max = 3.5 admits step sizes above 0 and up to "
            "0.0159",
        ),
        ({"step_size": 0.02, "condition": "printed", "local_steps": 20}, "eta^2 L_max^2 Q^2 >= 0"),
        ({"step_size": 0.0}, "step_size = 0 is outside the theorem's range"),
        ({"step_size": math.nan}, "step_size = nan is outside the theorem's range"),
    ],
)
def test_the_bound_refuses_what_the_theorem_does_not_cover(change, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        bound(SOME, 0.7, **{**CHOSEN, **change})
    limit = max_step_size(SOME, 10, 3)
    assert bound(SOME, 0.7, **{**CHOSEN, "step_size": limit}).total > 0


@pytest.mark.parametrize(("num_rows", "l2"), [(40, 0.0), (6, 0.0), (1500, 0.2)], ids=["least-squares", "wide", "tall"])
def test_the_gap_of_ridge_is_exact(num_rows, l2):
    rng = np.random.default_rng(num_rows)
    parts = [rng.normal(size=(num_rows, 5)) * 10.0 ** -np.arange(5), rng.normal(size=(num_rows, 4))]
    problem = Ridge(parts, rng.normal(size=num_rows), [[np.arange(num_rows)]] * 2, l2, [rng.normal(size=5), np.ones(4)])

    def loss(theta):
        return np.mean((problem.matrix @ theta - problem.labels) ** 2) / 2 + l2 / 2 * theta @ theta

    least = np.linalg.lstsq(problem.hessian, problem.matrix.T @ problem.labels / num_rows)[0]
    expected = loss(np.concatenate(problem.start)) - loss(least)
    found = initial_gap(problem.federation(), [Linear()] * 2, Objective("squared", l2), problem.blocks(problem.start))
    assert found == pytest.approx(expected, rel=1e-8)


def test_the_gap_of_other_objectives_is_the_loss_at_the_start():
    federation = federation_of([np.ones((4, 2))], np.array([0, 1, 0, 1]))
    start = [{"weight": np.zeros((2, 1))}]
    assert initial_gap(federation, [Linear()], Objective("logistic"), start) == pytest.approx(math.log(2))
    # And that of ridge when there is no time to find its least value.
    assert initial_gap(federation, [Linear()], Objective("squared"), start, seconds=1e-9) == pytest.approx(1 / 4)


def test_unequal_shards_count_as_fewer_clients():
    parts, labels = [np.ones((10, 1))] * 2, np.zeros(10)
    rows = (contiguous_rows(10, [2] * 5), contiguous_rows(10, [7, 2, 1]))
    silos = [Silo(f"s{j}", part, split) for j, (part, split) in enumerate(zip(parts, rows, strict=True))]
    assert effective_clients(Federation(tuple(silos), labels)) == pytest.approx(1 / (0.49 + 0.04 + 0.01))
    assert effective_clients(Federation((silos[0],), labels)) == pytest.approx(5)


def test_caveats_name_what_the_theorem_does_not_cover():
    federation = federation_of([np.ones((7, 1))], np.zeros(7), sizes=[2, 5])
    noise = Noise((2.0,), (0.5,), 10)
    found = caveats(federation, Settings(minibatches="reused", gradient="mean"), noise)
    assert len(found) == 4
    assert found[0].startswith("minibatches = 'reused'")
    assert found[1].startswith("gradient = 'mean'")
    assert "off by up to 0.5" in found[2]
    assert "sigma (2)" in found[2]
    assert found[3].startswith("Clients hold from 2 to 5 rows: K = 1.69")
    even = Ridge.replicated(0, num_silos=2, num_clients=2).federation()
    assert caveats(even, Settings(), Noise((2.0, 1.0), (0.0, 0.0), 10)) == []
