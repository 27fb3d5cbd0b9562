"""Mixtures of the last rounds' models: what they are, when hubs continue from them, and where they lead."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from tdcd import Federation, Linear, Objective, Overlap, Settings, Variant, train
from tdcd.core.codecs.fixed_point import FixedPoint
from tdcd.core.codecs.noise import GaussianNoise
from tdcd.core.codecs.quantised import Quantised
from tdcd.core.family import mixing
from tdcd.core.family.automatic import automatic
from tdcd.core.family.dropout import SiloDropout
from tdcd.core.family.labels import LabelsAt
from tdcd.core.family.participation import RandomClients
from tdcd.core.family.scaled import Scaled, inverse_root_of, products
from tdcd.core.round import Widths, round_of
from tdcd.data import Table

PARABOLA = Objective("squared", 0.01)
SAMPLES = 40
FULL = Settings(step_size=1.0, local_steps=1, minibatches="full")


def two_silos(seed=0, near=0.01):
    """Columns of which one silo has near copies of the other's, and labels that are what these differ by."""
    rng = np.random.default_rng(seed)
    first = rng.normal(size=(SAMPLES, 3))
    tables = [first, first + near * rng.normal(size=first.shape)]
    return tables, (tables[1] - tables[0]) @ np.ones((3, 1)) / near


def gradients(tables, labels, blocks, l2=PARABOLA.l2):
    residual = sum(table @ block for table, block in zip(tables, blocks, strict=True)) - labels
    return [table.T @ residual / SAMPLES + l2 * block for table, block in zip(tables, blocks, strict=True)]


def best(tables, labels, l2=PARABOLA.l2):
    rows = np.concatenate(tables, axis=1)
    found = np.linalg.solve(rows.T @ rows / SAMPLES + l2 * np.eye(rows.shape[1]), rows.T @ labels / SAMPLES)
    return np.split(found, [tables[0].shape[1]])


class Hubs:
    """The hubs of a parabola, round by round."""

    def __init__(self, tables, labels, dtype=np.float64):
        self.tables, self.labels = tables, labels
        self.variant = Variant(hub_update=Scaled(0.5, 1.0))
        self.blocks = [{"weight": np.zeros((table.shape[1], 1), dtype)} for table in tables]
        self.states = [
            self.variant.first_state(block, lambda table=table: products(table), PARABOLA)
            for block, table in zip(self.blocks, tables, strict=True)
        ]
        self.seen = []

    def round(self):
        weights = [block["weight"] for block in self.blocks]
        found = gradients(self.tables, self.labels, weights)
        self.seen.append((weights, found))
        self.states = self.variant.all_met(self.states)
        moved = [
            self.variant.hub_update.step(block, {"weight": block["weight"] - gradient}, state)
            for block, gradient, state in zip(self.blocks, found, self.states, strict=True)
        ]
        self.blocks, self.states = [block for block, _ in moved], [state for _, state in moved]


def test_hubs_continue_from_the_combination_with_the_shortest_gradient():
    """By least squares on the gradients themselves, which no hub has together."""
    tables, labels = two_silos()
    hubs = Hubs(tables, labels)
    for _ in range(mixing.EVERY):
        hubs.round()
    # What the last round found was not known yet.
    known = hubs.seen[:-1]
    roots = [inverse_root_of(products(table), 1.0, PARABOLA.l2) for table in tables]
    white = np.stack(
        [np.concatenate([root @ g for root, g in zip(roots, found, strict=True)])[:, 0] for _, found in known], axis=1
    )
    drifts = np.diag(mixing.LEAST_DRIFT * np.linalg.norm(white, axis=0))
    # With the last part 1 less the others.
    rows = np.concatenate([white, drifts])
    others = np.linalg.lstsq(rows[:, :-1] - rows[:, -1:], -rows[:, -1], rcond=None)[0]
    parts = np.append(others, 1 - others.sum())
    for silo, root in enumerate(roots):
        model = sum(part * weights[silo] for part, (weights, _) in zip(parts, known, strict=True))
        gradient = sum(part * found[silo] for part, (_, found) in zip(parts, known, strict=True))
        step_size = float(hubs.states[silo]["step_size"])
        np.testing.assert_allclose(hubs.blocks[silo]["weight"], model - step_size * root @ root @ gradient, rtol=1e-6)
        assert float(hubs.states[silo]["age"]) == 0
        assert not hubs.states[silo]["velocity"]["weight"].any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_near_copies_differ_by_is_found(dtype):
    """Six directions: a few mixtures are enough, where steps alone make next to no way."""
    tables, labels = two_silos()
    mixed, alone = (Hubs(tables, labels, dtype) for _ in range(2))
    wanted = best(tables, labels)
    for _ in range(6 * mixing.EVERY):
        mixed.round()
        alone.round()
        # The same hubs, with nothing to mix.
        alone.states = [{**state, "mixing": mixing.forgotten(state["mixing"])} for state in alone.states]
    far = [
        max(abs(block["weight"] - own).max() for block, own in zip(hubs.blocks, wanted, strict=True))
        for hubs in (mixed, alone)
    ]
    assert far[0] < 1e-3 * far[1]


@pytest.mark.parametrize("silos", [1, 2, 3])
def test_a_default_run_ends_at_the_optimum(silos):
    rng = np.random.default_rng(1)
    first = rng.normal(size=(400, 4))
    copies = [first] + [first + 1e-3 * rng.normal(size=first.shape) for _ in range(silos - 1)]
    rows = np.concatenate(copies, axis=1)
    labels = (rows[:, -4:] - rows[:, :4]) @ np.ones(4) * 1e3 / max(silos - 1, 1e3 * (silos == 1)) + rng.normal(size=400)
    made = Federation.cut(Table("copies", rows, labels, "regression"), silos=silos, clients=2)
    result = train(made, Linear(), Objective("squared", 1e-5), rounds=200, quiet=True, verbose=0)
    columns = np.concatenate([silo.features for silo in made.silos], axis=1)
    found = np.linalg.solve(columns.T @ columns / 400 + 1e-5 * np.eye(columns.shape[1]), columns.T @ labels / 400)
    least = ((columns @ found - labels) ** 2).mean() / 2 + 1e-5 / 2 * (found**2).sum()
    assert result.converged
    assert result.final.train_loss == pytest.approx(least, rel=1e-3)
    assert min(line.gap for line in result.history if line.gap is not None) < 2e-3 * least


def test_hubs_that_remember_different_rounds_forget_them():
    hubs = Hubs(*two_silos())
    for _ in range(3):
        hubs.round()
    scaled = hubs.variant.hub_update
    hubs.states[0] = scaled.restarted(hubs.states[0])
    hubs.states = hubs.variant.all_met(hubs.states)
    assert [int(state["mixing"]["count"]) for state in hubs.states] == [0, 0]
    for _ in range(mixing.EVERY + 1):
        hubs.round()
    assert {int(state["mixing"]["count"]) for state in hubs.states} == {mixing.EVERY + 1}


def test_without_what_the_others_send_no_step_is_from_a_mixture():
    update, block = Scaled(0.5, 1.0), {"weight": np.ones((2, 1))}
    state = update.start(block)
    for age in range(1, 3 * mixing.EVERY):
        block, state = update.step(block, {"weight": 0.5 * block["weight"]}, state)
        assert float(state["age"]) == age


def test_a_product_that_is_too_large_is_of_no_round():
    memory = mixing.start(np.zeros((2, 1), np.float32))
    step = mixing.PlainStep(np.zeros((2, 1)), np.full((2, 1), 3.0), np.zeros((2, 1)))
    _, _, memory = mixing.mixed(memory, step, np.eye(2), np.array(1.0))
    sent = mixing.products(memory, np.float32)
    assert sent[:2].tolist() == [1, 18]
    assert mixing.products(memory, np.float32, largest=17.0)[:2].tolist() == [-1, 0]
    _, _, beyond = mixing.mixed(memory, step._replace(whitened=np.full((2, 1), 1e30)), np.eye(2), np.array(1.0))
    assert mixing.products(beyond, np.float32)[0] == -1
    # A product that is finite, but whose sum with another hub's need not be.
    _, _, large = mixing.mixed(memory, step._replace(whitened=np.full((2, 1), 1.2e19)), np.eye(2), np.array(1.0))
    assert mixing.products(large, np.float32)[0] == -1
    assert mixing.products(None, np.float32)[0] == -1


def test_blocks_that_are_too_large_are_not_remembered():
    most = mixing.MIXING_BYTES // (2 * mixing.REMEMBERED * 4)
    assert mixing.start(np.zeros((most, 1), np.float32)) is not None
    assert mixing.start(np.zeros((most + 1, 1), np.float32)) is None


@pytest.mark.parametrize("bad", [0.0, np.nan, -1.0, 1e38])
def test_products_of_a_hub_that_lies_are_survived(bad):
    hubs = Hubs(*two_silos(), np.float32)
    variant = hubs.variant
    for _ in range(2 * mixing.EVERY):
        hubs.round()
        total = np.full(mixing.WIDTH, bad, np.float32)
        total[0] = 2 * int(hubs.states[0]["mixing"]["count"])
        hubs.states = [variant.met(state, total, 2) for state in hubs.states]
    hubs.states = [{**state, "mixing": {**state["mixing"], "met": state["mixing"]["count"]}} for state in hubs.states]
    hubs.round()
    assert all(np.isfinite(block["weight"]).all() for block in hubs.blocks)


def test_numpy_and_jax_mix_alike():
    rng = np.random.default_rng(0)
    whitened = rng.normal(size=(9, 12))
    gram = np.zeros((mixing.REMEMBERED,) * 2, np.float32)
    gram[:9, :9] = whitened @ whitened.T
    known = np.arange(mixing.REMEMBERED) < 9
    for drift in (mixing.DRIFT, mixing.LEAST_DRIFT):
        own = mixing.combination(gram, known, np.float32(drift))
        theirs = jax.jit(mixing.combination)(gram, known, np.float32(drift))
        np.testing.assert_allclose(own, theirs, atol=1e-3 * abs(own).max())
        assert own[9:].tolist() == [0.0] * (mixing.REMEMBERED - 9)
        assert own.sum() == pytest.approx(1, abs=1e-4)


def flows(variant, settings=FULL):
    _, variant = automatic(Settings(step_size="auto"), variant, is_scalable=True, num_silos=3)
    widths = Widths(1, 1, mixes=variant.mixes(settings))
    return {flow.name: flow for flow in round_of(variant, 3, widths).training if flow.link == "hub_to_hub"}


def test_products_go_with_phi_and_their_sums_with_slopes():
    plain, star = flows(Variant()), flows(Variant(knowledge=LabelsAt(1)))
    assert (plain["step_products"].within, plain["step_products"].width) == ("phi", mixing.WIDTH)
    assert "step_sums" not in plain
    assert star["step_products"].route.receivers(0, 3) == (1,)
    assert (star["step_sums"].within, star["step_sums"].route.receivers(1, 3)) == ("slope", (0, 2))
    masked = flows(Variant(exchange=FixedPoint(terms=3)))["step_products"]
    assert (masked.dtype, masked.width) == ("uint32", 3 * mixing.WIDTH)


@pytest.mark.parametrize(
    "variant",
    [
        Variant(timing=Overlap(1)),
        Variant(timing=Overlap(0, (1, 2, 1))),
        Variant(exchange=Quantised(8)),
        Variant(exchange=GaussianNoise(1.0, 1.0)),
        Variant(dropout=SiloDropout(0.1)),
        Variant(participation=RandomClients(0.5)),
    ],
    ids=str,
)
def test_where_gradients_are_late_or_noisy_nothing_is_sent(variant):
    assert not {"step_products", "step_sums"} & {*flows(variant)}


def test_minibatches_and_several_local_steps_are_not_mixed():
    for settings in (replace(FULL, minibatches="fresh"), replace(FULL, local_steps=2)):
        assert "step_products" not in flows(Variant(), settings)
