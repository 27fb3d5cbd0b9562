"""What must not matter: the order of clients and of silos, and the gradient rule when it makes no difference."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import SPLITS, Problem, Shape, arrays, distance, examples

from tdcd.blocks import Linear, Mlp
from tdcd.core.objective import Objective
from tdcd.federation.silos import Federation

TOLERANCE = 1e-12
MOVED = 1e-2
ROUNDS = 5
SHAPE = Shape(clients=(3, 1, 4), columns=(2, 3, 1), local_steps=3, blocks=(Linear(), Mlp((3,)), Linear()))
seeds = st.integers(0, 2**31)


@pytest.mark.parametrize("gradient", ["unbiased", "mean"])
def test_the_order_of_clients_does_not_matter(gradient):
    @examples(3)
    @given(seed=seeds, split=st.sampled_from(SPLITS), data=st.data())
    def law(seed, split, data):
        problem = Problem.draw(SHAPE, Objective("logistic", 0.1), seed, split, gradient=gradient)
        silos = tuple(
            replace(silo, rows=tuple(data.draw(st.permutations(silo.rows)))) for silo in problem.federation.silos
        )
        shuffled = replace(problem, federation=Federation(silos, problem.federation.labels))
        expected = problem.simulate(ROUNDS)
        assert distance(shuffled.simulate(ROUNDS), expected) < TOLERANCE
        assert distance(expected, arrays(problem.start)) > MOVED

    law()


@pytest.mark.parametrize("order", [(2, 1, 0), (1, 2, 0)])
def test_the_order_of_silos_does_not_matter(order):
    problem = Problem.draw(SHAPE, Objective("logistic", 0.1), seed=7)
    expected = problem.simulate(ROUNDS)
    turned = replace(
        problem,
        federation=Federation(tuple(problem.federation.silos[j] for j in order), problem.federation.labels),
        blocks=tuple(problem.blocks[j] for j in order),
        start=[problem.start[j] for j in order],
    )
    assert distance(turned.simulate(ROUNDS), [expected[j] for j in order]) < TOLERANCE
    assert distance(expected, arrays(problem.start)) > MOVED


def test_the_order_of_rows_within_a_client_does_not_matter():
    problem = Problem.draw(SHAPE, Objective("logistic", 0.1), seed=7)
    silos = tuple(replace(silo, rows=tuple(rows[::-1] for rows in silo.rows)) for silo in problem.federation.silos)
    turned = replace(problem, federation=Federation(silos, problem.federation.labels))
    assert distance(turned.simulate(ROUNDS), problem.simulate(ROUNDS)) == 0


def test_gradient_rules_agree_when_clients_have_equally_many_rows_in_every_minibatch():
    shape = Shape(clients=(3, 2), columns=(2, 3), local_steps=4)
    problem = Problem.draw(shape, Objective("squared", 0.1), 5, "shuffled", minibatches="full")
    unbiased, mean = problem.simulate(ROUNDS), problem.with_settings(gradient="mean").simulate(ROUNDS)
    assert distance(unbiased, mean) < TOLERANCE
    assert distance(unbiased, arrays(problem.start)) > MOVED


def test_gradient_rules_differ_when_clients_have_unequally_many_rows():
    shape = Shape(clients=(3, 2), columns=(2, 3), local_steps=4)
    problem = Problem.draw(shape, Objective("squared", 0.1), 5, "unequal")
    assert distance(problem.simulate(ROUNDS), problem.with_settings(gradient="mean").simulate(ROUNDS)) > 1e-3
