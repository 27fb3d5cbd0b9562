"""What is computed in NumPy is what JAX computes: losses, their derivatives, a client's local steps."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from tdcd.blocks.linear import Linear
from tdcd.blocks.start import start_block
from tdcd.core.family.labels import LabelsAt
from tdcd.core.family.optimizers import ClientOptimizer, direction
from tdcd.core.knowledge import Known, LabelsEverywhere
from tdcd.core.losses import LOSSES
from tdcd.core.losses.squared import Squared
from tdcd.core.objective import Objective
from tdcd.core.presence import Remaining, row_weights
from tdcd.core.settings import Settings
from tdcd.core.update import Sgd
from tdcd.core.variant import Variant
from tdcd.runtime.compute.local_steps import ClientRows, LocalSteps

EXACT = {"rtol": 1e-12, "atol": 1e-12}
CLIENT = (np.zeros(2, np.uint32), 0)
"""Seed and number of a client, from which a block whose members are trained apart draws."""
OBJECTIVES = [
    pytest.param(Objective(name, 0.1, epsilon), id=f"{name}{'' if epsilon is None else ' randomised'}")
    for name, loss in LOSSES.items()
    for epsilon in ((None,) if loss.corrected is None else (None, 1.0))
]


def samples(objective, rng, *shape):
    """Scores ``[..., C]`` of every size, and labels."""
    outputs = 3 if objective.kind.target == "classes" else 1
    scores = rng.normal(0, 4, (*shape, outputs)).clip(-30, 10)
    classes = rng.integers(0, max(2, outputs), shape)
    return scores, classes if objective.kind.target == "classes" else classes.astype(float)


@pytest.fixture
def rng():
    return np.random.default_rng(5)


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_losses_and_slopes_are_those_of_jax(objective, rng):
    scores, labels = samples(objective, rng, 5, 20)
    as_jax = jax.numpy.asarray(scores), jax.numpy.asarray(labels)
    np.testing.assert_allclose(objective.losses(scores, labels), objective.losses(*as_jax), **EXACT)
    slopes = jax.grad(lambda scores: objective.losses(scores, as_jax[1]).sum())(as_jax[0])
    np.testing.assert_allclose(objective.slopes(scores, labels), slopes, **EXACT)
    np.testing.assert_allclose(objective.slopes(*as_jax), slopes, **EXACT)


@pytest.mark.parametrize("objective", [each for each in OBJECTIVES if each.values[0].kind.change is not None])
def test_slopes_after_a_change_are_those_of_jax(objective, rng):
    scores, labels = samples(objective, rng, 50)
    change = rng.normal(0, 3, scores.shape)
    before = objective.statistic(scores, labels)
    assert isinstance(before, np.ndarray)
    np.testing.assert_allclose(
        objective.change_slopes(before, change), objective.slopes(scores + change, labels), rtol=1e-7, atol=1e-9
    )
    np.testing.assert_allclose(
        objective.change(before, change), objective.change(*map(jax.numpy.asarray, (before, change))), **EXACT
    )
    by_jax = jax.grad(lambda change: objective.change(jax.numpy.asarray(before), change).sum())(
        jax.numpy.asarray(change)
    )
    np.testing.assert_allclose(objective.change_slopes(before, change), by_jax, **EXACT)


def test_slopes_of_extreme_scores_are_finite():
    for name in ("logistic", "softmax"):
        objective = Objective(name)
        outputs = 3 if name == "softmax" else 1
        scores = np.array([[-2000.0] * outputs, [2000.0] + [-2000.0] * (outputs - 1)])
        labels = np.array([0, 1])
        slopes = objective.slopes(scores, labels)
        assert np.isfinite(slopes).all()
        assert np.isfinite(objective.losses(scores, labels)).all()
        assert np.isfinite(objective.change_slopes(slopes, 1000 * np.ones_like(scores))).all()


class InJax(LocalSteps):
    """The same steps, differentiated and compiled."""

    needs_jax = True


@pytest.mark.parametrize(
    ("objective", "knowledge"),
    [
        pytest.param(*each.values, knowledge, id=f"{each.id} {knowledge}")
        for each in OBJECTIVES
        for knowledge in (LabelsEverywhere(), LabelsAt(0), LabelsAt(1))
        if knowledge != LabelsAt(0) or each.values[0].kind.change is not None
    ],
)
def test_local_steps_are_those_of_jax(objective, knowledge, rng):
    silo = 1
    others, labels = samples(objective, rng, 4, 6)
    outputs = others.shape[-1]
    counts = np.array([6, 4, 0, 5], np.int32)
    features, block = rng.normal(size=(4, 6, 3)), {"weight": rng.normal(size=(3, outputs))}
    phi = features @ block["weight"]
    known = Known(labels, others, None)
    if not knowledge.are_labels_everywhere and knowledge.scored_at(0) == 0:
        known = Known(labels, objective.statistic(phi + others, labels), phi)
    rule = row_weights(Remaining(40, 10), counts, 6, gradient="unbiased", held=np.float64(12))
    rows = ClientRows(np.arange(15), features, labels, counts, np.arange(15), rng.uniform(0.5, 2, (4, 6)), rule=rule)
    local = LocalSteps(Linear(), objective, Variant(knowledge=knowledge), silo, 4, "float64")
    assert not local.needs_jax
    given = block, rows, known, np.float64(1e-3), 0
    fields = {name: getattr(local, name) for name in local.__dataclass_fields__}
    by_jax = InJax(**fields).take(*given, client=CLIENT)
    np.testing.assert_allclose(local.take(*given, client=CLIENT)["weight"], by_jax["weight"], rtol=1e-10, atol=1e-12)


class Halving(Sgd):
    """Writes to what it is given, as JAX allows."""

    def step(self, block, gradient, state, step_size):
        step_size *= 0.5
        return super().step(block, gradient, state, step_size)


class OfJax(Sgd):
    """Gives arrays of JAX."""

    def step(self, block, gradient, state, step_size):
        return jax.numpy.asarray(super().step(block, gradient, state, step_size)[0]), state


def one_client(update, rng):
    """Its steps, and what they are given: 4 minibatches of 100 rows."""
    features, labels, others = rng.normal(size=(4, 100, 33)), rng.normal(size=(4, 100)), rng.normal(size=(4, 100, 1))
    rule = np.full((4, 100), 0.01)
    rows = ClientRows(np.arange(400), features, labels, np.full(4, 100, np.int32), np.arange(400), rule=rule)
    local = LocalSteps(Linear(), Objective(l2=0.1), Variant(update=update), 0, 4, "float64")
    return local, rows, Known(labels, others)


def test_an_update_that_writes_to_its_step_size_does_so_for_one_step(rng):
    local, rows, known = one_client(Halving(), rng)
    given = {"weight": np.zeros((33, 1))}, rows, known, np.asarray(1e-2), 0
    found = local.take(*given, client=CLIENT)["weight"]
    assert given[3] == 1e-2
    by_jax = InJax(**{name: getattr(local, name) for name in local.__dataclass_fields__}).take(*given, client=CLIENT)
    np.testing.assert_allclose(found, by_jax["weight"], **EXACT)


def test_an_update_that_gives_arrays_of_jax_steps_in_jax(rng):
    local, rows, known = one_client(OfJax(), rng)
    block = start = rng.normal(size=(33, 1))
    for x, y, others in zip(rows.features, rows.labels, known.received, strict=True):
        slopes = x @ block + others - y[:, None]
        block = jax.numpy.asarray(block - 1e-2 * (x.T @ (0.01 * slopes) + 0.1 * block))
    found = local.take({"weight": start}, rows, known, np.asarray(1e-2), 0, client=CLIENT)["weight"]
    np.testing.assert_array_equal(found, block)


def test_what_needs_jax_says_so():
    local = LocalSteps(Linear(), Objective(), Variant(), 0, 1, "float32")
    adam = Variant(update=ClientOptimizer(direction("adam"), None))
    assert not local.needs_jax
    assert replace(local, variant=adam).needs_jax


class Tenfold(Squared):
    """Another loss than the one that it inherits from."""

    name = "tenfold"

    def losses(self, scores, labels):
        return 10 * super().losses(scores, labels)


def test_what_a_loss_inherits_is_not_taken_for_its_own():
    objective = Objective(Tenfold())
    assert not objective.is_written_out
    assert objective.kind.change is None
    assert Objective("squared").is_written_out


class Drawn(Linear):
    """A linear block that does not start at zero."""

    def init(self, key, feature_shape, num_outputs):
        return {"weight": jax.random.normal(key, (*feature_shape, num_outputs))}


def test_a_block_that_inherits_from_the_linear_one_draws_its_start():
    assert start_block(Drawn(), Settings(step_size=0.05), 0, (3,), 1)["weight"].any()


def test_small_chances_keep_their_digits():
    scores, labels = np.float32([[-20.0], [-18.0]]), np.float32([0, 0])
    np.testing.assert_allclose(Objective("logistic").slopes(scores, labels)[:, 0], np.exp([-20.0, -18.0]), rtol=1e-5)
