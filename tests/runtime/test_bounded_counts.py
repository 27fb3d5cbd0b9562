"""Small messages whose counts ask for gigabytes: refused with a reason before anything of that size is made."""

import json
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from support.in_process import InProcess
from support.simulated import RIDGE, with_keys
from tdcd.alignment import AlignmentError
from tdcd.config.resolve import plan
from tdcd.prediction.scores import SiloScores
from tdcd.runtime.compute.client_data import ClientData, shards
from tdcd.runtime.job import Job
from tdcd.runtime.machine.hub import Hub
from tdcd.runtime.messages.messages import Enrol, Part, Prepare, Ready, Welcome
from tdcd.runtime.messages.structure import Array
from tdcd.runtime.messages.wire import RejectedMessage, decode, encode
from tdcd.runtime.process.predict import ModelOf, PredictHub
from tdcd.tables.rows import Category, RawRows

CONFIG = with_keys(RIDGE, train={"rounds": 3})
C1, HUB = "client.clinic.c1", "hub.clinic"
MUCH = 100 * 2**20
"""Bytes: more than any of these federations needs, and far less than the messages ask for."""


@pytest.fixture(scope="module")
def data():
    return shards(plan(CONFIG))


class Stopped(InProcess):
    """Goes on until somebody is about to get a message of one kind; that one stays with the test."""

    def until(self, kind, receiver):
        self.start()
        while True:
            for pair, queue in self.queues.items():
                for sent in [*queue] if pair[1] == receiver else ():
                    message = decode(sent, sender=pair[0], receiver=receiver)
                    if isinstance(message, kind):
                        queue.remove(sent)
                        return self.machines[receiver], message
            assert self.deliver()


def said_to(machine, message):
    """What a machine does with a message, as it came over the wire, and the most memory that it took meanwhile."""
    wire = encode(message)
    tracemalloc.start()
    try:
        out = machine.receive(decode(wire, sender=message.sender, receiver=message.receiver))
    except RejectedMessage as refusal:
        return str(refusal), tracemalloc.get_traced_memory()[1]
    else:
        reason = machine.reason if isinstance(machine, Hub) else ""
        return reason or out, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("config", [CONFIG, with_keys(RIDGE, silos=[{"name": "clinic", "clients": 2}])])
def test_samples_that_a_hub_only_claims(config):
    client, welcome = Stopped(config, shards(plan(config))).until(Welcome, C1)
    said, most = said_to(client, welcome.replace(num_samples=2**31 - 1))
    assert (
        "'num_samples': the scores of 2147483647 samples with 1 outputs each are more than a message may have" in said
    )
    assert most < MUCH
    assert said_to(client, welcome)[0][0].kind == "ready"


def test_outputs_that_a_hub_only_claims(data):
    client, welcome = Stopped(CONFIG, data).until(Welcome, C1)
    said, most = said_to(client, welcome.replace(num_samples=60_000, num_outputs=60_000))
    assert "the scores of 60000 samples with 60000 outputs each" in said
    assert most < MUCH


@pytest.mark.parametrize("block", ["linear", "mlp"])
def test_features_that_a_client_only_claims(block):
    config = with_keys(RIDGE, model={"block": block})
    hub, ready = Stopped(config, shards(plan(config))).until(Ready, HUB)
    for shape in ((2**30,), (2**40,), (2**40,) * 32, (2**20, 2**10)):
        said, most = said_to(hub, ready.replace(feature_shape=shape))
        assert said.startswith(f"'feature_shape': a block for features {[*shape]} and 1 outputs is more than a message")
        assert most < MUCH
    assert said_to(hub, ready)[0] == []


def test_one_long_label_among_many(data):
    """An array of texts takes the room of its longest one for each."""
    hub, enrol = Stopped(CONFIG, data).until(Enrol, HUB)
    names = ["a"] * (len(enrol.ids) - 1) + ["b" * 2**20]
    said, most = said_to(hub, enrol.replace(labels=None, target=None, label_names=names))
    assert said == f"a label of {enrol.sender} is a text of 1048576 characters: 200 are allowed"
    assert most < MUCH


def test_a_class_of_a_large_number(data):
    """The scores of all samples would be a column for each class."""
    many = 20_000
    target = {"task": "multiclass", "label_scale": 1.0, "label_mean": 0.0}
    config = with_keys(RIDGE, model={"loss": "softmax"}, silos=[{"name": "clinic", "clients": 1}, {"name": "lab"}])
    ids, labels = [str(index) for index in range(many)], np.zeros(many)
    labels[-1] = 99_999
    rows = ClientData(ids, labels, np.zeros((many, 2)), target=target)
    hub, enrol = Stopped(config, {C1: rows, "client.lab.c1": replace(rows)}).until(Enrol, HUB)
    said, most = said_to(hub, enrol)
    assert said.startswith("the scores of 20000 samples with 100000 outputs each are more than a message may have")
    assert most < MUCH


def table(levels=3, rows=4000):
    codes = np.arange(rows, dtype=np.int32) % levels
    features = {"town": Category(codes, tuple(f"t{one}" for one in range(levels))), "age": np.arange(rows, dtype=float)}
    return RawRows("made.csv", [str(row) for row in range(rows)], features, np.arange(rows, dtype=np.float64))


def preparing():
    rows = table()
    config = with_keys(RIDGE, silos=[{"name": "clinic", "clients": 1}])
    data = {C1: ClientData([*rows.ids], rows.labels, table=rows)}
    return Stopped(config, data).until(Prepare, C1)


@pytest.mark.parametrize("what", ["levels", "cuts", "columns"])
def test_a_preparation_with_more_features_than_there_can_be(what):
    client, prepare = preparing()
    parts = json.loads(prepare.preparation)
    if what == "levels":
        parts["town"]["levels"] = [f"t{one}" for one in range(100_000)]
    elif what == "cuts":
        parts["age"] = {"cuts": [float(one) for one in range(100_000)], "shares": [0.0] * 100_001, "indicator": False}
    else:
        parts |= {f"age {one}": parts["age"] for one in range(20_000)}
    said, most = said_to(client, prepare.replace(preparation=json.dumps(parts)))
    reason = "it is of other columns" if what == "columns" else "would be more than 1002 features"
    assert said.startswith("'preparation' does not fit the rows: ")
    assert reason in said
    assert most < 2 * MUCH
    assert said_to(client, prepare)[0][0].kind == "ready"


def test_many_arrays_of_no_numbers(data):
    """Each takes a few bytes on the wire, and a hundred times as many in memory."""
    hub, answer = Stopped(CONFIG, data).until(Part, HUB)
    nothing = {f"{one:x}": Array.of(np.empty(0, np.float32)) for one in range(20_000)}
    said, _ = said_to(hub, answer.replace(arrays=nothing))
    assert "it is not a message: Expected `object` of length <= 10000" in said


def test_a_sample_that_a_hub_asks_for_often():
    """A peer that predicts gets a row of scores for each that it names."""
    config = with_keys(RIDGE)
    ids, phi = [str(row) for row in range(50)], np.ones((50, 1000), np.float32)
    hubs = [PredictHub(Job(config), silo, SiloScores(ids, phi), ModelOf("run", "finished")) for silo in (0, 1)]
    hello = hubs[1].start()[0]
    often = np.repeat(hello.points.values[:1], 100_000, axis=0)
    with pytest.raises(AlignmentError, match=r"the set of hub\..* that it sent holds the same id twice"):
        hubs[0].receive(hello.replace(points=Array.of(often)))
    assert hubs[0].receive(hello)[0].kind == "predict_returned"
