"""Silo dropout between real parties: the simulation's history, whatever it is combined with."""

import pytest
from in_process import InProcess
from test_machines import RIDGE, with_keys
from test_variants import assert_same_history, simulated

from tdcd.config.resolve import plan
from tdcd.runtime.process.client_data import shards

MLP = {"block": "mlp", "hidden": [4], "l2": 0.01}
THREE = [{"name": name, "clients": 3} for name in ("shop", "bank", "bureau")]
CASES = {
    "linear, with an intercept": {},
    "late, in few bits": {
        "exchange": {"phi_bits": 8, "block_bits": 8},
        "train": {"overlap": 1, "rounds": 6},
        "silos": [{**RIDGE["silos"][0], "period": 2}, RIDGE["silos"][1]],
    },
    "labels elsewhere, blocks masked": {
        "data": {"source": "breast_cancer"},
        "silos": THREE,
        "federation": {"labels": "bank"},
        "exchange": {"protect_blocks": True},
    },
    "mlp, labels at the first": {
        "data": {"source": "breast_cancer"},
        "model": MLP,
        "federation": {"labels": "clinic"},
        "train": {"minibatches": "reused"},
    },
}


def config_of(name, rate=0.4):
    keys = CASES[name]
    return with_keys(RIDGE, **{**keys, "train": {**keys.get("train", {}), "silo_dropout": rate}})


@pytest.mark.parametrize("name", CASES)
def test_same_history_and_blocks_as_the_simulation(name):
    config = config_of(name)
    planned, result = simulated(config)
    assert planned.variant.dropout.intercept == (None if "mlp" in name else 0)
    office = InProcess(config, shards(planned), seed=1).run()
    assert_same_history(office, result)
    assert len({tuple(record.to_json() for record in history) for history in office.history.values()}) == 1


def test_a_rate_of_zero_is_no_dropout():
    config = config_of("linear, with an intercept", 0.0)
    plain = with_keys(RIDGE)
    assert plan(config).variant == plan(plain).variant
    one, other = (InProcess(each, shards(plan(each)), seed=1).run() for each in (config, plain))
    assert [record.to_json() for record in one.history["hub.lab"]] == [
        record.to_json() for record in other.history["hub.lab"]
    ]
