"""The simulation is Algorithm 1: it agrees with the plain-loop oracle to rounding, on weights that have moved."""

from itertools import product

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import oracle
from support.problems import ENGINES, SPLITS, Problem, Shape, arrays, distance, engines_of, examples
from tdcd.blocks import Ensemble, Linear, Mlp
from tdcd.core.objective import Objective
from tdcd.core.schedule import batch_ids
from tdcd.core.settings import Settings
from tdcd.data import Table
from tdcd.federation.placement import Placer, holders
from tdcd.federation.silos import Federation, Silo
from tdcd.simulation.simulate import ROWS_AT_ONCE, Simulation

TOLERANCE = 1e-10
MOVED = 1e-2
ROUNDS = 4

SHAPES = (
    Shape(clients=(3,), columns=(4,)),
    Shape(clients=(2, 3), columns=(3, 2)),
    Shape(clients=(1, 4, 2), columns=(2, 1, 3), local_steps=2),
    Shape(clients=(5, 1), columns=(1, 5), batch_size=5, local_steps=4),
    Shape(clients=(2, 1, 3, 5), columns=(1, 2, 1, 2), num_samples=37, batch_size=7, local_steps=2),
    Shape(clients=(3, 2), columns=(2, 2), batch_size=1, local_steps=5),
)
RULES = list(product(("squared", "logistic", "softmax"), ("unbiased", "mean"), ("fresh", "reused", "full")))
RULES += [("poisson", "unbiased", "fresh"), ("huber", "mean", "reused")]
seeds = st.integers(0, 2**31)


def assert_same(problem: Problem, engine: str, num_rounds: int = ROUNDS) -> None:
    expected = problem.solve(num_rounds)
    assert distance(problem.simulate(num_rounds, engine), expected) < TOLERANCE
    assert distance(expected, arrays(problem.start)) > MOVED


@pytest.mark.parametrize(
    ("engine", "loss", "gradient", "minibatches"), [(engine, *rule) for rule in RULES for engine in engines_of(rule[0])]
)
def test_linear_silos_agree_with_the_oracle(engine, loss, gradient, minibatches):
    index = RULES.index((loss, gradient, minibatches))
    objective = Objective(loss, (0.0, 0.3)[index % 2])

    # With every sample in the minibatch the padding follows the largest shard: most splits compile anew.
    @examples(1 if minibatches == "full" else 3)
    @given(seed=seeds, split=st.sampled_from(SPLITS))
    def law(seed, split):
        shape = SHAPES[index % len(SHAPES)]
        assert_same(Problem.draw(shape, objective, seed, split, gradient=gradient, minibatches=minibatches), engine)

    law()


LARGE = Shape(clients=(2, 1), columns=(2, 1), num_samples=4200, batch_size=1050, local_steps=1)
"""Large minibatches, which the flat engine draws itself if they are from the stream."""


@pytest.mark.parametrize(("engine", "shape"), [*((engine, SHAPES[1]) for engine in ENGINES), ("flat", LARGE)])
def test_minibatches_drawn_by_a_permutation_agree_with_the_oracle(engine, shape):
    problem = Problem.draw(shape, Objective("squared", 0.3), seed=4, draws="permutation")
    assert_same(problem, engine, num_rounds=2)
    other = Problem.draw(shape, Objective("squared", 0.3), seed=4)
    assert distance(problem.solve(1), other.solve(1)) > TOLERANCE


MLP = Shape(clients=(2, 3), columns=(3, 2), blocks=(Mlp((4, 3)), Mlp((3,))))
ENSEMBLE = Shape(clients=(2, 3), columns=(3, 2), blocks=(Ensemble((4, 3), 2, 0.0), Ensemble((3,), 3, 0.0)))
SMALL = Shape(clients=(2,), columns=(3,), local_steps=2, blocks=(Mlp((4,)),))
MIXED = Shape(clients=(3, 1, 2), columns=(2, 3, 2), local_steps=2, blocks=(Linear(), Mlp((4,)), Linear()))


@pytest.mark.parametrize(
    ("shape", "objective", "gradient", "minibatches"),
    [
        (MLP, Objective("softmax", 0.1), "unbiased", "fresh"),
        (ENSEMBLE, Objective("softmax", 0.1), "unbiased", "fresh"),
        (MIXED, Objective("squared"), "mean", "fresh"),
        (MIXED, Objective("logistic", 0.2), "unbiased", "reused"),
    ],
    ids=["mlp", "ensemble", "mixed-fresh", "mixed-reused"],
)
def test_silos_with_networks_agree_with_the_oracle(shape, objective, gradient, minibatches):
    @examples(4)
    @given(seed=seeds, split=st.sampled_from(SPLITS))
    def law(seed, split):
        problem = Problem.draw(shape, objective, seed, split, gradient=gradient, minibatches=minibatches)
        assert_same(problem, "clients")

    law()


def drawn_ids(problem: Problem, num_rounds: int) -> np.ndarray:
    chosen = problem.settings
    return batch_ids(
        chosen.seed,
        range(num_rounds),
        num_samples=problem.federation.num_samples,
        batch_size=chosen.batch_size,
        local_steps=chosen.local_steps,
    )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("gradient", ["unbiased", "mean"])
def test_a_client_without_rows_in_a_minibatch_follows_the_regulariser_alone(engine, gradient):
    shape = Shape(clients=(3, 4), columns=(2, 2), batch_size=3)
    problem = Problem.draw(shape, Objective("squared", 0.3), seed=3, gradient=gradient)
    for silo in problem.federation.silos:
        counts = holders(drawn_ids(problem, ROUNDS), silo.owner(), silo.num_clients)
        assert (counts == 0).any()
        assert (counts > 0).any()
    assert_same(problem, engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_wide_rows_go_minibatch_by_minibatch_to_the_same_phi(engine):
    shape = Shape(clients=(1, 2), columns=(1100, 2), num_samples=80, batch_size=64, local_steps=4)
    assert_same(Problem.draw(shape, Objective("squared"), seed=0), engine, num_rounds=2)


def crowded(seed: int, crowded_round: int) -> Problem:
    """Eight equal clients, one of which holds all of a minibatch: more rows than the usual padding has room for."""
    num_samples, batch_size, num_clients = 256, 32, 8
    chosen = Settings(local_steps=2, batch_size=batch_size, step_size=0.1, seed=seed, dtype="float64")
    shape = Shape((num_clients,), (3,), num_samples, batch_size, chosen.local_steps)
    problem = Problem.draw(shape, Objective("squared"), seed)
    whole = np.sort(drawn_ids(problem, crowded_round + 1)[crowded_round, 0])
    rest = np.setdiff1d(np.arange(num_samples), whole)
    silo = Silo("silo", problem.federation.silos[0].features, (whole, *np.split(rest, num_clients - 1)))
    assert Placer(silo.owner(), batch_size).usual < len(whole)
    return Problem(
        Federation((silo,), problem.federation.labels), problem.blocks, problem.objective, chosen, problem.start
    )


@pytest.mark.optimised
@pytest.mark.parametrize("engine", ENGINES)
def test_rounds_that_overflow_the_usual_padding_agree_with_the_oracle_in_any_grouping(engine):
    problem = crowded(seed=5, crowded_round=2)
    assert_same(problem, engine, num_rounds=5)
    simulation = problem.simulation(engine)
    state = simulation.state_of(problem.start)
    for round_index in range(5):
        state = simulation.advance(state, round_index, 1)
    assert distance(arrays(state), problem.simulate(5, engine)) == 0


@pytest.mark.optimised
@pytest.mark.parametrize(
    ("engine", "shape"),
    [("clients", MIXED), *((engine, SHAPES[1]) for engine in ENGINES)],
    ids=["clients-mixed", *ENGINES],
)
def test_any_grouping_of_rounds_into_calls_gives_the_same_bits(engine, shape):
    problem = Problem.draw(shape, Objective("logistic", 0.1), seed=11)
    simulation = problem.simulation(engine)
    simulation._engine.rounds_per_call = 5
    num_rounds = 17
    start = simulation.state_of(problem.start)
    at_once = simulation.advance(start, 0, num_rounds)
    in_threes, one_by_one = start, start
    for first in range(0, num_rounds, 3):
        in_threes = simulation.advance(in_threes, first, min(3, num_rounds - first))
    for round_index in range(num_rounds):
        one_by_one = simulation.advance(one_by_one, round_index, 1)
    assert distance(arrays(at_once), arrays(in_threes)) == 0
    assert distance(arrays(at_once), arrays(one_by_one)) == 0
    assert distance(arrays(simulation.advance(start, 0, 0)), arrays(problem.start)) == 0


@pytest.mark.parametrize("loss", ["squared", "logistic", "softmax"])
def test_evaluation_is_the_objective_over_all_samples(loss):
    shape = Shape(clients=(2, 1), columns=(2, 3))
    problem = Problem.draw(shape, Objective(loss, 0.4), seed=2)
    simulation = problem.simulation()
    scores = simulation.scores(problem.start)
    weights = [block["weight"] for block in problem.start]
    expected = sum(silo.features @ weight for silo, weight in zip(problem.silos(), weights, strict=True))
    np.testing.assert_allclose(scores, expected, atol=1e-12)
    reference = oracle.objective(problem.silos(), problem.federation.labels, arrays(problem.start), loss, 0.4)
    assert simulation.loss(problem.start, scores, problem.federation.labels) == pytest.approx(reference, abs=1e-12)


def test_every_sample_is_scored_once_when_chunks_do_not_divide_them():
    shape = Shape(clients=(1,), columns=(2,), num_samples=ROWS_AT_ONCE + 904)
    problem = Problem.draw(shape, Objective("squared", 0.1), seed=4)
    simulation = problem.simulation()
    (silo,), weight = problem.federation.silos, problem.start[0]["weight"]
    expected = silo.features @ weight
    np.testing.assert_allclose(simulation.scores(problem.start), expected, atol=1e-12)
    np.testing.assert_allclose(simulation.scores(problem.start, [silo.features[:7]]), expected[:7], atol=1e-12)
    half_mean_square = np.mean((expected[:, 0] - problem.federation.labels) ** 2) / 2
    loss = simulation.loss(problem.start, expected, problem.federation.labels)
    assert loss == pytest.approx(half_mean_square + 0.05 * np.sum(weight**2), abs=1e-12)


@pytest.mark.optimised
@pytest.mark.parametrize(
    ("engine", "shape"), [("clients", SMALL), ("grouped", SHAPES[1]), ("flat", SHAPES[1])], ids=ENGINES
)
def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(engine, shape):
    problem = Problem.draw(shape, Objective("squared"), seed=8)
    once, again = problem.simulation(engine), problem.simulation(engine)
    assert distance(arrays(once.init()), arrays(again.init())) == 0
    assert distance(arrays(once.advance(once.init(), 0, 3)), arrays(again.advance(again.init(), 0, 3))) == 0
    other = problem.with_settings(seed=9).simulation(engine)
    assert distance(arrays(once.advance(once.init(), 0, 3)), arrays(other.advance(once.init(), 0, 3))) > 1e-3


@pytest.mark.parametrize(
    ("engine", "shape", "loss"),
    [("clients", SMALL, "softmax"), ("grouped", SHAPES[1], "softmax"), ("flat", SHAPES[1], "logistic")],
    ids=ENGINES,
)
def test_float32_agrees_with_float64_to_single_precision(engine, shape, loss):
    problem = Problem.draw(shape, Objective(loss, 0.1), seed=6)
    double = problem.simulate(10, engine)
    single = problem.with_settings(dtype="float32").simulate(10, engine)
    assert all(array.dtype == np.float32 for block in single for array in block)
    assert 0 < distance(single, double) < 1e-4
    assert distance(double, arrays(problem.start)) > MOVED


def test_blocks_start_from_the_seed_alike_in_both_precisions():
    problem = Problem.draw(SMALL, Objective("softmax"), seed=6)
    double = problem.simulation().init()
    assert distance(arrays(double), arrays(problem.with_settings(seed=9).simulation().init())) > MOVED
    single = problem.with_settings(dtype="float32").simulation().init()
    assert jax.tree.structure(double.blocks) == jax.tree.structure(single.blocks)
    assert distance(arrays(single), arrays(double)) < 1e-6


def test_one_block_per_silo_is_asked_for():
    problem = Problem.draw(SHAPES[1], Objective("squared"), seed=0)
    with pytest.raises(ValueError, match="there are 2 silos, but 1 block"):
        Problem(problem.federation, (Linear(),), problem.objective, problem.settings, problem.start).simulation()


def test_a_minibatch_larger_than_the_data_is_refused():
    problem = Problem.draw(SHAPES[1], Objective("squared"), seed=0).with_settings(batch_size=31)
    with pytest.raises(ValueError, match="batch_size = 31: there are only 30 training samples"):
        problem.simulation()


@pytest.mark.parametrize("cpu", [False, True])
@pytest.mark.parametrize("minibatches", ["fresh", "reused"])
def test_steps_on_fewer_rows_and_clients_in_turn_change_nothing_beyond_rounding(monkeypatch, cpu, minibatches):
    """What heavy steps do on a CPU (clients in turn) and on an accelerator (all at once), forced on a light problem."""
    rng = np.random.default_rng(0)
    table = Table("random", rng.normal(size=(600, 6)).astype(np.float32), rng.normal(size=600), "regression")
    federation = Federation.cut(table, silos=2, clients=[4, 3])
    settings = Settings(local_steps=5, batch_size=120, step_size=0.05, minibatches=minibatches, dtype="float64")
    plain = Simulation(federation, [Mlp((3,))] * 2, Objective("squared", 0.01), settings)
    heavy = Simulation(federation, [Mlp((3,))] * 2, Objective("squared", 0.01), settings)
    monkeypatch.setattr("tdcd.simulation.engines.clients.HEAVY", 0)
    monkeypatch.setattr("tdcd.simulation.engines.clients.TINY", 0)
    heavy._engine.choose_for(cpu)
    assert heavy._engine.program.in_turn == cpu
    assert all(bool(prefixes) == cpu for prefixes in heavy._engine.program.prefixes)
    assert (heavy.rounds_per_call == 1) == (not cpu)
    for ours, theirs in zip(
        jax.tree.leaves(heavy.advance(heavy.init(), 0, 6)),
        jax.tree.leaves(plain.advance(plain.init(), 0, 6)),
        strict=True,
    ):
        np.testing.assert_allclose(ours, theirs, atol=1e-12)
