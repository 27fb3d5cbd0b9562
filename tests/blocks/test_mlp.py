from itertools import pairwise

import jax
import numpy as np
import pytest

from tdcd.blocks import Mlp

KEY = jax.random.key(0)


@pytest.mark.parametrize(("hidden", "shape"), [((8,), (5,)), ((6, 4), (3, 2)), ((), (5,))])
def test_start_has_a_weight_and_a_bias_a_layer_and_a_slice(hidden, shape):
    block = Mlp(hidden).init(KEY, shape, 3)
    widths = [int(np.prod(shape)), *hidden]
    assert [layer["weight"].shape for layer in block["hidden"]] == list(pairwise(widths))
    assert [layer["bias"].shape for layer in block["hidden"]] == [(width,) for width in hidden]
    assert not any(layer["bias"].any() for layer in block["hidden"])
    assert block["slice"].shape == (widths[-1], 3)


def test_start_has_the_variances_that_keep_signals_alive():
    block = Mlp((400, 300)).init(KEY, (200,), 50)
    first, second = (layer["weight"] for layer in block["hidden"])
    for weight, variance in ((first, 2 / 200), (second, 2 / 400), (block["slice"], 1 / 300)):
        assert float(weight.var()) == pytest.approx(variance, rel=0.05)
        assert abs(float(weight.mean())) < 5 * (variance / weight.size) ** 0.5


def test_start_follows_the_key():
    once, again, other = (Mlp((8,)).init(jax.random.key(seed), (5,), 1)["slice"] for seed in (0, 0, 1))
    assert (once == again).all()
    assert (once != other).any()


@pytest.mark.parametrize("shape", [(5,), (3, 2)])
def test_phi_goes_row_by_row_through_the_layers(shape):
    rng = np.random.default_rng(1)
    block = Mlp((6, 4)).init(KEY, shape, 2)
    for layer in block["hidden"]:
        layer["bias"] = rng.normal(size=layer["bias"].shape).astype(np.float32)
    features = rng.normal(size=(7, *shape)).astype(np.float32)
    phi = np.asarray(Mlp((6, 4)).phi(block, features))
    assert phi.shape == (7, 2)
    for row, scores in zip(features, phi, strict=True):
        h = row.ravel()
        for layer in block["hidden"]:
            h = np.maximum(0, h @ np.asarray(layer["weight"]) + layer["bias"])
        np.testing.assert_allclose(scores, h @ np.asarray(block["slice"]), rtol=1e-4, atol=1e-5)


def test_the_slice_has_no_bias():
    block = Mlp((6,)).init(KEY, (5,), 2)
    assert not Mlp((6,)).phi(block, np.zeros((1, 5), np.float32)).any()


def test_equal_blocks_share_a_program():
    assert Mlp((4, 3)) == Mlp((4, 3))
    assert hash(Mlp((4, 3))) == hash(Mlp((4, 3)))
    assert Mlp((4, 3)) != Mlp((4,))
