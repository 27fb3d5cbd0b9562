"""The gradients of the oracle and of every engine are the derivatives of the losses, by central differences."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import oracle
from support.problems import Problem, Shape, arrays, examples, over_engines, random_block
from tdcd.blocks import Ensemble, Linear, Mlp
from tdcd.core.objective import Objective

STEP = 1e-6
LOSSES = [("squared", 1, 0.7), ("logistic", 1, 1), ("softmax", 3, 2), ("poisson", 1, 3), ("huber", 1, 2.5)]


@pytest.mark.parametrize(("loss", "outputs", "label"), LOSSES)
@pytest.mark.parametrize(
    ("model", "block"),
    [(oracle.Linear(), Linear()), (oracle.Mlp(), Mlp((5, 4))), (oracle.Ensemble(), Ensemble((5, 4), 3))],
    ids=["linear", "mlp", "ensemble"],
)
@examples(5)
@given(seed=st.integers(0, 2**31))
def test_gradients_are_central_differences(model, block, loss, outputs, label, seed):
    rng = np.random.default_rng(seed)
    x, others = rng.normal(size=3), rng.normal(size=outputs)
    point = [np.array(leaf) for leaf in jax.tree.leaves(random_block(block, 3, outputs, rng))]

    def value():
        return oracle.loss_of(loss, model.phi(point, x) + others, label)

    # The slope at the mean of all members: of the loss of that.
    slope = oracle.slope_of(loss, model.phi(point, x) + others, label)
    gradient = model.gradient(point, x, lambda phi: slope)
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


@pytest.mark.parametrize(
    ("engine", "loss", "blocks"),
    [
        *over_engines(("squared", ()), ("logistic", ()), ("softmax", ()), ("poisson", ()), ("huber", ())),
        ("clients", "softmax", (Mlp((3,)), Linear())),
        ("clients", "softmax", (Ensemble((3,), 1, 0.0), Linear())),
    ],
)
def test_one_step_on_all_samples_goes_down_the_objective(engine, loss, blocks):
    shape = Shape(clients=(2, 3), columns=(3, 2), local_steps=1, blocks=blocks)
    problem = Problem.draw(shape, Objective(loss, 0.3), 4, minibatches="full")
    moved = problem.simulate(1, engine)
    silos, labels, start = problem.silos(), problem.federation.labels, arrays(problem.start)

    def value():
        return oracle.objective(silos, labels, start, loss, 0.3)

    for block, after in zip(start, moved, strict=True):
        for array, new in zip(block, after, strict=True):
            for index in np.ndindex(array.shape):
                kept = array[index]
                array[index] = kept + STEP
                above = value()
                array[index] = kept - STEP
                below = value()
                array[index] = kept
                slope = (kept - new[index]) / problem.settings.step_size
                assert slope == pytest.approx((above - below) / (2 * STEP), abs=1e-7)
