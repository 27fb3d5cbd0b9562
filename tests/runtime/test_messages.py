"""Messages on the wire, and what the parties say to whom: bytes as in the ledger, and never a row of features."""

import hashlib
import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as sized
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from in_process import InProcess
from test_machines import RIDGE, with_keys

from tdcd.config.resolve import plan
from tdcd.core.ledger import Traffic
from tdcd.core.schedule import batch_ids
from tdcd.runtime.process.client_data import shards
from tdcd.runtime.protocol.job import Job
from tdcd.runtime.protocol.structure import Message
from tdcd.runtime.protocol.wire import RejectedMessage, decode, encode

# The wire format

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
DTYPES = [np.dtype(name) for name in ("float64", "float32", "int64", "int32", "uint8")]
ARRAYS = st.dictionaries(
    st.text(max_size=9).filter(str.isprintable),
    st.sampled_from(DTYPES).flatmap(lambda t: arrays_of.arrays(t, arrays_of.array_shapes(min_side=0))),
    max_size=3,
)
MESSAGES = st.builds(
    Message,
    kind=st.text(max_size=9),
    sender=st.text(max_size=9),
    receiver=st.text(max_size=9),
    round=st.integers(-(2**40), 2**40),
    run=st.text(max_size=9),
    note=st.dictionaries(st.text(max_size=5), JSON, max_size=3),
    arrays=ARRAYS,
)


@given(MESSAGES)
@sized(max_examples=200)
def test_what_was_encoded_is_decoded_and_bytes_depend_on_the_content_alone(message):
    data = encode(message)
    found = decode(data, sender=message.sender, receiver=message.receiver)
    for name in ("kind", "sender", "receiver", "round", "run", "note"):
        assert getattr(found, name) == getattr(message, name)
    assert set(found.arrays) == set(message.arrays)
    for name, value in message.arrays.items():
        assert (found.arrays[name].dtype, found.arrays[name].shape) == (value.dtype, value.shape)
        assert found.arrays[name].tobytes() == value.tobytes()
    assert found.payload_bytes == message.payload_bytes
    assert encode(found) == data


def test_an_array_may_lie_in_memory_in_any_way():
    square = np.arange(12.0).reshape(3, 4)
    for value in (square.T, square[:, ::2], square[::-1]):
        found = decode(encode(Message("x", "a", "b", arrays={"v": value})), sender="a", receiver="b")
        np.testing.assert_array_equal(found.arrays["v"], value)


def test_a_single_number_stays_one():
    found = decode(encode(Message("x", "a", "b", arrays={"v": np.array(2.5)})), sender="a", receiver="b")
    assert found.arrays["v"].shape == ()


@given(JSON)
def test_packed_values_are_unpacked(value):
    message = Message("x", "a", "b", arrays={"value": pack(value)})
    assert unpack(decode(encode(message), sender="a", receiver="b"), "value") == value


def test_an_array_is_taken_only_as_expected():
    arrays = {"v": np.zeros((2, 3)), "nan": np.array([1, np.nan]), "inf": np.array([np.inf])}
    message = Message("x", "a", "b", arrays=arrays)
    assert array(message, "v", "float64", [2, None]) is arrays["v"]
    for name, dtype, shape, text in (
        ("w", "float64", [2], "it has no array 'w'"),
        ("v", "float32", [2, 3], r"'v' is float64 \[2, 3\], not float32 \[2, 3\]"),
        ("v", "float64", [3, None], r"'v' is float64 \[2, 3\], not float64 \[3, any\]"),
        ("v", "float64", [6], r"'v' is float64 \[2, 3\], not float64 \[6\]"),
        ("nan", "float64", [2], "'nan' has numbers that are not finite"),
        ("inf", "float64", [1], "'inf' has numbers that are not finite"),
    ):
        with pytest.raises(RejectedMessage, match=text):
            array(message, name, dtype, shape)


# Bad bytes

GENUINE = Message("phi", "a", "b", 3, "run", {"n": 1}, {"phi": np.arange(20.0), "more": np.zeros((2, 2), np.int64)})


def test_a_reason_that_quotes_half_a_character_is_told():
    message = Message("stop", "a", "b", note={"reason": "no such id: \ud800", "in_block": False})
    found = decode(encode(message), sender="a", receiver="b")
    assert found.note == {"reason": "no such id: \\ud800", "in_block": False}


def signed(body):
    """A body with the digest that fits it: what a party that speaks the protocol, but lies, can send."""
    return hashlib.blake2b(body, digest_size=16).digest() + body


def headed(envelope, content=b""):
    """A body with any envelope."""
    text = envelope if isinstance(envelope, bytes) else json.dumps(envelope).encode()
    return len(text).to_bytes(8, "little") + text + bytes(-len(text) % 8) + content


ENVELOPE = {"run": "", "kind": "phi", "round": 0, "sender": "a", "receiver": "b", "note": {}, "arrays": []}


def enveloped(content=b"", **changes):
    return headed(ENVELOPE | changes, content)


BAD = {
    "nothing": b"",
    "less than a length": b"\x08\0\0",
    "no fields": headed({}),
    "a list for an envelope": headed([]),
    "a number for an envelope": headed(7),
    "an envelope that is no JSON": headed(b"{"),
    "an envelope that lacks a field": headed({"run": ""}),
    "an envelope with another field": enveloped(more=1),
    "a round that is a text": enveloped(round="0"),
    "a round that is true": enveloped(round=True),
    "a note that is a list": enveloped(note=[]),
    "arrays that are a dict": enveloped(arrays={}),
    "no text at all": headed(b"\xff\xfe"),
    "an envelope of 2^63 bytes": (2**63).to_bytes(8, "little") + b"{}",
    "an envelope of 2^64 - 1 bytes": b"\xff" * 8 + b"{}",
    "an envelope of 4 GB": (2**32).to_bytes(8, "little") + b"{}",
    "a deep envelope": headed(b"[" * 100_000),
    "a deep note": headed(b'{"note": ' + b'{"a":' * 100_000 + b"1"),
    "a number of a million digits": headed(b'{"round": ' + b"9" * 1_000_000 + b"}"),
    "an array of 10^15 numbers": enveloped(arrays=[["x", "<f8", [10**15]]]),
    "an array of 10^48 numbers": enveloped(arrays=[["x", "<f8", [10**12] * 4]]),
    "an array of 0 times 2^48 times 2^48 numbers": enveloped(arrays=[["x", "<f8", [0, 2**48, 2**48]]]),
    "an array of 2^48 times 2^12 times 0 numbers": enveloped(arrays=[["x", "<f8", [2**48, 2**12, 0]]]),
    "an array named by half a character": enveloped(bytes(8), arrays=[["\ud800", "<f8", [1]]]),
    "an array that safetensors could not name": enveloped(bytes(8), arrays=[["__metadata__", "<f8", [1]]]),
    "an envelope of many words": enveloped(note={"a": ["b"] * 2**18}),
    "a note of depth 40": enveloped(note={"a": json.loads("[" * 40 + "]" * 40)}),
    "a note of depth 990": enveloped(note={"a": json.loads("[" * 900 + "]" * 900)}),
    "an array of 0 times 10^30 numbers": enveloped(arrays=[["x", "<f8", [0, 10**30]]]),
    "an array of fewer than 0 numbers": enveloped(arrays=[["x", "<f8", [-1]]]),
    "an array of true numbers": enveloped(bytes(8), arrays=[["x", "<f8", [True]]]),
    "an array of 1.0 numbers": enveloped(bytes(8), arrays=[["x", "<f8", [1.0]]]),
    "an array of 100 axes": enveloped(bytes(8), arrays=[["x", "<f8", [1] * 100]]),
    "an array that is longer": enveloped(bytes(8), arrays=[["x", "<f8", [2]]]),
    "an array that is shorter": enveloped(bytes(16), arrays=[["x", "<f8", [1]]]),
    "an array without its padding": enveloped(bytes(5), arrays=[["x", "|u1", [5]]]),
    "an array of objects": enveloped(bytes(8), arrays=[["x", "|O", [1]]]),
    "an array of big-endian numbers": enveloped(bytes(8), arrays=[["x", ">f8", [1]]]),
    "an array of unknown numbers": enveloped(bytes(8), arrays=[["x", "F64", [1]]]),
    "an array without a name": enveloped(bytes(8), arrays=[[None, "<f8", [1]]]),
    "an array that is a number": enveloped(arrays=[1]),
    "an array described in two words": enveloped(bytes(8), arrays=[["x", "<f8"]]),
    "an array twice": enveloped(bytes(16), arrays=[["x", "<f8", [1]], ["x", "<f8", [1]]]),
    "bytes after the arrays": enveloped(b"more"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_sender_that_speaks_nonsense_is_refused(name):
    with pytest.raises(RejectedMessage, match=r"^it is not a message: .{10,}"):
        decode(signed(BAD[name]), sender="a", receiver="b")


def test_the_envelope_is_compared_with_the_link():
    data = encode(GENUINE)
    with pytest.raises(RejectedMessage, match=r"^it says that it is from 'a'$"):
        decode(data, sender="c", receiver="b")
    with pytest.raises(RejectedMessage, match=r"^it was meant for 'b'$"):
        decode(data, sender="a", receiver="c")
    for other in (data[:-1], data + b"x", data[:16] + data[17:], data[1:], b"", b"x"):
        with pytest.raises(RejectedMessage, match=r"^its content does not match its digest$"):
            decode(other, sender="a", receiver="b")


def mutated(rng, data):
    """Bits flipped, an end cut off, a piece lost or repeated, or random bytes from somewhere on."""
    changed = bytearray(data)
    how = rng.integers(5)
    if how == 0:
        for place in rng.integers(len(data) * 8, size=rng.integers(1, 9)):
            changed[place // 8] ^= 1 << (place % 8)
    elif how == 1:
        del changed[rng.integers(len(data)) :]
    elif how == 2:
        start = rng.integers(len(data))
        del changed[start : start + rng.integers(1, 20)]
    elif how == 3:
        start = rng.integers(len(data) - 20)
        changed[start:start] = changed[start : start + rng.integers(1, 20)]
    else:
        start = rng.integers(len(data))
        changed[start:] = rng.bytes(rng.integers(1, 2 * len(data)))
    return bytes(changed)


def test_no_mutated_message_is_accepted():
    rng, data = np.random.default_rng(0), encode(GENUINE)
    for _ in range(10_000):
        changed = mutated(rng, data)
        if changed != data:
            with pytest.raises(RejectedMessage):
                decode(changed, sender="a", receiver="b")


def test_no_mutation_with_a_digest_that_fits_raises_anything_but_a_refusal():
    """A liar's bytes may happen to be a message; they never are an error that would end a process."""
    rng, body = np.random.default_rng(1), encode(GENUINE)[16:]
    outcomes = Counter()
    for _ in range(10_000):
        try:
            found = decode(signed(mutated(rng, body)), sender="a", receiver="b")
            outcomes[found.sender, found.receiver] += 1
        except RejectedMessage:
            outcomes["refused"] += 1
    assert set(outcomes) == {"refused", ("a", "b")}
    assert outcomes["refused"] > 5000


# What is said in a run

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


def role(party):
    return party.partition(".")[0]


def test_the_ledger_counts_what_was_sent(office):
    counted = {"block", "begin", "steps", "phi"}
    for history in office.history.values():
        for record in history:
            sent, messages = Counter(), Counter()
            for message in office.sent:
                if message.kind in counted and message.round < record.round:
                    link = f"{role(message.sender)}_to_{role(message.receiver)}"
                    sent[link] += message.payload_bytes
                    messages[link] += 1
            assert record.bytes == Traffic(**sent)
            assert record.messages == Traffic(**messages)
    assert record.bytes.client_to_hub > 0


def test_kinds_of_message_and_who_may_say_them(office):
    kinds = {
        ("hub", "client"): {"who", "welcome", "prepare", "begin", "steps", "evaluate", "stop"},
        ("client", "hub"): {"hello", "summary", "ready", "phi", "block", "scores", "bye"},
        ("hub", "hub"): {"hello", "ready", "phi", "scores", "model", "want", "gone", "stop", "bye"},
    }
    pairs = set()
    for message in office.sent:
        assert message.kind in kinds[role(message.sender), role(message.receiver)]
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
    told = {(m.sender, m.round): m.arrays["phi"] for m in office.sent if m.kind == "phi" and role(m.sender) == "hub"}
    train_ids = np.array(sample_index.ids)[~sample_index.held_out]
    checked = 0
    for message in office.sent:
        if message.kind != "steps":
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
        np.testing.assert_allclose(message.arrays["phi_others"], others[held], rtol=1e-5)
        assert set(message.arrays) == {"phi_others"}
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
        message = Message("block", long, long, 10**9, "f" * 32, arrays=arrays)
        assert message.payload_bytes <= len(encode(message)) <= 1.1 * message.payload_bytes


def test_every_hub_ends_with_the_same_history(office):
    histories = [[record.to_json() for record in history] for history in office.history.values()]
    assert len(histories) == len(Job(next(iter(office.hubs.values())).job.config).hubs)
    assert all(history == histories[0] for history in histories)
