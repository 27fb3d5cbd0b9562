"""However a simulation is carried out, it is Algorithm 1: by any engine, with the data here or there."""

from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.problems import ENGINES, Problem, Shape, arrays, distance, examples
from tdcd.blocks import Linear, Mlp
from tdcd.core.execution import Execution
from tdcd.core.objective import Objective
from tdcd.federation.silos import Federation
from tdcd.simulation.engines.clients import alike
from tdcd.simulation.engines.flat import cut
from tdcd.simulation.engines.grouped import ClientGroups
from tdcd.simulation.simulate import Simulation

TOLERANCE = 1e-10


CROWD = Shape(clients=(60, 3, 50), columns=(2, 3, 1), num_samples=600, batch_size=150, local_steps=2)
"""Enough clients for several groups, with padding."""
MIXED = Shape(clients=(3, 4), columns=(2, 3), num_samples=60, batch_size=12, blocks=(Linear(), Mlp((4,))))


def run(problem: Problem, engine: str, keep: str = "auto") -> list:
    simulation = problem.simulation(engine, keep)
    return arrays(simulation.advance(simulation.state_of(problem.start), 0, 2))


@pytest.mark.parametrize(
    ("engine", "loss", "gradient", "minibatches"),
    [
        ("grouped", "softmax", "unbiased", "fresh"),
        ("grouped", "squared", "mean", "reused"),
        ("flat", "squared", "unbiased", "fresh"),
        ("flat", "logistic", "mean", "reused"),
        ("clients", "softmax", "mean", "fresh"),
    ],
)
def test_many_clients_agree_with_the_oracle(engine, loss, gradient, minibatches):
    """In several groups, or in several segments of a minibatch, or none."""
    problem = Problem.draw(CROWD, Objective(loss, 0.1), 5, "shuffled", gradient=gradient, minibatches=minibatches)
    simulation = problem.simulation(engine)
    simulation._engine.rounds_per_call = 2
    if engine == "grouped":
        assert [silo[0].shape[0] > 1 for silo in simulation._engine._groups] == [True, False, True]
    expected = problem.solve(3)
    assert distance(expected, arrays(problem.start)) > 1e-2
    assert distance(arrays(simulation.advance(simulation.state_of(problem.start), 0, 3)), expected) < TOLERANCE


@pytest.mark.parametrize(("num_clients", "batch_size"), [(1, 1), (1, 40), (5, 16), (7, 33), (40, 200), (30, 12)])
def test_every_row_is_in_one_segment_of_its_client(num_clients, batch_size):
    cut_here = jax.jit(partial(cut, num_clients=num_clients))

    @examples(8)
    @given(seed=st.integers(0, 2**31), crowd=st.integers(1, num_clients))
    def law(seed, crowd):
        owner = np.random.default_rng(seed).integers(0, crowd, batch_size).astype(np.int32)
        counts, positions, real, clients = map(np.asarray, cut_here(owner))
        assert counts.tolist() == np.bincount(owner, minlength=num_clients).tolist()
        assert sorted(positions[real].tolist()) == list(range(batch_size))
        for client, row, there in zip(clients, positions, real, strict=True):
            assert (owner[row[there]] == client).all()

    law()


@pytest.mark.parametrize(
    ("engine", "shape", "minibatches"),
    [("grouped", CROWD, "fresh"), ("grouped", CROWD, "full"), ("clients", MIXED, "fresh")],
    ids=["grouped-fresh", "grouped-full", "clients"],
)
def test_data_on_the_host_and_on_the_device_give_the_same(engine, shape, minibatches):
    problem = Problem.draw(shape, Objective("logistic", 0.1), 2, "shuffled", minibatches=minibatches)
    assert distance(run(problem, engine, "host"), run(problem, engine, "device")) < 1e-13
    assert distance(run(problem, engine, "host"), problem.solve(2)) < TOLERANCE


@pytest.mark.optimised
@pytest.mark.parametrize("engine", ENGINES)
def test_many_calls_in_flight_do_not_disturb_each_other(engine):
    """A call's memory is filled again for the call after the next; here the device is slower than the host."""
    problem = Problem.draw(CROWD, Objective("squared"), 3, "shuffled", 0.01, minibatches="reused")
    problem = problem.with_settings(local_steps=200)
    waiting, running = problem.simulation(engine), problem.simulation(engine)
    running._engine.rounds_per_call = waiting._engine.rounds_per_call = 1
    state = waiting.state_of(problem.start)
    for round_index in range(12):
        state = jax.block_until_ready(waiting.advance(state, round_index, 1))
    assert distance(arrays(running.advance(running.state_of(problem.start), 0, 12)), arrays(state)) == 0


@pytest.mark.parametrize(
    ("engine", "block", "dtype"),
    [("grouped", Linear(), np.uint8), ("flat", Linear(), np.float32), ("clients", Mlp((3,)), np.uint8)],
    ids=["grouped", "flat", "clients"],
)
def test_samples_may_lie_in_mapped_files_of_whole_numbers_or_single_precision(tmp_path, engine, block, dtype):
    rng = np.random.default_rng(0)
    problem = Problem.draw(Shape((3, 5), (4, 6), 200, 20, blocks=(block,) * 2), Objective("logistic"), 1, "shuffled")
    silos, mapped = [], []
    for index, silo in enumerate(problem.federation.silos):
        values = rng.integers(0, 5, silo.features.shape).astype(dtype)
        np.save(tmp_path / f"{index}.npy", values)
        silos.append(replace(silo, features=values.astype(np.float64)))
        mapped.append(replace(silo, features=np.load(tmp_path / f"{index}.npy", mmap_mode="r")))
    labels = problem.federation.labels
    one, other = (replace(problem, federation=Federation(tuple(s), labels)) for s in (silos, mapped))
    # On an accelerator mapped files may stay there; the flat engine needs them to.
    keep = "device" if engine == "flat" else "auto"
    assert distance(run(one, engine, keep), run(other, engine, keep)) < 1e-12
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
    groups = ClientGroups(owner, batch_size, devices)
    count, size = groups.shape
    assert count % devices == 0
    assert groups.group.max() < count
    assert groups.slot.max() < size
    assert len(set(zip(groups.group.tolist(), groups.slot.tolist(), strict=True))) == num_clients
    numbers = groups.arrange(np.arange(1.0, num_clients + 1), 0)
    assert numbers[groups.group, groups.slot].tolist() == list(range(1, num_clients + 1))
    assert numbers.sum() == num_clients * (num_clients + 1) / 2


def test_few_clients_share_a_group_without_padding_and_many_have_groups_of_several():
    few = ClientGroups((np.arange(20_000) % 5).astype(np.int32), 100)
    assert few.shape == (1, 5)
    assert few.placer.usual == 100
    many = ClientGroups((np.arange(100_000) % 1000).astype(np.int32), 10_000)
    assert 2 <= many.shape[1] <= 32
    assert many.shape[0] * many.placer.usual < 1.8 * 10_000


def test_uneven_clients_are_dealt_out_evenly():
    held = np.array([80, 10, 20, 70, 40, 50, 30, 60])
    groups = ClientGroups(np.repeat(np.arange(8), held).astype(np.int32), 200, devices=2)
    assert groups.shape == (2, 4)
    assert np.bincount(groups.group, held).tolist() == [180, 180]


@pytest.mark.parametrize(("field", "value"), [("keep", "disk"), ("precision", "half"), ("engine", "fast")])
def test_unknown_ways_are_refused(field, value):
    with pytest.raises(ValueError, match=f"{field} must be one of .*, not '{value}'"):
        Execution(**{field: value})


@pytest.mark.optimised
def test_on_a_cpu_every_precision_is_float32():
    problem = Problem.draw(MIXED, Objective("squared"), 1)
    settings = replace(problem.settings, dtype="float32")
    start = jax.tree.map(np.float32, problem.start)
    found = []
    for precision in ("float32", "bfloat16"):
        execution = Execution(precision=precision)
        simulation = Simulation(problem.federation, problem.blocks, problem.objective, settings, execution)
        found.append(arrays(simulation.advance(simulation.state_of(start), 0, 3)))
    assert distance(*found) == 0


ALIKE = Shape(clients=(2, 2, 3), columns=(3, 3, 3), blocks=(Mlp((4,)),) * 3)


def test_silos_that_are_alike_step_as_one_batch_on_an_accelerator():
    problem = Problem.draw(ALIKE, Objective("softmax", 0.1), 3, "aligned")
    simulation = problem.simulation("clients")
    simulation._engine.choose_for(cpu=False)
    traced = simulation._engine.program
    call = next(simulation._calls(0, 1))
    shared, own, _ = call.arguments
    assert traced.together
    assert alike(traced.blocks, traced.variant, shared, traced._now(own, 0)) == [(0, 1), (2,)]
    stepped = arrays(simulation.advance(simulation.state_of(problem.start), 0, 3))
    assert distance(stepped, problem.solve(3)) < TOLERANCE
