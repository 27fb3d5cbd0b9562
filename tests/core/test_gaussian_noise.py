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


@given(st.floats(0.05, 50.0), st.floats(1e-9, 1e-3), st.integers(1, 10_000))
def test_no_number_of_messages_spends_more_than_is_stated(sigma, delta, messages):
    """Rows c and -c, the worst two: n sums of a row and noise are as one with a shift of 2 sqrt(n) / sigma."""
    spent, shift = GaussianNoise(1.0, sigma, delta).epsilon(messages), 2 * math.sqrt(messages) / sigma
    assert spent >= 0
    assert delta_of(spent, shift) <= delta * (1 + 1e-6)
    if spent > 1e-3:
        assert delta_of(spent * 0.999, shift) > delta


@given(st.floats(0.05, 50.0), st.floats(1e-9, 1e-3), st.integers(1, 10_000))
def test_noise_for_an_epsilon_spends_that_and_no_more(epsilon, delta, messages):
    noise = GaussianNoise.of_epsilon(epsilon, delta, 2.0, messages)
    assert 0.999 * epsilon <= noise.epsilon(messages) <= epsilon
    assert noise.epsilon(messages + 1 + messages // 100) > noise.epsilon(messages)


def test_without_noise_there_is_no_number():
    assert GaussianNoise(1.0, 0.0).epsilon(5) is None


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_last_digits_of_what_is_sent_say_nothing_of_phi(dtype, monkeypatch):
    """Every number is a multiple of one step, whatever phi was, and no row gets longer on the way."""
    noise, rows = GaussianNoise(0.7, 0.9), np.random.default_rng(0).normal(size=(1, 4000, 3))
    with jax.enable_x64(dtype == "float64"):
        # The draws of what is sent next, by which they are taken off again.
        keys, private_key = [], Sending.private_key
        monkeypatch.setattr(Sending, "private_key", lambda *given: keys.append(private_key(*given)) or keys[-1])
        sent = np.asarray(noise.encode(jnp.asarray(rows, dtype), Sending(seed_words(1), 2, 0))["phi"], np.float64)
        step = 2.0 ** math.floor(math.log2(0.7 / 256))
        drawn = np.asarray(jax.random.normal(keys[0], (4, *rows.shape), np.float32) * (0.63 / 2 / step))
    none = np.round(drawn).sum(axis=0) * step
    assert np.array_equal(sent / step, np.round(sent / step))
    moved = np.linalg.norm(sent - none, axis=-1)
    assert moved.max() <= 0.7
    assert abs(none.std() - 0.63) < 0.02
    clipped = rows * np.minimum(1, 0.7 / np.linalg.norm(rows, axis=-1))[..., None]
    assert np.linalg.norm(sent - none - clipped, axis=-1).max() < 3 * step


@pytest.mark.parametrize("secret", [None, np.arange(4, dtype=np.uint32)])
def test_another_content_of_the_same_round_gets_other_noise_and_the_same_content_the_same_bytes(secret):
    """What a hub sends after it was restored to an earlier round, and is sent other numbers there."""
    noise, sending = GaussianNoise(1.0, 0.5), Sending(seed_words(3), 4, 1, secret=secret)
    rows = np.random.default_rng(1).normal(size=(1, 2000, 1)).astype(np.float32) / 8
    other = rows.copy()
    other[0, 7] += 0.25
    swapped = rows[:, ::-1]
    first, again, second, third = (
        np.asarray(noise.encode(jnp.asarray(phi), sending)["phi"]) for phi in (rows, rows.copy(), other, swapped)
    )
    assert first.tobytes() == again.tobytes()
    # Two independent draws differ by the root of 2 deviations; with one noise, a single row would differ.
    for phi, sent in ((other, second), (swapped, third)):
        assert abs(((sent - phi) - (first - rows)).std() / (0.5 * math.sqrt(2)) - 1) < 0.1


def test_a_row_that_is_no_number_is_sent_as_zeros_with_noise():
    noise, rows = GaussianNoise(1.0, 0.5), np.zeros((1, 4, 2), np.float32)
    sending, zeros = Sending(seed_words(1), 2, 0), jnp.zeros((1, 4, 2), np.float32)
    rows[0, 1, 0], rows[0, 2, 1], rows[0, 3] = np.nan, np.inf, 3e38
    sent = np.asarray(noise.encode(jnp.asarray(rows), sending)["phi"])
    assert np.isfinite(sent).all()
    rows[0, 3] = 0
    assert sent.tobytes() == np.asarray(noise.encode(zeros, sending)["phi"]).tobytes()


@pytest.mark.parametrize(("dtype", "sigma"), [("float32", 4097.0), ("float64", 2.0**20)])
def test_noise_that_exact_sums_have_no_room_for_is_refused(dtype, sigma):
    with jax.enable_x64(dtype == "float64"), pytest.raises(ValueError, match=f"sums in {dtype} have room for"):
        GaussianNoise(1.0, sigma).encode(jnp.zeros((1, 2, 1), dtype), Sending(seed_words(1), 2, 0))
    config = check_config(SPENDS | {"dtype": "float32", "exchange": {"epsilon": 1e-3}})
    with pytest.raises(ConfigError, match=r"exchange\.epsilon = 0\.001: sigma is .*: take a larger epsilon"):
        with_steps(config, settings_of(config), variant_of(config))


@pytest.mark.parametrize("delta", [0.0, 0.002, 0.9])
def test_a_delta_that_promises_little_is_refused(delta):
    with pytest.raises(ValueError, match=f"delta must be above 0 and at most 0.001, not {delta}"):
        GaussianNoise(1.0, 1.0, delta)


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
        ({"exchange": {"epsilon": 1.0, "delta": 1.0}}, "exchange.delta = 1.0: must be less than or equal to 0.001"),
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
