import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import chdtrc

from support.examples import num_examples
from tdcd.core.schedule import IDS_AT_ONCE, PLACES_KEPT, batch_ids, num_exchanged

pytestmark = pytest.mark.quick

# (num_samples, batch_size): a quarter of the samples and less is drawn one by one, more by sorting keys.
DRAWN, SORTED = (400, 20), (40, 20)
BRANCHES = pytest.mark.parametrize(("num_samples", "batch_size"), [DRAWN, SORTED], ids=["drawn", "sorted"])
MANY = (9000, 2000)
"""Enough to find distinct draws without sorting."""


@BRANCHES
def test_a_round_is_a_pure_function_of_seed_and_round(num_samples, batch_size):
    sizes = {"num_samples": num_samples, "batch_size": batch_size, "local_steps": 3}
    together = batch_ids(5, range(10), **sizes)
    for round_index in range(10):
        np.testing.assert_array_equal(batch_ids(5, [round_index], **sizes)[0], together[round_index])
    np.testing.assert_array_equal(batch_ids(5, [7, 2], **sizes), together[[7, 2]])
    np.testing.assert_array_equal(batch_ids(5, range(4, 9), **sizes), together[4:9])


@BRANCHES
def test_seeds_rounds_and_minibatches_differ(num_samples, batch_size):
    sizes = {"num_samples": num_samples, "batch_size": batch_size, "local_steps": 3}
    minibatches = [tuple(ids) for seed in (0, 1, 2**63 - 1) for ids in batch_ids(seed, [0, 1], **sizes).reshape(6, -1)]
    assert len(set(minibatches)) == 18


@num_examples(60)
@given(
    seed=st.integers(0, 2**63 - 1),
    round_index=st.integers(0, 2**40),
    num_samples=st.integers(1, 300),
    share=st.floats(0, 1),
    local_steps=st.integers(1, 4),
)
def test_ids_are_distinct_and_in_range(seed, round_index, num_samples, share, local_steps):
    batch_size = max(1, round(share * num_samples))
    ids = batch_ids(seed, [round_index], num_samples=num_samples, batch_size=batch_size, local_steps=local_steps)
    assert ids.shape == (1, local_steps, batch_size)
    assert ids.dtype == np.int32
    for minibatch in ids[0]:
        assert len(set(minibatch.tolist())) == batch_size
        assert set(minibatch.tolist()) <= set(range(num_samples))


def first_distinct(values, count):
    return [*dict.fromkeys(values)][:count]


def philox(seed, round_index, size):
    return np.random.Philox(key=np.array([seed, round_index], np.uint64)).random_raw(size)


@pytest.mark.parametrize(
    ("num_samples", "batch_size"),
    [DRAWN, MANY, (PLACES_KEPT // 2 + 1, 1500), (PLACES_KEPT + 1, 1100)],
    ids=["few", "many", "one minibatch at a time", "more samples than a thread keeps room for"],
)
def test_few_samples_of_many_are_the_first_distinct_draws_of_the_stream(num_samples, batch_size):
    ids = batch_ids(3, [11], num_samples=num_samples, batch_size=batch_size, local_steps=2)[0]
    width = batch_size + batch_size // 4 + 32
    draws = [int(raw) % num_samples for raw in philox(3, 11, 2 * width)]
    assert ids.tolist() == [first_distinct(draws[:width], batch_size), first_distinct(draws[width:], batch_size)]


def test_samples_and_places_beyond_32_bits_are_distinguished():
    num_samples, batch_size, steps, rounds = 3_000_000, 1000, 8, range(3)
    width = batch_size + batch_size // 4 + 32
    found = batch_ids(3, rounds, num_samples=num_samples, batch_size=batch_size, local_steps=steps)
    draws = np.array([philox(3, index, steps * width) for index in rounds]).reshape(-1, width) % np.uint64(num_samples)
    assert found.reshape(-1, batch_size).tolist() == [first_distinct(row, batch_size) for row in draws.tolist()]
    assert any(len(set(row[:batch_size])) < batch_size for row in draws.tolist())


def test_many_samples_of_few_are_those_with_the_smallest_keys():
    num_samples, batch_size = SORTED
    ids = batch_ids(3, [11], num_samples=num_samples, batch_size=batch_size, local_steps=2)[0]
    keys = philox(3, 11, 2 * num_samples).tolist()
    for step in range(2):
        mine = keys[step * num_samples : (step + 1) * num_samples]
        assert ids[step].tolist() == sorted(range(num_samples), key=lambda sample: mine[sample])[:batch_size]


class StutteringPhilox(np.random.Philox):
    """Says every value three times: next to no draws are distinct, as by a bad chance that never comes."""

    def random_raw(self, size):
        return np.repeat(super().random_raw(-(-size // 3)), 3)[:size]


@pytest.mark.parametrize(("num_samples", "batch_size"), [(400, 100), (9000, 1500)], ids=["few", "many"])
def test_a_round_whose_draws_fall_short_is_drawn_again_longer(monkeypatch, num_samples, batch_size):
    width = batch_size + batch_size // 4 + 32
    monkeypatch.setattr(np.random, "Philox", StutteringPhilox)
    ids = batch_ids(3, [5, 6], num_samples=num_samples, batch_size=batch_size, local_steps=2)
    for index, round_index in enumerate([5, 6]):
        for longer in (2 * width, 4 * width, 8 * width):
            draws = philox(3, round_index, 2 * longer).reshape(2, longer) % num_samples
            expected = [first_distinct(minibatch.tolist(), batch_size) for minibatch in draws]
            if all(len(minibatch) == batch_size for minibatch in expected):
                break
        assert longer == 4 * width
        assert ids[index].tolist() == expected
    alone = batch_ids(3, [6], num_samples=num_samples, batch_size=batch_size, local_steps=2)
    np.testing.assert_array_equal(alone[0], ids[1])


def test_threads_that_share_the_rounds_draw_what_one_would():
    num_samples, batch_size = MANY
    sizes = {"num_samples": num_samples, "batch_size": batch_size, "local_steps": 20}
    rounds = [3, 9, 4, 0, 7, 8, 11]
    assert len(rounds) * 20 * batch_size > IDS_AT_ONCE
    together = batch_ids(5, rounds, **sizes)
    for index, round_index in enumerate(rounds):
        np.testing.assert_array_equal(batch_ids(5, [round_index], **sizes)[0], together[index])


def middling(statistic, freedom):
    """Whether a chi-square statistic is neither too large nor too small for chance."""
    return 1e-3 < chdtrc(freedom, statistic) < 1 - 1e-3


@BRANCHES
def test_samples_are_uniform(num_samples, batch_size):
    ids = batch_ids(1, range(4000), num_samples=num_samples, batch_size=batch_size, local_steps=2)
    ids = ids.reshape(-1, batch_size)
    for place in (0, batch_size - 1):
        counts = np.bincount(ids[:, place], minlength=num_samples)
        expected = len(ids) / num_samples
        assert middling(np.sum((counts - expected) ** 2) / expected, num_samples - 1)
    # Without replacement a sample's number of minibatches varies less, and the numbers repel each other.
    counts = np.bincount(ids.ravel(), minlength=num_samples)
    expected = len(ids) * batch_size / num_samples
    variance = expected * (1 - batch_size / num_samples) * num_samples / (num_samples - 1)
    assert middling(np.sum((counts - expected) ** 2) / variance, num_samples - 1)


@BRANCHES
def test_minibatches_of_a_round_are_independent(num_samples, batch_size):
    ids = batch_ids(2, range(4000), num_samples=num_samples, batch_size=batch_size, local_steps=2)
    shared = np.array([len(np.intersect1d(*pair)) for pair in ids])
    share = batch_size / num_samples
    deviation = np.sqrt(batch_size * share * (1 - share) * (num_samples - batch_size) / (num_samples - 1))
    assert abs(shared.mean() - batch_size * share) < 4 * deviation / np.sqrt(len(ids))
    assert shared.std() == pytest.approx(deviation, rel=0.05)


def test_a_minibatch_of_all_samples_is_a_permutation():
    ids = batch_ids(0, [0, 1], num_samples=9, batch_size=9, local_steps=2)
    assert (np.sort(ids, axis=2) == np.arange(9)).all()
    assert ids[0, 0].tolist() != ids[1, 1].tolist()


def test_reused_is_one_minibatch_and_full_is_every_sample():
    reused = batch_ids(0, [3], num_samples=20, batch_size=4, local_steps=5, minibatches="reused")
    assert reused.shape == (1, 1, 4)
    full = batch_ids(0, [3, 4], num_samples=20, batch_size=4, local_steps=5, minibatches="full")
    assert full.tolist() == [[list(range(20))]] * 2
    assert [num_exchanged(rule, 5) for rule in ("fresh", "reused", "full")] == [5, 1, 1]


@pytest.mark.parametrize("batch_size", [0, -1, 11])
def test_an_impossible_minibatch_is_refused(batch_size):
    with pytest.raises(ValueError, match=f"batch_size must be between 1 and the 10 samples, not {batch_size}"):
        batch_ids(0, [0], num_samples=10, batch_size=batch_size, local_steps=1)
