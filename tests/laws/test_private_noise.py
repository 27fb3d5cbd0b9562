"""Clipped Gaussian noise on phi from a private stream: what is sent, who can draw it, evaluations, and real parties."""

from collections import defaultdict

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from support.examples import num_examples
from support.in_process import InProcess
from support.parts import between_hubs
from support.problems import Problem, Shape, distance
from support.simulated import RIDGE, assert_same_history, simulated, with_keys
from tdcd import Variant
from tdcd.config import ConfigError
from tdcd.config.resolve import plan
from tdcd.core.codecs.codec import Sending, encode_scores, seed_words
from tdcd.core.codecs.noise import GaussianNoise
from tdcd.core.objective import Objective
from tdcd.records.history import Record
from tdcd.runtime.compute.client_data import shards
from tdcd.runtime.job import Job
from tdcd.runtime.machine.hub import Hub, Shutdown
from tdcd.runtime.machine.instructions import Append
from tdcd.runtime.messages.structure import Message
from tdcd.training.train import train_plan

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


def test_no_party_that_knows_the_file_can_take_the_noise_away(config):
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
    # One whose run is over sends no more phi, and draws no other key in place of the one that it deleted.
    over = Shutdown("hub.clinic", "run", 6, "finished", "", False, ("hub.lab",), ())
    assert Hub(Job(config), 0, secret=bytes(32), nonce="nonce", restored=over).shutdown is over


def spends(**keys):
    return with_keys(RIDGE, exchange={"epsilon": 2.0}, **keys)


@num_examples(3)
@example(overlap=2, periods=(1, 1), every=1, stop=150, seed=3)
@example(overlap=1, periods=(3, 1), every=2, stop=60, seed=1)
@given(
    overlap=st.integers(0, 2),
    periods=st.sampled_from([(1, 1), (3, 1), (1, 2)]),
    every=st.integers(1, 5),
    stop=st.integers(0, 400),
    seed=st.integers(0, 99),
)
def test_a_hub_never_reports_less_than_it_has_sent(overlap, periods, every, stop, seed):
    """Over schedules, and with a hub that is killed and comes back: what counts is the different contents that it sent
    of a round, however often."""
    silos = [{**silo, "period": period} for silo, period in zip(RIDGE["silos"], periods, strict=True)]
    keys = {"train": {**RIDGE["train"], "rounds": 5, "overlap": overlap}, "evaluate": {"every": every}, "silos": silos}
    config = with_keys(RIDGE, exchange={"epsilon": 2.0}, **keys)
    planned = plan(config)
    office = Counting(config, shards(planned), seed=seed)
    office.start()
    while stop and office.deliver():
        stop -= 1
    hub = Job(config).hubs[seed % 2]
    if hub in office.states and not office.ends:
        office.come_back(hub, office.states[hub])
    while office.deliver():
        pass
    assert {end.status for end in office.ends.values()} == {"finished"}
    noise = planned.variant.exchange
    for hub, lines in office.reported.items():
        for spent, sent in lines:
            assert spent >= noise.epsilon(sent) - 1e-12, hub
        assert lines[-1][0] == noise.epsilon(lines[-1][1]) <= 2.0


class Counting(InProcess):
    """Parties in one process, with what every hub had sent of a sample whenever it wrote a line."""

    def __init__(self, *arguments, **keys):
        super().__init__(*arguments, **keys)
        self.contents, self.reported = defaultdict(set), defaultdict(list)

    def act(self, party, instructions):
        for instruction in instructions:
            super().act(party, [instruction])
            if isinstance(instruction, Append):
                self.reported[party].append((instruction.record.epsilon, len(self.contents[party])))
            elif not isinstance(instruction, Message):
                continue
            elif between_hubs(instruction, "phi"):
                # One message has phi of all minibatches of the round.
                drawn = instruction.arrays["phi"].values
                self.contents[party] |= {(instruction.round, place, row.tobytes()) for place, row in enumerate(drawn)}
            elif between_hubs(instruction, "scores"):
                content = instruction.arrays["train"].values.tobytes()
                self.contents[party].add(("scores", instruction.round, content))


def test_simulation_and_parties_report_the_same_epsilon_and_a_longer_run_is_refused(tmp_path):
    config = spends(evaluate={"every": 4})
    planned, result = simulated(config)
    office = InProcess(config, shards(planned)).run()
    spent = [record.epsilon for record in result.history]
    assert spent == sorted(spent)
    assert 1.999 < spent[-1] <= 2.0
    for history in office.history.values():
        assert [record.epsilon for record in history] == spent
        assert [Record.from_json(record.to_json()).epsilon for record in history] == spent
    train_plan(planned, out=tmp_path / "run")
    with pytest.raises(ConfigError, match=r"train\.rounds = 9: the noise of exchange\.epsilon = 2 was made for the"):
        train_plan(plan(spends(evaluate={"every": 4}, train={"rounds": 9})), out=tmp_path / "run", resume=True)


def test_parties_that_follow_the_protocol_find_less_than_the_bound():
    """The best guess between two rows from a whole run is right no more often than epsilon and delta let it be."""
    noise, count = GaussianNoise.of_epsilon(1.0, 1e-5, 1.0, 30), 20_000
    with jax.enable_x64(True):
        rows = np.where(np.arange(count) % 2, 1.0, -1.0)[None, :, None]
        sent = [noise.encode(jnp.asarray(rows), Sending(seed_words(5), index, 0))["phi"] for index in range(30)]
    right = (np.mean(sent, axis=0) > 0) == (rows > 0)
    # No guess is right with a higher probability than e^epsilon / (1 + e^epsilon), and delta.
    most = np.exp(1.0) / (1 + np.exp(1.0)) + 1e-5
    assert 0.5 < right.mean() <= most


def test_with_labels_at_one_silo_the_others_phi_has_noise_and_real_parties_follow():
    config = spends(federation={"labels": "lab"}, evaluate={"every": 3})
    planned, result = simulated(config)
    office = InProcess(config, shards(planned)).run()
    assert_same_history(office, result)
    assert 1.999 < result.history[-1].epsilon <= 2.0
    first = next(one for one in office.sent if between_hubs(one, "phi") and one.round == 0)
    assert (first.sender, first.receiver) == ("hub.clinic", "hub.lab")
    # What the hub with the labels sends of its rows has no number.
    assert [office.machines[hub].sends_phi for hub in ("hub.clinic", "hub.lab")] == [True, False]
    # Before the first round phi is zero, so that what was sent is noise.
    noise = planned.variant.exchange.deviation
    assert abs(first.arrays["phi"].values.std() / noise - 1) < 0.2
