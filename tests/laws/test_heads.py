"""Heads on the sum of the silos' phi: closed forms, derivatives, the oracle, labels at one silo, and real parties."""

from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support import oracle
from support.in_process import InProcess
from support.problems import Problem, Shape, distance
from support.simulated import RIDGE, assert_same_history, simulated, with_keys
from tdcd import Federation, GaussianNoise, LabelsAt, Linear, Mlp, Overlap, Quantised, Settings, Variant, train
from tdcd.core.combine import SUM
from tdcd.core.family.heads import Hidden, Pairs
from tdcd.core.objective import Objective
from tdcd.data import Table
from tdcd.runtime.compute.client_data import shards
from tdcd.simulation.simulate import Simulation

UNITS = RANK = 3
HEADS = {"hidden": Hidden(UNITS), "pairs": Pairs(RANK)}
SHAPE = Shape(clients=(3, 4), columns=(2, 3), num_samples=60, batch_size=12, blocks=(Linear(), Mlp((4,))))
LOSSES = ("squared", "logistic", "softmax", "poisson", "huber")


def through_units(silo, loss, phi, start, others, label):
    """The derivative by the sum, unit by unit."""
    total = phi + others
    outputs = len(total) // (1 + UNITS)
    score = total[:outputs].copy()
    for unit in range(UNITS):
        score += (-1) ** unit * np.maximum(0, total[(1 + unit) * outputs : (2 + unit) * outputs])
    slope = oracle.slope_of(loss, score, label)
    parts = [slope]
    for unit in range(UNITS):
        parts.append((-1) ** unit * slope * (total[(1 + unit) * outputs : (2 + unit) * outputs] > 0))
    return np.concatenate(parts)


def through_pairs(silo, loss, phi, start, others, label):
    """The derivative by a silo's own s and e: of s + <e, E> with E the others' sum, without its own squares."""
    outputs = len(phi) // (2 + RANK)
    inner = slice(outputs, -outputs)
    own, theirs = (part[inner].reshape(RANK, outputs) for part in (phi, others))
    constant = others[:outputs] + ((theirs**2).sum(axis=0) - others[-outputs:]) / 2
    slope = oracle.slope_of(loss, phi[:outputs] + (own * theirs).sum(axis=0) + constant, label)
    return np.concatenate([slope, (slope * theirs).reshape(-1), np.zeros(outputs)])


BY_HAND = {"hidden": through_units, "pairs": through_pairs}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("loss", LOSSES)
def test_training_with_a_head_is_what_the_plain_loops_do(loss, head):
    problem = Problem.draw(SHAPE, Objective(loss, 0.1, combine=HEADS[head]), 5, step_size=0.05)
    expected = problem.solve(3, oracle.Variation(slope=BY_HAND[head]))
    assert distance(problem.simulate(3), expected) < 1e-10


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("loss", ["squared", "softmax", "poisson"])
def test_with_labels_at_one_silo_the_others_take_the_very_same_steps(loss, head):
    problem = Problem.draw(SHAPE, Objective(loss, 0.1, combine=HEADS[head]), 6, step_size=0.05)
    at_one = problem.simulate(3, variant=Variant(knowledge=LabelsAt(1)))
    assert distance(at_one, problem.simulate(3)) < 1e-10


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("loss", LOSSES)
def test_derivatives_by_hand_are_those_of_the_scores(loss, head):
    rng, objective = np.random.default_rng(4), Objective(loss, combine=head)
    outputs = 3 if loss == "softmax" else 1
    total, change = rng.normal(size=(2, 40, head.width(outputs)))
    labels = (rng.random(40) * 2).astype(int).astype(objective.label_dtype("float64"))
    with jax.enable_x64(True):
        losses = jax.jit(lambda total: objective.losses(total, labels))
        of_sum = jax.jit(jax.grad(lambda total: jnp.sum(losses(total))))
        np.testing.assert_allclose(objective.slopes(total, labels), of_sum(total), atol=1e-12)
        statistic = objective.statistic(total, labels)
        assert statistic.shape[-1] == objective.statistic_width(outputs)
        np.testing.assert_allclose(objective.change_slopes(statistic, change), of_sum(total + change), atol=1e-10)
        grown = np.asarray(losses(total + change)) - np.asarray(losses(total))
        np.testing.assert_allclose(objective.change(statistic, change), grown, atol=1e-10)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("num_silos", [1, 2, 4])
def test_pairs_are_the_products_of_every_two_silos(num_silos, outputs):
    rng = np.random.default_rng(num_silos)
    head = Pairs(RANK)
    given = rng.normal(size=(num_silos, 20, head.block_width(outputs)))
    linear, embedded = given[..., :outputs], given[..., outputs:].reshape(num_silos, 20, RANK, outputs) / RANK**0.5
    products = sum(
        ((embedded[j] * embedded[k]).sum(axis=1) for j, k in combinations(range(num_silos), 2)),
        start=np.zeros((20, outputs)),
    )
    phis = head.phi(given)
    assert phis.shape == (num_silos, 20, head.width(outputs))
    np.testing.assert_allclose(head.scores(phis.sum(axis=0)), linear.sum(axis=0) + products, atol=1e-12)


def test_finite_differences_of_pairs():
    rng, head, step = np.random.default_rng(7), Pairs(2), 1e-6
    total, slopes = rng.normal(size=head.width(2)), rng.normal(size=2)
    numeric = [
        slopes @ (head.scores(total + step * unit) - head.scores(total - step * unit)) / (2 * step)
        for unit in np.eye(head.width(2))
    ]
    np.testing.assert_allclose(head.pull_back(total, slopes), numeric, atol=1e-8)


@pytest.mark.parametrize("outputs", [1, 2])
def test_the_stand_in_of_pairs_is_the_mean_score_over_the_missing_silos_rows(outputs):
    """Also of several silos together, whose products among themselves stay, as where masks show only their sum."""
    rng, head = np.random.default_rng(8), Pairs(RANK)
    here, *missing = head.phi(rng.normal(size=(3, 30, head.block_width(outputs))))
    for phi in (missing[0], missing[0] + missing[1]):
        each = head.scores(here[:, None] + phi[None])
        np.testing.assert_allclose(head.scores(here + head.stand_in(phi)), each.mean(axis=1), atol=1e-12)


def test_few_bits_shift_the_scores_of_pairs_by_the_squared_width_of_a_step():
    """E|x + u|^2 = |x|^2 + d^2 / 12 for u uniform in (-d/2, d/2): the mean score is off by r d^2 / 24."""
    rng, head, step = np.random.default_rng(9), Pairs(RANK), 0.1
    phi = head.phi(rng.normal(size=(2, 200_000, head.block_width(1)))).sum(axis=0)
    rounded = phi + step * rng.uniform(-0.5, 0.5, phi.shape)
    off = head.scores(rounded) - head.scores(phi)
    assert off.mean() == pytest.approx(RANK * step**2 / 24, abs=4 * off.std() / len(off) ** 0.5)


SILOS = [{"name": "clinic", "clients": 3}, {"name": "lab", "clients": 2}, {"name": "bank", "clients": 1}]
CASES = {
    "hidden, linear": {"model": {"head": "hidden", "head_units": UNITS}},
    "hidden, mlp, labels at one silo": {
        "model": {"head": "hidden", "block": "mlp", "hidden": [3]},
        "federation": {"labels": "lab"},
    },
    "hidden, masks": {"model": {"head": "hidden"}, "silos": SILOS, "exchange": {"protect": "mask"}},
    "pairs, linear": {"model": {"head": "pairs", "head_rank": RANK}},
    "pairs, mlp, labels at one silo": {
        "model": {"head": "pairs", "block": ["mlp", "linear"], "hidden": [3]},
        "federation": {"labels": "lab"},
    },
    "pairs, masks": {"model": {"head": "pairs"}, "silos": SILOS, "exchange": {"protect": "mask"}},
    "pairs, 8 bits": {"model": {"head": "pairs"}, "exchange": {"phi_bits": 8}},
    "pairs, silo dropout": {"model": {"head": "pairs"}, "train": {**RIDGE["train"], "silo_dropout": 0.3}},
    "pairs, overlap": {"model": {"head": "pairs"}, "train": {**RIDGE["train"], "overlap": 1}},
}


@pytest.mark.parametrize("keys", CASES.values(), ids=CASES.keys())
def test_real_parties_have_the_simulations_history(keys):
    config = with_keys(RIDGE, **keys)
    planned, result = simulated(config)
    office = InProcess(config, shards(planned))
    office.run()
    assert_same_history(office, result)
    assert len({record.train_loss for record in result.history}) > 1


def test_pairs_refuse_noise():
    words = r"Pairs\(rank=8\) does not go with exchange = GaussianNoise\(clip=1.0, .*\): it changes e and its squared"
    problem = Problem.draw(SHAPE, Objective("squared", combine=Pairs()), 5)
    with pytest.raises(ValueError, match=words):
        problem.simulation(variant=Variant(exchange=GaussianNoise(1.0, 0.1)))
    assert isinstance(problem.simulation(variant=Variant(exchange=Quantised(8), timing=Overlap(1))), Simulation)


def drawn_federation(num_rows, scores, seed):
    """Two silos of two columns each, and labels of these scores."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(num_rows, 4))
    labels = (rng.random(num_rows) < 1 / (1 + np.exp(-scores(features)))).astype(float)
    table = Table("drawn", features, labels, "binary", ("a", "b", "c", "d"))
    train_rows, test_rows = table.split(0.25, seed)
    return Federation.cut(train_rows, test_rows, silos=["bank", "bureau"], clients=2, bias=True, seed=seed)


def trained_auc(federation, block, combine, seed=0):
    settings = Settings(local_steps=5, batch_size=256, step_size=0.1, seed=seed)
    objective = Objective("logistic", combine=combine)
    result = train(federation, block, objective, settings, rounds=200, evaluate_every=10, quiet=True, keep="best")
    return result.final.metrics["test"]["auc"]


@pytest.mark.parametrize("block", [Linear(), Mlp((32,))], ids=["linear", "mlp"])
def test_heads_learn_the_exclusive_or_of_two_silos(block):
    federation = drawn_federation(2_000, lambda x: 30 * np.where((x[:, 0] > 0) != (x[:, 2] > 0), 1, -1), 0)
    assert trained_auc(federation, block, SUM) < 0.6
    for head in (Hidden(8), Pairs(8)):
        assert trained_auc(federation, block, head) > 0.92


@pytest.mark.parametrize("block", [Linear(), Mlp((32,))], ids=["linear", "mlp"])
def test_heads_lose_nothing_on_additive_data(block):
    """A mean over seeds of 15,000 training rows; with fewer rows the products and units of a network cost more."""
    lost = {head: [] for head in (Hidden(8), Pairs(8))}
    for seed in range(3):
        federation = drawn_federation(
            20_000, lambda x: 1.5 * x[:, 0] + np.sin(2 * x[:, 1]) - x[:, 2] + x[:, 3] / 2, seed
        )
        additive = trained_auc(federation, block, SUM, seed)
        for head, values in lost.items():
            values.append(additive - trained_auc(federation, block, head, seed))
    assert max(np.mean(values) for values in lost.values()) < 0.002
