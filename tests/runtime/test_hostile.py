"""Parties that lie: what they say is refused with a reason, and the run ends with the history that it should have."""

import re
from collections import Counter

import numpy as np
import pytest
from in_process import SECRET, InProcess
from test_machines import RIDGE, with_keys

from tdcd.config.resolve import plan
from tdcd.runtime.process.client_data import ClientData, shards
from tdcd.runtime.protocol.client import Client
from tdcd.runtime.protocol.hub import Hub
from tdcd.runtime.protocol.job import Job
from tdcd.runtime.protocol.structure import Message
from tdcd.runtime.protocol.wire import RejectedMessage, decode, encode
from tdcd.tables.rows import RawRows

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
        is_over = (machine.status if isinstance(machine, Hub) else machine.ending) is not None
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


# Every message, at every party

CLIENT_KINDS = {"hello", "ready", "phi", "block", "scores"}
HUB_KINDS = {"who", "welcome", "begin", "steps", "evaluate", "stop"}


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
    return altered(message, kind="gossip")


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
    unknown_kind: r"a client knows no 'gossip'|nobody (asked for|can use) 'gossip'.*|a hub was not to send 'gossip'"
    r"|it belongs to run .*",
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


def without(name, value):
    return {}


def longer(name, value):
    return {name: np.concatenate([value, value[:1]])}


def deeper(name, value):
    return {name: value[None]}


def other_numbers(name, value):
    return {name: value.astype(np.float32 if value.dtype == np.float64 else np.float64)}


def not_a_number(name, value):
    return {name: np.where(np.arange(value.size).reshape(value.shape) == value.size - 1, np.nan, value)}


def infinite(name, value):
    return {name: np.where(np.arange(value.size).reshape(value.shape) == 0, -np.inf, value)}


WRONG_ARRAYS = {
    without: r"it has no array '[\w/]+'",
    longer: r"'\w+' is \w+ \[.*\], not \w+ \[.*\]|'\w+' is not JSON: .*",
    deeper: r"'\w+' is \w+ \[1, .*\], not \w+ \[.*\]",
    other_numbers: r"'\w+' is float(32|64) \[.*\], not \w+ \[.*\]",
    not_a_number: r"'\w+' has numbers that are not finite",
    infinite: r"'\w+' has numbers that are not finite",
}
OPTIONAL = {"held_out"}


@pytest.mark.parametrize("wrong", WRONG_ARRAYS, ids=lambda wrong: wrong.__name__)
def test_a_wrong_array_is_refused(data, reference, wrong):
    def attack(message):
        if message.kind == "hello" and message.sender in (HUB, LAB):
            return []
        out = []
        for name, value in message.arrays.items():
            is_number = value.dtype.kind == "f" or wrong not in (not_a_number, infinite)
            if value.size and is_number and not (wrong is without and name in OPTIONAL):
                others = {other: part for other, part in message.arrays.items() if other != name}
                out += altered(message, arrays=others | wrong(name, value))
        return out

    office = run(Attacked(CONFIG, data, attack))
    assert_same_run(office, reference)
    assert not office.refused
    with_numbers = {"welcome", "hello", "begin", "steps", "evaluate", "phi", "block", "scores"}
    assert kinds(office) == with_numbers
    for text in texts(office):
        assert re.fullmatch(WRONG_ARRAYS[wrong], text), text


@pytest.mark.parametrize("wrong", [without, deeper, other_numbers], ids=lambda wrong: wrong.__name__)
def test_a_hub_without_settings_is_refused_when_it_says_so(data, reference, wrong):
    def attack(message):
        if message.kind != "hello" or message.sender not in (HUB, LAB):
            return []
        return altered(message, arrays=wrong("config", message.arrays["config"]))

    office = run(Attacked(CONFIG, data, attack))
    assert_same_run(office, reference)
    for text in texts(office):
        assert re.fullmatch(WRONG_ARRAYS[wrong], text), text


def test_scores_of_rows_that_a_client_does_not_have_are_refused():
    config = with_keys(RIDGE, evaluate={"holdout": 0.0}, train={"rounds": 1})

    def attack(message):
        if message.kind != "scores" or message.sender != C1:
            return []
        return altered(message, arrays={**message.arrays, "test": np.zeros((5, 1))})

    office = run(Attacked(config, shards(plan(config)), attack))
    assert texts(office) == {"'test' is float64 [5, 1], not float64 [0, 1]"}
    assert {end.status for end in office.ends.values()} == {"finished"}


# The past, the future and other runs


def test_a_message_of_another_run_is_refused(data, reference):
    def attack(message):
        bound = message.kind not in ("hello", "who", "welcome", "want", "stop", "bye")
        return altered(message, run="0" * 32) if bound else []

    office = run(Attacked(CONFIG, data, attack))
    assert_same_run(office, reference)
    assert kinds(office) == {"ready", "begin", "steps", "evaluate", "phi", "block", "scores"}
    for text in texts(office):
        assert re.fullmatch(r"it belongs to run '0{32}', not to '[0-9a-f]{32}'", text), text


def to_hubs(message):
    return message.receiver.startswith("hub.") and message.kind in ("phi", "block", "scores")


def test_a_replay_of_an_old_round_is_refused(data, reference):
    """A client that has not heard of the new round yet takes it for a question that is asked again, and answers so."""
    before = {}

    def attack(message):
        old = before.get((message.kind, message.sender, message.receiver))
        before[message.kind, message.sender, message.receiver] = message
        return along(message, encode(old)) if old is not None and old.round < message.round else []

    office = run(Attacked(CONFIG, data, attack))
    assert_same_run(office, reference)
    assert kinds(office) == {"begin", "steps", "evaluate", "phi", "block", "scores"}
    assert {kind for kind, text in office.outcomes if text == "accepted"} <= {"begin", "steps", "evaluate"}
    for text in texts(office) - {"accepted"}:
        assert re.fullmatch(r"nobody asked for '\w+' of round \d|it is of round \d, and this is round \d", text), text


@pytest.mark.parametrize("ahead", [-(10**30), -5, 2, 10**12, 10**30])
def test_an_answer_of_no_time_is_refused(data, reference, ahead):
    def attack(message):
        return altered(message, round=message.round + ahead) if to_hubs(message) else []

    office = run(Attacked(CONFIG, data, attack))
    assert_same_run(office, reference)
    assert kinds(office) == {"phi", "block", "scores"}
    for text in texts(office):
        assert re.fullmatch(r"nobody asked for '\w+' of round -?\d+|it is of round .*, and this is .*", text), text


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
    message = Message(kind, sender, receiver, content.pop("round", hub.round), hub.handshake.run, **content)
    return office.machines[receiver].receive(decode(encode(message), sender=sender, receiver=receiver))


def goes_on(office, reference):
    while office.deliver():
        pass
    assert_same_run(office, reference)


@pytest.mark.parametrize("kind", ["want", "stop", "model", "begin", "who", "checkpoint", ""])
def test_a_client_cannot_act_as_a_hub(office, reference, kind):
    with pytest.raises(RejectedMessage, match=rf"nobody asked for '{kind}' of round 1"):
        say(office, kind, C1, HUB, note={"kind": "phi", "status": "refused"})
    goes_on(office, reference)


def test_a_hub_does_not_send_its_block_unless_all_agreed_to_share_the_model(office, reference):
    with pytest.raises(RejectedMessage, match=r"^a hub was not to send 'model'$"):
        say(office, "model", LAB, HUB, arrays={"weights": np.zeros((5, 1))})
    assert say(office, "want", LAB, HUB, note={"kind": "model"}) == []
    goes_on(office, reference)
    assert set(office.hubs[HUB].rounds.models()) == {HUB}


@pytest.mark.parametrize("kind", ["block", "summary", "hello "])
def test_a_hub_does_not_send_what_clients_send(office, reference, kind):
    with pytest.raises(RejectedMessage, match=rf"^a hub was not to send '{kind}'$"):
        say(office, kind, LAB, HUB, arrays={"weights": np.zeros((5, 1))})
    goes_on(office, reference)


def test_a_hub_does_not_lead_clients_of_another_silo(office, reference):
    """Its words would have to come over the own hub's link, and say so."""
    message = Message("stop", LAB, C1, 1, office.hubs[HUB].handshake.run, {"status": "refused"})
    with pytest.raises(RejectedMessage, match=r"it says that it is from 'hub\.lab'"):
        decode(encode(message), sender=HUB, receiver=C1)
    goes_on(office, reference)


def test_a_stop_of_another_run_is_refused(office, reference):
    message = Message("stop", LAB, HUB, 1, "0" * 32, {"status": "refused", "reason": "an older quarrel"})
    with pytest.raises(RejectedMessage, match=r"^it ends run '0{32}', and this is '[0-9a-f]{32}'$"):
        office.machines[HUB].receive(message)
    goes_on(office, reference)


# Words that are not as they should be

ODD = [None, [], {}, -1, 10**30, "x", True, 1.5, [[1]], {"a": 1}, [-1], [None], "\ud800", [10**30]]


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
    """The message with one of its words, or one of its packed arrays, replaced by something else."""
    for name in message.note:
        yield message.replace(note={key: value for key, value in message.note.items() if key != name})
        for odd in ODD:
            yield message.replace(note={**message.note, name: odd})
            if isinstance(message.note[name], dict):
                for key in message.note[name]:
                    yield message.replace(note={**message.note, name: {**message.note[name], key: odd}})
    for name, value in message.arrays.items():
        if value.dtype == np.uint8 and name != "held_out":
            for odd in ODD:
                yield message.replace(arrays={**message.arrays, name: pack(odd)})
        for shape in ((0,), (1,), (2, 0), (3, 1)):
            yield message.replace(arrays={**message.arrays, name: np.ones(shape, value.dtype)})


def crashes(recorded, party, kind, sender=""):
    """Errors that would end the party's process, when one message of this kind is odd and the others are genuine."""
    found = set()
    for one in recorded:
        heard = one.heard[party]
        place = next((i for i, m in enumerate(heard) if m.kind == kind and m.sender.startswith(sender)), None)
        for odd in [] if place is None else odd_versions(heard[place]):
            machine = one.fresh(party)
            for message in (*heard[:place], odd, *heard[place : place + 12]):
                try:
                    machine.receive(message)
                except RejectedMessage:
                    continue
                except Exception as error:
                    found.add(f"{type(error).__name__}: {str(error)[:60]}")
                    break
    return found


@pytest.mark.parametrize(
    ("party", "kind", "sender"),
    [
        (HUB, "hello", "client"),
        (HUB, "summary", "client"),
        (HUB, "ready", "client"),
        (HUB, "phi", "client"),
        (HUB, "block", "client"),
        (HUB, "scores", "client"),
        (HUB, "hello", "hub"),
        (HUB, "ready", "hub"),
        (HUB, "phi", "hub"),
        (HUB, "scores", "hub"),
        (HUB, "want", "hub"),
        (HUB, "stop", "hub"),
        (C1, "welcome", "hub"),
        (C1, "prepare", "hub"),
        (C1, "begin", "hub"),
        (C1, "steps", "hub"),
        (C1, "evaluate", "hub"),
        (C1, "stop", "hub"),
    ],
)
def test_odd_words_end_no_process(recorded, party, kind, sender):
    assert crashes(recorded, party, kind, sender) == set()
