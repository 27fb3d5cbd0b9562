"""A small federation, and what the simulation of its configuration gives."""

import pytest

from support.in_process import largest_difference
from support.parts import EVALUATION
from tdcd.config import check_config
from tdcd.config.resolve import plan
from tdcd.runtime.messages.messages import Part
from tdcd.training.train import train

RIDGE = {
    "dtype": "float64",
    "data": {"source": "diabetes"},
    "silos": [{"name": "clinic", "clients": 3}, {"name": "lab", "clients": ["north", "south", "west"]}],
    "model": {"block": "linear", "l2": 0.01},
    "train": {"rounds": 6, "local_steps": 4, "batch_size": 32, "step_size": 0.05},
    "evaluate": {"every": 2},
}


def with_keys(base, **sections):
    merged = {key: dict(value) if isinstance(value, dict) else value for key, value in base.items()}
    for name, keys in sections.items():
        merged[name] = {**merged.get(name, {}), **keys} if isinstance(keys, dict) else keys
    return check_config(merged)


def simulated(config):
    planned = plan(config)
    rounds, every = config.train.rounds, config.evaluate.every
    parts = (planned.federation, planned.blocks, planned.objective, planned.settings)
    return planned, train(*parts, rounds=rounds, evaluate_every=every, variant=planned.variant, quiet=True)


def assert_same_history(office, result):
    assert {end.status for end in office.ends.values()} == {"finished"}
    assert not office.refused
    for history in office.history.values():
        for ours, theirs in zip(history, result.history, strict=True):
            assert (ours.round, ours.bytes, ours.messages) == (theirs.round, theirs.bytes, theirs.messages)
            assert ours.evaluation_bytes == theirs.evaluation_bytes
            assert ours.evaluation_messages == theirs.evaluation_messages
            assert ours.train_loss == pytest.approx(theirs.train_loss, rel=1e-10)
            assert ours.test_loss == pytest.approx(theirs.test_loss, rel=1e-10)
    for hub, block in office.blocks().items():
        assert largest_difference(block, result.blocks[hub.removeprefix("hub.")]) < 1e-10
    scored = [message for message in office.sent if isinstance(message, Part) and message.flow in EVALUATION]
    assert ours.evaluation_bytes.total == sum(message.payload_bytes for message in scored)
    assert ours.evaluation_messages.total == len(scored)
