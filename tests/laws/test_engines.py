"""However a simulation is carried out, it is Algorithm 1: by lanes or by clients, with the data here or there."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import Problem, Shape, arrays, distance, examples
from tdcd.engines import ClientEngine, LaneEngine
from tdcd.lanes import Lanes
from tdcd.row_engine import RowEngine
from tdcd.row_program import cut

from tdcd.blocks import Linear, Mlp
from tdcd.execution import Execution
from tdcd.federation import Federation
from tdcd.objective import Objective
from tdcd.simulation.simulate import Simulation

TOLERANCE = 1e-10


class Plain(Linear):
    """A linear block that the lanes do not know."""


CROWD = Shape(clients=(60, 3, 50), columns=(2, 3, 1), num_samples=1500, batch_size=300, local_steps=2)
"""Enough clients for several lanes, with padding."""
MIXED = Shape(clients=(3, 4), columns=(2, 3), num_samples=60, batch_size=12, blocks=(Linear(), Mlp((4,))))


def run(problem: Problem, keep: str = "auto", num_rounds: int = 2) -> list:
    simulation = Simulation(
        problem.federation, problem.blocks, problem.objective, problem.settings, Execution(keep=keep)
    )
    return arrays(simulation.advance(problem.start, 0, num_rounds))


@pytest.mark.parametrize("loss", ["squared", "softmax"])
@pytest.mark.parametrize("gradient", ["unbiased", "mean"])
@pytest.mark.parametrize("minibatches", ["fresh", "reused"])
def test_lanes_are_the_oracle_and_the_clients_one_by_one(loss, gradient, minibatches):
    problem = Problem.draw(CROWD, Objective(loss, 0.1), 5, "shuffled", gradient=gradient, minibatches=minibatches)
    lanes = problem.simulation()._engine
    assert isinstance(lanes, LaneEngine)
    assert [silo.shape[0] > 1 for silo in lanes._lanes] == [True, False, True]
    expected = problem.solve(2)
    assert distance(expected, arrays(problem.start)) > 1e-2
    assert distance(run(problem), expected) < TOLERANCE
    by_client = replace(problem, blocks=(Plain(),) * 3)
    assert isinstance(by_client.simulation()._engine, ClientEngine)
    assert distance(run(by_client), expected) < TOLERANCE


@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.parametrize("gradient", ["unbiased", "mean"])
@pytest.mark.parametrize("minibatches", ["fresh", "reused", "full"])
def test_rows_in_the_order_of_the_minibatch_are_the_oracle(loss, gradient, minibatches):
    """What linear blocks do on an accelerator; a client has several pieces, one, or none of a minibatch."""
    problem = Problem.draw(CROWD, Objective(loss, 0.1), 5, "shuffled", gradient=gradient, minibatches=minibatches)
    simulation = Simulation(
        problem.federation, problem.blocks, problem.objective, problem.settings, Execution(keep="device")
    )
    with simulation._context():
        simulation._engine = RowEngine(simulation._engine._problem)
    simulation._engine.rounds_per_call = 2
    expected = problem.solve(3)
    assert distance(expected, arrays(problem.start)) > 1e-2
    assert distance(arrays(simulation.advance(problem.start, 0, 3)), expected) < TOLERANCE


@examples(30)
@given(seed=st.integers(0, 2**31), num_clients=st.integers(1, 40), batch_size=st.integers(1, 200))
def test_every_row_is_in_one_piece_of_its_client(seed, num_clients, batch_size):
    owner = np.random.default_rng(seed).integers(0, num_clients, batch_size).astype(np.int32)
    counts, positions, real, clients = map(np.asarray, cut(owner, num_clients))
    assert counts.tolist() == np.bincount(owner, minlength=num_clients).tolist()
    assert sorted(positions[real].tolist()) == list(range(batch_size))
    for client, row, there in zip(clients, positions, real, strict=True):
        assert (owner[row[there]] == client).all()


@pytest.mark.parametrize("shape", [CROWD, MIXED], ids=["lanes", "clients"])
@pytest.mark.parametrize("minibatches", ["fresh", "full"])
def test_data_on_the_host_and_on_the_device_give_the_same(shape, minibatches):
    problem = Problem.draw(shape, Objective("logistic", 0.1), 2, "shuffled", minibatches=minibatches)
    assert distance(run(problem, "host"), run(problem, "device")) < 1e-13
    assert distance(run(problem, "host"), problem.solve(2)) < TOLERANCE


def test_many_calls_in_flight_do_not_disturb_each_other():
    """A call's memory is filled again for the call after the next; here the device is slower than the host."""
    problem = Problem.draw(CROWD, Objective("squared"), 3, "shuffled", 0.01, minibatches="reused")
    problem = problem.with_settings(local_steps=400)
    waiting, running = problem.simulation(), problem.simulation()
    running._engine.rounds_per_call = waiting._engine.rounds_per_call = 1
    blocks = problem.start
    for round_index in range(12):
        blocks = jax.block_until_ready(waiting.advance(blocks, round_index, 1))
    assert distance(arrays(running.advance(problem.start, 0, 12)), arrays(blocks)) == 0


@pytest.mark.parametrize("block", [Linear(), Mlp((3,))], ids=["lanes", "clients"])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_samples_may_lie_in_mapped_files_of_whole_numbers_or_single_precision(tmp_path, block, dtype):
    rng = np.random.default_rng(0)
    problem = Problem.draw(Shape((3, 5), (4, 6), 200, 20, blocks=(block,) * 2), Objective("softmax"), 1, "shuffled")
    silos, mapped = [], []
    for index, silo in enumerate(problem.federation.silos):
        values = rng.integers(0, 5, silo.features.shape).astype(dtype)
        np.save(tmp_path / f"{index}.npy", values)
        silos.append(replace(silo, features=values.astype(np.float64)))
        mapped.append(replace(silo, features=np.load(tmp_path / f"{index}.npy", mmap_mode="r")))
    labels = problem.federation.labels
    one, other = (replace(problem, federation=Federation(tuple(s), labels)) for s in (silos, mapped))
    assert distance(run(one), run(other)) < 1e-12
    scores = [p.simulation().scores(problem.start) for p in (one, other)]
    np.testing.assert_allclose(*scores, atol=1e-12)


@examples(30)
@given(
    seed=st.integers(0, 2**31),
    num_clients=st.integers(1, 40),
    batch_size=st.integers(1, 60),
    devices=st.integers(1, 5),
)
def test_every_client_has_a_place_of_its_own(seed, num_clients, batch_size, devices):
    rng = np.random.default_rng(seed)
    owner = np.concatenate([np.arange(num_clients), rng.integers(0, num_clients, 60)]).astype(np.int32)
    lanes = Lanes(owner, batch_size, devices)
    count, size = lanes.shape
    assert count % devices == 0
    assert lanes.lane.max() < count
    assert lanes.member.max() < size
    assert len(set(zip(lanes.lane.tolist(), lanes.member.tolist(), strict=True))) == num_clients
    numbers = lanes.arrange(np.arange(1.0, num_clients + 1), 0)
    assert numbers[lanes.lane, lanes.member].tolist() == list(range(1, num_clients + 1))
    assert numbers.sum() == num_clients * (num_clients + 1) / 2


def test_few_clients_share_a_lane_without_padding_and_many_have_lanes_of_several():
    few = Lanes((np.arange(20_000) % 5).astype(np.int32), 100)
    assert few.shape == (1, 5)
    assert few.placer.usual == 100
    many = Lanes((np.arange(100_000) % 1000).astype(np.int32), 10_000)
    assert 2 <= many.shape[1] <= 32
    assert many.shape[0] * many.placer.usual < 1.8 * 10_000


def test_uneven_clients_are_dealt_out_evenly():
    held = np.array([80, 10, 20, 70, 40, 50, 30, 60])
    lanes = Lanes(np.repeat(np.arange(8), held).astype(np.int32), 200, devices=2)
    assert lanes.shape == (2, 4)
    assert np.bincount(lanes.lane, held).tolist() == [180, 180]


@pytest.mark.parametrize(("field", "value"), [("keep", "disk"), ("precision", "half")])
def test_unknown_ways_are_refused(field, value):
    with pytest.raises(ValueError, match=f"{field} must be one of .*, not '{value}'"):
        Execution(**{field: value})


def test_on_a_cpu_every_precision_is_float32():
    problem = Problem.draw(MIXED, Objective("squared"), 1)
    settings = replace(problem.settings, dtype="float32")
    start = jax.tree.map(np.float32, problem.start)
    found = [
        arrays(
            Simulation(problem.federation, problem.blocks, problem.objective, settings, Execution(precision=p)).advance(
                start, 0, 3
            )
        )
        for p in ("float32", "bfloat16")
    ]
    assert distance(*found) == 0
