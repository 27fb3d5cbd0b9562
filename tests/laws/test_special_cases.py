"""What Algorithm 1 becomes when a tier has one member: algorithms known by other names, each in a few lines here."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from support.problems import ENGINES, NUM_CLASSES, SPLITS, Problem, Shape, arrays, distance, examples, over_engines
from tdcd.core.objective import Objective
from tdcd.core.schedule import batch_ids

TOLERANCE = 1e-12
MOVED = 1e-2
ROUNDS = 6
L2 = 0.2
seeds = st.integers(0, 2**31)


def whole(problem):
    """The problem as if never cut: features ``[M, D]``, labels ``[M, C]`` (one-hot classes), start ``[D, C]``."""
    federation = problem.federation
    x = np.concatenate([silo.features for silo in federation.silos], axis=1)
    labels = federation.labels
    y = np.eye(NUM_CLASSES)[labels] if problem.objective.loss == "softmax" else labels[:, None]
    return x, y, np.concatenate([block["weight"] for block in problem.start])


def predict(loss, scores):
    """What the label is compared with: every loss here has the derivative prediction - label."""
    if loss == "squared":
        return scores
    if loss == "logistic":
        return 1 / (1 + np.exp(-scores))
    return np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)


def minibatch(problem, round_index, step):
    chosen = problem.settings
    return batch_ids(
        chosen.seed,
        [round_index],
        num_samples=problem.federation.num_samples,
        batch_size=chosen.batch_size,
        local_steps=chosen.local_steps,
        minibatches=chosen.minibatches,
    )[0, step]


def sgd(problem, num_rounds):
    """Minibatch SGD on the uncut data, Q minibatches a round."""
    x, y, theta = whole(problem)
    for round_index in range(num_rounds):
        for step in range(problem.settings.local_steps):
            ids = minibatch(problem, round_index, step)
            error = predict(problem.objective.loss, x[ids] @ theta) - y[ids]
            theta = theta - problem.settings.step_size * (x[ids].T @ error / len(ids) + L2 * theta)
    return theta


def simulate(problem, num_rounds, engine):
    """The hub blocks of a simulation by ``engine``, put together; checks that they moved."""
    blocks = problem.simulate(num_rounds, engine)
    assert distance(blocks, arrays(problem.start)) > MOVED
    return np.concatenate([block[0] for block in blocks])


def assert_close(one, other):
    assert np.max(np.abs(one - other)) < TOLERANCE


@pytest.mark.parametrize(
    ("engine", "loss", "local_steps", "gradient"),
    over_engines(("squared", 1, "mean"), ("softmax", 4, "unbiased"), ("logistic", 7, "mean")),
)
def test_one_silo_with_one_client_is_sgd_for_any_number_of_local_steps(engine, loss, local_steps, gradient):
    shape = Shape(clients=(1,), columns=(4,), local_steps=local_steps)
    problem = Problem.draw(shape, Objective(loss, L2), seed=local_steps, gradient=gradient)
    assert_close(simulate(problem, ROUNDS, engine), sgd(problem, ROUNDS))


@pytest.mark.parametrize(
    ("engine", "loss", "clients"), over_engines(("squared", (3, 1, 5)), ("logistic", (4,)), ("softmax", (2, 3)))
)
def test_one_local_step_is_centralised_sgd_for_any_cut(engine, loss, clients):
    shape = Shape(clients, columns=(2, 1, 3, 1)[: len(clients)], local_steps=1)

    @examples(4)
    @given(seed=seeds, split=st.sampled_from(SPLITS))
    @example(seed=0, split="unequal")
    def law(seed, split):
        problem = Problem.draw(shape, Objective(loss, L2), seed, split)
        assert_close(simulate(problem, ROUNDS, engine), sgd(problem, ROUNDS))

    law()


@pytest.mark.parametrize("engine", ENGINES)
def test_one_local_step_by_the_mean_rule_is_not_centralised_sgd(engine):
    shape = Shape(clients=(3, 1, 5), columns=(2, 1, 3), local_steps=1)
    problem = Problem.draw(shape, Objective("squared", L2), seed=0, gradient="mean")
    assert np.max(np.abs(simulate(problem, ROUNDS, engine) - sgd(problem, ROUNDS))) > 1e-3


def local_sgd(problem, num_rounds):
    """FedAvg: every client starts from the mean and takes Q steps on its own rows of the minibatches."""
    x, y, theta = whole(problem)
    (silo,) = problem.federation.silos
    for round_index in range(num_rounds):
        finished = []
        for rows in silo.rows:
            local = theta
            for step in range(problem.settings.local_steps):
                ids = minibatch(problem, round_index, step)
                mine = ids[np.isin(ids, rows)]
                error = predict(problem.objective.loss, x[mine] @ local) - y[mine]
                weight = len(x) / (len(rows) * len(ids))
                local = local - problem.settings.step_size * (weight * x[mine].T @ error + L2 * local)
            finished.append(len(rows) / len(x) * local)
        theta = sum(finished)
    return theta


@pytest.mark.parametrize(("engine", "loss"), over_engines(("squared",), ("softmax",)))
def test_one_silo_is_local_sgd(engine, loss):
    @examples(3)
    @given(seed=seeds, split=st.sampled_from(SPLITS))
    def law(seed, split):
        problem = Problem.draw(Shape(clients=(4,), columns=(3,)), Objective(loss, L2), seed, split)
        assert_close(simulate(problem, ROUNDS, engine), local_sgd(problem, ROUNDS))

    law()


def fedbcd(problem, num_rounds):
    """FedBCD-p: parties with all rows exchange scores of one minibatch, then take Q steps on it, all at once."""
    y = whole(problem)[1]
    blocks = [block["weight"] for block in problem.start]
    for round_index in range(num_rounds):
        ids = minibatch(problem, round_index, 0)
        parts = [silo.features[ids] for silo in problem.federation.silos]
        total = sum(x @ block for x, block in zip(parts, blocks, strict=True))
        updated = []
        for x, block in zip(parts, blocks, strict=True):
            others, local = total - x @ block, block
            for _ in range(problem.settings.local_steps):
                error = predict(problem.objective.loss, x @ local + others) - y[ids]
                local = local - problem.settings.step_size * (x.T @ error / len(ids) + L2 * local)
            updated.append(local)
        blocks = updated
    return np.concatenate(blocks)


@pytest.mark.parametrize(("engine", "loss"), [("clients", "squared"), ("grouped", "logistic"), ("flat", "logistic")])
def test_one_client_per_silo_and_a_reused_minibatch_is_parallel_fedbcd(engine, loss):
    @examples(3)
    @given(seed=seeds)
    def law(seed):
        shape = Shape(clients=(1, 1, 1), columns=(2, 3, 1), local_steps=5)
        problem = Problem.draw(shape, Objective(loss, L2), seed, minibatches="reused")
        assert_close(simulate(problem, ROUNDS, engine), fedbcd(problem, ROUNDS))

    law()


def at_the_ridge_solution(clients, local_steps, engine):
    """A full-batch problem that starts at the minimiser of its objective, known in closed form."""
    shape = Shape(clients, columns=(2, 3), local_steps=local_steps)
    problem = Problem.draw(shape, Objective("squared", L2), seed=1, step_size=0.3, minibatches="full")
    x, y, _ = whole(problem)
    best = np.linalg.solve(x.T @ x / len(x) + L2 * np.eye(5), x.T @ y / len(x))
    start = [{"weight": best[:2]}, {"weight": best[2:]}]
    simulation = problem.simulation(engine)
    return best, simulation.advance(simulation.state_of(start), 0, 20).blocks


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("clients", "local_steps"), [((1, 1), 5), ((3, 2), 1)])
def test_the_ridge_solution_stays_when_clients_or_local_steps_are_one(engine, clients, local_steps):
    best, blocks = at_the_ridge_solution(clients, local_steps, engine)
    assert_close(np.concatenate([block["weight"] for block in blocks]), best)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_ridge_solution_does_not_stay_when_several_clients_drift_for_several_steps(engine):
    best, blocks = at_the_ridge_solution((3, 2), 5, engine)
    assert np.max(np.abs(np.concatenate([block["weight"] for block in blocks]) - best)) > 1e-3


@pytest.mark.parametrize("engine", ENGINES)
def test_full_batches_reach_the_ridge_solution(engine):
    shape = Shape(clients=(1, 1), columns=(2, 3), local_steps=5)
    problem = Problem.draw(shape, Objective("squared", L2), seed=1, step_size=0.3, minibatches="full")
    x, y, _ = whole(problem)
    best = np.linalg.solve(x.T @ x / len(x) + L2 * np.eye(5), x.T @ y / len(x))
    assert np.max(np.abs(simulate(problem, 100, engine) - best)) < 1e-10
