"""Certificates: never below the true distance from the best model, by Newton's method, and close to it."""

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tdcd
from support.problems import NUM_CLASSES, Problem, Shape, examples
from tdcd.blocks import Linear, Mlp
from tdcd.core import certificate
from tdcd.core.certificate import Proof, Samples, SiloSide
from tdcd.core.codecs.fixed_point import (
    FixedBlocks,
    FixedPoint,
    largest_product,
    product_steps,
    summed_products,
)
from tdcd.core.codecs.quantised import Quantised, QuantisedChange
from tdcd.core.family.labels import LabelsAt
from tdcd.core.family.overlap import Overlap
from tdcd.core.family.scaled import Window
from tdcd.core.losses import Huber, Loss
from tdcd.core.objective import Objective
from tdcd.core.round import WITNESSES
from tdcd.core.settings import Settings, draws_of
from tdcd.core.variant import Variant

LOSSES = ("squared", "logistic", "softmax", "poisson", "huber")
SHAPE = Shape(clients=(3, 2), columns=(3, 2), num_samples=60, batch_size=12, local_steps=3)
SHAPES = {
    num_silos: replace(SHAPE, clients=(3, 2, 1, 2)[:num_silos], columns=(3, 2, 2, 1)[:num_silos])
    for num_silos in (2, 3, 4)
}
RANDOMIZED = {"logistic": 1.0, "softmax": 2.0}
FEW_BITS = {"exchange": Quantised(4), "client_exchange": Quantised(8), "block_exchange": QuantisedChange(8)}
MASKS = {"exchange": FixedPoint(64.0, terms=4)}
CONFIGURATIONS = {
    "plain": {},
    "masks": MASKS,
    "protected blocks": {"block_exchange": FixedBlocks()},
    "masks, protected blocks, overlap": {**MASKS, "block_exchange": FixedBlocks(), "timing": Overlap(1)},
    "few bits": FEW_BITS,
    "overlap": {"timing": Overlap(2)},
    "period": {"timing": Overlap(0, (1, 2))},
    "few bits, overlap, period": {**FEW_BITS, "timing": Overlap(2, (2, 1))},
    "labels at one silo": {"knowledge": LabelsAt(1)},
    "labels at one silo, blocks in few bits": {"knowledge": LabelsAt(0), "block_exchange": QuantisedChange(8)},
    "labels at one silo, protected blocks": {"knowledge": LabelsAt(1), "block_exchange": FixedBlocks()},
}
UNKNOWN_WITHOUT_LABELS = ("poisson", "huber")
"""Losses that do not follow from their slopes."""


def objective_of(loss, l2=0.05, epsilon=None):
    return Objective(loss, l2, label_epsilon=epsilon)


def whole(federation):
    """All columns, the labels, and what part of the mean loss each sample is."""
    features = np.concatenate([np.asarray(silo.features, np.float64) for silo in federation.silos], axis=1)
    weights = np.ones(len(features)) if federation.weights is None else np.asarray(federation.weights, np.float64)
    return features, federation.labels, weights / weights.sum()


def loss_of(theta, features, labels, parts, objective, l2):
    """The regularised mean loss, as it is defined."""
    scores = features @ theta.reshape(features.shape[1], -1)
    return (parts * objective.losses(scores, labels)).sum() + l2 / 2 * (theta**2).sum()


VALUE, SLOPE, CURVATURE = (
    jax.jit(function, static_argnums=4) for function in (loss_of, jax.grad(loss_of), jax.hessian(loss_of))
)
"""Data and l2 are arguments: examples that differ in nothing else run the same programs."""


def best_loss(federation, objective, outputs):
    """The least training loss, by Newton's method in float64 from the objective as it is defined."""
    features, labels, parts = whole(federation)
    with jax.enable_x64(True):
        data = features, jnp.asarray(labels, objective.label_dtype("float64")), parts, replace(objective, l2=0.0)
        value, slope, curvature = (
            lambda theta, program=program: program(theta, *data, objective.l2) for program in (VALUE, SLOPE, CURVATURE)
        )
        theta = np.zeros(features.shape[1] * outputs)
        for _ in range(60):
            step, size = np.linalg.solve(curvature(theta), slope(theta)), 1.0
            while value(theta - size * step) > value(theta) and size > 1e-9:
                size /= 2
            theta = theta - size * step
        # What is left above the least loss is at most its square over 2 l2, and no test has an l2 below 1e-4.
        assert np.linalg.norm(slope(theta)) < 1e-8
        return float(value(theta))


def certificate_of(problem, models):
    """Of the last of these models; the witness is a mixture of all, by what each silo alone knows of its gradients."""
    objective, federation = problem.objective, problem.federation
    tables = [np.asarray(silo.features, np.float64) for silo in federation.silos]
    labels = federation.labels.astype(objective.label_dtype("float64"))
    samples = Samples.of(objective, labels, federation.weights)
    slopes = [samples.slopes(sum(t @ b for t, b in zip(tables, model, strict=True))) for model in models[::-1]]
    windows = []
    for silo, table in enumerate(tables):
        blocks = np.stack([model[silo] for model in models[::-1]])[:WITNESSES]
        gradients = np.stack([table.T @ one + objective.l2 * own for one, own in zip(slopes, blocks, strict=False)])
        windows.append(Window(blocks, gradients, np.zeros((len(blocks), len(blocks)))))
    grams, counts = zip(*(certificate.products(window) for window in windows), strict=True)
    weights = certificate.weights_of(np.sum(grams, axis=0), counts, objective)
    blocks = [[now, certificate.witness(weights, own, now)] for now, own in zip(models[-1], windows, strict=True)]
    if len(models) == 1:
        blocks = [own[:1] for own in blocks]
    scores = sum(certificate.scores_of(table, np.stack(own)) for table, own in zip(tables, blocks, strict=True))
    proof = Proof(samples, scores, len(blocks[0]))
    pulled = [certificate.pull_back(table, proof.slopes) for table in tables]
    sides = [SiloSide.of(own, of_silo, objective.l2) for own, of_silo in zip(pulled, blocks, strict=True)]
    return proof.certificate(sides)


def drawn(loss, seed, l2=0.05, epsilon=None, is_weighted=False, shape=SHAPE):
    problem = Problem.draw(shape, objective_of(loss, l2, None), seed)
    # So that a run in float32 has the very same data.
    silos = tuple(replace(silo, features=np.float32(silo.features)) for silo in problem.federation.silos)
    labels = np.asarray(problem.federation.labels, np.float32 if loss in ("squared", "huber") else None)
    federation = replace(problem.federation, silos=silos, labels=labels)
    if is_weighted:
        weights = np.random.default_rng(seed).choice([0.0, 0.5, 1.0, 4.0], size=len(federation.labels))
        federation = replace(federation, weights=weights / weights.mean())
    return replace(problem, federation=federation, objective=objective_of(loss, l2, epsilon))


def random_models(seed, outputs, count, spread):
    rng = np.random.default_rng(seed)
    centre = [rng.normal(size=(columns, outputs)) for columns in SHAPE.columns]
    return [[block + spread * rng.normal(size=block.shape) for block in centre] for _ in range(count)]


@given(seed=st.integers(0, 10_000), l2=st.sampled_from([1e-4, 0.01, 1.0]), spread=st.sampled_from([0.01, 1.0, 10.0]))
@pytest.mark.parametrize("is_randomized", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
@examples(8)
def test_whatever_the_models_are_no_model_is_below_the_bound(loss, is_randomized, seed, l2, spread):
    epsilon = RANDOMIZED.get(loss) if is_randomized else None
    problem = drawn(loss, seed, l2, epsilon, is_weighted=seed % 2 == 1)
    outputs = NUM_CLASSES if loss == "softmax" else 1
    best = best_loss(problem.federation, problem.objective, outputs)
    spread = min(spread, 1.0) if loss == "poisson" else spread
    found = certificate_of(problem, random_models(seed, outputs, 1 + seed % 9, spread))
    assert found.bound <= best + 1e-12 * (1 + abs(best))
    assert found.loss >= best


def test_models_that_span_the_best_one_prove_it():
    """With more models than parameters, some mixture of them has no gradient where losses are parabolas."""
    problem = drawn("squared", 3)
    models = random_models(4, 1, sum(SHAPE.columns) + 1, 1.0)
    found = certificate_of(problem, models)
    error = found.loss - best_loss(problem.federation, problem.objective, 1)
    assert error > 0.1
    assert error <= found.loss - found.bound < error * (1 + 1e-6)


def test_the_best_model_is_proven_to_be_so():
    problem = drawn("squared", 5, l2=0.3)
    features, labels, parts = whole(problem.federation)
    ridge = np.linalg.solve((features.T * parts) @ features + 0.3 * np.eye(5), (features.T * parts) @ labels)
    found = certificate_of(problem, [[ridge[:3, None], ridge[3:, None]]])
    gap = certificate.gap_of(found.loss, found, [])
    assert 0 <= found.loss - best_loss(problem.federation, problem.objective, 1) <= gap < 1e-12
    assert found.gradient_norm < 1e-14


def test_one_model_proves_what_strong_convexity_does():
    """The gap of a model by its own slopes is its squared gradient over 2 l2."""
    problem = drawn("logistic", 6)
    found = certificate_of(problem, random_models(6, 1, 1, 1.0))
    assert found.loss - found.bound == pytest.approx(found.gradient_norm**2 / (2 * 0.05), rel=1e-9)


@given(seed=st.integers(0, 10_000), num_silos=st.integers(1, 255), power=st.integers(-9, 0))
@examples(30)
def test_products_in_fixed_point_add_up_to_within_their_last_digits(seed, num_silos, power):
    largest = largest_product(num_silos)
    rng = np.random.default_rng(seed)
    each = largest * rng.uniform(-1, 1, (num_silos, 5)) * 10.0 ** rng.integers(3 * power, 1, (num_silos, 5))
    each[0, 0], each[-1, 1] = largest, -largest
    steps = [product_steps(own) for own in each]
    total = summed_products(sum(steps[1:], start=steps[0]))
    for found, own in zip(total, each.T, strict=True):
        assert found == pytest.approx(math.fsum(own), rel=1e-15, abs=num_silos * 2.0**-60 + 1e-17)


@pytest.mark.parametrize("off", [np.nan, np.inf, 1 + certificate.LEAST_DRIFT**2])
def test_whatever_other_hubs_send_as_products_there_is_a_mixture(off):
    assert certificate.mixture(np.array([[1.0, off], [off, 1.0]])).tolist() == [0.5, 0.5]


def test_gradients_that_are_too_long_for_fixed_point_are_left_out():
    window = Window(np.ones((2, 3, 1)), np.full((2, 3, 1), 1e4), np.zeros((2, 2)))
    assert certificate.products(window, 1e7)[1] == 0
    assert certificate.products(window, 1e9)[1] == 2


def test_a_bound_is_one_for_ever():
    found = certificate.Certificate(1.0, 0.2, 3.0)
    assert certificate.gap_of(1.0, found, [0.5]) == pytest.approx(0.5)
    assert certificate.gap_of(1.0, found, [0.1]) == pytest.approx(0.8)
    assert certificate.gap_of(1.25, found, []) == pytest.approx(1.05)
    assert certificate.gap_of(1.0, found._replace(bound=-np.inf), []) is None


@pytest.mark.parametrize(
    ("loss", "changes"),
    [
        *((loss, {}) for loss in LOSSES),
        ("logistic", {"is_weighted": True}),
        ("softmax", {"epsilon": 2.0}),
        (Huber(0.4), {}),
    ],
)
def test_gaps_of_a_run_are_never_below_the_true_distance(loss, changes):
    """With steps of one's own, the witness is the model itself: the gap may be many times the distance."""
    name = loss if isinstance(loss, str) else "huber"
    problem = drawn(name, 7, **changes)
    objective = replace(problem.objective, loss=loss)
    result = trained(problem, objective, dtype="float32")
    best = best_loss(result.federation, objective, NUM_CLASSES if loss == "softmax" else 1)
    gaps = [(record.gap, record.train_loss - best) for record in result.history if record.gap is not None]
    assert len(gaps) == 4
    assert all(gap >= error > 0 for gap, error in gaps)


@pytest.mark.parametrize(
    ("loss", "changes", "parts"),
    [
        *((loss, {}, {}) for loss in ("squared", "logistic", "softmax", "huber")),
        ("logistic", {"is_weighted": True}, {}),
        ("squared", {}, MASKS),
        ("logistic", {}, MASKS),
    ],
)
def test_with_automatic_steps_a_gap_is_close_to_the_true_distance(loss, changes, parts):
    problem = drawn(loss, 7, **changes)
    result = tdcd.train(
        problem.federation, Linear(), problem.objective,
        rounds=60, evaluate_every=5, variant=Variant(**parts), quiet=True,
    )  # fmt: skip
    best = best_loss(result.federation, problem.objective, NUM_CLASSES if loss == "softmax" else 1)
    last = result.history[-1]
    assert [record.gap is not None for record in result.history][-1]
    assert last.train_loss - best <= last.gap
    assert last.gap < 3 * abs(last.train_loss - best) + 1e-6 * last.train_loss


def test_a_mixture_of_overlapping_rounds_counts_how_far_blocks_have_moved():
    """Else its gap is 20 times the distance here."""
    problem = drawn("squared", 7)
    result = tdcd.train(
        problem.federation, Linear(), problem.objective,
        rounds=100, evaluate_every=10, variant=Variant(timing=Overlap(2)), quiet=True,
    )  # fmt: skip
    last, best = result.history[-1], best_loss(result.federation, problem.objective, 1)
    assert last.train_loss - best <= last.gap < 3 * (last.train_loss - best) + 1e-8


def cases():
    """Every configuration with every loss that it goes with; the number of silos, steps and weights take turns."""
    turn = 0
    for name, parts in CONFIGURATIONS.items():
        has_labels = "knowledge" not in parts
        for loss in LOSSES:
            if has_labels or loss not in UNKNOWN_WITHOUT_LABELS:
                yield name, loss, 2 + turn % 3, ("auto", 0.02)[turn // 3 % 2], has_labels and turn % 2 == 1
                turn += 1


@pytest.mark.parametrize(("name", "loss", "num_silos", "step_size", "is_weighted"), [*cases()])
def test_no_member_of_the_family_has_a_gap_below_the_true_distance(name, loss, num_silos, step_size, is_weighted):
    problem = drawn(loss, num_silos, is_weighted=is_weighted, shape=SHAPES[num_silos])
    parts = dict(CONFIGURATIONS[name])
    if "timing" in parts and parts["timing"].periods:
        periods = parts["timing"].periods
        parts["timing"] = replace(parts["timing"], periods=(periods * 2)[:num_silos])
    settings = replace(problem.settings, step_size=step_size, local_steps=1, minibatches="full", dtype="float32")
    result = tdcd.train(
        problem.federation, Linear(), problem.objective, settings,
        rounds=60, evaluate_every=6, variant=Variant(**parts), quiet=True,
    )  # fmt: skip
    outputs = NUM_CLASSES if loss == "softmax" else 1
    best = best_loss(result.federation, problem.objective, outputs)
    gaps = [(record.gap, record.train_loss - best) for record in result.history if record.gap is not None]
    assert result.history[-1].gap is not None
    assert all(gap >= error for gap, error in gaps)
    assert result.history[-1].gap >= exact_loss(result, problem.objective) - best > -1e-12


def exact_loss(result, objective):
    """The training loss of a run's model, in float64."""
    features, labels, parts = whole(result.federation)
    theta = np.concatenate([np.asarray(block["weight"], np.float64) for block in result.blocks.values()])
    with jax.enable_x64(True):
        losses = objective.losses(jnp.asarray(features @ theta), jnp.asarray(labels, objective.label_dtype("float64")))
        return float((parts * losses).sum() + objective.l2 / 2 * (theta**2).sum())


def trained(problem, objective, rounds=150, variant=None, **changes):
    settings = replace(problem.settings, step_size=0.02, local_steps=15, **changes)
    every = 10
    return tdcd.train(
        problem.federation, Linear(), objective, settings, rounds=rounds, evaluate_every=every, variant=variant
    )


def test_labels_at_one_silo_change_nothing():
    problem = drawn("logistic", 8)
    everywhere, at_one = (
        trained(problem, problem.objective, rounds=20, variant=variant, minibatches="full")
        for variant in (Variant(), Variant(knowledge=LabelsAt(1)))
    )
    assert everywhere.history[-1].gap is not None
    assert at_one.history[-1].gap == pytest.approx(everywhere.history[-1].gap, rel=1e-9)


@pytest.mark.parametrize("minibatches", ["fresh", "reused"])
def test_labels_at_one_silo_wait_until_minibatches_had_every_sample(minibatches):
    """Slopes would be sent of samples of which training sent none."""
    problem = drawn("logistic", 8)
    settings = replace(problem.settings, minibatches=minibatches, step_size=0.02)
    draws, seen, covered = draws_of(settings, SHAPE.num_samples), set(), 0
    while len(seen) < SHAPE.num_samples:
        seen |= {*draws(covered).ravel().tolist()}
        covered += 1
    best = best_loss(problem.federation, problem.objective, 1)
    for rounds in (covered - 1, covered, 40):
        result = tdcd.train(
            problem.federation, Linear(), problem.objective, settings,
            rounds=rounds, evaluate_every=50, variant=Variant(knowledge=LabelsAt(1)),
        )  # fmt: skip
        last = result.history[-1]
        assert last.gradient_norm is None
        assert (last.gap is None) == (rounds < covered)
        assert last.gap is None or last.gap >= last.train_loss - best > 0


def test_without_l2_there_is_the_norm_of_the_gradient():
    problem = drawn("squared", 9, l2=0.0)
    result = trained(problem, problem.objective, rounds=20)
    features, labels, parts = whole(problem.federation)
    theta = np.concatenate([np.asarray(block["weight"]) for block in result.blocks.values()])
    gradient = features.T @ (parts * (features @ theta[:, 0] - labels))
    assert [record.gap for record in result.history] == [None] * 3
    assert result.history[-1].gradient_norm == pytest.approx(np.linalg.norm(gradient), rel=1e-9)


@dataclass(frozen=True)
class Bent(Loss):
    """A loss that is not convex."""

    def losses(self, scores, labels):
        return jnp.tanh((scores[..., 0] - labels) ** 2)


def test_why_there_is_no_certificate():
    reasons = [
        certificate.no_certificate(objective, are_linear)
        for objective, are_linear in [
            (Objective("squared", 0.1), True),
            (Objective("squared", 0.1), False),
            (Objective("squared"), True),
            (Objective(Bent(), 0.1), True),
        ]
    ]
    assert reasons[0] == ""
    assert "not linear" in reasons[1]
    assert "model.l2 = 0" in reasons[2]
    assert "not known to be convex" in reasons[3]


def test_a_loss_that_changes_another_one_is_not_known_to_be_convex():
    @dataclass(frozen=True)
    class Other(Huber):
        def losses(self, scores, labels):
            return jnp.tanh(super().losses(scores, labels))

    assert Huber().is_convex
    assert not Other().is_convex


def test_networks_have_the_norm_of_their_gradient():
    problem = drawn("squared", 10)
    block = Mlp((2,))
    result = tdcd.train(problem.federation, block, problem.objective, problem.settings, rounds=2)
    _, labels, parts = whole(problem.federation)
    blocks = [*result.blocks.values()]

    def loss(blocks):
        rows = zip(blocks, problem.federation.silos, strict=True)
        scores = sum(block.phi(own, jnp.asarray(silo.features)) for own, silo in rows)
        penalty = sum((leaf**2).sum() for leaf in jax.tree.leaves(blocks))
        return (parts * (scores[:, 0] - labels) ** 2 / 2).sum() + problem.objective.l2 / 2 * penalty

    with jax.enable_x64(True):
        norm = np.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(jax.grad(loss)(blocks))))
    assert {record.gap for record in result.history} == {None}
    assert result.history[-1].gradient_norm == pytest.approx(float(norm), rel=1e-4)


def test_a_run_that_continues_has_the_lines_of_one_that_was_not_interrupted(tmp_path):
    problem = drawn("logistic", 11)
    arguments = problem.federation, Linear(), problem.objective, replace(problem.settings, step_size=0.02)
    straight = tdcd.train(*arguments, rounds=120, evaluate_every=10)
    for rounds in (50, 65, 120):
        resumed = tdcd.train(
            *arguments, rounds=rounds, evaluate_every=10, out=tmp_path / "run", resume=rounds > 50, config=None
        )
        assert resumed.history[-1].gap is not None
    assert [record.without_seconds() for record in resumed.history] == [
        record.without_seconds() for record in straight.history
    ]


def test_certificates_are_far_enough_apart():
    """Rounds whose samples are passed three times do fifty times the work of the certificates among them."""
    least = certificate.spacing(Settings(batch_size=100, local_steps=1), 1_000)
    assert 3 * 100 * least >= certificate.SHARE * certificate.PASSES * 1_000
    due = [one for one in range(0, 5001, 10) if certificate.is_due(one, 10, least, 5000)]
    assert due[-1] == 5000
    assert all(later - earlier >= least - 10 for earlier, later in pairwise(due[:-1]))
