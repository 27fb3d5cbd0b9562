"""The gradients of the oracle and of every engine are the derivatives of the losses, by central differences."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import oracle
from support.problems import Problem, Shape, arrays, examples, over_engines, random_block
from tdcd.blocks import Ensemble, Linear, Mlp
from tdcd.core.family.labels import LabelsAt
from tdcd.core.objective import Objective
from tdcd.core.round import Widths, round_of
from tdcd.core.variant import Variant

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


ROUNDS = [round_of(variant, 3, Widths(1, 1)) for variant in (Variant(), Variant(knowledge=LabelsAt(1)))]


@pytest.mark.parametrize("flows", ROUNDS, ids=["labels everywhere", "labels at one silo"])
def test_the_oracle_has_a_method_for_each_flow_in_their_order(flows):
    """So that it can be read next to the flows."""
    for sent, methods in ((flows.training, oracle.SENDING), (flows.evaluation, oracle.EVALUATING)):
        kinds = [*dict.fromkeys((flow.name, flow.link) for flow in sent)]
        assert kinds == [kind for kind in methods if kind in kinds]
        lines = [method.__code__.co_firstlineno for method in methods.values()]
        assert lines == sorted(lines)


def test_hubs_without_labels_know_the_objective_that_the_label_silo_sends():
    rng = np.random.default_rng(5)
    silos = [oracle.Silo(oracle.Linear(), rng.normal(size=(6, 2)), [range(4), range(4, 6)]) for _ in range(3)]
    blocks, labels = [[rng.normal(size=(2, 1))] for _ in silos], rng.normal(size=6)
    total = sum(silo.features @ block for silo, (block,) in zip(silos, blocks, strict=True))
    expected = np.mean((total[:, 0] - labels) ** 2 / 2) + 0.15 * sum(np.sum(block**2) for (block,) in blocks)
    for flows in ROUNDS:
        assert oracle.objective(silos, labels, blocks, "squared", 0.3, flows) == pytest.approx(expected, rel=1e-12)
