"""Hubs and clients as state machines, against the simulation of the same configuration."""

import pytest

from support.in_process import InProcess, largest_difference
from support.simulated import RIDGE, simulated, with_keys
from tdcd.runtime.compute.client_data import shards

CASES = {
    "ridge, 2 silos x 3": with_keys(RIDGE),
    "logistic, 3 silos, unequal": with_keys(
        RIDGE,
        data={"source": "breast_cancer"},
        silos=[{"name": "a", "clients": 2}, {"name": "b", "clients": 2}, {"name": "c", "clients": 1}],
        federation={"rows": "dirichlet", "alpha": 1.0},
    ),
    "cnn": with_keys(
        RIDGE,
        data={"source": "digits", "rows": 300},
        model={"block": "cnn", "channels": [4], "kernel": [3, 3], "embedding": 8},
        train={"rounds": 2, "local_steps": 2, "batch_size": 40, "step_size": 0.1},
    ),
    "one silo": with_keys(RIDGE, silos=[{"name": "a", "clients": 3}]),
    "full minibatches": with_keys(RIDGE, train={"minibatches": "full"}),
    "one minibatch for all steps": with_keys(RIDGE, train={"minibatches": "reused"}),
    "drawn by a permutation": with_keys(RIDGE, train={"draws": "permutation"}),
    "shared model": with_keys(RIDGE, federation={"share_model": True}),
}


@pytest.mark.parametrize("name", CASES)
def test_same_history_and_blocks_as_the_simulation(name):
    config = CASES[name]
    planned, result = simulated(config)
    office = InProcess(config, shards(planned)).run()
    assert {end.status for end in office.ends.values()} == {"finished"}
    assert not office.refused
    for hub, history in office.history.items():
        assert [r.round for r in history] == [r.round for r in result.history], hub
        for ours, theirs in zip(history, result.history, strict=True):
            assert ours.train_loss == pytest.approx(theirs.train_loss, rel=1e-10, abs=1e-10)
            assert ours.test_loss == pytest.approx(theirs.test_loss, rel=1e-10, abs=1e-10)
            assert ours.bytes == theirs.bytes
            assert ours.messages == theirs.messages
            for part, figures in theirs.metrics.items():
                assert ours.metrics[part] == pytest.approx(figures, rel=1e-9)
    for hub, block in office.blocks().items():
        assert largest_difference(block, result.blocks[hub.removeprefix("hub.")]) < 1e-10
    assert len({tuple(record.to_json() for record in history) for history in office.history.values()}) == 1
