"""Hubs and clients as state machines, against the simulation of the same configuration."""

import pytest
from in_process import InProcess, largest_difference

from tdcd.config import check_config
from tdcd.config.resolve import plan
from tdcd.runtime.compute.client_data import shards
from tdcd.training.train import train

RIDGE = {
    "dtype": "float64",
    "data": {"source": "diabetes"},
    "silos": [{"name": "clinic", "clients": 3}, {"name": "lab", "clients": ["north", "south", "west"]}],
    "model": {"block": "linear", "l2": 0.01},
    "train": {"rounds": 6, "local_steps": 4, "batch_size": 32, "step_size": 0.05},
    "evaluate": {"every": 2},
}


def simulated(config):
    planned = plan(config)
    result = train(
        planned.federation,
        planned.blocks,
        planned.objective,
        planned.settings,
        rounds=config.train.rounds,
        evaluate_every=config.evaluate.every,
        quiet=True,
    )
    return planned, result


def with_keys(base, **sections):
    merged = {key: dict(value) if isinstance(value, dict) else value for key, value in base.items()}
    for name, keys in sections.items():
        merged[name] = {**merged.get(name, {}), **keys} if isinstance(keys, dict) else keys
    return check_config(merged)


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
