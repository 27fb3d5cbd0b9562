"""What the parties of a run say to whom: bytes as in the ledger, and never a row of features."""

from collections import Counter

import numpy as np
import pytest

from support.in_process import InProcess
from support.parts import EVALUATION, between_hubs, link_of
from support.simulated import RIDGE, with_keys
from tdcd.config.resolve import plan
from tdcd.core.ledger import Traffic
from tdcd.core.schedule import batch_ids
from tdcd.runtime.compute.client_data import shards
from tdcd.runtime.job import Job
from tdcd.runtime.messages.messages import Part
from tdcd.runtime.messages.structure import named
from tdcd.runtime.messages.wire import encode

CONFIGS = {
    "ridge, 2 x 3": with_keys(RIDGE),
    "unequal, float32": with_keys(
        RIDGE,
        dtype="float32",
        silos=[{"name": "a", "clients": 2}, {"name": "b", "clients": 1}, {"name": "c", "clients": 3}],
        federation={"rows": "dirichlet", "alpha": 0.5, "share_model": True},
    ),
    "reused": with_keys(RIDGE, train={"minibatches": "reused", "rounds": 3}, evaluate={"every": 3, "holdout": 0.0}),
    "full": with_keys(RIDGE, train={"minibatches": "full", "rounds": 2}),
    "one silo": with_keys(RIDGE, silos=[{"name": "a", "clients": 3}]),
    "mlp, 10 outputs": with_keys(
        RIDGE, data={"source": "digits", "rows": 300}, model={"block": "mlp", "hidden": [8]}, train={"rounds": 2}
    ),
}


@pytest.fixture(scope="module", params=CONFIGS)
def office(request):
    config = CONFIGS[request.param]
    office = InProcess(config, shards(plan(config)), seed=5).run()
    assert {end.status for end in office.ends.values()} == {"finished"}
    return office


def test_the_ledger_counts_what_was_sent(office):
    counted = {"block", "received", "phi"}
    for history in office.history.values():
        for record in history:
            sent, messages = Counter(), Counter()
            for message in office.sent:
                if message.kind in counted and message.round < record.round:
                    link = link_of(message)
                    sent[link] += message.payload_bytes
                    messages[link] += 1
            assert record.bytes == Traffic(**sent)
            assert record.messages == Traffic(**messages)
    assert record.bytes.client_to_hub > 0


def test_the_ledger_counts_evaluations_apart(office):
    counted = EVALUATION
    for history in office.history.values():
        for record in history:
            sent, messages = Counter(), Counter()
            for message in office.sent:
                if message.kind in counted and message.round <= record.round:
                    link = link_of(message)
                    sent[link] += message.payload_bytes
                    messages[link] += 1
            assert record.evaluation_bytes == Traffic(**sent)
            assert record.evaluation_messages == Traffic(**messages)
    assert history[0].evaluation_bytes.client_to_hub > 0


def test_kinds_of_message_and_who_may_say_them(office):
    kinds = {
        "hub_to_client": {"who", "welcome", "prepare", "block", "received", "evaluated", "stop"},
        "client_to_hub": {"enrol", "summary", "ready", "phi", "block", "scores", "bye"},
        "hub_to_hub": {"hello", "opening", "phi", "scores", "model", "want", "gone", "stop", "bye"},
    }
    proofs = {
        "hub_to_client": {"witness", "residual"},
        "client_to_hub": {"witness_scores", "gradient"},
        "hub_to_hub": {"witness_scores", "norm"},
    }
    pairs = set()
    for message in office.sent:
        assert message.kind in kinds[link_of(message)] | proofs[link_of(message)]
        pairs.add((message.sender, message.receiver))
    job = next(iter(office.hubs.values())).job
    ways = {(one, other) for one in job.hubs for other in job.hubs if one != other}
    for silo, hub in enumerate(job.hubs):
        ways |= {way for client in job.clients(silo) for way in ((hub, client), (client, hub))}
    assert pairs == ways
    assert any(message.kind == "model" for message in office.sent) == job.config.federation.share_model


def test_no_row_of_features_leaves_its_client(office):
    wire = [encode(message) for message in office.sent]
    for data in office.data.values():
        for kind in (np.float32, np.float64):
            for row in data.features[:20].reshape(len(data.features[:20]), -1).astype(kind):
                if row.any():
                    assert not any(row.tobytes() in message for message in wire)


def test_a_client_gets_its_own_rows_of_the_others_sum(office):
    job = next(iter(office.hubs.values())).job
    if len(job.hubs) == 1:
        return
    settings, sample_index = job.settings, next(iter(office.hubs.values())).handshake.sample_index
    full = settings.minibatches == "full"
    parts = [message for message in office.sent if between_hubs(message, "phi")]
    told = {(m.sender, m.round): np.concatenate(m.arrays["phi"].values) for m in parts}
    train_ids = np.array(sample_index.ids)[~sample_index.held_out]
    checked = 0
    for message in office.sent:
        if message.kind != "received":
            continue
        batches = batch_ids(
            settings.seed,
            [message.round],
            num_samples=sample_index.num_samples,
            batch_size=sample_index.num_samples if full else settings.batch_size,
            local_steps=settings.local_steps,
            minibatches=settings.minibatches,
        )[0].ravel()
        held = np.isin(train_ids[batches], office.data[message.receiver].ids)
        others = sum(told[hub, message.round] for hub in job.hubs if hub != message.sender)
        np.testing.assert_allclose(message.arrays["phi"].values, others[held], rtol=1e-5)
        assert [*message.arrays] == ["phi"]
        checked += 1
    assert checked == job.config.train.rounds * len(office.data)


def test_the_wire_adds_little_to_a_large_message(office):
    sizes = [(message.payload_bytes, len(encode(message))) for message in office.sent]
    for payload, wire in sizes:
        if payload > 10_000:
            assert wire <= 1.1 * payload


def test_the_wire_adds_less_than_a_tenth_to_anything_over_10_kb():
    for size in (10_001, 100_000):
        long = "client." + "s" * 24 + "." + "c" * 24
        arrays = {f"layer{index}/{'w' * 20}": np.zeros(size // 8 // 4 + 1) for index in range(4)}
        message = Part(long, long, 10**9, "f" * 32, flow="block", arrays=named(arrays))
        assert message.payload_bytes <= len(encode(message)) <= 1.1 * message.payload_bytes


def test_every_hub_ends_with_the_same_history(office):
    histories = [[record.to_json() for record in history] for history in office.history.values()]
    assert len(histories) == len(Job(next(iter(office.hubs.values())).job.config).hubs)
    assert all(history == histories[0] for history in histories)
