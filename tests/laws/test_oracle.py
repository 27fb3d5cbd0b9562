"""The oracle's hand-written gradients are the derivatives of its own losses."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import examples, random_block

import oracle
from tdcd.blocks import Linear, Mlp

STEP = 1e-6


@pytest.mark.parametrize(("loss", "outputs", "label"), [("squared", 1, 0.7), ("logistic", 1, 1), ("softmax", 3, 2)])
@pytest.mark.parametrize(
    ("model", "block"), [(oracle.Linear(), Linear()), (oracle.Mlp(), Mlp((5, 4)))], ids=["linear", "mlp"]
)
@examples(5)
@given(seed=st.integers(0, 2**31))
def test_gradients_are_central_differences(model, block, loss, outputs, label, seed):
    rng = np.random.default_rng(seed)
    x, others = rng.normal(size=3), rng.normal(size=outputs)
    point = [np.array(leaf) for leaf in jax.tree.leaves(random_block(block, 3, outputs, rng))]

    def value():
        return oracle.loss_of(loss, model.phi(point, x) + others, label)

    gradient = model.gradient(point, x, oracle.slope_of(loss, model.phi(point, x) + others, label))
    for array, slopes in zip(point, gradient, strict=True):
        assert array.shape == slopes.shape
        for index in np.ndindex(array.shape):
            kept = array[index]
            array[index] = kept + STEP
            above = value()
            array[index] = kept - STEP
            below = value()
            array[index] = kept
            assert slopes[index] == pytest.approx((above - below) / (2 * STEP), abs=1e-7)
