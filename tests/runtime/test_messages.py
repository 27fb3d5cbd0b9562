"""Messages on the wire."""

from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from support.altering import MAGIC, headed, signed
from support.examples import num_examples
from tdcd.runtime.messages.messages import Checkpoint, Enrol, FiguresFacts, Group, LabelTarget, Part, ScoresFacts, Stop
from tdcd.runtime.messages.structure import Array, named
from tdcd.runtime.messages.validation import take, take_all
from tdcd.runtime.messages.wire import RejectedMessage, decode, encode

pytestmark = pytest.mark.quick

# The wire format

DTYPES = [np.dtype(name) for name in ("float64", "float32", "int64", "int32", "uint32", "int8", "uint8")]
ARRAYS = st.sampled_from(DTYPES).flatmap(lambda t: arrays_of.arrays(t, arrays_of.array_shapes(min_side=0)))
NAMED = st.dictionaries(st.text("abc/09 ä", max_size=9), ARRAYS.map(Array.of), max_size=3)
SHORT, ROUNDS = st.text(max_size=9), st.integers(-(2**40), 2**40)
HEADER = {"sender": SHORT, "receiver": SHORT, "round": ROUNDS, "run": SHORT}
SETTINGS = st.dictionaries(
    SHORT,
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | SHORT | st.just([]),
    max_size=4,
)
PARTS = st.builds(
    Part,
    **HEADER,
    flow=st.sampled_from(["phi", "block", "scores", "figures"]),
    digests=st.dictionaries(SHORT, SHORT, max_size=2),
    arrays=NAMED,
    group=st.none() | st.builds(Group, clients=st.just((0, 2)), rows=st.integers(0, 10)),
    facts=st.none() | st.builds(ScoresFacts, penalty=st.floats(0, 9)) | st.just(FiguresFacts(figures=None)),
)
MESSAGES = st.one_of(
    PARTS,
    st.builds(Stop, **HEADER, status=st.sampled_from(["finished", "refused"]), reason=SHORT, in_block=st.booleans()),
    st.builds(
        Enrol,
        **HEADER,
        protocol=st.integers(0, 12),
        session=SHORT,
        config=SETTINGS,
        ids=st.lists(SHORT, max_size=3),
        labels=ARRAYS.map(Array.of),
        target=st.none() | st.builds(LabelTarget, task=st.just("binary"), label_scale=st.floats(0, 9)),
        rows=st.just("0" * 32),
    ),
    st.builds(Checkpoint, **HEADER, block=NAMED, outbox=st.lists(PARTS, max_size=2).map(tuple)),
)


@given(MESSAGES)
@num_examples(200)
def test_what_was_encoded_is_decoded_and_bytes_depend_on_the_content_alone(message):
    data = encode(message)
    found = decode(data, sender=message.sender, receiver=message.receiver)
    assert type(found) is type(message)
    for name in ("kind", "sender", "receiver", "round", "run", "payload_bytes"):
        assert getattr(found, name) == getattr(message, name)
    assert len(found.all_arrays) == len(message.all_arrays)
    for one, other in zip(found.all_arrays, message.all_arrays, strict=True):
        assert (one.values.dtype, one.values.shape) == (other.values.dtype, other.values.shape)
        assert one.values.tobytes() == other.values.tobytes()
        assert one.values.flags.aligned
    assert encode(found) == data


def sent(values):
    message = Part("a", "b", flow="phi", arrays={"phi": Array.of(values)})
    return decode(encode(message), sender="a", receiver="b").arrays["phi"]


def test_an_array_may_lie_in_memory_in_any_way():
    square = np.arange(12.0).reshape(3, 4)
    for value in (square.T, square[:, ::2], square[::-1]):
        np.testing.assert_array_equal(sent(value).values, value)


def test_a_single_number_stays_one():
    assert sent(np.array(2.5)).values.shape == ()


def test_an_array_is_taken_only_as_expected():
    arrays = {"v": np.zeros((2, 3)), "nan": np.array([1, np.nan]), "inf": np.array([np.inf])}
    assert take(Array.of(arrays["v"]), "v", "float64", [2, None]) is arrays["v"]
    for name, dtype, shape, text in (
        ("w", "float64", [2], "it has no array 'w'"),
        ("v", "float32", [2, 3], r"'v' is float64 \[2, 3\], not float32 \[2, 3\]"),
        ("v", "float64", [3, None], r"'v' is float64 \[2, 3\], not float64 \[3, any\]"),
        ("v", "float64", [6], r"'v' is float64 \[2, 3\], not float64 \[6\]"),
        ("nan", "float64", [2], "'nan' has numbers that are not finite"),
        ("inf", "float64", [1], "'inf' has numbers that are not finite"),
    ):
        with pytest.raises(RejectedMessage, match=text):
            take_all(named(arrays), {name: (dtype, shape)})


# Bad bytes

ARRAYS_SENT = named({"phi": np.arange(20.0), "more": np.zeros((2, 2), np.int64)})
GENUINE = Part("a", "b", 3, "run", flow="phi", digests={"c": "x"}, arrays=ARRAYS_SENT)


def test_a_reason_that_quotes_half_a_character_is_told():
    message = Stop("a", "b", status="refused", reason="no such id: \ud800")
    assert decode(encode(message), sender="a", receiver="b").reason == "no such id: \\ud800"


def test_a_message_of_another_protocol_says_so():
    data = encode(GENUINE)
    for other in (signed(b"tdcd\x01\0\0\0" + data[24:]), signed(data[32:]), signed(b"{}"), signed(b"")):
        with pytest.raises(RejectedMessage, match=r"^it is not a message of protocol 12: run the same version of tdcd"):
            decode(other, sender="a", receiver="b")


FIELDS = {"kind": "part", "sender": "a", "receiver": "b", "flow": "phi"}


def fields(content=b"", **changes):
    return headed(FIELDS | changes, content)


def phi(code, shape, content=b""):
    return fields(content, arrays={"phi": [code, shape]})


def unordered():
    """The right fields, in another order than the protocol's."""
    return headed({"kind": "part", "receiver": "b", "sender": "a", "flow": "phi", "arrays": {"phi": ["<f8", [0]]}})


def twice():
    """A header in which a field comes twice."""
    text = msgspec.msgpack.encode(FIELDS | {"arrays": {"phi": ["<f8", [0]]}})
    return headed(bytes([text[0] + 1]) + text[1:] + msgspec.msgpack.encode("round") + b"\x01")


def repeated():
    """A block in which a name comes twice."""
    one = msgspec.msgpack.encode("x") + msgspec.msgpack.encode(["<f8", [0]])
    text = msgspec.msgpack.encode(FIELDS | {"arrays": {}})
    return headed(text[:-1] + b"\x82" + one + one)


DEEP = b"\x91" * 100_000
BAD = {
    "no header": MAGIC,
    "less than a length": MAGIC + b"\x08\0\0",
    "no fields": headed({}),
    "a list for a header": headed([]),
    "a number for a header": headed(7),
    "a header that is no MessagePack": headed(b"\xc1"),
    "a header with bytes after it": headed(msgspec.msgpack.encode(FIELDS | {"arrays": {"phi": ["<f8", [0]]}}) + b"\0"),
    "a header that lacks a field": headed({"kind": "part"}),
    "a flow that no round has": fields(flow="gossip"),
    "a header without a kind": headed({"sender": "a", "receiver": "b"}),
    "a header with another field": fields(arrays={"phi": ["<f8", [0]]}, more=1),
    "fields in another order": unordered(),
    "a field that has its default": fields(arrays={"phi": ["<f8", [0]]}, round=0),
    "a field twice": twice(),
    "an array twice": repeated(),
    "an unknown kind": fields(kind="gossip"),
    "a kind that is a number": fields(kind=1),
    "a round that is a text": fields(arrays={"phi": ["<f8", [0]]}, round="0"),
    "a round that is true": fields(arrays={"phi": ["<f8", [0]]}, round=True),
    "a round that is 1.5": fields(arrays={"phi": ["<f8", [0]]}, round=1.5),
    "an array that is a dict": fields(arrays={"phi": {}}),
    "no text at all": headed(b"\x81\xa4kind\xa2\xff\xfe"),
    "half a character": headed(
        msgspec.msgpack.encode(FIELDS).replace(b"\xa6sender\xa1a", b"\xa6sender\xa3\xed\xa0\x80")
    ),
    "a header of 2^63 bytes": MAGIC + (2**63).to_bytes(8, "little") + b"{}",
    "a header of 2^64 - 1 bytes": MAGIC + b"\xff" * 8 + b"{}",
    "a header of 4 GB": MAGIC + (2**32).to_bytes(8, "little") + b"{}",
    "a deep header": headed(DEEP),
    "a deep field": headed(b"\x81\xa3phi" + DEEP),
    "a list that is said to be long": headed(b"\x81\xa3phi\xdd\xff\xff\xff\xff"),
    "a text that is said to be long": headed(b"\x81\xa3phi\xdb\xff\xff\xff\xff"),
    "an extension": headed(b"\x81\xa3phi\xc7\x01\x05\x00"),
    "a deep setting": headed(
        {"kind": "align_hello", "sender": "a", "receiver": "b", "answer": "ids", "config": {"a": [[[]]]}}
    ),
    "an array of 10^15 numbers": phi("<f8", [10**15]),
    "an array of 10^48 numbers": phi("<f8", [10**12] * 4),
    "an array of 0 times 2^48 times 2^48 numbers": phi("<f8", [0, 2**48, 2**48]),
    "an array of 2^40 times 2^12 times 0 numbers": phi("<f8", [2**40, 2**12, 0]),
    "an array of fewer than 0 numbers": phi("<f8", [-1]),
    "an array of true numbers": phi("<f8", [True], bytes(8)),
    "an array of 1.0 numbers": phi("<f8", [1.0], bytes(8)),
    "an array of 100 axes": phi("<f8", [1] * 100, bytes(8)),
    "an array that is longer": phi("<f8", [2], bytes(8)),
    "an array that is shorter": phi("<f8", [1], bytes(16)),
    "an array without its padding": phi("|u1", [5], bytes(5)),
    "an array with something in its padding": phi("|u1", [5], bytes(5) + b"abc"),
    "an array of objects": phi("|O", [1], bytes(8)),
    "an array of big-endian numbers": phi(">f8", [1], bytes(8)),
    "an array of unknown numbers": phi("F64", [1], bytes(8)),
    "an array that is a number": fields(arrays={"phi": 1}),
    "an array described in one word": fields(arrays={"phi": ["<f8"]}),
    "an array described in three words": fields(arrays={"phi": ["<f8", [0], 1]}),
    "an array that safetensors could not name": fields(bytes(8), arrays={"__metadata__": ["<f8", [1]]}),
    "an array named by a control character": fields(bytes(8), arrays={"a\nb": ["<f8", [1]]}),
    "an array with a long name": fields(bytes(8), arrays={201 * "a": ["<f8", [1]]}),
    "an array named by a number": fields(bytes(8), arrays={1: ["<f8", [1]]}),
    "facts of no flow": fields(facts={"type": "gossip"}),
    "a part as an earlier version kept it": headed(
        {"kind": "phi_part", "sender": "a", "receiver": "b", "received": {}, "arrays": {"phi": ["<f8", [0]]}}
    ),
    "bytes after the arrays": phi("<f8", [0], b"more"),
}


def test_what_is_bad_differs_from_what_is_good_in_one_thing():
    for good in (phi("<f8", [0]), phi("<f8", [1], bytes(8)), phi("|u1", [5], bytes(8))):
        assert decode(signed(good), sender="a", receiver="b").kind == "phi"
    good = fields(bytes(8), arrays={"weight": ["<f8", [1]]}, facts={"type": "model"})
    assert decode(signed(good), sender="a", receiver="b").facts is not None


@pytest.mark.parametrize("name", BAD)
def test_a_sender_that_speaks_nonsense_is_refused(name):
    with pytest.raises(RejectedMessage, match=r"^it is not a message: .{10,}"):
        decode(signed(BAD[name]), sender="a", receiver="b")


def test_the_header_is_compared_with_the_link():
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
