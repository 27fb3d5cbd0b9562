"""What leaves a silo with labels: two label vectors that give the same sums give the same bytes, and no label is among
them."""

from dataclasses import replace

import numpy as np
import pytest
from test_label_silo import AT_BANK

from support.in_process import SECRET, InProcess
from support.simulated import RIDGE, with_keys
from tdcd.config.resolve import plan
from tdcd.core.settings import draws_of
from tdcd.runtime.compute.client_data import ClientData, shards
from tdcd.runtime.job import Job
from tdcd.runtime.messages.wire import encode
from tdcd.tables.rows import RawRows

CONFIG = with_keys(
    RIDGE, **AT_BANK, data={"source": "breast_cancer"}, train={"rounds": 2, "local_steps": 2}, evaluate={"every": 1}
)
HOLDERS = ("hub.bank", "client.bank.")


def told(office):
    """Every message to a party without labels, as bytes, in an order that does not depend on chance."""
    found = [m for m in office.sent if not m.receiver.startswith(HOLDERS)]
    return sorted((m.sender, m.receiver, m.round, m.kind, encode(m)) for m in found)


def relabelled(data, labels):
    """The same rows with other labels, by id."""
    return {
        client: rows if rows.labels is None else replace(rows, labels=np.array([labels[one] for one in rows.ids]))
        for client, rows in data.items()
    }


@pytest.fixture(scope="module")
def problem():
    """Rows whose features are all zero, so that their score is 0 and their loss the same for both labels, that no
    minibatch has: pairs of them, of different labels, among the training samples and among those held out."""
    planned = plan(CONFIG)
    data, samples = shards(planned), planned.federation.num_samples
    draws = draws_of(planned.settings, samples)
    drawn = {one for index in range(CONFIG.train.rounds) for one in draws(index).ravel().tolist()}
    labels = {}
    for rows in data.values():
        labels |= {} if rows.labels is None else dict(zip(rows.ids, rows.labels, strict=True))
    pairs = []
    for candidates in (
        [one for one in map(str, range(samples)) if int(one) not in drawn],
        [one for one in labels if int(one) >= samples],
    ):
        pairs.append([next(one for one in candidates if labels[one] == y) for y in (0, 1)])
    blank = {one for pair in pairs for one in pair}
    data = {
        client: replace(rows, features=np.where(np.isin(rows.ids, [*blank])[:, None], 0, rows.features))
        for client, rows in data.items()
    }
    return data, labels, pairs


def swapped(labels, pairs):
    other = dict(labels)
    for one, two in pairs:
        other[one], other[two] = labels[two], labels[one]
    return other


def test_labels_that_give_the_same_sums_give_the_same_bytes(problem):
    data, labels, pairs = problem
    offices = [InProcess(CONFIG, relabelled(data, y)).run() for y in (labels, swapped(labels, pairs))]
    assert {end.status for office in offices for end in office.ends.values()} == {"finished"}
    first, second = (told(office) for office in offices)
    assert {kind for *_, kind, _ in first} >= {"hello", "opening", "slope", "figures", "received", "stop"}
    assert first == second
    # The parties with labels do see which they are.
    enrolled = [[encode(m) for m in office.sent if m.kind == "enrol"] for office in offices]
    assert enrolled[0] != enrolled[1]


def test_before_the_first_slope_nothing_depends_on_the_labels(problem):
    data, labels, _ = problem
    flipped = {one: 1 - y for one, y in labels.items()}
    early = []
    for y in (labels, flipped):
        office = InProcess(CONFIG, relabelled(data, y)).run()
        before = ("hello", "opening", "welcome", "who", "block")
        early.append([item for item in told(office) if item[0].startswith("hub.") and item[3] in before])
    rounds = [[item for item in found if item[2] == 0] for found in early]
    assert len(rounds[0]) > 10
    assert rounds[0] == rounds[1]


def test_no_message_to_a_party_without_labels_has_a_label_or_a_digest_of_them(problem):
    data, labels, _ = problem
    office = InProcess(CONFIG, relabelled(data, labels)).run()
    secrets = []
    index = office.hubs["hub.bank"].handshake.sample_index
    vectors = [index.known.labels, index.train_labels, index.test_labels]
    vectors += [rows.labels for rows in data.values() if rows.labels is not None]
    for dtype in ("f8", "f4", "i8", "i4", "u1"):
        secrets += [np.asarray(one)[:60].astype(dtype).tobytes() for one in vectors]
    digest = index.known.digest(SECRET)
    secrets += [digest.encode(), bytes.fromhex(digest)]
    secrets += [rows.digest.encode() for rows in data.values() if rows.labels is not None]
    for *about, content in told(office):
        assert not [one for one in secrets if one in content], about
    # The scan finds them where they are.
    assert any(one in encode(m) for one in secrets for m in office.sent if m.receiver.startswith("client.bank."))
    others = [hub.handshake.sample_index for name, hub in office.hubs.items() if name != "hub.bank"]
    assert [index.meaning for index in others] == [None, None]


def tables(names):
    """Three silos with a column each, whose labels at the bank are these names."""
    held, rng = {}, np.random.default_rng(0)
    for silo in ("shop", "bank", "bureau"):
        ids = [str(one) for one in range(40)]
        labels = [names[one % len(names)] for one in range(40)] if silo == "bank" else None
        rows = RawRows(f"{silo}.csv", ids, {f"{silo} size": rng.normal(size=40).astype(np.float32)}, None)
        held[f"client.{silo}.c1"] = ClientData(ids, labels, table=rows)
    return held


TABLES = with_keys(
    RIDGE,
    data={"source": "files"},
    federation={"labels": "bank"},
    silos=[
        {"name": name, "clients": 1, "table": f"{name}.csv", "label": "outcome" if name == "bank" else None}
        for name in ("shop", "bank", "bureau")
    ],
    train={"rounds": 1, "batch_size": 8, "local_steps": 1},
)


def test_names_of_classes_stay_where_they_are():
    office = InProcess(TABLES, tables(["prompt payer", "late payer"])).run()
    assert {end.status for end in office.ends.values()} == {"finished"}
    assert not [about for *about, content in told(office) if b" payer" in content]


@pytest.mark.parametrize("loss", [None, "squared"])
def test_what_is_wrong_with_labels_is_not_sent_to_those_without(loss):
    config = TABLES.model_copy(update={"model": TABLES.model.model_copy(update={"loss": loss})})
    names = ["only payer"] if loss is None else ["prompt payer", "late payer"]
    office = InProcess(config, tables(names)).run()
    assert {end.status for end in office.ends.values()} == {"refused"}
    assert " payer'" in office.ends["hub.bank"].reason
    assert office.ends["hub.shop"].reason == "hub.bank stopped: the labels do not fit; its log says why"
    assert not [about for *about, content in told(office) if b" payer" in content]
    assert Job(config).where_labels_are("shop") == "not here: only silo 'bank' has them"
