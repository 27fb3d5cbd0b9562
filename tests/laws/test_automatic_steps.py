"""Steps that are chosen and steered: they reach the optimum, for any split, and are the same in every engine."""

import numpy as np
import pytest

from tdcd import Federation, Linear, Mlp, Objective, Settings, Variant, train
from tdcd.core.execution import Execution
from tdcd.core.family.automatic import automatic
from tdcd.core.family.scaled import Scaled, inverse_root_of, mean_products, products
from tdcd.core.family.steered import Steered
from tdcd.data import load, standardize


def federation(source, silos=2, clients=3, seed=0):
    table = load(source)
    table, _ = standardize(table, None, "float64", labels=table.task == "regression")
    return Federation.cut(table, silos=silos, clients=clients, bias=True, seed=seed)


def columns(made):
    return np.concatenate([silo.features for silo in made.silos], axis=1)


EXACT = {"tol": 1e-11, "rounds": 1500, "verbose": 0, "quiet": True}
AUTO = Settings(step_size="auto", dtype="float64")


def test_ridge_reaches_the_closed_form():
    made, l2 = federation("diabetes"), 0.01
    rows, labels = columns(made), made.labels
    best = np.linalg.solve(rows.T @ rows / len(rows) + l2 * np.eye(rows.shape[1]), rows.T @ labels / len(rows))
    result = train(made, Linear(), Objective("squared", l2), AUTO, **EXACT)
    found = np.concatenate([result.blocks[silo.name]["weight"][:, 0] for silo in made.silos])
    assert result.converged
    np.testing.assert_allclose(found, best, atol=1e-5)


@pytest.mark.parametrize("clients", [1, [4, 2]])
def test_the_row_split_changes_nothing(clients):
    one, other = (
        train(federation("diabetes", clients=k), Linear(), "squared", AUTO, rounds=20, verbose=0, quiet=True)
        for k in (3, clients)
    )
    for ours, theirs in zip(one.history, other.history, strict=True):
        assert ours.train_loss == pytest.approx(theirs.train_loss, rel=1e-10)


def test_the_engines_take_the_same_steps():
    made = federation("breast_cancer")
    results = [
        train(made, Linear(), "logistic", AUTO, rounds=20, verbose=0, quiet=True, execution=Execution(engine=engine))
        for engine in ("full", "clients")
    ]
    for ours, theirs in zip(*(result.history for result in results), strict=True):
        assert ours.train_loss == pytest.approx(theirs.train_loss, rel=1e-10)
        assert (ours.step, ours.taken_back) == (theirs.step, theirs.taken_back)


def test_several_local_steps_go_to_the_same_place():
    made = federation("diabetes")
    settings = Settings(step_size="auto", local_steps=4, minibatches="full", batch_size=1, dtype="float64")
    several = train(made, Linear(), "squared", settings, rounds=60, verbose=0, quiet=True)
    one = train(made, Linear(), "squared", AUTO, rounds=60, verbose=0, quiet=True)
    assert several.final.train_loss == pytest.approx(one.final.train_loss, rel=1e-4)


def test_a_step_that_is_much_too_long_is_taken_back_until_the_loss_falls():
    made = federation("diabetes")
    far = Variant(hub_update=Steered(Scaled(400.0, 1.0)))
    plain = Settings(step_size=1.0, local_steps=1, minibatches="full", dtype="float64")
    result = train(made, Linear(), "squared", plain, rounds=120, variant=far, verbose=0, quiet=True)
    assert any(record.taken_back for record in result.history)
    assert result.final.train_loss < 0.55 * result.history[0].train_loss
    assert result.status == "finished"


def test_a_step_that_is_not_finite_is_not_taken_and_the_block_waits():
    steered = Steered(Scaled(0.5, 1.0))
    block = {"weight": np.array([[1.0], [2.0]])}
    state = steered.start(block)
    good, after = steered.step(block, {"weight": block["weight"] - 0.1}, state)
    np.testing.assert_allclose(good["weight"], block["weight"] - 0.5 * 1.4 * 0.1)
    assert not steered.is_lost(after)
    for bad in (np.nan, np.inf, 1e200):
        held, lost = steered.step(good, {"weight": np.array([[0.0], [bad]])}, after)
        assert steered.is_lost(lost)
        assert np.array_equal(held["weight"], good["weight"])
        assert np.array_equal(lost["inner"]["velocity"]["weight"], after["inner"]["velocity"]["weight"])
        # Until the next decision.
        again, still = steered.step(held, {"weight": held["weight"] - 0.1}, lost)
        assert np.array_equal(again["weight"], good["weight"])
        assert steered.is_lost(still)
        assert not steered.is_lost(steered.with_factor(still, 0.5))


def test_a_block_that_went_back_waits_for_as_many_steps_as_steering_asks():
    steered, block = Steered(Scaled(0.5, 1.0)), {"weight": np.ones((2, 1))}
    state = steered.with_factor(steered.start(block), 0.5, wait=2)
    for bad in (np.nan, 5.0):
        block, state = steered.step(block, {"weight": np.full((2, 1), bad)}, state)
        assert np.array_equal(block["weight"], np.ones((2, 1)))
        assert not steered.is_lost(state)
    block, state = steered.step(block, {"weight": np.full((2, 1), 0.9)}, state)
    np.testing.assert_allclose(block["weight"], 1 - 0.5 * 0.5 * 1.4 * 0.1)


@pytest.mark.parametrize("engine", ["full", "clients"])
def test_evaluations_that_are_rarer_than_the_overflow_lead_back_to_the_last_one(engine):
    made = federation("diabetes")
    far = Variant(hub_update=Steered(Scaled(1e9, 1.0)))
    plain = Settings(step_size=1.0, local_steps=1, minibatches="full", dtype="float32")
    options = {"rounds": 600, "evaluate_every": 20, "verbose": 0, "quiet": True, "execution": Execution(engine=engine)}
    result = train(made, Linear(), "squared", plain, variant=far, **options)
    assert sum(not np.isfinite(record.train_loss) for record in result.history) > 2
    assert result.status == "finished"
    assert result.final.train_loss < 0.55 * result.history[0].train_loss


def test_a_network_gets_adam_at_its_hubs_and_never_ends_above_its_start():
    result = train(federation("diabetes"), Mlp((8,)), "squared", AUTO, rounds=30, verbose=0, quiet=True)
    assert result.final.train_loss < 0.9 * result.history[0].train_loss
    accepted = [record.train_loss for record in result.history if not record.taken_back]
    assert accepted == sorted(accepted, reverse=True)


def test_clients_with_an_optimiser_of_their_own_are_refused():
    from tdcd import ClientMomentum

    refused = "update = ClientMomentum: step_size = 'auto' goes with plain local steps of the clients"
    with pytest.raises(ValueError, match=refused):
        automatic(Settings(step_size="auto"), Variant(update=ClientMomentum()), is_scalable=True, num_silos=2)


def formula(hessian, scale, rounds, first=0.25):
    """Blocks of scaled steps on a quadratic, and their lengths, by the formulas of tdcd.core.family.scaled."""
    block, velocity, length, last = np.ones((len(hessian), 1)), 0.0, first, None
    blocks, lengths = [], []
    for k in range(1, rounds + 1):
        gradient = hessian @ block
        if last is not None and (gradient != last[1]).any():
            step, change = block - last[0], gradient - last[1]
            measured = np.sqrt((change.T @ np.linalg.solve(scale, change)).item() / (step.T @ scale @ step).item())
            length = max(first, min(1.2 * length, 0.5 / measured, 32.0))
        last = block, gradient
        velocity = min(0.9, k / (k + 3)) * velocity + gradient
        block = block - length * np.linalg.solve(scale, min(0.9, (k + 1) / (k + 4)) * velocity + gradient)
        blocks.append(block)
        lengths.append(length)
    return blocks, lengths


@pytest.mark.parametrize("factor", [0.002, 0.3, 2.0])
def test_steps_follow_the_curvature_that_a_hub_measures(factor):
    """From 1/4 on: short where the silo curves by more than it knows of, and as long as it allows where by less."""
    rows = np.random.default_rng(1).normal(size=(40, 3))
    update, curvature = Scaled(0.25, 1.0), products(rows)
    root = inverse_root_of(curvature, 1.0, 0.0)
    scale = np.linalg.inv(root @ root)
    hessian = factor * scale
    block = {"weight": np.ones((3, 1))}
    state = update.curved(update.start(block), curvature, Objective("squared", 0.0))
    expected, lengths = formula(hessian, scale, 40)
    for after, length in zip(expected, lengths, strict=True):
        gradient = hessian @ block["weight"]
        block, state = update.step(block, {"weight": block["weight"] - gradient}, state)
        np.testing.assert_allclose(block["weight"], after, rtol=1e-8, atol=1e-12 + 1e-9 * abs(after).max())
        assert float(state["step_size"]) == pytest.approx(length, rel=1e-6)
    assert lengths[-1] == pytest.approx(max(0.25, min(32.0, 0.5 / factor)))


def test_a_step_that_was_made_shorter_is_measured_by_how_far_it_went():
    """Steered steps go a part of the way, and the curvature along them is the same."""
    update, block = Steered(Scaled(0.25, 1.0)), {"weight": np.array([[1.0], [-2.0]])}
    state = update.with_factor(update.start(block), 0.125)
    for _ in range(12):
        block, state = update.step(block, {"weight": block["weight"] - 0.5 * block["weight"]}, state)
    assert float(state["inner"]["step_size"]) == pytest.approx(1.0)


def test_scaled_steps_are_not_made_longer_than_they_measure():
    settings, variant = automatic(AUTO, Variant(), is_scalable=True, num_silos=2)
    assert (variant.longest_factor, settings.local_steps) == (1.0, 1)
    result = train(federation("breast_cancer"), Linear(), "logistic", AUTO, rounds=60, verbose=0, quiet=True)
    assert max(record.step for record in result.history) == 1.0


def test_products_of_clients_add_up_to_those_of_the_silo():
    rows = np.random.default_rng(0).normal(size=(30, 4))
    parts = [rows[:5], rows[5:19], rows[19:]]
    found = mean_products(np.stack([products(part) for part in parts]), np.array([len(part) / 30 for part in parts]))
    np.testing.assert_allclose(found, rows.T @ rows / 30, rtol=1e-12)


def test_the_inverse_is_of_the_damped_curvature():
    rows = np.random.default_rng(0).normal(size=(30, 4))
    curvature = 0.25 * products(rows)
    damped = curvature + (0.1 + 1e-3 * np.diagonal(curvature).mean()) * np.eye(4)
    root = inverse_root_of(products(rows), 0.25, 0.1)
    np.testing.assert_allclose(root @ root @ damped, np.eye(4), atol=1e-12)


def test_a_run_that_was_interrupted_continues_to_the_same_end(tmp_path):
    made = federation("breast_cancer")
    whole = train(made, Linear(), "logistic", AUTO, rounds=60, verbose=0, quiet=True)
    for first in (7, 23):
        out = tmp_path / str(first)
        seen = []

        def stop(seen=seen, first=first):
            return bool(seen) and seen[-1] >= first

        train(
            made,
            Linear(),
            "logistic",
            AUTO,
            rounds=60,
            out=out,
            verbose=0,
            quiet=True,
            should_stop=stop,
            observe=lambda progress, seen=seen: seen.append(progress.round),
        )
        again = train(made, Linear(), "logistic", AUTO, rounds=60, out=out, resume=True, verbose=0, quiet=True)
        assert [record.without_seconds() for record in again.history] == [r.without_seconds() for r in whole.history]
        for name, block in whole.blocks.items():
            assert np.array_equal(block["weight"], again.blocks[name]["weight"])
