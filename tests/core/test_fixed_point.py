"""Fixed point: sums to within its resolution, alike in JAX and NumPy, and never wrapped."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tdcd.core.codecs.codec import Sending, SummedCodec, seed_words
from tdcd.core.codecs.fixed_point import BeyondRangeError, FixedPoint
from tdcd.core.variant import Variant

pytestmark = pytest.mark.quick

SENDING = Sending(seed_words(0), 0, 0)


@pytest.mark.parametrize(("largest", "terms"), [(64.0, 3), (64.0, 4), (0.1, 7), (63.999999999, 4), (1e5, 100)])
def test_the_sum_of_the_largest_numbers_fits(largest, terms):
    fixed = FixedPoint(largest, terms)
    for dtype in (np.float32, np.float64):
        for sign in (1, -1):
            most = np.full(5, sign * largest, dtype)
            total = fixed.numbers(sum([fixed.steps(most)] * terms), np.float64)
            assert total == pytest.approx(terms * most.astype(float), rel=1e-6)
    # One more bit would not.
    assert terms * largest * 2.0 ** (fixed.bits + 1) * (1 + 2.0**-19) >= 2**31 - 1


@pytest.mark.slow
def test_sums_are_right_to_the_resolution_and_alike_in_both_libraries():
    fixed, rng = FixedPoint(64.0, 3), np.random.default_rng(0)
    parts = [rng.uniform(-64, 64, (4, 30, 2)).astype(np.float32) for _ in range(3)]
    sent = [fixed.encode(part, SENDING) for part in parts]
    compiled = jax.jit(lambda all: fixed.decode_sum([fixed.encode(part, SENDING) for part in all], [SENDING] * 3))
    found = np.asarray(compiled([jnp.asarray(part) for part in parts]))
    exact = sum(part.astype(np.float64) for part in parts)
    assert np.abs(fixed.numbers(sum(one["phi"] for one in sent), np.float64) - exact).max() <= 1.5 * 2.0**-fixed.bits
    assert (found == fixed.numbers(sum(one["phi"] for one in sent), np.float32)).all()
    assert isinstance(fixed, SummedCodec)
    assert Variant(exchange=fixed).changed == ("exchange",)


@pytest.mark.slow
@pytest.mark.parametrize("number", [64.01, -1e30, np.inf, np.nan])
def test_numbers_beyond_the_range_are_never_wrapped(number):
    fixed = FixedPoint(64.0, 3)
    bad, good = np.array([[[1.0], [number]]], np.float32), np.ones((1, 2, 1), np.float32)
    found = np.asarray(fixed.decode_sum([fixed.encode(jnp.asarray(one), SENDING) for one in (bad, good)], []))
    assert found[0, 0, 0] == 2.0
    assert np.isnan(found[0, 1, 0])


def test_a_range_without_digits_is_refused():
    with pytest.raises(ValueError, match=r"a range of 1e\+09 for 3 terms leaves no digits"):
        FixedPoint(1e9, 3)
    assert issubclass(BeyondRangeError, ValueError)
