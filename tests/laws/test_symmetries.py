"""What must not matter: the order of clients and of silos, and the gradient rule when it makes no difference."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.problems import ENGINES, SPLITS, Problem, Shape, arrays, distance, examples
from tdcd.blocks import Linear, Mlp
from tdcd.core.objective import Objective
from tdcd.federation.silos import Federation

TOLERANCE = 1e-12
MOVED = 1e-2
ROUNDS = 5
MIXED = Shape(clients=(3, 1, 4), columns=(2, 3, 1), local_steps=3, blocks=(Linear(), Mlp((3,)), Linear()))
LINEAR = Shape(clients=(3, 1, 4), columns=(2, 3, 1), local_steps=3)
EVERY_ENGINE = pytest.mark.parametrize(
    ("engine", "shape"), [("clients", MIXED), ("grouped", LINEAR), ("flat", LINEAR)], ids=["clients", "grouped", "flat"]
)
seeds = st.integers(0, 2**31)


@EVERY_ENGINE
@pytest.mark.parametrize("gradient", ["unbiased", "mean"])
def test_the_order_of_clients_does_not_matter(engine, shape, gradient):
    @examples(3)
    @given(seed=seeds, split=st.sampled_from(SPLITS), data=st.data())
    def law(seed, split, data):
        problem = Problem.draw(shape, Objective("logistic", 0.1), seed, split, gradient=gradient)
        silos = tuple(
            replace(silo, rows=tuple(data.draw(st.permutations(silo.rows)))) for silo in problem.federation.silos
        )
        shuffled = replace(problem, federation=Federation(silos, problem.federation.labels))
        expected = problem.simulate(ROUNDS, engine)
        assert distance(shuffled.simulate(ROUNDS, engine), expected) < TOLERANCE
        assert distance(expected, arrays(problem.start)) > MOVED

    law()


@EVERY_ENGINE
@pytest.mark.parametrize("order", [(2, 1, 0), (1, 2, 0)])
def test_the_order_of_silos_does_not_matter(engine, shape, order):
    problem = Problem.draw(shape, Objective("logistic", 0.1), seed=7)
    expected = problem.simulate(ROUNDS, engine)
    turned = replace(
        problem,
        federation=Federation(tuple(problem.federation.silos[j] for j in order), problem.federation.labels),
        blocks=tuple(problem.blocks[j] for j in order),
        start=[problem.start[j] for j in order],
    )
    assert distance(turned.simulate(ROUNDS, engine), [expected[j] for j in order]) < TOLERANCE
    assert distance(expected, arrays(problem.start)) > MOVED


@pytest.mark.optimised
@EVERY_ENGINE
def test_the_order_of_rows_within_a_client_does_not_matter(engine, shape):
    problem = Problem.draw(shape, Objective("logistic", 0.1), seed=7)
    silos = tuple(replace(silo, rows=tuple(rows[::-1] for rows in silo.rows)) for silo in problem.federation.silos)
    turned = replace(problem, federation=Federation(silos, problem.federation.labels))
    assert distance(turned.simulate(ROUNDS, engine), problem.simulate(ROUNDS, engine)) == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_gradient_rules_agree_when_clients_have_equally_many_rows_in_every_minibatch(engine):
    shape = Shape(clients=(3, 2), columns=(2, 3), local_steps=4)
    problem = Problem.draw(shape, Objective("squared", 0.1), 5, "shuffled", minibatches="full")
    unbiased, mean = problem.simulate(ROUNDS, engine), problem.with_settings(gradient="mean").simulate(ROUNDS, engine)
    assert distance(unbiased, mean) < TOLERANCE
    assert distance(unbiased, arrays(problem.start)) > MOVED


@pytest.mark.parametrize("engine", ENGINES)
def test_gradient_rules_differ_when_clients_have_unequally_many_rows(engine):
    shape = Shape(clients=(3, 2), columns=(2, 3), local_steps=4)
    problem = Problem.draw(shape, Objective("squared", 0.1), 5, "unequal")
    assert (
        distance(problem.simulate(ROUNDS, engine), problem.with_settings(gradient="mean").simulate(ROUNDS, engine))
        > 1e-3
    )
