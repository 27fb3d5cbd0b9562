"""Parties that lie: what they say is refused with a reason, and the run ends with the history that it should have."""

import re
from collections import Counter

import numpy as np
import pytest

from support.altering import arrays_at, with_array, with_fields
from support.in_process import InProcess
from support.simulated import RIDGE, with_keys
from tdcd.config.resolve import plan
from tdcd.runtime.compute.client_data import shards
from tdcd.runtime.machine.hub import Hub
from tdcd.runtime.messages.messages import (
    Checkpoint,
    ColumnSummary,
    Hello,
    ModelFacts,
    Part,
    Ready,
    Stop,
    Want,
    Who,
)
from tdcd.runtime.messages.structure import Array, Message
from tdcd.runtime.messages.wire import RejectedMessage, decode, encode

pytestmark = pytest.mark.quick

CONFIG = with_keys(RIDGE, train={"rounds": 3})
"""Every kind of message but ``model`` is sent in it."""
C1, C2, HUB, LAB = "client.clinic.c1", "client.clinic.c2", "hub.clinic", "hub.lab"


class Attacked(InProcess):
    """Ahead of every genuine message comes, once, what ``attack(message)`` makes of it, over any link."""

    def __init__(self, config, data, attack, seed=3):
        super().__init__(config, data, seed)
        self.attack, self.attacked = attack, set()
        self.outcomes = Counter()
        """How hostile messages fared, by the kind that they were made of and the reason for their refusal."""

    def act(self, party, instructions):
        for instruction in instructions:
            if isinstance(instruction, Message):
                about = (instruction.kind, instruction.sender, instruction.receiver, instruction.round)
                if about not in self.attacked:
                    self.attacked.add(about)
                    for sender, receiver, data in self.attack(instruction):
                        self.queues[sender, receiver].append((instruction.kind, data))
            super().act(party, [instruction])

    def deliver(self):
        waiting = [pair for pair, queue in self.queues.items() if queue]
        if not waiting:
            return False
        sender, receiver = self.rng.choice(waiting)
        data = self.queues[sender, receiver].popleft()
        kind, data = ("", data) if isinstance(data, bytes) else data
        machine = self.machines[receiver]
        is_over = (machine.status if isinstance(machine, Hub) else machine.outcome) is not None
        try:
            self.act(receiver, machine.receive(decode(data, sender=sender, receiver=receiver)))
            outcome = "accepted"
        except RejectedMessage as refusal:
            outcome = str(refusal)
        if not kind and outcome != "accepted":
            self.refused[f"{sender} to {receiver}: {outcome}"] += 1
        elif kind and not is_over:
            self.outcomes[kind, outcome] += 1
        return True


@pytest.fixture(scope="module")
def data():
    return shards(plan(CONFIG))


@pytest.fixture(scope="module")
def reference(data):
    return InProcess(CONFIG, data).run().history


def texts(office):
    return {text for _, text in office.outcomes}


def kinds(office):
    return {kind for kind, _ in office.outcomes}


def along(message, data):
    """Bytes over the message's own link."""
    return [(message.sender, message.receiver, data)]


def altered(message, **changes):
    return along(message, encode(message.replace(**changes)))


def misspelt(message, **changes):
    return along(message, with_fields(message, **changes))


# Every message, at every party

CLIENT_KINDS = {"enrol", "ready", "phi", "block", "scores"}
HUB_KINDS = {"who", "welcome", "block", "received", "evaluated", "stop"}


def forged_sender(message):
    """A party speaks in the name of another one, over its own link."""
    return [(one, message.receiver, encode(message)) for one in (C1, C2, HUB, LAB) if one != message.sender]


def readdressed(message):
    """What was said to one party is carried to another."""
    return [(message.sender, one, encode(message)) for one in (C1, C2, HUB, LAB) if one != message.receiver]


def no_business(message):
    """A client turns to another silo's hub, under its own name."""
    if message.sender != C1:
        return []
    return [(C1, LAB, encode(message.to(LAB)))]


def unknown_kind(message):
    return misspelt(message, kind="gossip")


def unknown_field(message):
    return misspelt(message, gossip=1)


def round_in_words(message):
    return misspelt(message, round="first")


def truncated(message):
    data = encode(message)
    return [step for size in (0, 7, 16, 30, len(data) - 1) for step in along(message, data[:size])]


def flipped(message):
    data = bytearray(encode(message))
    data[len(data) // 2] ^= 4
    return along(message, bytes(data))


def garbage(message):
    return along(message, np.random.default_rng(message.round).bytes(300))


ALWAYS_REFUSED = {
    forged_sender: r"it says that it is from '.*'",
    readdressed: r"it was meant for '.*'",
    no_business: r"its sender has no business here",
    unknown_kind: r"it is not a message: Invalid value 'gossip' - at `\$.kind`",
    unknown_field: r"it is not a message: Object contains unknown field `gossip`",
    round_in_words: r"it is not a message: Expected `int`, got `str` - at `\$.round`",
    truncated: r"its content does not match its digest",
    flipped: r"its content does not match its digest",
    garbage: r"its content does not match its digest",
}


def run(office):
    """Deliver until nobody has anything to say."""
    office.start()
    for _ in range(20_000):
        if not office.deliver():
            return office
    raise AssertionError("the parties never come to an end")


def assert_same_run(office, reference):
    assert {end.status for end in office.ends.values()} == {"finished"}
    assert office.history == reference


@pytest.mark.parametrize("attack", ALWAYS_REFUSED, ids=lambda attack: attack.__name__)
def test_is_refused_whatever_the_message(data, reference, attack):
    office = run(Attacked(CONFIG, data, attack))
    assert_same_run(office, reference)
    assert not office.refused
    assert kinds(office) >= (CLIENT_KINDS if attack is no_business else CLIENT_KINDS | HUB_KINDS)
    for text in texts(office):
        assert re.fullmatch(ALWAYS_REFUSED[attack], text), text


# Arrays that are not as they should be


def without(value):
    return None


def longer(value):
    return np.concatenate([value, value[:1]])


def deeper(value):
    return value[None]


def other_numbers(value):
    return value.astype(np.float32 if value.dtype == np.float64 else np.float64)


def not_a_number(value):
    return np.where(np.arange(value.size).reshape(value.shape) == value.size - 1, np.nan, value)


def infinite(value):
    return np.where(np.arange(value.size).reshape(value.shape) == 0, -np.inf, value)


WRONG_ARRAYS = {
    without: r"it has no array '[\w/.]+'|it is not a message: Expected `array`, got `None` - at `\$\.\w+`"
    r"|it must have either 'labels' or 'label_names'",
    longer: r"'[\w.]+' is \w+ \[.*\], not \w+ \[.*\]",
    deeper: r"'[\w.]+' is \w+ \[1, .*\], not \w+ \[.*\]",
    other_numbers: r"'[\w.]+' is float(32|64) \[.*\], not \w+ \[.*\]",
    not_a_number: r"'[\w.]+' has numbers that are not finite",
    infinite: r"'[\w.]+' has numbers that are not finite",
}
OPTIONAL = {"held_out"}
PROOF_KINDS = {"witness", "witness_scores", "residual", "gradient", "norm"}
"""Of the certificate of the last line."""


@pytest.mark.parametrize("wrong", WRONG_ARRAYS, ids=lambda wrong: wrong.__name__)
def test_a_wrong_array_is_refused(data, reference, wrong):
    def attack(message):
        out = []
        for path, array in arrays_at(message).items():
            value = array.values
            is_number = value.dtype.kind == "f" or wrong not in (not_a_number, infinite)
            if value.size and is_number and not (wrong is without and path[0] in OPTIONAL):
                out += along(message, encode(with_array(message, path, wrong(value))))
        return out

    office = run(Attacked(CONFIG, data, attack))
    assert_same_run(office, reference)
    assert not office.refused
    with_numbers = {
        "welcome",
        "enrol",
        "block",
        "received",
        "evaluated",
        "phi",
        "scores",
    } | PROOF_KINDS - {"norm"}
    assert kinds(office) == with_numbers
    for text in texts(office):
        assert re.fullmatch(WRONG_ARRAYS[wrong], text), text


@pytest.mark.parametrize("config", [None, [], 7, {"seed": [1]}, {"seed": {"a": 1}}, {"seed": b"0"}, {1: 1}], ids=str)
def test_settings_that_are_no_table_of_settings_are_refused(data, reference, config):
    def attack(message):
        return misspelt(message, config=config) if message.kind in ("hello", "enrol") else []

    office = run(Attacked(CONFIG, data, attack))
    assert_same_run(office, reference)
    assert kinds(office) == {"hello", "enrol"}
    for text in texts(office):
        assert re.fullmatch(r"it is not a message: Expected .* - at .*`\$\.config.*`", text), text


def test_scores_of_rows_that_a_client_does_not_have_are_refused():
    config = with_keys(RIDGE, evaluate={"holdout": 0.0}, train={"rounds": 1})

    def attack(message):
        if message.kind != "scores" or message.sender != C1:
            return []
        return altered(message, arrays={**message.arrays, "test": Array.of(np.zeros((5, 1)))})

    office = run(Attacked(config, shards(plan(config)), attack))
    assert texts(office) == {"it has an array 'test', which was not requested"}
    assert {end.status for end in office.ends.values()} == {"finished"}


# The past, the future and other runs


def test_a_message_of_another_run_is_refused(data, reference):
    def attack(message):
        bound = message.kind not in ("hello", "enrol", "who", "welcome", "want", "stop", "bye")
        return altered(message, run="0" * 32) if bound else []

    office = run(Attacked(CONFIG, data, attack))
    assert_same_run(office, reference)
    assert kinds(office) == {"ready", "opening"} | ROUND_KINDS | PROOF_KINDS
    for text in texts(office):
        assert re.fullmatch(r"it belongs to run '0{32}', not to '[0-9a-f]{32}'", text), text


ROUND_KINDS = {"block", "received", "evaluated", "phi", "scores"}
TO_HUBS = ROUND_KINDS - {"received", "evaluated"}


def to_hubs(message):
    return message.kind in TO_HUBS and message.receiver.startswith("hub.")


def test_a_replay_of_an_old_round_is_refused(data, reference):
    """A client that has not heard of the new round yet takes it for a question that is asked again, and answers so."""
    before = {}

    def attack(message):
        old = before.get((message.kind, message.sender, message.receiver))
        before[message.kind, message.sender, message.receiver] = message
        return along(message, encode(old)) if old is not None and old.round < message.round else []

    office = run(Attacked(CONFIG, data, attack))
    assert_same_run(office, reference)
    assert kinds(office) == ROUND_KINDS
    assert {kind for kind, text in office.outcomes if text == "accepted"} <= {"block", "received", "evaluated"}
    for text in texts(office) - {"accepted"}:
        assert re.fullmatch(r"'\w+' of round \d was not requested|it is of round \d, and this is round \d", text), text


@pytest.mark.parametrize("ahead", [-(2**62), -5, 2, 10**12, 2**62])
def test_an_answer_of_no_time_is_refused(data, reference, ahead):
    def attack(message):
        return altered(message, round=message.round + ahead) if to_hubs(message) else []

    office = run(Attacked(CONFIG, data, attack))
    assert_same_run(office, reference)
    assert kinds(office) == TO_HUBS
    for text in texts(office):
        assert re.fullmatch(r"'\w+' of round -?\d+ was not requested|it is of round .*, and this is .*", text), text


def test_messages_that_come_twice_or_thrice_change_nothing(data, reference):
    office = run(Attacked(CONFIG, data, lambda message: 2 * along(message, encode(message))))
    assert_same_run(office, reference)


# A party that knows the run, in the middle of it


@pytest.fixture
def office(data):
    office = InProcess(CONFIG, data, seed=3)
    office.start()
    while office.hubs[HUB].phase != "stepping" or office.hubs[HUB].round < 1:
        assert office.deliver()
    return office


def say(office, kind, sender, receiver, **content):
    hub = office.hubs[HUB]
    message = kind(sender, receiver, hub.round, hub.handshake.run, **content)
    return office.machines[receiver].receive(decode(encode(message), sender=sender, receiver=receiver))


def goes_on(office, reference):
    while office.deliver():
        pass
    assert_same_run(office, reference)


BLOCK = {"weights": Array.of(np.zeros((5, 1)))}
GREETING = dict.fromkeys(("nonce", "secret", "ids", "held_out"), "") | {"protocol": 1, "samples": 1, "config": {}}
MODEL = {"flow": "model", "arrays": BLOCK, "facts": ModelFacts()}
OF_HUBS = {
    "want": (Want, {"what": "phi"}),
    "stop": (Stop, {"status": "refused"}),
    "model": (Part, MODEL),
    "evaluated": (Part, {"flow": "evaluated", "arrays": BLOCK}),
    "who": (Who, {}),
    "hello": (
        Hello,
        dict.fromkeys(("nonce", "secret", "ids", "held_out"), "") | {"protocol": 1, "samples": 1, "config": {}},
    ),
    "checkpoint": (Checkpoint, {"block": BLOCK}),
}


@pytest.mark.parametrize("kind", OF_HUBS)
def test_a_client_cannot_act_as_a_hub(office, reference, kind):
    structure, content = OF_HUBS[kind]
    with pytest.raises(RejectedMessage, match=rf"'{kind}' of round 1 was not requested|not sent 'phi'"):
        say(office, structure, C1, HUB, **content)
    goes_on(office, reference)


def test_a_hub_does_not_send_its_block_unless_all_agreed_to_share_the_model(office, reference):
    with pytest.raises(RejectedMessage, match=r"^a hub was not to send 'model'$"):
        say(office, Part, LAB, HUB, **MODEL)
    assert say(office, Want, LAB, HUB, what="model") == []
    goes_on(office, reference)
    assert set(office.hubs[HUB].rounds.models()) == {HUB}


OF_CLIENTS = {
    "block": (Part, {"flow": "block", "arrays": BLOCK}),
    "summary": (ColumnSummary, {"summary": "{}"}),
    "ready": (Ready, {"feature_shape": (1,)}),
}


@pytest.mark.parametrize("kind", OF_CLIENTS)
def test_a_hub_does_not_send_what_clients_send(office, reference, kind):
    structure, content = OF_CLIENTS[kind]
    with pytest.raises(RejectedMessage, match=rf"^a hub was not to send '{kind}'$"):
        say(office, structure, LAB, HUB, **content)
    goes_on(office, reference)


def test_a_hub_does_not_lead_clients_of_another_silo(office, reference):
    """Its words would have to come over the own hub's link, and say so."""
    message = Stop(LAB, C1, 1, office.hubs[HUB].handshake.run, status="refused")
    with pytest.raises(RejectedMessage, match=r"it says that it is from 'hub\.lab'"):
        decode(encode(message), sender=HUB, receiver=C1)
    goes_on(office, reference)


def test_a_stop_of_another_run_is_refused(office, reference):
    message = Stop(LAB, HUB, 1, "0" * 32, status="refused", reason="an older quarrel")
    with pytest.raises(RejectedMessage, match=r"^it ends run '0{32}', and this is '[0-9a-f]{32}'$"):
        office.machines[HUB].receive(message)
    goes_on(office, reference)
