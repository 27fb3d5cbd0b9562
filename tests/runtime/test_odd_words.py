"""Messages with fields that are not as they should be: no word ends a process."""

import json

import msgspec
import numpy as np
import pytest
from test_hostile import C1, CONFIG, HUB, run

from support.altering import arrays_at, content_fields, with_array, with_fields
from support.in_process import SECRET, InProcess
from support.simulated import RIDGE, with_keys
from tdcd.config.resolve import plan
from tdcd.runtime.compute.client_data import ClientData, shards
from tdcd.runtime.job import Job
from tdcd.runtime.machine.client import Client
from tdcd.runtime.machine.hub import Hub
from tdcd.runtime.messages.wire import RejectedMessage, decode, encode
from tdcd.tables.rows import RawRows

ODD = [None, [], {}, -1, 2**63, "x", True, 1.5, [[1]], {"a": 1}, [-1], [None], b"x", [2**63], {1: 2}, [["<f8", [1]]]]


def table_data():
    """Two silos whose clients hold tables rather than arrays that are ready."""
    rng, held = np.random.default_rng(0), {}
    for silo, column in (("clinic", "age"), ("lab", "level")):
        for name, ids in (("c1", range(20)), ("c2", range(20, 45))):
            texts = [str(one) for one in ids]
            labels = np.array([one % 7 for one in ids], float)
            rows = RawRows(f"{name}.csv", texts, {column: rng.normal(size=len(texts)).astype(np.float32)}, labels)
            held[f"client.{silo}.{name}"] = ClientData(texts, labels, table=rows)
    return held


TABLES = with_keys(
    RIDGE,
    data={"source": "files"},
    silos=[{"name": name, "clients": 2, "table": f"{name}.csv", "label": "y"} for name in ("clinic", "lab")],
    train={"rounds": 1, "batch_size": 8, "local_steps": 1},
)


class Recorded(InProcess):
    """Remembers what each party heard, in order."""

    def __init__(self, config, data):
        super().__init__(config, data, seed=1)
        self.config, self.heard = config, {name: [] for name in self.machines}
        for name, machine in self.machines.items():
            machine.receive = self.listening(name, machine.receive)

    def listening(self, name, receive):
        def heard(message):
            self.heard[name].append(message)
            return receive(message)

        return heard

    def fresh(self, party):
        if party in self.hubs:
            return Hub(Job(self.config), 0, secret=SECRET, nonce="nonce 0")
        return Client(Job(self.config), 0, party, self.data[party])


@pytest.fixture(scope="module")
def recorded():
    """Runs from tables and from arrays that are ready."""
    runs = [Recorded(TABLES, table_data()), Recorded(CONFIG, shards(plan(CONFIG)))]
    for one in runs:
        run(one)
        assert {end.status for end in one.ends.values()} == {"finished"}
    return runs


def odd_versions(message):
    """The bytes of the message with one of its fields replaced by something else, or left out."""
    for name in ("round", "run", *content_fields(message)):
        value = getattr(message, name)
        for odd in ODD:
            yield with_fields(message, **{name: odd})
            if isinstance(value, str) and value.startswith("{"):
                yield with_fields(message, **{name: json.dumps(odd, default=str)})
            for key in value if isinstance(value, dict) else ():
                yield with_fields(message, **{name: {**msgspec.to_builtins(value, builtin_types=(bytes,)), key: odd}})
    for text in ("", "{", "[" * 100_000, json.dumps({"columns": "\ud800"})):
        for name in ("summary", "preparation"):
            if hasattr(message, name):
                yield with_fields(message, **{name: text})
    for path, array in arrays_at(message).items():
        yield encode(with_array(message, path, None))
        for shape in ((0,), (1,), (2, 0), (3, 1)):
            yield encode(with_array(message, path, np.ones(shape, array.values.dtype)))


def crashes(recorded, party, kind, sender=""):
    """Errors that would end the party's process, when one message of this kind is odd and the others are genuine."""
    found, tried = set(), 0
    for one in recorded:
        heard = one.heard[party]
        place = next((i for i, m in enumerate(heard) if m.kind == kind and m.sender.startswith(sender)), None)
        for odd in [] if place is None else odd_versions(heard[place]):
            tried += 1
            machine = one.fresh(party)
            try:
                genuine = heard[place]
                accepted = decode(odd, sender=genuine.sender, receiver=genuine.receiver)
            except RejectedMessage:
                continue
            for message in (*heard[:place], accepted, *heard[place : place + 12]):
                try:
                    machine.receive(message)
                except RejectedMessage:
                    continue
                except Exception as error:
                    found.add(f"{type(error).__name__}: {str(error)[:60]}")
                    break
    assert tried
    return found


@pytest.mark.parametrize(
    ("party", "kind", "sender"),
    [
        (HUB, "enrol", "client"),
        (HUB, "summary", "client"),
        (HUB, "ready", "client"),
        (HUB, "phi", "client"),
        (HUB, "block", "client"),
        (HUB, "scores", "client"),
        (HUB, "hello", "hub"),
        (HUB, "opening", "hub"),
        (HUB, "phi", "hub"),
        (HUB, "scores", "hub"),
        (HUB, "want", "hub"),
        (HUB, "stop", "hub"),
        (C1, "welcome", "hub"),
        (C1, "prepare", "hub"),
        (C1, "block", "hub"),
        (C1, "received", "hub"),
        (C1, "evaluated", "hub"),
        (C1, "stop", "hub"),
    ],
)
def test_odd_words_end_no_process(recorded, party, kind, sender):
    assert crashes(recorded, party, kind, sender) == set()
