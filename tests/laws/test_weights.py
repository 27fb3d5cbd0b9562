"""Samples that count more than others, against the plain loops and against samples that are there several times."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.utils.class_weight import compute_class_weight

from support.problems import Problem, Shape, distance
from tdcd.blocks import Linear, Mlp
from tdcd.core.objective import Objective
from tdcd.federation.weights import by_class

SHAPE = Shape(clients=(3, 4), columns=(2, 3), num_samples=60, batch_size=12, blocks=(Linear(), Mlp((4,))))
LINEAR = replace(SHAPE, blocks=())


def weighted(problem, weights):
    return replace(problem, federation=replace(problem.federation, weights=weights))


def drawn(shape=SHAPE, loss="logistic", **changes):
    problem = Problem.draw(shape, Objective(loss, 0.1), 7, **changes)
    return weighted(problem, np.random.default_rng(3).gamma(1.0, size=shape.num_samples))


@pytest.mark.parametrize("changes", [{}, {"minibatches": "full"}, {"gradient": "mean"}], ids=str)
@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_every_row_counts_as_much_as_it_weighs(loss, changes):
    problem = drawn(loss=loss, **changes)
    expected = problem.solve(4)
    assert distance(problem.simulate(4), expected) < 1e-10
    assert distance(weighted(problem, None).solve(4), expected) > 1e-3


def test_the_scale_of_weights_does_not_matter_and_equal_ones_change_nothing():
    problem = drawn(LINEAR, "squared")
    other = weighted(problem, 40 * problem.federation.weights)
    assert distance(problem.simulate(4), other.simulate(4)) < 1e-12
    plain = weighted(problem, None).simulate(4, "clients")
    assert distance(weighted(problem, np.full(60, 3.0)).simulate(4), plain) == 0


def test_the_loss_is_the_weighted_mean():
    problem = drawn()
    simulation = problem.simulation()
    scores = simulation.scores(problem.start)
    weights, labels = problem.federation.weights, problem.federation.labels
    (found,) = simulation.losses(problem.start, scores, labels, weights)
    each = [simulation.loss(problem.start, scores[[row]], labels[[row]]) for row in range(60)]
    assert found == pytest.approx(np.average(each, weights=weights), rel=1e-12)


def test_a_sample_of_weight_2_is_there_twice():
    """With every sample in each minibatch, and one client: the gradient is that of the longer table."""
    shape = replace(LINEAR, clients=(1, 1), num_samples=20)
    problem = Problem.draw(shape, Objective("logistic", 0.1), 5, minibatches="full")
    twice = np.concatenate([np.arange(20), np.arange(7)])
    silos = tuple(
        replace(silo, features=silo.features[twice], rows=(np.arange(27),)) for silo in problem.federation.silos
    )
    longer = replace(
        problem, federation=replace(problem.federation, silos=silos, labels=problem.federation.labels[twice])
    )
    weights = np.where(np.arange(20) < 7, 2.0, 1.0)
    assert distance(weighted(problem, weights).simulate(5), longer.simulate(5)) < 1e-12


def test_classes_weigh_as_scikit_learn_has_it():
    labels = np.array([0, 0, 0, 1, 2, 2])
    names = ("no", "perhaps", "yes")
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    np.testing.assert_allclose(by_class("balanced", names, labels), expected)
    np.testing.assert_allclose(by_class({"yes": 4.0}, names, labels), [1.0, 1.0, 4.0])
    with pytest.raises(ValueError, match="there is no class 'maybe'; there are 'no', 'perhaps', 'yes'"):
        by_class({"maybe": 1.0}, names, labels)
    # Where samples weigh something themselves, classes are balanced by that.
    own = np.array([1.0, 1.0, 2.0, 4.0, 0.0, 8.0])
    sums = np.bincount(labels, own * by_class("balanced", names, labels, own)[labels])
    np.testing.assert_allclose(sums, sums[0])


def test_a_balanced_federation_is_one_with_those_weights():
    problem = Problem.draw(SHAPE, Objective("softmax", 0.1), 7)
    federation = problem.federation.class_weighted("balanced")
    weights = compute_class_weight("balanced", classes=np.arange(3), y=federation.labels)[federation.labels]
    np.testing.assert_allclose(federation.weights, weights)
    found = replace(problem, federation=federation).simulate(3)
    assert distance(found, weighted(problem, weights).simulate(3)) < 1e-12
    by_number = problem.federation.class_weighted({0: 3.0, 2: 0.5})
    np.testing.assert_allclose(by_number.weights, np.array([3.0, 1.0, 0.5])[federation.labels])


def test_what_cannot_work_is_refused():
    problem = drawn(LINEAR, "squared")
    for engine in ("grouped", "flat"):
        with pytest.raises(ValueError, match=f"engine = '{engine}': it gives all samples the same weight"):
            problem.simulation(engine, "device")
    for weights, text in [
        (np.ones(3), "weights: there are 3; give one per sample"),
        (np.full(60, -1.0), "weights: that of row 0 is -1; a weight is a number of at least 0"),
        (np.zeros(60), "weights: all are 0"),
    ]:
        with pytest.raises(ValueError, match=text):
            weighted(problem, weights)
