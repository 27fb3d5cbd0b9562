"""Minibatches that the device draws are those of the schedule, bit for bit."""

import numpy as np
import pytest

from tdcd import Federation, Linear, Objective, Settings, Silo, Simulation
from tdcd.core.execution import Execution
from tdcd.core.schedule import batch_ids
from tdcd.federation.partition import equal_sizes, shuffled_rows
from tdcd.simulation.engines import flat
from tdcd.simulation.engines.flat import draw_ids

ROUNDS, COUNT, SIZE, SAMPLES = 3, 2, 1024, 4100


def drawn_by_the_host(seed, first_round):
    rounds = range(first_round, first_round + ROUNDS)
    return batch_ids(seed, rounds, num_samples=SAMPLES, batch_size=SIZE, local_steps=COUNT)


@pytest.mark.parametrize(("seed", "first_round"), [(0, 0), (7, 12), (2**64 - 1, 2**31 - ROUNDS), (2**40 + 3, 1)])
def test_the_device_draws_the_ids_of_the_schedule(monkeypatch, seed, first_round):
    """Two rounds at a time, and then the last."""
    monkeypatch.setattr(flat, "PLACES_AT_ONCE", 2 * COUNT * SAMPLES)
    ids = draw_ids(seed, first_round, rounds=ROUNDS, count=COUNT, size=SIZE, num_samples=SAMPLES)
    np.testing.assert_array_equal(ids, drawn_by_the_host(seed, first_round), strict=True)


@pytest.fixture
def too_few_draws(monkeypatch):
    """As many as a minibatch needs, of which some are equal; without programs that were compiled for more."""
    monkeypatch.setattr(flat, "draws_for", lambda size: size)
    flat._draw.clear_cache()
    yield
    flat._draw.clear_cache()


def test_it_says_when_draws_fall_short(too_few_draws):
    assert draw_ids(0, 0, rounds=ROUNDS, count=COUNT, size=SIZE, num_samples=SAMPLES) is None


def test_a_run_is_the_same_whoever_draws(request):
    """In several calls, the last of which is not full; and if the host has to step in."""
    rng = np.random.default_rng(0)
    rows = [shuffled_rows(SAMPLES, equal_sizes(SAMPLES, 5), rng) for _ in range(2)]
    silos = [Silo(f"silo{i}", rng.standard_normal((SAMPLES, 3), np.float32), own) for i, own in enumerate(rows)]
    data = Federation(tuple(silos), rng.standard_normal(SAMPLES, np.float32))
    settings = Settings(local_steps=COUNT, batch_size=SIZE, step_size=0.1, seed=4)

    def blocks(draws_there):
        execution = Execution(engine="flat", keep="device")
        simulation = Simulation(data, [Linear()] * 2, Objective("squared"), settings, execution)
        engine = simulation._engine
        assert engine._draws_there
        engine.rounds_per_call, engine._draws_there = ROUNDS, draws_there
        state = simulation.advance(simulation.init(), 0, 2 * ROUNDS + 1)
        return [np.asarray(block["weight"]) for block in state.blocks]

    expected = blocks(False)
    assert all(np.abs(block).max() > 0.01 for block in expected)
    np.testing.assert_array_equal(blocks(True), expected)
    request.getfixturevalue("too_few_draws")
    np.testing.assert_array_equal(blocks(True), expected)
