"""Draws by a keyed permutation: a bijection with an inverse, uniform, and in memory of what is asked for."""

import tracemalloc
from itertools import permutations as orders
from math import perm

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdcd.core.permutation import KEYS, Permutation
from tdcd.core.schedule import PERMUTED_FROM, batch_ids, is_permuted, permutations

pytestmark = pytest.mark.quick


def shuffled(size, rows, seed=0):
    return Permutation(size, np.random.Philox(key=[seed, size]).random_raw(rows * KEYS).reshape(rows, KEYS))


@given(st.integers(1, 300), st.integers(0, 2**32))
def test_every_sample_has_a_place_and_every_place_a_sample(size, seed):
    permutation, everything = shuffled(size, 2, seed), np.broadcast_to(np.arange(size), (2, size))
    samples = permutation.samples(everything)
    np.testing.assert_array_equal(np.sort(samples, axis=1), everything)
    np.testing.assert_array_equal(permutation.places(samples), everything)


@given(st.integers(2, 2**40), st.integers(0, 2**32), st.data())
def test_a_place_and_a_sample_are_each_others_inverse(size, seed, data):
    asked = np.array([data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=5))])
    permutation = shuffled(size, 1, seed)
    samples = permutation.samples(asked)
    assert ((samples >= 0) & (samples < size)).all()
    np.testing.assert_array_equal(permutation.places(samples), asked)
    np.testing.assert_array_equal(permutation.samples(permutation.places(asked)), asked)
    # One place alone says the same as among others.
    assert permutation.samples(asked[:, :1])[0, 0] == samples[0, 0]


@pytest.mark.parametrize(("size", "count"), [(2, 2), (5, 2), (6, 3), (9, 2), (10, 3), (50, 2)])
def test_every_order_is_as_likely(size, count):
    """Chi-square of the first places over many keys: within five standard deviations of its mean."""
    rows, orders_in_all = 60_000, perm(size, count)
    drawn = shuffled(size, rows, 3).samples(np.broadcast_to(np.arange(count), (rows, count)))
    codes = {order: index for index, order in enumerate(orders(range(size), count))}
    found = np.bincount([codes[order] for order in map(tuple, drawn.tolist())], minlength=orders_in_all)
    expected = rows / orders_in_all
    square, freedom = ((found - expected) ** 2).sum() / expected, orders_in_all - 1
    assert abs(square - freedom) < 5 * (2 * freedom) ** 0.5


def test_a_large_range_is_filled_evenly():
    size, rows, count = 10**9, 200, 1000
    drawn = shuffled(size, rows).samples(np.broadcast_to(np.arange(count), (rows, count)))
    found = np.bincount((drawn * 64 // size).ravel(), minlength=64)
    square = ((found - rows * count / 64) ** 2).sum() / (rows * count / 64)
    assert abs(square - 63) < 5 * (2 * 63) ** 0.5
    # Neighbouring places say nothing of each other.
    assert abs(np.corrcoef(drawn[:, :-1].ravel(), drawn[:, 1:].ravel())[0, 1]) < 5 / (rows * count) ** 0.5


@pytest.mark.parametrize(("num_samples", "size"), [(1, 1), (7, 7), (100, 90), (5000, 1100)])
def test_minibatches_are_beginnings_of_permutations(num_samples, size):
    sizes = {"num_samples": num_samples, "batch_size": size, "local_steps": 3}
    ids = batch_ids(5, [2, 9], **sizes, draws="permutation")
    assert ids.shape == (2, 3, size)
    assert ids.dtype == np.int32
    assert all(len({*minibatch}) == size for minibatch in ids.reshape(6, size).tolist())
    np.testing.assert_array_equal(batch_ids(5, [9], **sizes, draws="permutation")[0], ids[1])
    # Who holds some of the samples finds theirs alone.
    own = np.broadcast_to(np.arange(0, num_samples, 3), (6, len(range(0, num_samples, 3))))
    places = permutations(5, [2, 9], 3, num_samples).places(own)
    for minibatch, samples, found in zip(ids.reshape(6, size), own, places, strict=True):
        inside = found < size
        np.testing.assert_array_equal(minibatch[found[inside]], samples[inside])
        assert {*samples[inside].tolist()} == {*minibatch.tolist()} & {*samples.tolist()}


def test_many_minibatches_drawn_together_are_those_drawn_alone():
    sizes = {"num_samples": 2**25, "batch_size": 50_000, "local_steps": 3}
    together = batch_ids(1, [0, 1, 2], **sizes)
    np.testing.assert_array_equal(together[1], batch_ids(1, [1], **sizes)[0])
    np.testing.assert_array_equal(together, batch_ids(1, [0, 1, 2], **sizes, draws="permutation"))


def test_the_default_is_the_stream_below_a_size_and_the_permutation_from_there_on():
    assert [is_permuted("auto", size) for size in (PERMUTED_FROM - 1, PERMUTED_FROM)] == [False, True]
    for size, same in ((PERMUTED_FROM - 1, "stream"), (PERMUTED_FROM, "permutation")):
        sizes = {"num_samples": size, "batch_size": 40, "local_steps": 2}
        np.testing.assert_array_equal(batch_ids(1, [0], **sizes), batch_ids(1, [0], **sizes, draws=same))


def test_more_samples_than_numbers_are_refused():
    with pytest.raises(ValueError, match="2,147,483,648 samples: 2,147,483,647 are the most"):
        batch_ids(0, [0], num_samples=2**31, batch_size=2, local_steps=1)


def test_drawing_takes_memory_for_the_minibatch_and_not_for_every_sample():
    tracemalloc.start()
    try:
        batch_ids(0, [0], num_samples=10**9, batch_size=4096, local_steps=2)
        assert tracemalloc.get_traced_memory()[1] < 400 * 2 * 4096
    finally:
        tracemalloc.stop()
