"""Noise is the mean over minibatches, worked out by hand, and tends to the mean over all minibatches that there are."""

from collections.abc import Sequence
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray
from ridge_problem import Array, Ridge, expected_square, federation_of, slopes_of

from tdcd import Linear, Mlp, Objective, Settings, Simulation
from tdcd.core.codecs.quantised import Quantised, QuantisedChange
from tdcd.core.schedule import batch_ids
from tdcd.core.variant import Variant
from tdcd.federation.partition import contiguous_rows
from tdcd.theory import bits_caveats, sigmas
from tdcd.theory.noise import phi_noise

SPLIT = Ridge(
    [np.random.default_rng(1).normal(size=(7, 2)), np.random.default_rng(2).normal(size=(7, 3))],
    np.random.default_rng(3).normal(size=7),
    [[np.array([0, 3]), np.array([1, 2, 4, 5, 6])], [np.array([0, 1, 2]), np.array([6, 3]), np.array([4, 5])]],
    0.3,
    [np.random.default_rng(4).normal(size=2), np.random.default_rng(5).normal(size=3)],
)


def client_gradient(slopes: Array, rows: NDArray[np.int64], batch: Sequence[int], rule: str) -> Array:
    mine = np.intersect1d(batch, rows)
    scale = len(slopes) / (len(rows) * len(batch)) if rule == "unbiased" else 1 / max(len(mine), 1)
    return scale * slopes[mine].sum(axis=0)


def largest_squares(problem: Ridge, model: Sequence[Array], batches: Sequence[Sequence[int]], rule: str) -> list[float]:
    """The mean over ``batches`` of |g_k,j - grad_j|^2, the most over the clients of each silo."""
    found = []
    for slopes, clients in zip(slopes_of(problem, model), problem.rows, strict=True):
        whole = slopes.mean(axis=0)
        squares = [
            np.mean([np.sum((client_gradient(slopes, rows, batch, rule) - whole) ** 2) for batch in batches])
            for rows in clients
        ]
        found.append(float(max(squares)))
    return found


@pytest.mark.parametrize("rule", ["unbiased", "mean"])
def test_noise_is_that_of_the_drawn_minibatches_and_comes_near_that_of_all(rule):
    chosen = Settings(batch_size=3, gradient=rule, seed=5, step_size=0.05)
    federation, models = SPLIT.federation(), [SPLIT.start, [2 * part for part in SPLIT.start]]
    blocks = [SPLIT.blocks(model) for model in models]
    found = sigmas(federation, [Linear()] * 2, Objective("squared", 0.3), chosen, blocks, samples=600)
    drawn = batch_ids(5, range(600), num_samples=7, batch_size=3, local_steps=1)[:, 0]
    expected = np.max([largest_squares(SPLIT, model, drawn, rule) for model in models], axis=0)
    assert found.per_silo == pytest.approx(np.sqrt(expected), rel=1e-9)
    assert sum(found.draws) == 1200
    # For the client, silo and model with the most noise; with 599 degrees of freedom t is 1.9639.
    noisiest = max(
        (
            [np.sum((client_gradient(slopes, rows, batch, rule) - slopes.mean(axis=0)) ** 2) for batch in drawn]
            for model in models
            for slopes, clients in zip(slopes_of(SPLIT, model), SPLIT.rows, strict=True)
            for rows in clients
        ),
        key=np.mean,
    )
    half = 1.9639 * np.std(noisiest, ddof=1) / np.sqrt(600)
    assert found.interval == pytest.approx(np.sqrt([np.mean(noisiest) - half, np.mean(noisiest) + half]), rel=1e-4)
    every = list(combinations(range(7), 3))
    assert found.per_silo == pytest.approx(
        np.sqrt(np.max([largest_squares(SPLIT, m, every, rule) for m in models], axis=0)), rel=0.1
    )


def test_the_closed_form_of_the_noise_is_the_mean_over_all_minibatches():
    every = list(combinations(range(7), 3))
    closed = [
        max(expected_square(slopes, rows, 3) for rows in clients)
        for slopes, clients in zip(slopes_of(SPLIT, SPLIT.start), SPLIT.rows, strict=True)
    ]
    assert closed == pytest.approx(largest_squares(SPLIT, SPLIT.start, every, "unbiased"))


def test_the_bias_is_how_far_a_clients_own_rows_are_off():
    found = sigmas(
        SPLIT.federation(),
        [Linear()] * 2,
        Objective("squared", 0.3),
        Settings(minibatches="full", step_size=0.05),
        [SPLIT.blocks(SPLIT.start)],
    )
    expected = [
        max(np.linalg.norm(slopes[rows].mean(axis=0) - slopes.mean(axis=0)) for rows in clients)
        for slopes, clients in zip(slopes_of(SPLIT, SPLIT.start), SPLIT.rows, strict=True)
    ]
    assert found.bias == pytest.approx(expected)
    assert (found.per_silo, found.draws, found.too_few) == (found.bias, (0,), "")
    assert found.interval == (found.maximum, found.maximum)


def test_copies_of_the_same_rows_leave_no_bias():
    problem = Ridge.replicated(3, num_silos=2, num_clients=3)
    found = sigmas(
        problem.federation(),
        [Linear()] * 2,
        Objective("squared", problem.l2),
        Settings(batch_size=4, step_size=0.05),
        [problem.blocks(problem.start)],
        samples=2,
    )
    assert max(found.bias) < 1e-12 < min(found.per_silo)


def test_deep_blocks_and_classes_have_noise_too():
    rng = np.random.default_rng(0)
    parts, labels, blocks = [rng.normal(size=(6, 3)), rng.normal(size=(6, 2))], np.arange(6) % 3, [Mlp((4,)), Linear()]
    federation = federation_of(parts, labels, sizes=[1] * 6)
    chosen = Settings(minibatches="full", dtype="float64", step_size=0.05)
    start = Simulation(federation, blocks, Objective("softmax"), chosen).init().blocks
    found = sigmas(federation, blocks, Objective("softmax", 0.2), chosen, [start])

    def loss(model, row):
        scores = sum(b.phi(t, jnp.asarray(part)[row, None]) for b, t, part in zip(blocks, model, parts, strict=True))[0]
        return jax.nn.logsumexp(scores) - scores[jnp.asarray(labels)[row]]

    # Every client holds one row: it is off by as much as that row's gradient.
    with jax.enable_x64(True):
        slope = jax.jit(jax.grad(loss))
        rows = [jax.tree.map(np.asarray, slope(start, row)) for row in range(6)]
        slopes = [np.stack([ravel_pytree(row[silo])[0] for row in rows]) for silo in range(2)]
    expected = [np.linalg.norm(silo - silo.mean(axis=0), axis=1).max() for silo in slopes]
    assert found.per_silo == pytest.approx(expected)


def test_many_rows_are_averaged_in_chunks():
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(2500, 3))]
    clients = contiguous_rows(2500, [2000, 400, 100])
    problem = Ridge(parts, rng.normal(size=2500), [clients], 0.0, [rng.normal(size=3)])
    model = problem.blocks(problem.start)
    full = Settings(minibatches="full", step_size=0.05)
    found = sigmas(problem.federation(), [Linear()], Objective("squared"), full, [model])
    (slopes,) = slopes_of(problem, problem.start)
    offs = [np.linalg.norm(slopes[rows].mean(axis=0) - slopes.mean(axis=0)) for rows in clients]
    assert found.bias == pytest.approx([max(offs)])


def test_a_time_limit_stops_sampling():
    news = []
    found = sigmas(
        SPLIT.federation(),
        [Linear()] * 2,
        Objective("squared"),
        Settings(batch_size=3, step_size=0.05),
        [SPLIT.blocks(SPLIT.start)] * 2,
        seconds=1e-9,
        observe=news.append,
    )
    assert found.draws == (1, 1)
    assert found.too_few == "time was up when sigma rested on 1 minibatch, and it takes at least 10: give more seconds"
    assert (news[0].name, news[0].done, news[0].total) == ("sigma", 1, 128)
    assert news[0].value == pytest.approx(found.maximum)


def test_bad_input_is_refused():
    federation, blocks, squared = SPLIT.federation(), [Linear()] * 2, Objective("squared")
    with pytest.raises(ValueError, match="models is empty: give the hub blocks"):
        sigmas(federation, blocks, squared, Settings(step_size=0.05), [])
    with pytest.raises(ValueError, match="samples must be at least 1, not 0"):
        sigmas(federation, blocks, squared, Settings(step_size=0.05), [SPLIT.blocks(SPLIT.start)], samples=0)
    with pytest.raises(ValueError, match="batch_size = 9: there are only 7 training samples"):
        sigmas(federation, blocks, squared, Settings(batch_size=9, step_size=0.05), [SPLIT.blocks(SPLIT.start)])


LINEAR, SQUARED = [Linear()] * 2, Objective("squared", 0.3)
FOUR_BITS = Variant(exchange=Quantised(4), client_exchange=Quantised(4))


@pytest.mark.parametrize("rule", ["unbiased", "mean"])
def test_few_bits_add_the_variance_of_their_errors(rule):
    """Over all minibatches: a client's rows in it have errors of their own, each with the variance of its widths."""
    phis = [part @ theta for part, theta in zip(SPLIT.features, SPLIT.start, strict=True)]
    largest = [np.abs(phi).max() for phi in phis]
    chosen = Settings(batch_size=3, gradient=rule, step_size=0.05)
    found = phi_noise(SPLIT.federation(), SQUARED, chosen, SPLIT.blocks(SPLIT.start), FOUR_BITS)
    for j, part in enumerate(SPLIT.features):
        up = largest[1 - j] / 7
        across = (largest[1 - j] + up / 2) / 7
        down = (largest[1 - j] + up / 2 + across / 2) / 7
        variance = (up**2 + across**2 + down**2) / 12
        squares = np.sum(part**2, axis=1)
        exact = []
        for rows in SPLIT.rows[j]:
            added = []
            for batch in combinations(range(7), 3):
                mine = np.intersect1d(batch, rows)
                scale = 7 / (len(rows) * 3) if rule == "unbiased" else 1 / max(len(mine), 1)
                added.append(scale**2 * squares[mine].sum() * variance)
            exact.append(np.mean(added))
        assert found[j] == pytest.approx(max(exact)) if rule == "unbiased" else found[j] >= max(exact)

    models = [SPLIT.blocks(SPLIT.start)]
    plain, few = (
        sigmas(SPLIT.federation(), LINEAR, SQUARED, chosen, models, variant=variant, samples=20)
        for variant in (Variant(), FOUR_BITS)
    )
    assert np.square(few.per_silo) - np.square(plain.per_silo) == pytest.approx(found)
    assert few.bias == plain.bias


def test_steps_on_few_bits_are_unbiased_and_spread_as_the_formula_says():
    """Of ridge regression, simulated from one state with the dithers of many rounds."""
    problem = Ridge(SPLIT.features, SPLIT.labels, [[np.arange(7)]] * 2, 0.3, SPLIT.start)
    chosen = Settings(local_steps=1, step_size=1.0, minibatches="full", dtype="float64")
    simulation = Simulation(problem.federation(), LINEAR, SQUARED, chosen, variant=FOUR_BITS)
    state = simulation.state_of(problem.blocks(problem.start))
    blocks = [simulation.advance(state, index, 1).blocks for index in range(300)]
    steps = [
        start - np.array([np.asarray(each[j]["weight"])[:, 0] for each in blocks])
        for j, start in enumerate(problem.start)
    ]
    limits = phi_noise(problem.federation(), SQUARED, chosen, problem.blocks(problem.start), FOUR_BITS)
    edge = len(problem.start[0])
    for step, exact, limit in zip(steps, np.split(problem.gradient(problem.start), [edge]), limits, strict=True):
        assert np.linalg.norm(step.mean(axis=0) - exact) < 4 * (limit / 300) ** 0.5
        assert 0.7 * limit < np.sum(step.var(axis=0)) < 1.1 * limit


def test_what_few_bits_leave_open_is_reported():
    assert bits_caveats(Variant(), LINEAR, SQUARED) == []
    assert bits_caveats(FOUR_BITS, LINEAR, SQUARED) == []
    (curved,) = bits_caveats(FOUR_BITS, LINEAR, Objective("logistic"))
    assert "slopes of the logistic loss are curved" in curved
    (unknown,) = bits_caveats(FOUR_BITS, [Linear(), Mlp((3,))], SQUARED)
    assert "known for linear blocks only" in unknown
    (blocks,) = bits_caveats(Variant(block_exchange=QuantisedChange()), LINEAR, SQUARED)
    assert blocks.startswith("blocks in 8 bits: the theorem has blocks as they are")
