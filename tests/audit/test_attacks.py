"""The attacks, on data whose answer is known."""

import jax
import numpy as np
import pytest

from tdcd.audit.attacks import (
    by_clusters,
    by_probe,
    chance_above,
    features_of,
    found_in_groups,
    labels_from_slopes,
    mean_slope,
    recovery,
    rows_by_inverse,
    rows_by_known_rows,
    rows_by_regression,
    rows_of_block,
    rows_of_linear,
    scores_from_slopes,
    uncorrected,
    variance_explained,
)
from tdcd.audit.label_attacks import by_loss
from tdcd.audit.modes import randomised
from tdcd.blocks import Mlp
from tdcd.core.objective import Objective
from tdcd.core.randomized import Response

ROWS, COLUMNS, MOMENTS = 60, 4, 12
RNG = np.random.default_rng(3)
X = RNG.normal(size=(ROWS, COLUMNS))
THETAS = RNG.normal(size=(MOMENTS, COLUMNS, 1))
NOISE = np.full(MOMENTS, 1e-9)
MEAN, SPREAD = X.mean(axis=0), X.std(axis=0)
PHI = np.einsum("rd,tdc->rtc", X, THETAS)


def with_gaps(phi, share=0.2):
    gaps = np.random.default_rng(5).random(phi.shape[:2]) < share
    return np.where(gaps[..., None], np.nan, phi)


def test_variance_explained_is_one_for_the_truth_and_zero_for_the_mean_or_worse():
    constant = np.column_stack([X, np.ones(ROWS)])
    assert variance_explained(constant, constant)[:-1] == pytest.approx(1)
    assert np.isnan(variance_explained(constant, constant)[-1])
    assert variance_explained(X, np.tile(MEAN, (ROWS, 1))) == pytest.approx(0)
    assert (variance_explained(X, -5 * X) == 0).all()


def test_known_blocks_give_rows_with_as_many_equations_as_columns():
    found = rows_of_linear(with_gaps(PHI), THETAS, NOISE, MEAN, SPREAD)
    enough = (~np.isnan(with_gaps(PHI)[..., 0])).sum(axis=1) >= COLUMNS
    assert enough.sum() > 50
    assert found[enough] == pytest.approx(X[enough], abs=1e-6)
    few = rows_of_linear(PHI[:, :2], THETAS[:2], NOISE[:2], MEAN, SPREAD)
    assert 0.2 < variance_explained(X, few).mean() < 0.9


def test_a_block_that_is_not_linear_is_inverted_for_most_rows():
    mlp, some = Mlp((16,)), X[:20]
    blocks = [mlp.init(jax.random.key(seed), (COLUMNS,), 3) for seed in range(4)]
    phi = np.stack([np.asarray(mlp.phi(block, some.astype(np.float32))) for block in blocks], axis=1).astype(float)
    phi[0, 1] = np.nan
    found = rows_of_block(phi, blocks, mlp.phi, np.full(4, 1e-6), MEAN, SPREAD, (COLUMNS,))
    # Some rows end in another local optimum.
    assert np.median(np.abs(found - some)) < 1e-5


def test_known_rows_give_the_blocks_and_then_all_rows():
    known = np.arange(COLUMNS + 1)
    found = rows_by_known_rows(PHI, known, X[known], NOISE, MEAN, SPREAD)
    assert found == pytest.approx(X, abs=1e-5)
    nothing = rows_by_known_rows(PHI, known[:0], X[:0], NOISE, MEAN, SPREAD)
    assert (nothing == MEAN).all()


def test_a_sum_of_two_linear_silos_falls_to_as_many_known_rows_as_both_have_columns():
    generator = np.random.default_rng(1)
    other = generator.normal(size=(ROWS, 3)) @ generator.normal(size=(3, MOMENTS))
    both = PHI + other[..., None]
    both[10:] = with_gaps(both)[10:]

    def recovered(count):
        known = np.arange(count)
        found = rows_by_regression(features_of(both, NOISE, known), known, X[known])
        return variance_explained(X[count:], found[count:]).mean()

    assert recovered(COLUMNS + 3 + 2) > 0.99
    assert recovered(COLUMNS) < 0.9


def test_a_regression_that_cannot_do_better_takes_the_mean():
    known = np.arange(20)
    noise = np.random.default_rng(0).normal(size=(ROWS, 6))
    found = rows_by_regression(noise, known, X[known])
    assert variance_explained(X[20:], found[20:]).mean() < 0.2
    assert rows_by_regression(noise, known[:2], X[:2]) == pytest.approx(np.tile(X[:2].mean(axis=0), (ROWS, 1)))


MANY = np.random.default_rng(8).normal(size=(360, 6))
OWN = np.arange(160)
OTHERS = MANY[160:]


def inverted(phi, columns, noise=0.0):
    """What is recovered of the rows that are not the attacker's own, and of groups of them."""
    generator = np.random.default_rng(9)
    features = phi + noise * generator.normal(size=phi.shape)
    found, error = rows_by_inverse(features, OWN, columns[OWN])
    groups = np.array([generator.choice(200, 16, replace=False) for _ in range(400)])
    chances, holds = chance_above(found[160:], error, np.zeros(columns.shape[1])), columns[160:] > 0
    pairs = zip(chances[groups].mean(axis=1).T, holds[groups].mean(axis=1).T, strict=True)
    areas = [found_in_groups(*pair) for pair in pairs]
    return variance_explained(columns[160:], found[160:]).mean(), np.mean(areas)


def test_an_inverse_of_a_linear_phi_that_is_wide_enough_is_learned_and_of_a_narrow_one_in_part():
    wide = MANY @ np.random.default_rng(1).normal(size=(6, 8))
    assert min(inverted(wide, MANY)) > 0.99
    rows, groups = inverted(wide[:, :3], MANY)
    assert 0.3 < rows < 0.7
    assert 0.6 < groups < 0.95


def test_an_inverse_that_is_not_linear_is_learned_where_a_regression_finds_nothing():
    either = np.sign(MANY[:, :1] * MANY[:, 1:2])
    assert variance_explained(either[160:], rows_by_regression(MANY[:, :2], OWN, either[OWN])[160:]) < 0.1
    rows, groups = inverted(MANY[:, :2], either)
    assert rows > 0.5
    assert groups > 0.95
    bent = np.tanh(MANY @ np.random.default_rng(1).normal(size=(6, 12)) / 2)
    assert inverted(bent, MANY)[0] > 0.9


def test_noise_on_phi_hides_rows_before_it_hides_groups_and_then_both():
    wide = MANY @ np.random.default_rng(1).normal(size=(6, 8))
    rows, groups = inverted(wide, MANY, noise=5.0)
    assert rows < 0.35
    assert groups > rows / 2 + 0.5
    rows, groups = inverted(wide, MANY, noise=200.0)
    assert rows < 0.02
    assert groups == pytest.approx(0.5, abs=0.06)


def test_a_gradient_says_the_mean_slope_if_columns_are_constant_or_add_up_to_one():
    generator = np.random.default_rng(2)
    slopes, bins = generator.normal(size=(50, 2)), np.eye(4)[generator.integers(0, 4, 50)]
    for features in (np.column_stack([OTHERS[:50], np.ones(50)]), bins):
        assert mean_slope(features.T @ slopes / 50, features) == pytest.approx(slopes.mean(axis=0))
    hidden = OTHERS[:50] - OTHERS[:50].mean(axis=0)
    assert mean_slope(hidden.T @ slopes / 50, hidden) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("width", [20, 160, 400])
def test_the_error_of_a_learned_inverse_is_that_on_other_rows_also_with_as_many_features_as_known_rows(width):
    generator = np.random.default_rng(3)
    phi = MANY @ generator.normal(size=(6, width)) + 3 * generator.normal(size=(360, width))
    found, error = rows_by_inverse(phi, OWN, MANY[OWN])
    assert error == pytest.approx(np.sqrt(np.mean((found[160:] - OTHERS) ** 2, axis=0)), rel=0.25)
    assert variance_explained(OTHERS, found[160:]).mean() > 0.5


def test_groups_of_the_same_share_are_a_coin():
    assert found_in_groups(np.arange(5.0), np.full(5, 0.25)) == 0.5
    assert found_in_groups(np.arange(5.0), np.arange(5.0)) == 1


@pytest.mark.parametrize("loss", ["logistic", "softmax", "squared", "huber", "poisson"])
def test_slopes_are_labels_and_scores(loss):
    outputs, generator = 4 if loss == "softmax" else 1, np.random.default_rng(2)
    scores = generator.normal(size=(ROWS, MOMENTS, outputs))
    scores[:, 0] = 0
    if loss == "softmax":
        labels = generator.integers(0, outputs, ROWS)
        chances = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
        slopes = chances - np.eye(outputs)[labels][:, None]
        scores -= scores.mean(axis=-1, keepdims=True)
    elif loss == "logistic":
        labels = generator.integers(0, 2, ROWS)
        slopes = 1 / (1 + np.exp(-scores)) - labels[:, None, None]
    elif loss == "poisson":
        labels = generator.poisson(2.0, ROWS)
        slopes = np.concatenate([np.exp(scores) - labels[:, None, None], np.exp(scores)], axis=-1)
    else:
        labels = generator.normal(size=ROWS)
        slopes = scores - labels[:, None, None]
    assert labels_from_slopes(slopes, loss) == pytest.approx(labels)
    found, errors = scores_from_slopes(slopes, loss, 1e-12)
    assert found == pytest.approx(scores, abs=1e-6)
    assert (errors < 1e-8).all()


def test_clusters_and_probes_find_classes_that_are_apart():
    labels = np.arange(ROWS) % 3
    features = 8 * np.eye(3)[labels] + np.random.default_rng(4).normal(size=(ROWS, 3))
    assert recovery(by_clusters(features, labels, 0), labels, "classes") == 1
    assert recovery(by_probe(features, np.arange(12), labels), labels, "classes") == 1


def test_membership_is_the_auc_of_smaller_losses():
    assert by_loss(np.array([0.1, 0.2]), np.array([0.3, 0.4])) == 1
    assert by_loss(np.array([0.1, 0.4]), np.array([0.1, 0.4])) == 0.5


@pytest.mark.parametrize("classes", [2, 5])
def test_randomised_response_keeps_as_many_labels_as_epsilon_allows(classes):
    labels = np.random.default_rng(6).integers(0, classes, 20_000)
    kept = np.mean(randomised(labels, 1.0, 7) == labels)
    assert kept == pytest.approx(Response.of(1.0, classes).keep, abs=0.02)
    assert set(np.unique(randomised(labels, 1.0, 7))) == set(range(classes))
    assert (randomised(labels, 1.0, 7) == randomised(labels, 1.0, 7)).all()
    assert Response.of(50.0, classes).keep == pytest.approx(1)


@pytest.mark.parametrize(("loss", "classes"), [("logistic", 2), ("softmax", 3)])
def test_whoever_knows_epsilon_undoes_the_correction(loss, classes):
    rng = np.random.default_rng(1)
    scores, labels = rng.normal(size=(50, 1, classes if loss == "softmax" else 1)), rng.integers(0, classes, (50, 1))
    with jax.enable_x64(True):
        plain, corrected = (
            np.asarray(Objective(loss, 0.0, epsilon).statistic(jax.numpy.asarray(scores), jax.numpy.asarray(labels)))
            for epsilon in (None, 0.7)
        )
    assert uncorrected(corrected, loss, Response.of(0.7, classes)) == pytest.approx(plain, abs=1e-12)
    assert np.abs(corrected - plain).max() > 0.1
