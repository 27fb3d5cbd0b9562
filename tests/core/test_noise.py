"""What noise on phi is worth: against the closed form of the Gaussian mechanism, and what is sent bit by bit."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_ndtr

from tdcd.config import ConfigError, check_config
from tdcd.config.members import variant_of, with_steps
from tdcd.config.resolve import settings_of
from tdcd.core.codecs.codec import Sending, seed_words
from tdcd.core.codecs.noise import GaussianNoise
from tdcd.core.family.overlap import Overlap

BASE = {
    "data": {"source": "diabetes"},
    "model": {"block": "linear"},
    "train": {"rounds": 20, "step_size": 0.05, "minibatches": "full"},
    "evaluate": {"every": 5},
}
SPENDS = BASE | {"exchange": {"epsilon": 3.0}}


def delta_of(epsilon, shift):
    """Two normal distributions whose means differ by so many deviations: Balle and Wang 2018, theorem 8."""
    return math.exp(log_ndtr(shift / 2 - epsilon / shift)) - math.exp(epsilon + log_ndtr(-shift / 2 - epsilon / shift))


@given(st.floats(0.05, 50.0), st.floats(1e-9, 1e-2), st.integers(1, 10_000))
def test_no_number_of_messages_spends_more_than_is_said(sigma, delta, messages):
    """Rows c and -c, the worst two: n sums of a row and noise are as one with a shift of 2 sqrt(n) / sigma."""
    spent, shift = GaussianNoise(1.0, sigma, delta).epsilon(messages), 2 * math.sqrt(messages) / sigma
    assert spent >= 0
    assert delta_of(spent, shift) <= delta * (1 + 1e-6)
    if spent > 1e-3:
        assert delta_of(spent * 0.999, shift) > delta


@given(st.floats(0.05, 50.0), st.floats(1e-9, 1e-2), st.integers(1, 10_000))
def test_noise_for_an_epsilon_spends_that_and_no_more(epsilon, delta, messages):
    noise = GaussianNoise.of_epsilon(epsilon, delta, 2.0, messages)
    assert 0.999 * epsilon <= noise.epsilon(messages) <= epsilon
    assert noise.epsilon(messages + 1 + messages // 100) > noise.epsilon(messages)


def test_without_noise_there_is_no_number():
    assert GaussianNoise(1.0, 0.0).epsilon(5) is None


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_last_digits_of_what_is_sent_say_nothing_of_phi(dtype):
    """Every number is a multiple of one step, whatever phi was, and no row gets longer on the way."""
    noise, rows = GaussianNoise(0.7, 0.9), np.random.default_rng(0).normal(size=(1, 4000, 3))
    with jax.enable_x64(dtype == "float64"):
        sent = np.asarray(noise.encode(jnp.asarray(rows, dtype), Sending(seed_words(1), 2, 0))["phi"], np.float64)
        none = np.asarray(noise.encode(jnp.zeros((1, 4000, 3), dtype), Sending(seed_words(1), 2, 0))["phi"], np.float64)
    step = 2.0 ** math.floor(math.log2(0.7 / 256))
    assert np.array_equal(sent / step, np.round(sent / step))
    moved = np.linalg.norm(sent - none, axis=-1)
    assert moved.max() <= 0.7
    assert abs(none.std() - 0.63) < 0.02
    clipped = rows * np.minimum(1, 0.7 / np.linalg.norm(rows, axis=-1))[..., None]
    assert np.linalg.norm(sent - none - clipped, axis=-1).max() < 3 * step


def test_a_configuration_gets_the_noise_of_its_rounds_and_evaluations():
    config = check_config(SPENDS)
    noise = with_steps(config, settings_of(config), variant_of(config))[1].exchange
    # 20 rounds, and evaluations of rounds 0, 5, 10, 15 and 20.
    assert noise == GaussianNoise.of_epsilon(3.0, 1e-5, 1.0, 25)
    late = check_config(SPENDS | {"train": {**BASE["train"], "overlap": 2}, "exchange": {"epsilon": 3.0, "clip": 2.0}})
    variant = with_steps(late, settings_of(late), variant_of(late))[1]
    assert (variant.timing, variant.exchange.clip) == (Overlap(2), 2.0)
    # Every minibatch counts, as if it had the sample.
    fresh = check_config(SPENDS | {"train": {"rounds": 20, "step_size": 0.05, "local_steps": 4, "batch_size": 16}})
    assert with_steps(fresh, settings_of(fresh), variant_of(fresh))[1].exchange == GaussianNoise.of_epsilon(
        3.0, 1e-5, 1.0, 85
    )


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"exchange": {"clip": 2.0}}, "exchange.clip = 2: goes with exchange.epsilon; leave it out"),
        ({"exchange": {"delta": 1e-7}}, "exchange.delta = 1e-07: goes with exchange.epsilon; leave it out"),
        ({"exchange": {"epsilon": 0.0}}, "exchange.epsilon = 0.0: must be greater than 0"),
        ({"exchange": {"epsilon": 1.0, "delta": 1.0}}, "exchange.delta = 1.0: must be less than 1"),
        (
            {"exchange": {"epsilon": 1.0, "phi_bits": 8}},
            "exchange.phi_bits = 8: does not go with exchange.epsilon = 1, since few bits of numbers with noise",
        ),
        (
            {"exchange": {"epsilon": 1.0, "protect": "mask"}, "federation": {"silos": 3}},
            "exchange.protect = 'mask': does not go with exchange.epsilon = 1, since masks are of numbers in fixed",
        ),
        (
            {"exchange": {"epsilon": 1.0}, "model": {"block": "linear", "head": "pairs"}},
            "model.head = 'pairs': does not go with exchange.epsilon = 1, since it needs the exact length of phi",
        ),
        (
            {"exchange": {"epsilon": 1.0}, "federation": {"silos": 1}},
            "exchange.epsilon = 1: one silo alone sends no phi; leave it out",
        ),
        (
            {"exchange": {"epsilon": 1.0}, "train": {**BASE["train"], "algorithm": "fedavg"}},
            "exchange.epsilon = 1.0: goes with train.algorithm = 'tdcd', not 'fedavg'; leave it out",
        ),
    ],
)
def test_what_does_not_go_with_noise_is_refused(sections, sentence):
    with pytest.raises(ConfigError) as refused:
        check_config(BASE | sections)
    assert sentence in str(refused.value)
