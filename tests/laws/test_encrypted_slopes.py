"""Encrypted slopes: the scheme is exact, and a run is the one in the clear but for the resolution of fixed point."""

import numpy as np
import pytest

from support.in_process import largest_difference
from support.simulated import RIDGE, simulated, with_keys
from tdcd.core.codecs.encrypted import (
    DEGREE,
    FRACTION_BITS,
    LARGEST_FEATURE,
    LARGEST_SLOPE,
    PLAIN_BITS,
    EncryptedSums,
)

FORM = EncryptedSums()
STEP = 2.0**-FRACTION_BITS
TWO = [{"name": "shop", "clients": 2}, {"name": "bank", "clients": 3}]
AT_BANK = {"silos": TWO, "federation": {"labels": "bank"}, "train": {"local_steps": 1, "rounds": 20}}


def test_a_number_is_off_by_half_a_step_at_most():
    numbers = np.random.default_rng(0).uniform(-16, 16, 1000)
    assert np.abs(FORM.slopes(numbers) - numbers).max() <= STEP / 2
    assert np.isnan(FORM.slopes(np.array([LARGEST_SLOPE + STEP, -17.0, np.nan, np.inf]))).all()


def test_the_largest_sum_fits_into_a_ciphertext():
    assert DEGREE * (LARGEST_FEATURE / STEP) * (LARGEST_SLOPE / STEP) < 2 ** (PLAIN_BITS - 1) * (1 - 1e-6)


@pytest.mark.parametrize("source", ["diabetes", "breast_cancer"])
def test_a_run_is_that_in_the_clear_up_to_fixed_point(source):
    """By how much a gradient can be off follows from half a step in every feature and slope.

    It is the same model: the weight of the column of ones is the labels' silo's here, and the first one's there.
    """
    config = with_keys(RIDGE, **AT_BANK, data={"source": source})
    planned, plain = simulated(config)
    moved, encrypted = simulated(
        with_keys(
            RIDGE, **AT_BANK | {"federation": {"labels": "bank", "protect_labels": "encrypt"}}, data={"source": source}
        )
    )
    assert [[*silo.columns].count("bias") for silo in planned.federation.silos] == [1, 0]
    assert [[*silo.columns].count("bias") for silo in moved.federation.silos] == [0, 1]
    shop, bank = (plain.blocks[silo]["weight"] for silo in ("shop", "bank"))
    same = {"shop": {"weight": shop[:-1]}, "bank": {"weight": np.concatenate([bank, shop[-1:]])}}
    off = largest_difference(same, encrypted.blocks)
    largest = max(np.abs(silo.features).mean() for silo in planned.federation.silos)
    steps = config.train.rounds * config.train.step_size
    assert 0 < off < steps * STEP / 2 * (1 + largest + STEP)
    for ours, theirs in zip(plain.history, encrypted.history, strict=True):
        assert ours.train_loss == pytest.approx(theirs.train_loss, rel=1e-4)


# The scheme itself.


@pytest.fixture(scope="module")
def encryption():
    pytest.importorskip("tenseal")
    from tdcd.runtime.compute import encryption

    return encryption


@pytest.fixture(scope="module")
def key(encryption):
    return encryption.SlopeKey(bytes(16), "run")


def shares_of(encryption, key, slopes, features, owners, secret=b"client"):
    sealed = key.slopes(3, slopes)
    found = []
    for client in range(owners.max() + 1):
        places = np.flatnonzero(owners == client)
        sums = encryption.SlopeSums(FORM, secret + bytes([client]), key.public)
        found.append(sums.of("run", 3, len(slopes), features[places], places, sealed))
    return found


@pytest.mark.parametrize(
    ("size", "width", "outputs"), [(7, 40, 2), (1000, 11, 1), (4096, 3, 1), (DEGREE, 2, 1), (1, 5, 3)]
)
def test_masked_sums_are_exact(encryption, key, size, width, outputs):
    """For several clients, outputs and answers, one sample and as many as there can be, and the largest numbers."""
    rng, most = np.random.default_rng(size), (int(LARGEST_SLOPE / STEP), int(LARGEST_FEATURE / STEP))
    slopes, features = (
        rng.integers(-most[0], most[0] + 1, (size, outputs)),
        rng.integers(-most[1], most[1] + 1, (size, width)),
    )
    slopes[:, 0], features[:, 0] = most
    total = encryption.added(shares_of(encryption, key, slopes, features, rng.integers(0, min(3, size), size)))
    mask = encryption.masks(b"hub", "run", 3, total["sums"].shape, b"content")
    masked = encryption.masked(total, mask)
    found = key.decrypted(FORM, size, width, masked)
    own = mask.reshape(outputs, -1)[:, :width].T
    assert (encryption.unmasked(found, own) == features.T @ slopes).all()
    # What the hub with the labels sees is the sum plus the mask, modulo a prime: as uniform as the mask.
    assert (np.mod(found - own - features.T @ slopes, encryption.plain_modulus()) == 0).all()
    assert (found != features.T @ slopes).all()


def test_a_mask_and_a_key_are_for_one_content_of_one_run(encryption, key):
    shape = (1, 1, 50)
    one = encryption.masks(b"hub", "run", 3, shape, b"content")
    assert (one == encryption.masks(b"hub", "run", 3, shape, b"content")).all()
    others = [(b"hub", "run", 3, shape, b"other"), (b"hub", "run", 4, shape, b"content")]
    others += [(b"hub", "next run", 3, shape, b"content"), (b"other", "run", 3, shape, b"content")]
    for other in others:
        assert not (one == encryption.masks(*other)).any()
    assert 0 <= one.min() < one.max() < encryption.plain_modulus()
    slopes = np.arange(10)[:, None]
    again, same = encryption.SlopeKey(bytes(16), "run"), key.slopes(3, slopes)
    assert all((again.slopes(3, slopes)[name] == array).all() for name, array in same.items())
    for other in (
        key.slopes(4, slopes),
        key.slopes(3, slopes + 1),
        encryption.SlopeKey(bytes(16), "b").slopes(3, slopes),
    ):
        assert (other["slopes"] != same["slopes"]).mean() > 0.99
        assert (other["slopes_seed"] != same["slopes_seed"]).any()


def test_an_answer_does_not_show_its_product(encryption, key):
    """Without the fresh encryption of zero, an answer over the slopes' second polynomial would be the features."""
    features, owners = np.ones((64, 1), np.int64), np.zeros(64, np.int64)
    slopes = np.arange(64)[:, None]
    one, other = (shares_of(encryption, key, slopes, features, owners, secret)[0] for secret in (b"one", b"other"))
    assert (one["whole"] != other["whole"]).mean() > 0.99
    assert (one["sums"] != other["sums"]).all()
    # A client without rows of the minibatch answers as the others do.
    (empty, *_) = shares_of(encryption, key, slopes, features, owners + 1)
    assert np.unique(empty["whole"]).size > 0.99 * DEGREE


def test_ciphertexts_say_nothing_about_the_sign(encryption, key):
    """Of slopes that are all the same, every half of the ciphertext is as often low as high."""
    words = key.slopes(5, np.full((DEGREE, 1), 1000))["slopes"][0, 0]
    assert abs((words > 2**59).mean() - 0.5) < 5 * 0.5 / np.sqrt(DEGREE)


def test_what_is_no_ciphertext_is_refused(encryption, key):
    from tdcd.runtime.messages.wire import RejectedMessage

    sealed = key.slopes(3, np.arange(8)[:, None])
    for wrong in (-1, 2**61):
        damaged = {**sealed, "slopes": np.where(np.arange(DEGREE) == 5, wrong, sealed["slopes"])}
        sums = encryption.SlopeSums(FORM, b"client", key.public)
        with pytest.raises(RejectedMessage, match="a ciphertext is damaged"):
            sums.of("run", 3, 8, np.ones((8, 1), np.int64), np.arange(8), damaged)
