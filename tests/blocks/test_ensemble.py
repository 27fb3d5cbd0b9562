"""Networks that share their weights: what their members are, and where they start."""

from functools import partial

import jax
import numpy as np
import pytest

from tdcd import Ensemble, Mlp, Objective, Pairs
from tdcd.blocks.base import phi_of_members, step_phi, with_head
from tdcd.config.resolve import block_keys, block_named
from tdcd.config.schema import ModelSection
from tdcd.core.algorithm import Descent, Minibatch, local_step
from tdcd.core.combine import SUM
from tdcd.core.knowledge import Known, LabelsEverywhere
from tdcd.core.schedule import step_keys
from tdcd.core.update import Sgd

KEY = jax.random.key(0)
KEYS = [np.array([0, number], np.uint32) for number in range(50)]


def drawn(block, shape, outputs, seed=1):
    """A block with no number at its start."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), block.init(KEY, shape, outputs))


def test_start_shares_weights_and_differs_by_signs():
    members, widths = 3, (6, 5, 4)
    block = Ensemble(widths[1:], members).init(KEY, (2, 3), 2)
    first, second = block["hidden"]
    assert [layer["weight"].shape for layer in block["hidden"]] == [(6, 5), (5, 4)]
    assert first.keys() == {"weight", "output", "bias"}
    assert second.keys() == {"weight", "input", "output", "bias"}
    assert block["slice"].shape == (members * 4, 2)
    assert {*np.unique(first["output"])} == {-1, 1}
    assert len({tuple(row) for row in np.asarray(first["output"]).tolist()}) == members
    assert (np.asarray(second["input"]) == 1).all()
    assert (np.asarray(second["output"]) == 1).all()
    assert not any(layer["bias"].any() for layer in block["hidden"])
    again, other = (Ensemble((5,), 3).init(jax.random.key(seed), (4,), 1)["slice"] for seed in (0, 1))
    assert (np.asarray(again) != np.asarray(other)).any()


def test_start_has_the_variances_that_keep_signals_alive():
    block = Ensemble((400, 300), 10).init(KEY, (200,), 5)
    first, second = (layer["weight"] for layer in block["hidden"])
    for weight, variance in ((first, 2 / 200), (second, 2 / 400), (block["slice"], 1 / 300)):
        assert float(weight.var()) == pytest.approx(variance, rel=0.05)


@pytest.mark.parametrize("shape", [(5,), (3, 2)])
def test_one_member_with_unit_scalings_is_the_plain_network(shape):
    ensemble, plain = Ensemble((6, 4), 1), Mlp((6, 4))
    block = drawn(ensemble, shape, 2)
    for layer in block["hidden"]:
        for name in {"input", "output"} & layer.keys():
            layer[name] = np.ones_like(layer[name])
    layers = [{"weight": layer["weight"], "bias": layer["bias"][0]} for layer in block["hidden"]]
    features = np.random.default_rng(2).normal(size=(7, *shape))
    with jax.enable_x64(True):
        expected = plain.phi({"hidden": layers, "slice": block["slice"]}, features)
        np.testing.assert_allclose(ensemble.phi(block, features), expected, rtol=1e-12)


def test_phi_is_the_mean_of_the_members_each_a_plain_network_with_scaled_weights():
    members = 3
    ensemble, block = Ensemble((6, 4), members), drawn(Ensemble((6, 4), members), (5,), 2)
    features = np.random.default_rng(3).normal(size=(7, 5))
    total = 0
    for m, last in enumerate(block["slice"].reshape(members, 4, 2)):
        layers = [
            {
                "weight": layer.get("input", np.ones((members, 1)))[m][:, None] * layer["weight"] * layer["output"][m],
                "bias": layer["bias"][m],
            }
            for layer in block["hidden"]
        ]
        with jax.enable_x64(True):
            total = total + np.asarray(Mlp((6, 4)).phi({"hidden": layers, "slice": last}, features))
    with jax.enable_x64(True):
        np.testing.assert_allclose(ensemble.phi(block, features), total / members, rtol=1e-10)


def test_a_configuration_has_words_for_it():
    assert block_named("ensemble") == Ensemble((128, 128), 16, 0.1)
    section = ModelSection(block="ensemble", hidden=[7], members=2, dropout=0.3)
    assert block_named("ensemble", section) == Ensemble((7,), 2, 0.3)
    keys = {"block": "ensemble", "hidden": [7], "members": 2, "dropout": 0.3}
    assert block_keys([Ensemble((7,), 2, 0.3)] * 2) == keys
    assert block_keys([Ensemble((7,)), Mlp((8,))]) is None


@pytest.mark.parametrize("head", [SUM, Pairs(2)])
def test_members_without_dropout_are_those_that_phi_is_the_mean_of(head):
    ensemble = Ensemble((6, 4), 3, 0.0)
    block, features = drawn(ensemble, (5,), 3), np.random.default_rng(3).normal(size=(7, 5))
    with jax.enable_x64(True):
        members = phi_of_members(with_head(ensemble, head))(block, features, np.zeros(2, np.uint32))
        given = np.asarray(ensemble.phi_of_members(block, features, np.zeros(2, np.uint32)))
        np.testing.assert_allclose(given.mean(axis=0), ensemble.phi(block, features), rtol=1e-10)
        np.testing.assert_allclose(members, head.phi(given), rtol=1e-12)
    assert members.shape == (3, 7, 3 if head is SUM else head.width(1))


def test_units_are_left_out_for_all_rows_alike_and_on_average_none():
    ensemble = Ensemble((400,), 2, 0.25)
    block, features = drawn(ensemble, (3,), 1), np.random.default_rng(3).normal(size=(5, 3))
    block["hidden"][0]["bias"] = np.full((2, 400), 100.0)
    block["slice"] = np.ones((800, 1))
    with jax.enable_x64(True):
        whole = np.asarray(ensemble.phi_of_members(block, np.zeros((1, 3)), KEYS[0]))[..., 0, 0]
    # Of 400 units that are all 100, so many are left, and count for 4/3 each.
    left = np.rint(whole / 100 * 0.75)
    assert (np.abs(left - 300) < 60).all()
    assert left[0] != left[1]
    with jax.enable_x64(True):
        alone = [np.asarray(ensemble.phi_of_members(block, row[None], KEYS[0]))[:, 0] for row in features]
        together = np.asarray(ensemble.phi_of_members(block, features, KEYS[0]))
        np.testing.assert_allclose(together, np.stack(alone, axis=1), rtol=1e-9)
        draws = [np.asarray(ensemble.phi_of_members(block, features, key)).mean(axis=0) for key in KEYS]
        np.testing.assert_allclose(np.mean(draws, axis=0), ensemble.phi(block, features), rtol=0.02)
    assert len({round(float(draw[0, 0]), 6) for draw in draws}) == len(KEYS)


def test_steps_of_all_clients_silos_rounds_and_seeds_have_keys_of_their_own():
    places = [(seed, r, silo, client) for seed in (0, 1) for r in (0, 1) for silo in (0, 1) for client in (0, 1)]
    keys = [tuple(key) for seed, *place in places for key in np.asarray(step_keys((0, seed), *place, 3)).tolist()]
    assert len({*keys}) == len(keys) == 3 * len(places)


def test_a_step_follows_the_mean_loss_of_the_members_each_in_place_of_its_silos_mean():
    """For the squared loss that is the loss of the mean, and half of the variance of the members."""
    ensemble, rng = Ensemble((4,), 3, 0.0), np.random.default_rng(5)
    block, features, labels, others = drawn(ensemble, (3,), 1), *(rng.normal(size=s) for s in ((6, 3), 6, (6, 1)))
    losses = partial(LabelsEverywhere().losses, 0, objective=Objective("squared"))
    rows = Minibatch(features, Known(labels, others), np.full(6, 1 / 6), np.zeros(2, np.uint32))

    def objective(block):
        members = ensemble.phi_of_members(block, features, rows.key)
        mean = losses(ensemble.phi(block, features), rows.known)
        return (mean + members[..., 0].var(axis=0) / 2).mean()

    with jax.enable_x64(True):
        descent = Descent(losses, 0.0, Sgd(), np.float64(1.0))
        step = jax.jit(partial(local_step, apply=step_phi(ensemble), descent=descent))
        stepped, _ = step((block, ()), rows)
        slopes = jax.jit(jax.grad(objective))(block)
        expected = jax.tree.map(lambda leaf, slope: leaf - np.asarray(slope), block, slopes)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-12), stepped, expected)


@pytest.mark.parametrize("dropout", [-0.1, 1.0])
def test_a_dropout_that_is_no_probability_is_refused(dropout):
    with pytest.raises(ValueError, match=r"dropout must be at least 0 and below 1, not"):
        Ensemble((3,), 2, dropout)


@pytest.mark.parametrize(("hidden", "members"), [((), 2), ((3,), 0)])
def test_an_ensemble_of_nothing_is_refused(hidden, members):
    with pytest.raises(ValueError, match=r"an ensemble has hidden layers and members, not"):
        Ensemble(hidden, members)
