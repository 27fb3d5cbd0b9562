import json
from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdcd.tables.summary import FEWEST, QuantileSketch, group_size

values = st.lists(
    st.one_of(st.floats(-1e6, 1e6), st.integers(-3, 3).map(float), st.sampled_from([0.0, 0.1, 1e-300, 1e300, -1e300])),
    max_size=80,
)
splits = st.lists(values, min_size=1, max_size=5)


@settings(max_examples=300)
@given(splits, st.integers(2, 6))
def test_the_counts_are_right_to_three_groups_of_every_client(parts, bins):
    """The stated bound, at every value and between them, for any split of the values over clients."""
    arrays = [np.array(part, np.float64) for part in parts]
    merged = reduce(QuantileSketch.merge, [QuantileSketch.of(part, bins) for part in arrays])
    joined, bound = np.concatenate(arrays), sum(3 * group_size(len(part), bins) for part in arrays)
    for at in np.concatenate([joined, np.nextafter(joined, -np.inf), [*merged.counts]]):
        told = sum(count for number, count in merged.counts.items() if number <= at)
        assert abs(told - (joined <= at).sum()) < bound


@given(splits, st.randoms(use_true_random=False))
def test_the_order_of_clients_changes_nothing(parts, random):
    sketches = [QuantileSketch.of(np.array(part, np.float64), 4) for part in parts]
    shuffled = random.sample(sketches, len(sketches))
    one, other = (reduce(QuantileSketch.merge, some) for some in (sketches, shuffled))
    assert one == other
    assert one.bins(4) == other.bins(4)


@given(values, st.integers(2, 6))
def test_every_count_is_of_several_rows_and_every_number_amid_them_or_shared(part, bins):
    """No row's own value: a number either stands for as many equal ones, or lies among that many that differ."""
    array = np.array(part, np.float64)
    sketch, size = QuantileSketch.of(array, bins), group_size(len(part), bins)
    assert [*sketch.counts] == sorted(sketch.counts)
    assert not sketch.counts or sum(sketch.counts.values()) == len(part)
    start, ordered = 0, np.sort(array)
    for number, count in sketch.counts.items():
        assert count >= size >= FEWEST
        group = ordered[start : start + count]
        assert (array == number).sum() >= size or group[0] <= number <= group[-1] > group[0]
        start += count


def test_a_client_with_a_handful_of_rows_says_nothing():
    assert QuantileSketch.of(np.arange(FEWEST - 1.0), 4).counts == {}
    assert len(QuantileSketch.of(np.arange(float(FEWEST)), 4).counts) == 1


def test_numbers_are_the_shortest_in_their_group():
    rng = np.random.default_rng(0)
    sketch = QuantileSketch.of(rng.lognormal(7, 1, 400), 4)
    assert all(len(f"{number:g}") <= 4 for number in sketch.counts)


def test_equal_values_are_one_bin_and_cuts_are_between_values():
    """Half of the rows are zero, and the others whole numbers: each of these is known exactly."""
    sketch = QuantileSketch.of(np.repeat([0.0, 1.0, 2.0, 3.0], [50, 20, 20, 10]), 8)
    assert sketch.counts == {0.0: 50, 1.0: 20, 2.0: 20, 3.0: 10}
    assert sketch.bins(8) == ((0.0, 1.0, 2.0), (50, 20, 20, 10))
    assert sketch.bins(2) == ((0.0,), (50, 50))


def test_bins_have_about_as_many_rows_each():
    rng = np.random.default_rng(1)
    joined = rng.lognormal(3, 2, 8000)
    sketch = reduce(QuantileSketch.merge, [QuantileSketch.of(part, 16) for part in np.split(joined, [500, 2500])])
    cuts, counts = sketch.bins(16)
    assert len(cuts) == 15
    true = np.bincount(np.searchsorted(cuts, joined), minlength=16)
    # A cut is off by less than 3/8 of a bin, and a bin has two of them.
    assert np.abs(true - 500).max() < 2 * 3 / 8 * 500
    assert np.abs(true - 500).mean() < 30
    assert np.abs(np.array(counts) - true).max() < 2 * 3 / 8 * 500


def test_a_sketch_survives_json_and_a_damaged_one_does_not():
    sketch = QuantileSketch.of(np.random.default_rng(0).normal(size=50), 4)
    assert QuantileSketch.from_json(json.loads(json.dumps(sketch.to_json()))) == sketch
    for damaged in ({"numbers": [1.0], "counts": []}, {"numbers": [float("nan")], "counts": [7]}):
        with pytest.raises(ValueError, match=r"zip|a sketch has finite numbers"):
            QuantileSketch.from_json(damaged)
    with pytest.raises(ValueError, match="counts of at least 1"):
        QuantileSketch.from_json({"numbers": [1.0], "counts": [0]})
