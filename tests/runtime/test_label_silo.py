"""Labels at one silo between real parties: the simulation's history, a star of messages, and who has which files."""

from collections import Counter

import pytest
from test_absence import Deaf
from test_losses_for_real import OWN

from support.in_process import InProcess
from support.parts import between_hubs, to_client
from support.simulated import RIDGE, assert_same_history, simulated, with_keys
from tdcd.config import ConfigError
from tdcd.config.resolve import plan
from tdcd.runtime.compute.client_data import shards
from tdcd.runtime.job import Job

SILOS = [{"name": "shop", "clients": 2}, {"name": "bank", "clients": 2}, {"name": "bureau", "clients": 1}]
AT_BANK = {"silos": SILOS, "federation": {"labels": "bank"}}
MLP = {"block": "mlp", "hidden": [4], "l2": 0.01}
ENSEMBLE = {"block": "ensemble", "hidden": [4, 3], "members": 3, "l2": 0.01}
BREAST, DIGITS = {"source": "breast_cancer"}, {"source": "digits", "rows": 300}
CASES = {
    "squared": {},
    "squared, mlp, shared": {"model": MLP, "federation": {"labels": "bank", "share_model": True}},
    "logistic, reused": {"data": BREAST, "train": {"minibatches": "reused"}},
    "logistic, mlp, momentum": {"data": BREAST, "model": MLP, "train": {"optimizer": "momentum"}},
    "softmax, few bits": {"data": DIGITS, "exchange": {"block_bits": 8}},
    "softmax, mlp": {"data": DIGITS, "model": MLP},
    "softmax, ensemble, masked": {"data": DIGITS, "model": ENSEMBLE, "exchange": {"protect": "mask"}},
    "logistic, masked": {"data": BREAST, "exchange": {"protect": "mask"}},
    "logistic, blocks masked, noisy labels": {
        "data": BREAST,
        "silos": [{"name": name, "clients": 3} for name in ("shop", "bank", "bureau")],
        "federation": {"labels": "bank", "label_epsilon": 2.0},
        "exchange": {"protect": "mask", "protect_blocks": True},
    },
    "poisson": {"model": {"loss": "poisson"}, "train": {"step_size": 0.0005}},
    "poisson, mlp": {"model": {**MLP, "loss": "poisson"}, "train": {"step_size": 0.0005}},
    "a loss of one's own": {"model": OWN},
    "huber, reused": {"model": {"loss": "huber", "huber_delta": 0.7}, "train": {"minibatches": "reused"}},
    "logistic, balanced, masked": {
        "data": BREAST,
        "train": {"class_weights": "balanced"},
        "exchange": {"protect": "mask"},
    },
    "softmax, class weights, mlp": {"data": DIGITS, "model": MLP, "train": {"class_weights": {"3": 4.0}}},
    "logistic, balanced, dropout": {"data": BREAST, "train": {"class_weights": "balanced", "silo_dropout": 0.3}},
}


def config_of(name):
    return with_keys(RIDGE, **{**AT_BANK, **CASES[name]})


@pytest.mark.parametrize("name", CASES)
def test_same_history_and_blocks_as_the_simulation(name):
    config = config_of(name)
    planned, result = simulated(config)
    office = InProcess(config, shards(planned), seed=1).run()
    assert_same_history(office, result)
    assert len({tuple(record.to_json() for record in history) for history in office.history.values()}) == 1
    assert [hub for hub, scores in office.test_scores.items() if scores is not None] == ["hub.bank"]


@pytest.mark.parametrize("name", ["softmax, few bits", "poisson", "logistic, balanced, masked"])
def test_the_hubs_send_in_a_star_and_the_ledger_counts_it(name):
    config = config_of(name)
    planned, _ = simulated(config)
    office = InProcess(config, shards(planned)).run()
    parts = [m for m in office.sent if between_hubs(m, "phi", "slope", "scores", "figures")]
    sent = Counter((m.flow, m.sender, m.receiver) for m in parts)
    rounds, lines = config.train.rounds, len(office.history["hub.bank"])
    for hub in ("hub.shop", "hub.bureau"):
        assert sent["phi", hub, "hub.bank"] == sent["slope", "hub.bank", hub] == rounds
        assert sent["scores", hub, "hub.bank"] == sent["figures", "hub.bank", hub] == lines
    assert len(parts) == 4 * (rounds + lines)
    counted = office.history["hub.shop"][-1]
    assert counted.messages.hub_to_hub == 4 * rounds
    assert counted.bytes.hub_to_hub == sum(m.payload_bytes for m in parts if m.flow in ("phi", "slope"))
    down = [m for m in office.sent if to_client(m, "block", "received")]
    assert counted.bytes.hub_to_client == sum(m.payload_bytes for m in down)
    # Weights are told to those who do not have them with the labels, and to nobody where all weigh the same.
    weighed = {m.receiver.split(".")[1] for m in down if "weights" in m.arrays}
    assert weighed == ({"shop", "bureau"} if "balanced" in name else set())


def test_rows_that_are_left_weigh_what_they_did_when_a_client_is_away():
    """Clients are told of those rows only; all hubs have one history, and it is that of labels everywhere."""
    silos = [{"name": "shop", "clients": 3}, {"name": "bank", "clients": 2}, {"name": "bureau", "clients": 1}]
    histories = []
    for labels in ({}, {"labels": "bank"}):
        config = with_keys(
            RIDGE,
            silos=silos,
            data=BREAST,
            train={"class_weights": "balanced", "rounds": 8},
            federation={"client_grace_s": 5.0, **labels},
            evaluate={"every": 4},
        )
        script = {"client.shop.c2": (3, "block", 5), "client.bank.c1": (4, "received", 6)}
        office = Deaf(config, shards(plan(config)), script).run()
        assert {end.status for end in office.ends.values()} == {"finished"}
        assert len({tuple(record.train_loss for record in history) for history in office.history.values()}) == 1
        histories.append(office.history["hub.shop"])
    for one, other in zip(*histories, strict=True):
        assert one.train_loss == pytest.approx(other.train_loss, rel=1e-10)
        assert one.absent == other.absent
    assert histories[0][-1].absent


def test_weights_at_another_silo_than_the_labels_are_refused():
    silos = [{"name": "shop", "clients": 2, "weight": "w"}, {"name": "bank", "clients": 2, "label": "y"}]
    with pytest.raises(ConfigError) as refused:
        with_keys(RIDGE, silos=silos, federation={"labels": "bank"})
    refused.match("silo 'shop': weight = 'w' goes with label; name both in the silo that has the labels")
    refused.match("silo 'bank': weight is missing; give it in every silo that has a label")


@pytest.mark.parametrize("step_size", [1.6682798577318316, 2.0])
def test_all_hubs_have_the_history_of_a_failure(step_size):
    """With the first step size, the slopes stop being finite before any block does."""
    train = {"rounds": 60, "step_size": step_size}
    config = with_keys(RIDGE, **AT_BANK, dtype="float32", train=train, evaluate={"every": 100})
    office = InProcess(config, shards(plan(config)), seed=1).run()
    assert [end.status for end in office.ends.values()] == ["diverged"] * 3
    assert len({tuple(record.to_json() for record in history) for history in office.history.values()}) == 1


def test_a_variant_with_labels_at_one_silo_is_the_files_key(tmp_path):
    (tmp_path / "at_one.py").write_text(
        "from tdcd import Variant, LabelsAt\n\nVARIANT = Variant(knowledge=LabelsAt(1))\n"
    )
    config = with_keys(RIDGE, train={"variant": "at_one:VARIANT", "folder": str(tmp_path)})
    job = Job(config)
    assert job.config.federation.labels == "lab"
    assert [job.has_labels(silo) for silo in range(2)] == [False, True]
    assert job.topology.label_hub == "hub.lab"
