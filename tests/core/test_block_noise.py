"""Noise on clients' blocks: against the plain mean, the closed form of its variance, and what is counted."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tdcd.config import ConfigError, check_config
from tdcd.config.members import variant_of, with_steps
from tdcd.config.resolve import settings_of
from tdcd.core.codecs.block_noise import NoisyBlocks, _clipped, _norm
from tdcd.core.codecs.codec import BLOCKS, Sending, epsilon_of_blocks, seed_words
from tdcd.core.codecs.fixed_point import FixedBlocks
from tdcd.core.codecs.noise import GaussianNoise
from tdcd.core.family.overlap import Overlap

K, RANGE = 4, 8.0
SHARES = np.array([0.4, 0.3, 0.2, 0.1], np.float32)
BASE = {
    "data": {"source": "diabetes"},
    "federation": {"silos": 2, "clients": 3},
    "model": {"block": "linear"},
    "train": {"rounds": 20, "step_size": 0.05},
}
PROTECTED = BASE | {"exchange": {"protect_blocks": True, "block_epsilon": 4.0}}


def blocks(seed=0, size=(300, 10), spread=0.01):
    rng = np.random.default_rng(seed)
    before = {"a": rng.normal(size=size).astype(np.float32), "b": rng.normal(size=3).astype(np.float32)}
    changes = [
        {name: spread * rng.normal(size=leaf.shape).astype(np.float32) for name, leaf in before.items()}
        for _ in range(K)
    ]
    return before, [{name: before[name] + change[name] for name in before} for change in changes]


def parts(exchange, before, trained, round_index=0, secret=None):
    sendings = [Sending(seed_words(3), round_index, 1, stream=BLOCKS + k, secret=secret) for k in range(K)]
    return [
        exchange.contribution(block, before, share, sending, K)
        for block, share, sending in zip(trained, SHARES, sendings, strict=True)
    ]


def total(exchange, added):
    return exchange.average(jax.tree.map(lambda *leaves: sum(leaves[1:], start=leaves[0]), *added), np.float32)


def flat(tree):
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)])


def test_without_noise_and_with_room_for_every_change_it_is_the_plain_sum_bit_for_bit():
    before, trained = jax.tree.map(jnp.asarray, blocks())
    noisy, plain = NoisyBlocks(RANGE, GaussianNoise(1e3, 0.0)), FixedBlocks(2 * RANGE)
    for one, other in zip(parts(noisy, before, trained), parts(plain, before, trained), strict=True):
        assert all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a == b).all()), one, other)))


@pytest.mark.parametrize("sigma", [0.5, 3.0])
def test_the_sum_is_the_mean_of_clipped_changes_and_noise_of_the_stated_variance(sigma):
    before, trained = blocks()
    clip = 0.6
    noisy = NoisyBlocks(RANGE, GaussianNoise(clip, sigma))
    start = flat(before)
    weighted = [float(share) * (flat(block) - start) for share, block in zip(SHARES, trained, strict=True)]
    # Of the four clients' changes of norm 0.55, the two with the most rows are too long.
    assert [np.linalg.norm(part) > clip / K for part in weighted] == [True, True, False, False]
    expected = start + sum(part * min(1, clip / K / np.linalg.norm(part)) for part in weighted)
    added = parts(noisy, *jax.tree.map(jnp.asarray, (before, trained)))
    noise = flat(total(noisy, added)) - expected
    deviation = sigma * clip / K * math.sqrt(K / (K - 1))
    assert abs(noise.std() / deviation - 1) < 5 / math.sqrt(2 * len(noise))
    assert abs(noise.mean()) < 5 * deviation / math.sqrt(len(noise))
    # A client that takes its own noise off still has that of the others before it.
    quiet = parts(NoisyBlocks(RANGE, GaussianNoise(clip, 0.0)), *jax.tree.map(jnp.asarray, (before, trained)))
    less_own = flat(total(noisy, [*added[:-1], quiet[-1]])) - expected
    assert abs(less_own.std() / (sigma * clip / K) - 1) < 5 / math.sqrt(2 * len(noise))
    # What is added is much the same as a normal distribution's far from its mean, too.
    assert 0.03 < np.mean(np.abs(noise) > 2 * deviation) < 0.062


def test_norms_are_never_below_the_true_ones_and_the_same_in_any_order():
    rng = np.random.default_rng(4)
    spike = np.zeros(70_000, np.int32)
    spike[7] = 2**30
    for numbers, slack in (
        (rng.integers(-(2**30), 2**30, 200_000).astype(np.int32), 1e-3),
        (rng.integers(-5, 6, 1000).astype(np.int32), 1e-6),
        (spike, 1e-6),
        (np.zeros(3, np.int32), 0),
    ):
        true = float(np.linalg.norm(numbers.astype(np.float64)))
        found = float(_norm([jnp.asarray(numbers)]))
        assert true * (1 - 1e-6) <= found <= true * (1 + slack)
        assert found == float(_norm([jnp.asarray(numbers[::-1])]))
        (short,) = _clipped([jnp.asarray(numbers)], 1000)
        assert np.linalg.norm(np.asarray(short, np.float64)) <= 1000 * (1 + 1e-6)


def test_the_same_change_gets_the_same_bytes_and_another_one_other_noise():
    before, trained = jax.tree.map(jnp.asarray, blocks())
    noisy = NoisyBlocks(RANGE, GaussianNoise(10.0, 0.5))
    other = [jax.tree.map(lambda leaf: leaf + 1 / 1024, block) for block in trained]
    secret = np.arange(4, dtype=np.uint32)
    sums = [
        flat(total(noisy, parts(noisy, before, *given)))
        for given in (
            (trained, 5, secret),
            (trained, 5, secret),
            (other, 5, secret),
            (trained, 6, secret),
            (trained, 5),
        )
    ]
    assert sums[0].tobytes() == sums[1].tobytes()
    deviation = 0.5 * 10 / K * math.sqrt(K / (K - 1))
    for different in sums[2:]:
        assert abs((different - sums[0]).std() / (math.sqrt(2) * deviation) - 1) < 0.1


def test_a_configuration_gets_the_noise_of_its_rounds_and_spends_no_more_than_was_asked():
    config = check_config(PROTECTED)
    variant = with_steps(config, settings_of(config), variant_of(config))[1]
    noisy = variant.block_exchange
    assert noisy == NoisyBlocks(256.0, GaussianNoise.of_epsilon(4.0, 1e-5, 1.0, 20))
    assert variant.summed_blocks is noisy
    assert variant.noisy_blocks is noisy
    assert not variant.is_private
    spent = [epsilon_of_blocks(noisy, line, Overlap(), 20) for line in (0, 5, 20)]
    assert spent == [noisy.noise.epsilon(rounds) for rounds in (1, 6, 20)]
    assert 3.99 < spent[-1] <= 4.0
    # Both noises at once.
    both = check_config(PROTECTED | {"exchange": {**PROTECTED["exchange"], "epsilon": 2.0}})
    variant = with_steps(both, settings_of(both), variant_of(both))[1]
    assert variant.is_private
    assert variant.noisy_blocks == noisy


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        (
            {"exchange": {"block_epsilon": 1.0}},
            "exchange.block_epsilon = 1: goes with exchange.protect_blocks = true, so that a hub sees only the sum",
        ),
        ({"exchange": {"block_clip": 2.0}}, "exchange.block_clip = 2: goes with exchange.block_epsilon; leave it out"),
        ({"exchange": {"delta": 1e-7}}, "exchange.delta = 1e-07: goes with exchange.epsilon; leave it out"),
        (
            {**PROTECTED, "federation": {"silos": 2, "clients": 3, "client_grace_s": 5.0}},
            "federation.client_grace_s = 5.0: does not go with exchange.block_epsilon = 4, since each of two sums",
        ),
        (
            {**PROTECTED, "train": {**BASE["train"], "algorithm": "fedavg"}},
            "goes with train.algorithm = 'tdcd', not 'fedavg'",
        ),
    ],
)
def test_what_does_not_go_with_it_is_refused(sections, sentence):
    with pytest.raises(ConfigError) as refused:
        check_config(BASE | sections)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("exchange", "sentence"),
    [
        ({"block_clip": 1e-5}, "steps of fixed point, and at least 64 are needed: lower exchange.mask_range"),
        ({"block_epsilon": 1e-2}, "take a larger epsilon, fewer rounds or a smaller clip"),
    ],
)
def test_noise_without_room_is_refused(exchange, sentence):
    config = check_config(PROTECTED | {"exchange": {**PROTECTED["exchange"], **exchange}})
    with pytest.raises(ConfigError, match=sentence):
        with_steps(config, settings_of(config), variant_of(config))
