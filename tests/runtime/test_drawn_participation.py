"""Drawn participation between real parties: a hub asks the clients that a round draws, and nobody else."""

from dataclasses import replace

import numpy as np
import pytest

from support.in_process import InProcess
from support.parts import between_hubs, to_client
from support.simulated import RIDGE, assert_same_history, simulated, with_keys
from tdcd.config import ConfigError
from tdcd.config.resolve import plan
from tdcd.runtime.compute.client_data import shards
from tdcd.runtime.job import Job

SILOS = [{"name": "shop", "clients": 3}, {"name": "bank", "clients": 4}, {"name": "bureau", "clients": 2}]
CASES = {
    "two silos": {"train": {"participation": 0.5}},
    "one silo": {"silos": SILOS[1:2], "train": {"participation": 0.5}},
    "unequal rows, all samples": {
        "silos": SILOS,
        "federation": {"rows": "dirichlet", "alpha": 0.5},
        "train": {"participation": 0.6, "minibatches": "full"},
    },
    "labels at one silo, weights": {
        "silos": SILOS,
        "data": {"source": "breast_cancer"},
        "federation": {"labels": "bank"},
        "train": {"participation": 0.6, "class_weights": "balanced"},
    },
    "the mean of rows, a hub's optimizer": {
        "train": {"participation": 0.5, "gradient": "mean", "hub_optimizer": "momentum", "hub_step_size": 0.5}
    },
    "blocks of few bits": {"exchange": {"block_bits": 8}, "train": {"participation": 0.5}},
    "dropped silos": {"train": {"participation": 0.5, "silo_dropout": 0.3}},
}


@pytest.mark.parametrize("name", CASES)
def test_the_history_is_the_simulations(name):
    config = with_keys(RIDGE, **CASES[name])
    planned, result = simulated(config)
    office = InProcess(config, shards(planned)).run()
    assert_same_history(office, result)
    assert len({tuple(record.to_json() for record in history) for history in office.history.values()}) == 1
    # It matters who answers.
    everybody = simulated(with_keys(RIDGE, **{**CASES[name], "train": {**CASES[name]["train"], "participation": 1.0}}))[
        1
    ]
    assert abs(everybody.history[-1].train_loss - result.history[-1].train_loss) > 1e-6


@pytest.fixture(scope="module")
def office():
    config = with_keys(RIDGE, **CASES["two silos"])
    return InProcess(config, shards(plan(config))).run()


def test_only_drawn_clients_are_asked_and_everybody_is_evaluated(office):
    hub = office.hubs["hub.lab"]
    job = hub.job
    for silo, name in enumerate(job.hubs):
        for round_index in range(job.config.train.rounds):
            drawn = job.variant.participation.answering(job.settings.seed, round_index, silo, 3)
            expected = {client for client, answers in zip(job.clients(silo), drawn, strict=True) if answers}
            for flow in ("block", "received"):
                asked = {
                    m.receiver for m in office.sent if to_client(m, flow) and (m.sender, m.round) == (name, round_index)
                }
                assert asked == expected
        scored = [m for m in office.sent if to_client(m, "evaluated") and m.sender == name]
        assert len(scored) == 4 * 3
    assert not any(record.absent or record.unscored for record in office.history["hub.lab"])


def test_the_ledger_counts_blocks_and_what_hubs_send(office):
    """Between hubs without the byte per sample that says who is absent; blocks to the byte."""
    record = office.history["hub.lab"][-1]
    phis = [m for m in office.sent if between_hubs(m, "phi")]
    masks = sum(m.arrays["absent"].values.nbytes for m in phis if "absent" in m.arrays)
    assert masks > 0
    assert record.bytes.hub_to_hub == sum(m.payload_bytes for m in phis) - masks
    assert record.messages.client_to_hub == sum(to_client(m, "block", "received") for m in office.sent)


def test_a_hub_that_comes_back_draws_the_same(office):
    config = office.hubs["hub.lab"].job.config
    broken = InProcess(config, office.data)
    broken.start()
    while "hub.lab" not in broken.states or broken.states["hub.lab"].round < 3:
        broken.deliver()
    state = broken.states["hub.lab"]
    broken.history["hub.lab"] = [record for record in broken.history["hub.lab"] if record.round < state.round]
    broken.come_back("hub.lab", state)
    assert {end.status for end in broken.ends.values()} == {"finished"}
    for hub, block in office.blocks().items():
        assert np.array_equal(block["weight"], broken.blocks()[hub]["weight"])
        assert [r.to_json() for r in broken.history[hub]] == [r.to_json() for r in office.history[hub]]


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"exchange": {"phi_bits": 8}}, "train.participation: .*does not go with Quantised"),
        (
            {"exchange": {"protect": "mask"}, "silos": SILOS},
            "train.participation = 0.5: does not go with exchange.protect",
        ),
        ({"train": {"overlap": 1}}, "train.overlap = 1: does not go with train.participation = 0.5"),
    ],
)
def test_what_does_not_go_with_it_is_refused(keys, text):
    train = {"participation": 0.5, **keys.get("train", {})}
    with pytest.raises(ConfigError, match=text):
        Job(with_keys(RIDGE, **{**keys, "train": train}))


def test_a_round_that_may_draw_no_client_with_rows_is_refused():
    """Two of three clients have held-out rows only."""
    config = with_keys(RIDGE, silos=[{"name": "lab", "clients": 3}], train={"participation": 0.3})
    data = shards(plan(config))
    for client, rows in data.items():
        data[client] = replace(rows, held_out=np.full(len(rows.ids), client != "client.lab.c3"))
    office = InProcess(config, data).run()
    assert {end.status for end in office.ends.values()} == {"refused"}
    reason = office.ends["hub.lab"].reason
    assert "a round draws 1 client of hub.lab, and 2 of them have no training rows" in reason
