"""Short filters against sums of products."""

import numpy as np
import pytest

from tdcd.blocks.convolution import short_filter


@pytest.mark.parametrize("taps", [2, 3, 4, 5])
@pytest.mark.parametrize("width", [6, 7, 9, 14, 29])
def test_outputs_are_those_of_the_filter_from_fewer_products(width, taps):
    rng = np.random.default_rng(width * taps)
    row, filters = rng.normal(size=width), rng.normal(size=taps)
    found = short_filter(width, taps)
    weights = np.repeat(np.array(found.taps) @ filters, len(found.inputs) // len(found.taps))
    outputs = np.array(found.outputs) @ (weights * (np.array(found.inputs) @ row))
    np.testing.assert_allclose(outputs, np.correlate(row, filters, "valid"), rtol=1e-12, atol=1e-12)
    assert len(found.inputs) < len(outputs) * taps


def test_a_kernel_three_wide_takes_half_the_products():
    assert len(short_filter(14, 3).inputs) == 12 * 3 / 2


@pytest.mark.parametrize(("width", "taps"), [(9, 1), (9, 6), (9, 8), (5, 5)])
def test_there_is_none_where_it_would_save_nothing_or_round_too_much(width, taps):
    assert short_filter(width, taps) is None
