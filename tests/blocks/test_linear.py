import jax
import numpy as np
import pytest

from tdcd.blocks import Linear

KEY = jax.random.key(0)


@pytest.mark.parametrize("shape", [(5,), (4, 3)])
def test_starts_at_zero(shape):
    block = Linear().init(KEY, shape, 2)
    assert block["weight"].shape == (np.prod(shape), 2)
    assert not block["weight"].any()


@pytest.mark.parametrize("shape", [(5,), (4, 3)])
def test_phi_is_x_theta_row_by_row(shape):
    rng = np.random.default_rng(0)
    block = {"weight": rng.normal(size=(int(np.prod(shape)), 2)).astype(np.float32)}
    features = rng.normal(size=(7, *shape)).astype(np.float32)
    phi = np.asarray(Linear().phi(block, features))
    assert phi.shape == (7, 2)
    for row, scores in zip(features, phi, strict=True):
        np.testing.assert_allclose(scores, row.ravel() @ block["weight"], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(scores, Linear().phi(block, row[None])[0], rtol=1e-5, atol=1e-6)


def test_what_is_not_finite_is_no_warning():
    features, block = np.full((2, 3), 1e30, np.float32), {"weight": np.full((3, 1), 1e30, np.float32)}
    assert np.isinf(Linear().phi(block, features)).all()
    assert np.isinf(Linear().weighted_sum(features, np.full((2, 1), 1e30, np.float32))["weight"]).all()


def test_equal_blocks_share_a_program():
    assert Linear() == Linear()
    assert hash(Linear()) == hash(Linear())
