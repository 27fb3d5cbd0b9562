"""Numbers that overflow although every block is finite: all parties end, with the history of `tdcd run`."""

from dataclasses import replace

import numpy as np
import pytest

from support.in_process import InProcess
from support.simulated import RIDGE, simulated, with_keys
from tdcd.config.resolve import plan
from tdcd.runtime.compute.client_data import shards
from tdcd.runtime.messages.messages import Part
from tdcd.runtime.messages.structure import Array

ONE_STEP = {"rounds": 6, "local_steps": 1}
HUGE = np.float32(1e25)
"""Of features: after the first step a block is about as large, and its phi is beyond float32."""


def history(office):
    """The one that all hubs have."""
    assert {end.status for end in office.ends.values()} == {"diverged"}
    found = {tuple(record.to_json() for record in lines) for lines in office.history.values()}
    assert len(found) == 1
    return next(iter(office.history.values()))


def ended(config, data, seed=0):
    office = InProcess(config, data, seed=seed).run()
    for machine in office.machines.values():
        status = machine.status if hasattr(machine, "rounds") else machine.outcome.status
        assert status == "diverged"
    return office


@pytest.mark.parametrize("every", [1, 100])
@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("silos", [("lab",), ("clinic", "lab")])
def test_phi_or_scores_of_a_client(every, overlap, silos):
    config = with_keys(
        RIDGE, dtype="float32", model={"l2": 0.0}, train={**ONE_STEP, "overlap": overlap}, evaluate={"every": every}
    )
    data = {
        client: replace(rows, features=rows.features * HUGE) if client.split(".")[1] in silos else rows
        for client, rows in shards(plan(config)).items()
    }
    for seed in range(3):
        office = ended(config, data, seed)
        lines = history(office)
        assert lines[-1].diverged
        assert [line.round for line in lines] == sorted({line.round for line in lines})
        what = "scores" if every == 1 else "phi"
        reasons = {end.reason for end in office.ends.values()}
        assert any(f"the {what} of client.{silo}." in reason for reason in reasons for silo in silos), reasons
        assert all(
            "stopped being finite in round 1: the step size is too large, lower train.step_size" in reason
            for reason in reasons
        )


def test_the_penalty():
    config = with_keys(RIDGE, dtype="float32", train={**ONE_STEP, "step_size": 1e25}, evaluate={"every": 1})
    planned, result = simulated(config)
    lines = history(ended(config, shards(planned)))
    assert [line.round for line in lines] == [line.round for line in result.history]
    assert lines[-1].diverged
    assert result.history[-1].diverged


def test_the_sum_of_the_other_silos():
    config = with_keys(RIDGE, dtype="float32", silos=[{"name": name, "clients": 1} for name in "abc"], train=ONE_STEP)

    class Large(InProcess):
        def act(self, party, instructions):
            super().act(party, [self.larger(one) for one in instructions])

        def larger(self, one):
            if not isinstance(one, Part) or one.sender not in self.hubs or (one.flow, one.round) != ("phi", 2):
                return one
            arrays = {name: Array.of(np.full_like(array.values, 3e38)) for name, array in one.arrays.items()}
            return one.replace(arrays=arrays)

    office = Large(config, shards(plan(config))).run()
    assert history(office)[-1].diverged
    reason = "the sum of the other silos' phi at hub.a stopped being finite in round 2"
    assert any(reason in end.reason for end in office.ends.values())


@pytest.mark.parametrize("overlap", [0, 1])
def test_a_slow_silo_that_overflows_ends_at_the_end_of_its_period(overlap):
    """What the others have recorded meanwhile stays, once."""
    silos = [{**silo, "period": 2 if silo["name"] == "lab" else 1} for silo in RIDGE["silos"]]
    train = {**ONE_STEP, "local_steps": 2, "overlap": overlap}
    config = with_keys(RIDGE, dtype="float32", model={"l2": 0.0}, train=train, evaluate={"every": 1}, silos=silos)
    data = {
        client: replace(rows, features=rows.features * HUGE) if ".lab." in client else rows
        for client, rows in shards(plan(config)).items()
    }
    for seed in range(3):
        rounds = [line.round for line in history(ended(config, data, seed))]
        assert rounds == sorted({*rounds})


def test_the_hubs_own_block():
    train = {**ONE_STEP, "hub_optimizer": "momentum", "hub_step_size": 1e36}
    config = with_keys(RIDGE, dtype="float32", model={"l2": 0.0}, train=train, evaluate={"every": 100})
    data = {
        client: replace(rows, features=rows.features * np.float32(1e8)) for client, rows in shards(plan(config)).items()
    }
    office = ended(config, data)
    assert history(office)[-1].diverged
    assert any("the block of the hub" in end.reason for end in office.ends.values())
