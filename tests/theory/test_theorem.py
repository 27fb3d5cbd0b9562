"""The bound holds on plain runs, its terms and step sizes are the theorem's, and nothing outside it is answered."""

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ridge_problem import Array, Ridge, federation_of, run_plainly

from tdcd import Federation, Linear, Objective, Settings, Silo
from tdcd.core.family.overlap import Overlap
from tdcd.federation.partition import contiguous_rows
from tdcd.theory import (
    Constants,
    Noise,
    bound,
    caveats,
    effective_clients,
    initial_gap,
    largest_overlap,
    max_step_size,
)
from tdcd.theory.step_size import staleness_of, vanishing


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    num_silos=st.integers(1, 4),
    num_clients=st.integers(1, 3),
    local_steps=st.integers(1, 6),
    batch=st.floats(0.01, 1),
    fraction=st.floats(0.2, 1),
    overlap=st.integers(0, 3),
    periods=st.one_of(st.just((1, 1, 1, 1)), st.tuples(*[st.integers(1, 4)] * 4)),
    bits=st.sampled_from([32, 8, 4]),
)
def test_what_is_proven_holds_in_every_run(
    seed, num_silos, num_clients, local_steps, batch, fraction, overlap, periods, bits
):
    problem, timing = Ridge.replicated(seed, num_silos, num_clients), Overlap(overlap, periods[:num_silos])
    step_size = fraction * max_step_size(problem.constants, local_steps, num_silos, timing=timing)
    batch_size = math.ceil(batch * len(problem.labels))
    rounds = 12 * math.ceil(5 / local_steps)  # whole periods of every silo
    chosen = {"local_steps": local_steps, "step_size": step_size, "timing": timing}
    runs = [
        run_plainly(problem, rounds=rounds, batch_size=batch_size, seed=run, bits=bits, **chosen) for run in range(3)
    ]
    limit = bound(
        problem.constants,
        max(run.sigma_squared for run in runs) ** 0.5,
        num_silos=num_silos,
        num_clients=num_clients,
        iterations=rounds * local_steps,
        gap=problem.gap,
        **chosen,
    )
    assert np.mean([run.mean_squared_gradient(problem) for run in runs]) <= limit.total


def test_the_bound_is_twice_too_large_at_most_where_nothing_is_noisy_or_stale():
    problem = Ridge.replicated(0, num_silos=2, num_clients=1)
    chosen = {"step_size": 0.1 * max_step_size(problem.constants, 1, 2), "local_steps": 1}
    run = run_plainly(problem, rounds=5000, batch_size=5, seed=0, **chosen)
    assert run.sigma_squared == 0
    limit = bound(problem.constants, 0.0, num_silos=2, num_clients=1, iterations=5000, gap=problem.gap, **chosen)
    assert limit.total / 2.1 < run.mean_squared_gradient(problem) < limit.total


def same_column(num_silos: int) -> Ridge:
    """Each silo makes up for the whole error by itself, and together they overshoot."""
    rows = [[np.arange(4)]] * num_silos
    return Ridge([np.ones((4, 1))] * num_silos, np.zeros(4), rows, 0.0, [np.ones(1)] * num_silos)


def of_the_limit(problem: Ridge, step_size: float, local_steps: int, rounds: int, timing: Overlap) -> float:
    """The mean squared gradient of a run without noise over what the bound would say, were the step size admissible."""
    chosen = {"step_size": step_size, "local_steps": local_steps, "timing": timing}
    run = run_plainly(problem, rounds=rounds, batch_size=len(problem.labels), seed=0, **chosen)
    return run.mean_squared_gradient(problem) / (2 * problem.gap / (step_size * rounds * local_steps))


def test_the_printed_condition_admits_a_run_that_breaks_the_bound():
    problem = same_column(9)
    assert [problem.constants.L, *problem.constants.per_silo] == pytest.approx([9, *[3] * 9])
    printed, proof = (max_step_size(problem.constants, 50, 9, condition) for condition in ("printed", "proof"))
    assert of_the_limit(problem, proof, 50, 30, Overlap()) < 1
    assert of_the_limit(problem, printed, 50, 30, Overlap()) > 100


@pytest.mark.parametrize(
    ("num_silos", "local_steps", "timing"), [(9, 5, Overlap(8)), (4, 5, Overlap(3)), (2, 1, Overlap(0, (8, 1)))]
)
def test_the_condition_in_step_admits_late_runs_that_break_the_bound(num_silos, local_steps, timing):
    problem = same_column(num_silos)
    in_step = max_step_size(problem.constants, local_steps, num_silos)
    proof = max_step_size(problem.constants, local_steps, num_silos, timing=timing)
    assert of_the_limit(problem, proof, local_steps, 96, timing) < 1
    assert of_the_limit(problem, in_step, local_steps, 96, timing) > 100


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


@given(
    num_silos=st.integers(1, 5),
    overlap=st.integers(0, 6),
    data=st.data(),
)
def test_staleness_covers_every_step_that_is_not_seen_yet(num_silos, overlap, data):
    """Counted round by round: the steps that a silo's view lacks, for every one of them and all who lack it."""
    periods = tuple(data.draw(st.integers(1, 5)) for _ in range(num_silos))
    timing, rounds = Overlap(overlap, periods), 60 + 2 * overlap
    for silo, own in enumerate(staleness_of(num_silos, timing)):
        m = periods[silo]
        lacked = dict.fromkeys(range(0, rounds // 2, m), 0)
        for r in range(rounds):
            unseen = [start for start in lacked if timing.sent_in(silo, r) <= start <= r]
            others = sum(p for j, p in enumerate(periods) if j != silo and r % p == 0)
            for start in unseen:
                lacked[start] += others * m * len(unseen)
        assert m**2 + max(lacked.values()) <= own.factor
    if set(periods) == {1}:
        assert own.factor == 1 + (num_silos - 1) * (overlap + 1) ** 2


def test_in_step_the_factor_is_n_and_a_longest_period_divides_the_step_size():
    assert {silo.factor for silo in staleness_of(7)} == {7}
    in_step = max_step_size(SOME, 10, 3)
    for periods in [(4, 1, 1), (2, 4, 1), (6, 3, 2), (5, 5, 5)]:
        assert max_step_size(SOME, 10, 3, timing=Overlap(0, periods)) == pytest.approx(in_step / max(periods))
    with pytest.raises(ValueError, match=r"periods = \(4, 1\): give one for each of the 3 silos, or none"):
        staleness_of(3, Overlap(0, (4, 1)))


def test_late_steps_have_their_own_terms():
    late = terms(timing=Overlap(2)) / terms()
    assert late == pytest.approx([1, 1, (1 + 2 * 9) / 3])
    slow = terms(timing=Overlap(0, (4, 1, 1))) / terms()
    assert slow == pytest.approx([1, 6 / 3, (48 + 2 * (1 + 4 + 1)) / 9])


@given(step_size=st.floats(1e-5, 0.1), slow=st.booleans())
def test_the_largest_overlap_is_inside_and_the_next_is_not(step_size, slow):
    periods = (3, 1, 2) if slow else ()
    found = largest_overlap(SOME, step_size, 10, 3, periods)
    limits = {
        rounds: max_step_size(SOME, 10, 3, timing=Overlap(rounds, periods))
        for rounds in ([0] if found is None else [found, found + 1])
    }
    assert [step_size <= limit for limit in limits.values()] == ([False] if found is None else [True, False])


def test_an_overlap_that_leaves_hardly_any_step_size_gets_a_sentence():
    assert vanishing(SOME, 10, 3, Overlap(50)) is None
    most = largest_overlap(SOME, max_step_size(SOME, 10, 3) / 10, 10, 3)
    found = vanishing(SOME, 10, 3, Overlap(500))
    assert found.startswith("overlap = 500 leaves step sizes up to 4.03e-05 only, 396 times less than without")
    assert f"Set train.overlap = {most} or less, which leaves at least a tenth." in found


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
        (
            {"step_size": 0.01, "timing": Overlap(3)},
            "for local_steps = 10, num_silos = 3 and overlap = 3: 1 - eta L - eta^2 L_max^2 Q^2 [1 + (N-1)(D+1)^2] >= "
            "0 with L = 4 and L_max = 3.5 admits step sizes above 0 and up to 0.00492442. With this step size, overlap "
            "= 0 is the largest inside",
        ),
        (
            {"step_size": 0.02, "timing": Overlap(1, (4, 1, 1))},
            "for local_steps = 10, num_silos = 3, overlap = 1 and periods 4, 1, 1: 1 - eta m_j L - eta^2 L_max^2 Q^2 "
            "R_j >= 0 for every silo j",
        ),
        (
            {"step_size": 0.02, "timing": Overlap(1, (4, 1, 1))},
            "No overlap is inside with this step size: even overlap = 0 admits only up to 0.00399. With period = 1 at "
            "every silo, step sizes up to 0.009",
        ),
        ({"condition": "printed", "timing": Overlap(1)}, "condition = 'printed' is for rounds in step; leave it out"),
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
    found = caveats(federation, Settings(minibatches="reused", gradient="mean", step_size=0.05), noise)
    assert len(found) == 4
    assert found[0].startswith("minibatches = 'reused'")
    assert found[1].startswith("gradient = 'mean'")
    assert "off by up to 0.5" in found[2]
    assert "sigma (2)" in found[2]
    assert found[3].startswith("Clients hold from 2 to 5 rows: K = 1.69")
    even = Ridge.replicated(0, num_silos=2, num_clients=2).federation()
    assert caveats(even, Settings(step_size=0.05), Noise((2.0, 1.0), (0.0, 0.0), 10)) == []
