"""Constants are the norms that dense linear algebra gives, or bounds that no model breaks."""

import math
import re
from collections.abc import Sequence
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from ridge_problem import Array, Ridge, federation_of

from tdcd import Federation, Linear, Mlp, Objective, Settings, Simulation
from tdcd.theory import constants
from tdcd.theory.smoothness import NARROW, UnfinishedError, largest_eigenvalue


def classes_of(parts: Sequence[Array], num_classes: int) -> Federation:
    return federation_of(parts, np.arange(len(parts[0])) % num_classes)


@pytest.mark.parametrize(
    ("widths", "l2"), [((3, 1, 5), 0.3), ((4, 4), 0.0), ((1,), 0.0), ((2,) * 6, 1.0)], ids=["3", "2", "1", "6"]
)
def test_ridge_constants_are_norms_of_the_hessian(widths, l2):
    rng = np.random.default_rng(len(widths))
    parts = [(rng.normal(size=(1500, width)) + rng.normal(size=(1500, 1))).astype(np.float32) for width in widths]
    problem = Ridge([np.asarray(part, np.float64) for part in parts], np.zeros(1500), [], l2, [])
    found = constants(federation_of(parts, np.zeros(1500)), [Linear()] * len(widths), Objective("squared", l2))
    assert found.kind == "exact"
    expected = problem.constants
    assert [found.L, *found.per_silo] == pytest.approx([expected.L, *expected.per_silo], rel=1e-12)
    assert found.L_max == max(found.per_silo) <= found.L


def test_wide_data_needs_no_square_matrix():
    # One of 60,000 x 60,000 numbers would take 29 GB. The same norms from the 20 x 20 side:
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(20, width)) for width in (50_000, 10_000)]
    found = constants(federation_of(parts, np.zeros(20)), [Linear()] * 2, Objective("squared", 2.0))
    outer = sum(part @ part.T for part in parts) / 20
    expected = [np.linalg.norm(outer, 2) + 2]
    for part in parts:
        squared_rows = (outer + 2 * 2.0 * np.eye(20)) @ (part @ part.T / 20)
        expected.append(math.sqrt(np.abs(np.linalg.eigvals(squared_rows)).max() + 2.0**2))
    assert [found.L, *found.per_silo] == pytest.approx(expected)


def logistic_hessian(matrix: Array, theta: Array) -> Array:
    chance = 1 / (1 + np.exp(-matrix @ theta))
    return (matrix * (chance * (1 - chance))[:, None]).T @ matrix / len(matrix)


def softmax_hessian(matrix: Array, theta: Array) -> Array:
    """``[D C, D C]`` for theta ``[D, C]``."""
    scores = matrix @ theta
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    curves = np.einsum("ic,cd->icd", chances, np.eye(theta.shape[1])) - np.einsum("ic,id->icd", chances, chances)
    size = theta.size
    return np.einsum("ia,ib,icd->acbd", matrix, matrix, curves).reshape(size, size) / len(matrix)


def test_logistic_constants_hold_everywhere_and_the_whole_one_is_attained():
    rng = np.random.default_rng(0)
    # Rows that cancel in X_1^T X_2 but need not curve alike: the norm of 1/4 G_1 would be no bound.
    parts = [np.ones((2, 1)), np.array([[10.0], [-10.0]])]
    matrix = np.concatenate(parts, axis=1)
    found = constants(classes_of(parts, 2), [Linear()] * 2, Objective("logistic"))
    assert found.kind == "upper bound"
    assert np.linalg.norm(logistic_hessian(matrix, np.zeros(2)), 2) == pytest.approx(found.L)
    models = [np.array([5.0, -0.5]), *rng.normal(size=(200, 2)) * 3]
    rows = np.array([np.linalg.norm(logistic_hessian(matrix, theta)[:1], 2) for theta in models])
    assert rows.max() > 4 * np.linalg.norm(matrix[:, :1].T @ matrix / 8, 2)
    assert rows.max() <= found.per_silo[0] <= found.L


@pytest.mark.parametrize("num_classes", [2, 4])
def test_softmax_constants_hold_everywhere_and_the_whole_one_is_approached(num_classes):
    rng = np.random.default_rng(num_classes)
    parts = [np.concatenate([rng.normal(size=(30, 2)), np.ones((30, 1))], axis=1), rng.normal(size=(30, 2))]
    matrix = np.concatenate(parts, axis=1)
    found = constants(classes_of(parts, num_classes), [Linear()] * 2, Objective("softmax", 0.1))
    # With a bias column, two classes can be made equally likely in every row, and the others impossible.
    theta = np.zeros((5, num_classes))
    theta[2, 2:] = -50
    for model in (theta, *rng.normal(size=(20, 5, num_classes)) * 2):
        hessian = softmax_hessian(matrix, model) + 0.1 * np.eye(model.size)
        assert np.linalg.norm(hessian, 2) <= found.L * (1 + 1e-12)
        assert np.linalg.norm(hessian[: 3 * num_classes], 2) <= found.per_silo[0]
        assert np.linalg.norm(hessian[3 * num_classes :], 2) <= found.per_silo[1]
    at_halves = softmax_hessian(matrix, theta) + 0.1 * np.eye(theta.size)
    assert np.linalg.norm(at_halves, 2) == pytest.approx(found.L)


def test_other_models_get_the_largest_norm_at_the_given_models():
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(12, 3)), rng.normal(size=(12, 2))]
    federation, blocks = federation_of(parts, rng.normal(size=12)), [Mlp((3,)), Linear()]
    simulation = Simulation(
        federation, blocks, Objective("squared", 0.1), Settings(batch_size=4, dtype="float64", step_size=0.05)
    )
    models = [
        simulation.init().blocks,
        jax.tree.map(lambda leaf: np.asarray(leaf) + rng.normal(size=leaf.shape), simulation.init().blocks),
    ]
    found = constants(federation, blocks, simulation.objective, models=models)

    with jax.enable_x64(True):

        def norms(model):
            flat, restore = ravel_pytree(model)

            def loss(theta):
                tree = restore(theta)
                scores = sum(b.phi(t, p) for b, t, p in zip(blocks, tree, parts, strict=True))
                return ((scores[:, 0] - federation.labels) ** 2).mean() / 2 + 0.05 * (theta**2).sum()

            hessian = np.asarray(jax.jit(jax.hessian(loss))(flat))
            assert np.linalg.eigvalsh(hessian)[0] < 0
            return [np.linalg.norm(part, 2) for part in (hessian, hessian[:-2], hessian[-2:])]

        expected = np.max([norms(model) for model in models], axis=0)
    assert [found.L, *found.per_silo] == pytest.approx(expected)
    assert found.kind == "estimate"
    assert "over 12 rows at 2 of 2 models; elsewhere it may be larger" in found.note


@pytest.mark.parametrize("eigenvalues", [[0.0], [-3.0, 1.0], np.linspace(-9, 8.99, 300), np.zeros(5), [2.0] * 70])
def test_lanczos_finds_the_largest_magnitude(eigenvalues):
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(len(eigenvalues),) * 2))[0]
    matrix = turn * np.asarray(eigenvalues) @ turn.T
    value, converged = largest_eigenvalue(lambda v: matrix @ v, len(matrix), rng, lambda value, converged: True)
    assert converged
    assert value == pytest.approx(np.abs(eigenvalues).max(), abs=1e-12, rel=1e-9)


def test_lanczos_refuses_what_is_not_finite():
    with pytest.raises(ValueError, match="the curvature is not finite at this model: its numbers are too large"):
        largest_eigenvalue(lambda v: v * np.inf, 3, np.random.default_rng(0), lambda value, converged: True)


def test_a_time_limit_puts_the_whole_constant_in_the_place_of_what_is_not_ready(monkeypatch):
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(3000, 100)) for _ in range(2)]
    federation, blocks = federation_of(parts, np.zeros(3000)), [Linear()] * 2
    news = []
    exact = constants(federation, blocks, Objective("squared"), observe=news.append)
    assert [news[-1].name, news[-1].done, news[-1].total] == ["L_2", 3, 3]
    assert news[-1].value == pytest.approx(exact.per_silo[1])

    news.clear()
    clock = SimpleNamespace(monotonic=lambda: float(bool(news) and news[-1].done == 1))
    monkeypatch.setattr("tdcd.theory.progress.time", clock)
    late = constants(federation, blocks, Objective("squared"), seconds=0.5, observe=news.append)
    assert (late.kind, late.L) == ("upper bound", exact.L)
    assert all(known <= bound <= exact.L for known, bound in zip(exact.per_silo, late.per_silo, strict=True))


@pytest.mark.parametrize("columns", [6, NARROW])
@pytest.mark.parametrize(("loss", "curvature"), [("squared", 1.0), ("logistic", 0.25)])
def test_constants_that_time_cut_short_are_never_below_the_true_ones(loss, curvature, columns, monkeypatch):
    """Whenever time is up: a lower bound of L would give step sizes that are not safe."""
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(40, width)) + 2 * rng.normal(size=(40, 1)) for width in (columns, 4)]
    federation, blocks, objective = classes_of(parts, 2), [Linear()] * 2, Objective(loss, 0.5)
    exact = constants(federation, blocks, objective)
    trace = sum(float((part**2).sum()) for part in parts) / 40
    hurried = constants(federation, blocks, objective, seconds=1e-9)
    assert math.isclose(hurried.L, curvature * trace + 0.5)
    assert hurried.note.endswith("the trace of X^T X / M, which is never smaller, stands for its norm")
    for products in range(6):
        news = []
        clock = SimpleNamespace(monotonic=lambda news=news, most=products: float(len(news) >= most))
        monkeypatch.setattr("tdcd.theory.progress.time", clock)
        found = constants(federation, blocks, objective, seconds=0.5, observe=news.append)
        assert found.kind in {"exact", "upper bound"}
        for known, bound in zip([exact.L, *exact.per_silo], [found.L, *found.per_silo], strict=True):
            assert known <= bound * (1 + 1e-9)


def test_few_columns_and_many_give_the_same_constants(monkeypatch):
    rng = np.random.default_rng(3)
    federation = classes_of([rng.normal(size=(1100, 2, 2)), rng.normal(size=(1100, 3))], 3)
    for objective in (Objective("squared", 0.1), Objective("softmax")):
        monkeypatch.setattr("tdcd.theory.smoothness.NARROW", 7)
        narrow = constants(federation, [Linear()] * 2, objective)
        monkeypatch.setattr("tdcd.theory.smoothness.NARROW", 6)
        wide = constants(federation, [Linear()] * 2, objective)
        assert [narrow.L, *narrow.per_silo] == pytest.approx([wide.L, *wide.per_silo])


def test_a_time_limit_stops_estimates_after_the_first_model(monkeypatch):
    rng = np.random.default_rng(0)
    federation = federation_of([rng.normal(size=(12, 3))], rng.normal(size=12))
    start = (
        Simulation(federation, [Mlp((3,))], Objective("squared"), Settings(batch_size=4, step_size=0.05)).init().blocks
    )
    with pytest.raises(UnfinishedError, match="time was up before L was known: what is known by then is less than L"):
        constants(federation, [Mlp((3,))], Objective("squared"), models=[start] * 3, rows=5, seconds=1e-9)
    news = []
    clock = SimpleNamespace(monotonic=lambda: float(bool(news) and news[-1].done == 1))
    monkeypatch.setattr("tdcd.theory.progress.time", clock)
    limits = {"rows": 5, "seconds": 0.5, "observe": news.append}
    found = constants(federation, [Mlp((3,))], Objective("squared"), models=[start] * 3, **limits)
    assert "over 5 rows at 1 of 3 models, stopped by the time limit" in found.note


def test_what_has_no_constants_is_refused():
    federation, squared = federation_of([np.ones((4, 2))] * 2, np.zeros(4)), Objective("squared")
    with pytest.raises(ValueError, match=re.escape("no smoothness constants are known for Mlp blocks: pass models=")):
        constants(federation, [Linear(), Mlp()], squared)
    with pytest.raises(ValueError, match="there must be one block per silo, and there are 1 block for 2 silos"):
        constants(federation, [Linear()], squared)
    with pytest.raises(ValueError, match="seconds must be a positive number, or None for no limit, not 0"):
        constants(federation, [Linear()] * 2, squared, seconds=0)
    with pytest.raises(ValueError, match="rows must be at least 1, not 0"):
        constants(federation, [Mlp()] * 2, squared, models=[[]], rows=0)
    with pytest.raises(ValueError, match=r"the hub blocks have shapes \[{'weight': \(3, 1\)}\], but the federation's"):
        constants(federation, [Mlp()] * 2, squared, models=[[{"weight": np.zeros((3, 1))}]])
