"""Who holds which samples: ranges say the same as arrays, in less memory."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.examples import num_examples
from tdcd.federation import placement
from tdcd.federation.partition import contiguous_rows, equal_sizes, row_ranges
from tdcd.federation.placement import Held, Holders
from tdcd.federation.silos import Federation, Silo

pytestmark = pytest.mark.quick


@st.composite
def splits(draw):
    """Clients' ranges of samples in any order, with gaps, and how many samples there are."""
    edges = draw(st.lists(st.integers(0, 60), min_size=2, max_size=14, unique=True).map(sorted))
    ranges = [range(a, b) for a, b in zip(edges[::2], edges[1::2], strict=False)]
    return draw(st.permutations(ranges)), edges[-1] + draw(st.integers(0, 3))


@num_examples(200)
@given(splits(), st.integers(0, 60))
def test_ranges_are_the_arrays_of_their_numbers(split, shift):
    ranges, total = split
    arrays, everything = [np.arange(own.start, own.stop) for own in ranges], np.arange(total)
    expected = np.sort(np.concatenate(arrays))
    # Numbers without a neighbour among them stay numbers.
    for held, numbers in (
        (Held.of(ranges), expected),
        (Held.of(arrays), expected),
        (Held.of([2 * expected]), 2 * expected),
    ):
        assert len(held) == len(numbers)
        np.testing.assert_array_equal(held.numbers(), numbers)
        np.testing.assert_array_equal(held.numbers(2, 5), numbers[2:5])
        asked = np.arange(-1, 2 * total + 2)
        places = [numbers.tolist().index(one) if one in numbers else -1 for one in asked]
        np.testing.assert_array_equal(held.places(asked), places)
        assert [held.before(one) for one in asked] == [(numbers < one).sum() for one in asked]
    # So many samples that they are no list.
    many = placement.FEW_SAMPLES + total
    by_range, by_array = Holders.of(tuple(ranges), many), Holders.of(tuple(arrays), total)
    np.testing.assert_array_equal(by_range[everything], by_array[everything])
    np.testing.assert_array_equal(by_range.counts, by_array.counts)
    groups = np.arange(len(ranges)) // 2
    pair = by_range.renamed(groups, 200), by_array.renamed(groups, 200)
    np.testing.assert_array_equal(pair[0][everything], pair[1][everything])
    np.testing.assert_array_equal(pair[0].counts, pair[1].counts)
    moved = [range(own.start + shift, own.stop + shift) for own in ranges]
    for kind in (list, lambda own: [np.arange(one.start, one.stop) for one in own]):
        union = Held.union([Held.of(kind(ranges)), Held.of(kind(moved))])
        assert union.numbers().tolist() == sorted({*expected.tolist(), *(expected + shift).tolist()})


def test_a_range_takes_no_memory():
    total = 10**10
    rows = row_ranges(equal_sizes(total, 7))
    assert Holders.of(rows, total)[np.array([0, total - 1])].tolist() == [0, 6]
    held = Held.of(rows[2:4])
    assert held.places(np.array([rows[3][5]])).tolist() == [len(rows[2]) + 5]


def test_few_samples_are_a_list_however_they_are_given():
    """It is looked up for every sample of every minibatch, several times faster than ranges."""
    ranges = row_ranges(equal_sizes(1000, 5))
    listed = Holders.of(ranges, 1000)
    assert listed.starts is None
    assert listed.is_same(Holders.of(contiguous_rows(1000, equal_sizes(1000, 5)), 1000))
    assert listed.is_same(Holders.of((*ranges[:4], np.asarray(ranges[4])), 1000))


def test_few_clients_take_a_byte_per_sample():
    shuffled = tuple(np.random.default_rng(0).permutation(1000).reshape(5, 200))
    assert Holders.of(shuffled, 1000).clients.nbytes == 1000


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((range(2), range(3, 4)), "row 2 is held by no client"),
        ((range(3), range(2, 4)), "row 2 is held by client 0 and by client 1"),
        ((range(3),), "row 3 is held by no client"),
        ((range(5),), "client 0 holds row 4; there are 4 samples"),
        ((range(4), range(4, 4)), "client 1 holds no rows"),
    ],
)
def test_ranges_that_are_no_partition_are_refused_as_arrays_are(rows, message):
    for given_rows in (rows, tuple(np.arange(own.start, own.stop) for own in rows)):
        with pytest.raises(ValueError, match=message):
            Federation((Silo("bank", np.zeros((4, 2)), given_rows),), np.zeros(4))


def test_ranges_are_contiguous_rows():
    for ranges, rows in zip(row_ranges([1, 3, 2]), contiguous_rows(6, [1, 3, 2]), strict=True):
        assert [*ranges] == rows.tolist()
