"""Clipped Gaussian noise on phi from a private stream: what is sent, who can draw it, evaluations, and real parties."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support.in_process import InProcess
from support.parts import between_hubs
from support.problems import Problem, Shape, distance
from support.simulated import RIDGE, assert_same_history, simulated, with_keys
from tdcd import Variant
from tdcd.core.codecs.codec import Sending, encode_scores, seed_words
from tdcd.core.codecs.noise import GaussianNoise
from tdcd.core.objective import Objective
from tdcd.runtime.compute.client_data import shards
from tdcd.runtime.job import Job
from tdcd.runtime.machine.hub import Hub

NOISE = GaussianNoise(clip=0.5, sigma=0.2)
OWN = """
from tdcd import Variant
from tdcd.core.codecs.noise import GaussianNoise

noisy = Variant(exchange=GaussianNoise(clip=0.5, sigma=0.2))
"""
SHAPE = Shape(clients=(3, 4), columns=(2, 3), num_samples=60, batch_size=12)


@pytest.fixture
def config(tmp_path):
    (tmp_path / "own_noise.py").write_text(OWN)
    return with_keys(RIDGE, train={"variant": "own_noise:noisy", "folder": str(tmp_path)})


def test_rows_are_clipped_and_the_noise_has_the_stated_deviation():
    with jax.enable_x64(True):
        phi = np.random.default_rng(0).normal(size=(2, 5000, 3)) * [[[0.01], [3.0]] * 2500]
        sending = Sending(seed_words(7), 3, 1, phi.shape)
        sent = np.asarray(NOISE.encode(jnp.asarray(phi), sending)["phi"])
        norms = np.linalg.norm(phi, axis=-1, keepdims=True)
        noise = (sent - phi * np.minimum(1, 0.5 / norms)) / (0.2 * 0.5)
        assert abs(noise.mean()) < 0.02
        assert abs(noise.std() - 1) < 0.02
        assert abs(np.corrcoef(noise[0].ravel(), noise[1].ravel())[0, 1]) < 0.03


def test_noise_is_another_for_every_secret_round_silo_and_evaluation():
    with jax.enable_x64(True):
        zeros, first = jnp.zeros((1, 4, 1)), Sending(seed_words(7), 3, 1, (1, 4, 1))
        others = [
            first._replace(secret=np.arange(4, dtype=np.uint32)),
            first._replace(round=4),
            first._replace(silo=0),
            first._replace(seed=seed_words(8)),
        ]
        drawn = [np.asarray(NOISE.encode(zeros, one)["phi"]) for one in (first, *others)]
        drawn += [np.asarray(encode_scores(NOISE, zeros, first, split)) for split in ("train", "test")]
        assert len({array.tobytes() for array in drawn}) == len(drawn)
        again = NOISE.encode(zeros, first)["phi"]
        assert np.array_equal(again, drawn[0])


def test_without_noise_and_with_room_it_is_algorithm_1():
    problem = Problem.draw(SHAPE, Objective("logistic", 0.1), 4)
    nothing = Variant(exchange=GaussianNoise(clip=1e6, sigma=0.0))
    assert distance(problem.simulate(3, variant=nothing), problem.simulate(3)) < 1e-12
    assert distance(problem.simulate(3, variant=Variant(exchange=NOISE)), problem.simulate(3)) > 1e-4


def test_real_parties_have_the_simulations_history_with_evaluations_that_are_noisy_too(config):
    planned, result = simulated(config)
    office = InProcess(config, shards(planned))
    office.run()
    assert_same_history(office, result)
    blocks = [result.blocks[silo.name] for silo in planned.federation.silos]
    simulation = result.simulation
    exact = simulation.loss(blocks, simulation.scores(blocks), planned.federation.labels)
    assert abs(result.history[-1].train_loss - exact) > 1e-6


def test_nobody_who_knows_the_file_can_take_the_noise_away(config):
    """With another secret, a hub sends other numbers for the same phi; the seed is in everybody's file."""
    planned, _ = simulated(config)
    sent = []
    for key in (bytes(16), bytes(range(16))):
        office = InProcess(config, shards(planned))
        job = Job(config)
        hub = job.hubs[0]
        office.machines[hub] = Hub(job, 0, secret=bytes(range(32)), nonce="nonce 0", noise_key=key)
        office.run()
        first = next(one for one in office.sent if between_hubs(one, "phi") and one.sender == hub and one.round == 0)
        sent.append(first.arrays["phi"].values)
    # Before the first round phi is zero, so that what was sent is noise.
    assert not np.allclose(*sent)
    assert abs(np.concatenate(sent).std() - 0.1) < 0.02


def test_a_hub_without_a_secret_does_not_begin(config):
    with pytest.raises(ValueError, match=r"hub\.clinic: what it sends needs a secret of 16 bytes"):
        Hub(Job(config), 0, secret=bytes(32), nonce="nonce")
