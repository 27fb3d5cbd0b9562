"""Networks that share their weights: what their members are, and where they start."""

import jax
import numpy as np
import pytest

from tdcd import Ensemble, Mlp
from tdcd.config.resolve import block_keys, block_named
from tdcd.config.schema import ModelSection

KEY = jax.random.key(0)


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
    assert block_named("ensemble") == Ensemble((128, 128), 8)
    section = ModelSection(block="ensemble", hidden=[7], members=2)
    assert block_named("ensemble", section) == Ensemble((7,), 2)
    assert block_keys([Ensemble((7,), 2)] * 2) == {"block": "ensemble", "hidden": [7], "members": 2}
    assert block_keys([Ensemble((7,)), Mlp((8,))]) is None


@pytest.mark.parametrize(("hidden", "members"), [((), 2), ((3,), 0)])
def test_an_ensemble_of_nothing_is_refused(hidden, members):
    with pytest.raises(ValueError, match=r"an ensemble has hidden layers and members, not"):
        Ensemble(hidden, members)
